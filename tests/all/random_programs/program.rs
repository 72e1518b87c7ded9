//! Programs: what the generator writes, the builder builds and the interpreter runs.
//!
//! Values are numbered in the order in which they are computed. A block also sees the values of the
//! blocks around it; its own numbers continue theirs, and end with it.

use std::fmt;

use placewright::tensor::DType;

/// Type and shape of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) dtype: DType,
    pub(super) dims: &'static [usize],
}

impl Kind {
    pub(super) const INDEX: Self = Self {
        dtype: DType::I32,
        dims: &[],
    };
    pub(super) const PREDICATE: Self = Self {
        dtype: DType::Bool,
        dims: &[],
    };

    pub(super) fn n_elements(self) -> usize {
        self.dims.iter().product()
    }
}

/// The elements of a value; those of f32 by their bits, those of bool as 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Data {
    pub(super) kind: Kind,
    pub(super) bits: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unary {
    Neg,
    Abs,
    Square,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    /// Only of integers: the sign of the maximum of two zeros is not specified.
    Maximum,
    Minimum,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Less,
    GreaterEqual,
    Equal,
}

/// A statement. Operands are numbers of values.
#[derive(Debug, Clone)]
pub(super) enum Statement {
    Constant(Data),
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    Compare(Comparison, usize, usize),
    Not(usize),
    Select(usize, usize, usize),
    ToFloat(usize),
    Sum {
        of: usize,
        axis: usize,
    },
    Cond {
        predicate: usize,
        then: Block,
        otherwise: Block,
    },
    Case {
        index: usize,
        branches: Vec<Block>,
    },
    While {
        variables: Vec<usize>,
        condition: Block,
        body: Block,
        maximum: Option<i32>,
        parallel: Option<u32>,
    },
    /// Defines a function. It has no value; functions are numbered like values.
    Function {
        parameters: Vec<Kind>,
        body: Block,
    },
    Call {
        function: usize,
        args: Vec<usize>,
    },
    /// Adds to a variable, after the effects before it.
    AssignAdd {
        variable: usize,
        value: usize,
    },
    /// Reads a variable, after the effects before it.
    Read {
        variable: usize,
    },
}

/// A statement with the devices that its nodes request.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) statement: Statement,
    pub(super) device: Option<usize>,
}

/// Statements, and the values that they return.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) lines: Vec<Line>,
    pub(super) results: Vec<usize>,
    /// Whether a statement in it, or in a function that it calls, has an effect.
    pub(super) has_effects: bool,
}

/// A whole program.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// Kinds of the first values, which runs feed.
    pub(super) feeds: Vec<Kind>,
    /// Initial values of the variables, with their devices.
    pub(super) variables: Vec<(Data, usize)>,
    pub(super) main: Block,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kind) in self.feeds.iter().enumerate() {
            writeln!(f, "%{index} = feed {kind}")?;
        }
        for (index, (initial, device)) in self.variables.iter().enumerate() {
            writeln!(f, "variable{index} = {initial} on CPU:{device}")?;
        }
        self.main.write(f, 0, self.feeds.len(), &[])
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.dims)
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [", self.kind)?;
        for &bits in &self.bits {
            match self.kind.dtype {
                DType::F32 => write!(f, " {:?}", f32::from_bits(bits))?,
                _ => write!(f, " {}", bits.cast_signed())?,
            }
        }
        f.write_str(" ]")
    }
}

impl Block {
    /// Writes the block; its first value has number `next`. `results` says how many values each
    /// function in sight returns.
    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        depth: usize,
        mut next: usize,
        results: &[usize],
    ) -> fmt::Result {
        let indent = "  ".repeat(depth);
        let mut results = results.to_vec();
        for line in &self.lines {
            write!(f, "{indent}%{next} = {:?}", Head(&line.statement))?;
            match line.device {
                Some(device) => writeln!(f, " on CPU:{device}")?,
                None => writeln!(f)?,
            }
            let n_args = match &line.statement {
                Statement::While { variables, .. } => variables.len(),
                Statement::Function { parameters, .. } => parameters.len(),
                _ => 0,
            };
            for block in line.statement.blocks() {
                block.write(f, depth + 1, next + n_args, &results)?;
            }
            match &line.statement {
                Statement::Function { body, .. } => results.push(body.results.len()),
                Statement::Call { function, .. } => next += results[*function],
                Statement::AssignAdd { .. } => {}
                Statement::While { variables, .. } => next += variables.len(),
                Statement::Cond { then, .. } => next += then.results.len(),
                Statement::Case { branches, .. } => next += branches[0].results.len(),
                _ => next += 1,
            }
        }
        writeln!(f, "{indent}return {:?}", self.results)
    }
}

impl Statement {
    /// Returns the blocks in it.
    pub(super) fn blocks(&self) -> Vec<&Block> {
        match self {
            Self::Cond {
                then, otherwise, ..
            } => vec![then, otherwise],
            Self::Case { branches, .. } => branches.iter().collect(),
            Self::While {
                condition, body, ..
            } => vec![condition, body],
            Self::Function { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }
}

/// A statement without its blocks.
struct Head<'a>(&'a Statement);

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Statement::Constant(data) => write!(f, "{data}"),
            Statement::Cond { predicate, .. } => write!(f, "if {predicate}"),
            Statement::Case { index, .. } => write!(f, "case {index}"),
            Statement::While {
                variables,
                maximum,
                parallel,
                ..
            } => write!(
                f,
                "while {variables:?} max {maximum:?} parallel {parallel:?}"
            ),
            Statement::Function { parameters, .. } => {
                let parameters = parameters.iter().map(ToString::to_string);
                write!(f, "function {:?}", parameters.collect::<Vec<_>>())
            }
            other => write!(f, "{other:?}"),
        }
    }
}
