//! Writes random programs that end.

use placewright::tensor::DType;

use super::program::Binary;
use super::program::Block;
use super::program::Comparison;
use super::program::Data;
use super::program::Kind;
use super::program::Line;
use super::program::Program;
use super::program::Statement;
use super::program::Unary;
use crate::sample::Random;

/// Maximum depth of blocks in blocks.
const DEPTH_MAX: usize = 4;

const SHAPES: [&[usize]; 4] = [&[], &[2], &[3], &[2, 3]];

/// Returns the program of this seed. `n_statements` limits its size: a smaller limit gives a
/// smaller program.
pub(super) fn program(seed: u64, n_statements: usize, n_devices: usize) -> Program {
    let feeds = vec![
        Kind::INDEX,
        Kind::PREDICATE,
        kind(DType::F32, 0),
        kind(DType::F32, 3),
        kind(DType::I32, 1),
    ];
    let mut random = Random::new(seed);
    let variables: Vec<(Data, usize)> = (0..2)
        .map(|_| {
            let dtype = [DType::F32, DType::I32][random.below(2)];
            let kind = kind(dtype, random.below(SHAPES.len()));
            (data(&mut random, kind), random.below(n_devices))
        })
        .collect();
    let mut generator = Generator {
        random,
        kinds: feeds.clone(),
        functions: Vec::new(),
        variables: variables.iter().map(|(data, _)| data.kind).collect(),
        n_left: n_statements,
        n_devices,
    };
    let main = generator.block(0, &[], Wanted::Some(4), Vec::new());
    Program {
        feeds,
        variables,
        main,
    }
}

/// Returns random elements.
pub(super) fn data(random: &mut Random, kind: Kind) -> Data {
    let bits = (0..kind.n_elements()).map(|_| match kind.dtype {
        DType::F32 => ((random.below(13) as f32 - 6.0) * 0.5).to_bits(),
        DType::I32 => (i32::try_from(random.below(8)).unwrap() - 3).cast_unsigned(),
        _ => u32::try_from(random.below(2)).unwrap(),
    });
    Data {
        bits: bits.collect(),
        kind,
    }
}

fn kind(dtype: DType, shape: usize) -> Kind {
    Kind {
        dtype,
        dims: SHAPES[shape],
    }
}

/// What a block returns.
enum Wanted<'a> {
    /// Values of these kinds.
    Kinds(&'a [Kind]),
    /// At most this many values of any kind.
    Some(usize),
}

#[derive(Clone)]
struct Signature {
    parameters: Vec<Kind>,
    results: Vec<Kind>,
    has_effects: bool,
}

struct Generator {
    random: Random,
    /// Kinds of the values in sight.
    kinds: Vec<Kind>,
    functions: Vec<Signature>,
    variables: Vec<Kind>,
    /// Number of statements that may still be written.
    n_left: usize,
    n_devices: usize,
}

/// A block that is being written.
struct Draft {
    lines: Vec<Line>,
    has_effects: bool,
}

impl Generator {
    fn one_in(&mut self, n: usize) -> bool {
        self.random.below(n) == 0
    }

    /// Writes a block, which begins with some lines and sees `parameters`.
    fn block(
        &mut self,
        depth: usize,
        parameters: &[Kind],
        wanted: Wanted<'_>,
        first: Vec<(Statement, Vec<Kind>)>,
    ) -> Block {
        self.block_with(depth, parameters, first, |generator, draft| match wanted {
            Wanted::Kinds(kinds) => {
                let kinds = kinds.iter();
                kinds.map(|&kind| generator.pick(draft, kind)).collect()
            }
            Wanted::Some(n) => {
                let n = 1 + generator.random.below(n);
                let n_values = generator.kinds.len();
                // Rather the last values, which depend on the others.
                let pick = |generator: &mut Self| match generator.random.below(3) {
                    0 => generator.random.below(n_values),
                    _ => n_values - 1 - generator.random.below(n_values.min(4)),
                };
                (0..n).map(|_| pick(generator)).collect()
            }
        })
    }

    fn block_with(
        &mut self,
        depth: usize,
        parameters: &[Kind],
        first: Vec<(Statement, Vec<Kind>)>,
        results: impl FnOnce(&mut Self, &mut Draft) -> Vec<usize>,
    ) -> Block {
        let (n_values, n_functions) = (self.kinds.len(), self.functions.len());
        self.kinds.extend(parameters);
        let mut draft = Draft {
            lines: Vec::new(),
            has_effects: false,
        };
        for (statement, kinds) in first {
            self.write(&mut draft, statement, &kinds, false);
        }
        let n_lines = match depth {
            0 => self.n_left,
            _ => self.random.below(6),
        };
        for _ in 0..n_lines {
            if self.n_left == 0 {
                break;
            }
            self.n_left -= 1;
            self.line(depth, &mut draft);
        }
        let results = results(self, &mut draft);
        self.kinds.truncate(n_values);
        self.functions.truncate(n_functions);
        Block {
            lines: draft.lines,
            results,
            has_effects: draft.has_effects,
        }
    }

