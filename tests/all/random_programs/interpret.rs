//! Runs a program as it is written, one statement after the other.

use placewright::tensor::DType;

use super::program::Binary;
use super::program::Block;
use super::program::Comparison;
use super::program::Data;
use super::program::Kind;
use super::program::Program;
use super::program::Statement;
use super::program::Unary;

/// Runs a program and returns its results, then the last values of its variables.
pub(super) fn interpret(program: &Program, feeds: &[Data]) -> Vec<Data> {
    let variables = program.variables.iter();
    let mut machine = Machine {
        values: feeds.to_vec(),
        functions: Vec::new(),
        variables: variables.map(|(initial, _)| initial.clone()).collect(),
    };
    let mut results = machine.block(&program.main, Vec::new());
    results.extend(machine.variables);
    results
}

struct Machine<'a> {
    values: Vec<Data>,
    /// The functions in sight, with the number of values and functions that they see.
    functions: Vec<(&'a Block, usize, usize)>,
    variables: Vec<Data>,
}

impl<'a> Machine<'a> {
    fn block(&mut self, block: &'a Block, args: Vec<Data>) -> Vec<Data> {
        let (n_values, n_functions) = (self.values.len(), self.functions.len());
        self.values.extend(args);
        for line in &block.lines {
            self.statement(&line.statement);
        }
        let results = block.results.iter();
        let results = results.map(|&value| self.values[value].clone()).collect();
        self.values.truncate(n_values);
        self.functions.truncate(n_functions);
        results
    }

    fn statement(&mut self, statement: &'a Statement) {
        let results = match statement {
            Statement::Constant(data) => vec![data.clone()],
            Statement::Unary(op, x) => vec![unary(*op, &self.values[*x])],
            Statement::Binary(op, x, y) => {
                vec![binary(*op, &self.values[*x], &self.values[*y])]
            }
            Statement::Compare(op, x, y) => {
                vec![compare(*op, &self.values[*x], &self.values[*y])]
            }
            Statement::Not(x) => {
                let x = &self.values[*x];
                let bits = x.bits.iter().map(|&bit| 1 - bit).collect();
                vec![Data { bits, kind: x.kind }]
            }
            Statement::Select(condition, x, y) => {
                let chosen = if self.is_true(*condition) { x } else { y };
                vec![self.values[*chosen].clone()]
            }
            Statement::ToFloat(x) => {
                let x = &self.values[*x];
                let bits = x.bits.iter().map(|&bits| (int(bits) as f32).to_bits());
                let kind = Kind {
                    dtype: DType::F32,
                    ..x.kind
                };
                vec![Data {
                    bits: bits.collect(),
                    kind,
                }]
            }
            Statement::Sum { of, axis } => vec![sum(&self.values[*of], *axis)],
            Statement::Cond {
                predicate,
                then,
                otherwise,
            } => {
                let taken = if self.is_true(*predicate) {
                    then
                } else {
                    otherwise
                };
                self.block(taken, Vec::new())
            }
            Statement::Case { index, branches } => {
                let index = int(self.values[*index].bits[0]);
                let last = branches.len() - 1;
                let index = usize::try_from(index).map_or(last, |index| index.min(last));
                self.block(&branches[index], Vec::new())
            }
            Statement::While {
                variables,
                condition,
                body,
                maximum,
                ..
            } => {
                let mut state: Vec<Data> = variables
                    .iter()
                    .map(|&value| self.values[value].clone())
                    .collect();
                let mut n_left = maximum.map_or(i32::MAX, |n| n);
                loop {
                    let goes_on = self.block(condition, state.clone())[0].bits[0] == 1;
                    if !goes_on || n_left <= 0 {
                        break state;
                    }
                    n_left -= 1;
                    state = self.block(body, state);
                }
            }
            Statement::Function { body, .. } => {
                let sees = (self.values.len(), self.functions.len());
                self.functions.push((body, sees.0, sees.1));
                Vec::new()
            }
            Statement::Call { function, args } => {
                let args = args.iter().map(|&arg| self.values[arg].clone()).collect();
                let (body, n_values, n_functions) = self.functions[*function];
                let values = self.values.split_off(n_values);
                let functions = self.functions.split_off(n_functions);
                let results = self.block(body, args);
                self.values.extend(values);
                self.functions.extend(functions);
                results
            }
            Statement::AssignAdd { variable, value } => {
                let held = &self.variables[*variable];
                self.variables[*variable] = binary(Binary::Add, held, &self.values[*value]);
                Vec::new()
            }
            Statement::Read { variable } => vec![self.variables[*variable].clone()],
        };
        self.values.extend(results);
    }

    fn is_true(&self, value: usize) -> bool {
        self.values[value].bits[0] == 1
    }
}

fn int(bits: u32) -> i32 {
    bits.cast_signed()
}

/// Applies a function to each element.
fn each(x: &Data, of_int: impl Fn(i32) -> i32, of_float: impl Fn(f32) -> f32) -> Data {
    let is_float = x.kind.dtype == DType::F32;
    let bits = x.bits.iter().map(|&bits| match is_float {
        true => of_float(f32::from_bits(bits)).to_bits(),
        false => of_int(int(bits)).cast_unsigned(),
    });
    Data {
        kind: x.kind,
        bits: bits.collect(),
    }
}

fn unary(op: Unary, x: &Data) -> Data {
    match op {
        Unary::Neg => each(x, i32::wrapping_neg, |x| -x),
        Unary::Abs => each(x, i32::wrapping_abs, f32::abs),
        Unary::Square => each(x, |x| x.wrapping_mul(x), |x| x * x),
    }
}

/// Pairs the elements of two values of one shape, or of a value and a scalar.
fn pairs(x: &Data, y: &Data) -> Vec<(u32, u32)> {
    let ys = y.bits.iter().cycle();
    x.bits.iter().copied().zip(ys.copied()).collect()
}

fn binary(op: Binary, x: &Data, y: &Data) -> Data {
    let is_float = x.kind.dtype == DType::F32;
    let of = |(x, y): (u32, u32)| {
        if is_float {
            let (x, y) = (f32::from_bits(x), f32::from_bits(y));
            let result = match op {
                Binary::Add => x + y,
                Binary::Sub => x - y,
                Binary::Mul => x * y,
                Binary::Maximum | Binary::Minimum => unreachable!("only of integers"),
            };
            return result.to_bits();
        }
        let (x, y) = (int(x), int(y));
        let result = match op {
            Binary::Add => x.wrapping_add(y),
            Binary::Sub => x.wrapping_sub(y),
            Binary::Mul => x.wrapping_mul(y),
            Binary::Maximum => x.max(y),
            Binary::Minimum => x.min(y),
        };
        result.cast_unsigned()
    };
    Data {
        kind: x.kind,
        bits: pairs(x, y).into_iter().map(of).collect(),
    }
}

fn compare(op: Comparison, x: &Data, y: &Data) -> Data {
    fn holds<T: PartialOrd>(op: Comparison, x: T, y: T) -> bool {
        match op {
            Comparison::Less => x < y,
            Comparison::GreaterEqual => x >= y,
            Comparison::Equal => x == y,
        }
    }
    let is_float = x.kind.dtype == DType::F32;
    let of = |(x, y): (u32, u32)| {
        u32::from(match is_float {
            true => holds(op, f32::from_bits(x), f32::from_bits(y)),
            false => holds(op, int(x), int(y)),
        })
    };
    Data {
        kind: Kind {
            dtype: DType::Bool,
            ..x.kind
        },
        bits: pairs(x, y).into_iter().map(of).collect(),
    }
}

fn sum(x: &Data, axis: usize) -> Data {
    let dims = x.kind.dims;
    let inner: usize = dims[axis + 1..].iter().product();
    let outer: usize = dims[..axis].iter().product();
    let kind = Kind {
        dtype: x.kind.dtype,
        dims: &dims[..axis],
    };
    // Either the first or the last axis, so that the shape is a part of this one.
    let kind = match axis {
        0 => Kind {
            dims: &dims[1..],
            ..kind
        },
        _ => kind,
    };
    let mut bits = Vec::with_capacity(outer * inner);
    for block in 0..outer {
        for column in 0..inner {
            let at = |row: usize| x.bits[(block * dims[axis] + row) * inner + column];
            let rows = (1..dims[axis]).map(at);
            bits.push(match x.kind.dtype {
                DType::F32 => {
                    let first = f32::from_bits(at(0));
                    rows.fold(first, |sum, x| sum + f32::from_bits(x)).to_bits()
                }
                _ => rows.fold(at(0), u32::wrapping_add),
            });
        }
    }
    Data { kind, bits }
}