    /// Adds a statement with results of these kinds, and returns the number of the first.
    fn write(
        &mut self,
        draft: &mut Draft,
        statement: Statement,
        kinds: &[Kind],
        has_effects: bool,
    ) -> usize {
        // Reading and assigning nodes are where the variable is.
        let is_of_variable = matches!(
            statement,
            Statement::AssignAdd { .. } | Statement::Read { .. }
        );
        let requests = !is_of_variable && self.one_in(3);
        let device = requests.then(|| self.random.below(self.n_devices));
        draft.lines.push(Line { statement, device });
        draft.has_effects |= has_effects;
        self.kinds.extend(kinds);
        self.kinds.len() - kinds.len()
    }

    fn constant(&mut self, draft: &mut Draft, kind: Kind) -> usize {
        let data = data(&mut self.random, kind);
        self.write(draft, Statement::Constant(data), &[kind], false)
    }

    fn index(&mut self, draft: &mut Draft, value: i32) -> usize {
        let data = Data {
            kind: Kind::INDEX,
            bits: vec![value.cast_unsigned()],
        };
        self.write(draft, Statement::Constant(data), &[Kind::INDEX], false)
    }

    /// Returns a value of this kind, from any block around.
    fn pick(&mut self, draft: &mut Draft, kind: Kind) -> usize {
        let of_kind = |(index, found): (usize, &Kind)| (*found == kind).then_some(index);
        let found: Vec<usize> = self.kinds.iter().enumerate().filter_map(of_kind).collect();
        if found.is_empty() {
            return self.constant(draft, kind);
        }
        match self.random.below(2) {
            0 => found[self.random.below(found.len())],
            _ => found[found.len() - 1 - self.random.below(found.len().min(3))],
        }
    }

    fn number_kind(&mut self) -> Kind {
        let dtype = [DType::F32, DType::I32][self.random.below(2)];
        kind(dtype, self.random.below(SHAPES.len()))
    }

    fn line(&mut self, depth: usize, draft: &mut Draft) {
        let may_nest = depth < DEPTH_MAX;
        match self.random.below(20) {
            0..=2 if may_nest => self.cond(depth, draft),
            3 if may_nest => self.case(depth, draft),
            4..=6 if may_nest => self.repeat(depth, draft),
            7 if may_nest => self.function(depth, draft),
            8..=9 if !self.functions.is_empty() => self.call(draft),
            10 => {
                let variable = self.random.below(self.variables.len());
                let value = self.pick(draft, self.variables[variable]);
                let statement = Statement::AssignAdd { variable, value };
                self.write(draft, statement, &[], true);
            }
            11 => {
                let variable = self.random.below(self.variables.len());
                let kind = self.variables[variable];
                self.write(draft, Statement::Read { variable }, &[kind], true);
            }
            _ => self.arithmetic(draft),
        }
    }

    fn arithmetic(&mut self, draft: &mut Draft) {
        let kind = self.number_kind();
        let x = self.pick(draft, kind);
        let scalar = Kind { dims: &[], ..kind };
        let other = if self.one_in(3) { scalar } else { kind };
        let (statement, result) = match self.random.below(10) {
            0 => (Statement::Unary(Unary::Neg, x), kind),
            1 => (Statement::Unary(Unary::Abs, x), kind),
            2 => (Statement::Unary(Unary::Square, x), kind),
            3 if kind.dtype == DType::I32 => {
                let op = [Binary::Maximum, Binary::Minimum][self.random.below(2)];
                let y = self.pick(draft, other);
                (Statement::Binary(op, x, y), kind)
            }
            3 | 4 => {
                let op = [
                    Comparison::Less,
                    Comparison::GreaterEqual,
                    Comparison::Equal,
                ];
                let op = op[self.random.below(3)];
                // Mostly scalars, which decide.
                let x = if self.one_in(4) {
                    x
                } else {
                    self.pick(draft, scalar)
                };
                let y = self.pick(draft, scalar);
                let result = Kind {
                    dtype: DType::Bool,
                    ..self.kinds[x]
                };
                (Statement::Compare(op, x, y), result)
            }
            5 => {
                let condition = self.pick(draft, Kind::PREDICATE);
                let y = self.pick(draft, kind);
                (Statement::Select(condition, x, y), kind)
            }
            6 if kind.dtype == DType::I32 => {
                let result = Kind {
                    dtype: DType::F32,
                    ..kind
                };
                (Statement::ToFloat(x), result)
            }
            7 if !kind.dims.is_empty() => {
                // Sums of more than two floats depend on the order.
                let is_free = kind.dtype == DType::I32 || kind.dims[0] == 2;
                if !is_free {
                    self.constant(draft, kind);
                    return;
                }
                let result = Kind {
                    dims: &kind.dims[1..],
                    ..kind
                };
                (Statement::Sum { of: x, axis: 0 }, result)
            }
            8 => {
                let x = self.pick(draft, Kind::PREDICATE);
                (Statement::Not(x), Kind::PREDICATE)
            }
            9 if self.one_in(3) => {
                self.constant(draft, kind);
                return;
            }
            n => {
                let op = [Binary::Add, Binary::Sub, Binary::Mul][n % 3];
                let y = self.pick(draft, other);
                (Statement::Binary(op, x, y), kind)
            }
        };
        self.write(draft, statement, &[result], false);
    }

    fn some_kinds(&mut self, n_max: usize) -> Vec<Kind> {
        let n = 1 + self.random.below(n_max);
        (0..n).map(|_| self.number_kind()).collect()
    }

    fn cond(&mut self, depth: usize, draft: &mut Draft) {
        let predicate = self.pick(draft, Kind::PREDICATE);
        let kinds = self.some_kinds(3);
        let then = self.block(depth + 1, &[], Wanted::Kinds(&kinds), Vec::new());
        let otherwise = self.block(depth + 1, &[], Wanted::Kinds(&kinds), Vec::new());
        let has_effects = then.has_effects || otherwise.has_effects;
        let statement = Statement::Cond {
            predicate,
            then,
            otherwise,
        };
        self.write(draft, statement, &kinds, has_effects);
    }

    fn case(&mut self, depth: usize, draft: &mut Draft) {
        let index = self.pick(draft, Kind::INDEX);
        let kinds = self.some_kinds(2);
        let n = 1 + self.random.below(3);
        let branches = (0..n).map(|_| {
            let wanted = Wanted::Kinds(&kinds);
            self.block(depth + 1, &[], wanted, Vec::new())
        });
        let branches: Vec<Block> = branches.collect();
        let has_effects = branches.iter().any(|branch| branch.has_effects);
        let statement = Statement::Case { index, branches };
        self.write(draft, statement, &kinds, has_effects);
    }

    fn repeat(&mut self, depth: usize, draft: &mut Draft) {
        let mut kinds = self.some_kinds(3);
        let counter = self.random.below(kinds.len() + 1);
        kinds.insert(counter, Kind::INDEX);
        let start = i32::from(self.one_in(2));
        let start = self.index(draft, start);
        let n = i32::try_from(self.random.below(5)).unwrap();
        let mut limit = self.index(draft, n);
        if self.one_in(3) {
            // A limit that the run computes.
            let x = self.pick(draft, Kind::INDEX);
            let statement = Statement::Binary(Binary::Minimum, limit, x);
            limit = self.write(draft, statement, &[Kind::INDEX], false);
        }
        let mut variables = Vec::with_capacity(kinds.len());
        for (index, &kind) in kinds.iter().enumerate() {
            variables.push(match index == counter {
                true => start,
                false => self.pick(draft, kind),
            });
        }
        let n_values = self.kinds.len();
        let counted = n_values + counter;
        let goes_on = Statement::Compare(Comparison::Less, counted, limit);
        let first = vec![(goes_on, vec![Kind::PREDICATE])];
        let below = n_values + kinds.len();
        let ends_early = self.one_in(4);
        let condition = self.block_with(depth + 1, &kinds, first, |generator, draft| {
            if !ends_early {
                return vec![below];
            }
            let no = Data {
                kind: Kind::PREDICATE,
                bits: vec![0],
            };
            let kinds = [Kind::PREDICATE];
            let no = generator.write(draft, Statement::Constant(no), &kinds, false);
            let predicate = generator.pick(draft, Kind::PREDICATE);
            let both = Statement::Select(predicate, below, no);
            vec![generator.write(draft, both, &kinds, false)]
        });
        let body = self.block_with(depth + 1, &kinds, Vec::new(), |generator, draft| {
            let one = generator.index(draft, 1);
            let next = Statement::Binary(Binary::Add, counted, one);
            let next = generator.write(draft, next, &[Kind::INDEX], false);
            let of_variable = |(index, &kind): (usize, &Kind)| match index == counter {
                true => next,
                false if generator.one_in(4) => n_values + index,
                false => generator.pick(draft, kind),
            };
            kinds.iter().enumerate().map(of_variable).collect()
        });
        let has_effects = condition.has_effects || body.has_effects;
        let maximum = self
            .one_in(4)
            .then(|| i32::try_from(self.random.below(4)).unwrap());
        let parallel = self.one_in(4).then_some(1);
        let statement = Statement::While {
            variables,
            condition,
            body,
            maximum,
            parallel,
        };
        self.write(draft, statement, &kinds, has_effects);
    }

    fn function(&mut self, depth: usize, draft: &mut Draft) {
        let parameters = self.some_kinds(3);
        let kinds = self.some_kinds(2);
        let body = self.block(depth + 1, &parameters, Wanted::Kinds(&kinds), Vec::new());
        self.functions.push(Signature {
            parameters: parameters.clone(),
            results: kinds,
            has_effects: body.has_effects,
        });
        let statement = Statement::Function { parameters, body };
        draft.lines.push(Line {
            statement,
            device: None,
        });
    }

    fn call(&mut self, draft: &mut Draft) {
        let function = self.random.below(self.functions.len());
        let signature = self.functions[function].clone();
        let kinds = signature.parameters.iter();
        let args = kinds.map(|&kind| self.pick(draft, kind)).collect();
        let statement = Statement::Call { function, args };
        self.write(draft, statement, &signature.results, signature.has_effects);
    }
}
