//! BenchGraph whose runs are one thing many times over, so that what a run costs once does not count.

use anyhow::Result;

use super::N_KERNELS;
use crate::builder::Conv2d;
use crate::builder::GraphBuilder;
use crate::builder::Padding;
use crate::builder::Value;
use crate::graph::Graph;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Columns of the tensors of elementwise kernels.
pub(super) const ROW: usize = 1024;

/// Layers of the network of convolutions.
const N_LAYERS: usize = 4;

/// Name of the last node of each graph.
pub(super) const LAST: &str = "last";

/// Kernels that compute each element from those at its place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Elementwise {
    Add,
    Mul,
    Relu,
    /// A row is added to each row.
    AddRow,
}

impl Elementwise {
    pub(super) const ALL: [Self; 4] = [Self::Add, Self::Mul, Self::Relu, Self::AddRow];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Mul => "mul",
            Self::Relu => "relu",
            Self::AddRow => "add a row",
        }
    }

    /// Tensors of the full size that a kernel reads and writes.
    pub(super) fn n_streams(self) -> f64 {
        match self {
            Self::Add | Self::Mul => 3.0,
            Self::Relu | Self::AddRow => 2.0,
        }
    }
}

/// A graph that is fed nothing, and what each element of its last node must be.
pub(super) struct BenchGraph {
    pub(super) graph: Graph,
    pub(super) expected: Option<f32>,
}

impl BenchGraph {
    /// Products of square matrices, each of the one before. `is_weight`: their second factor is a constant, which a device may bring
    /// into whatever order it likes, once.
    pub(super) fn products(side: usize, is_weight: bool) -> Result<Self> {
        let b = GraphBuilder::new("products");
        let x = full(&b, [side, side], 1.0)?;
        // Sums of a row are 1 then, but for rounding.
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let mut factor = full(&b, [side, side], 1.0 / side as f32)?;
        if !is_weight {
            factor = b.relu(factor)?;
        }
        Self::chain_of(b, N_KERNELS, x, 1.0, |b, y| Ok(b.matmul(y, factor)?))
    }

    pub(super) fn elementwise(case: Elementwise, n_rows: usize) -> Result<Self> {
        let b = GraphBuilder::new(case.name());
        let x = full(&b, [n_rows, ROW], 1.0)?;
        let other = match case {
            Elementwise::AddRow => full(&b, [1, ROW], 1.0)?,
            _ => full(&b, [n_rows, ROW], 1.0)?,
        };
        let expected = match case {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            Elementwise::Add | Elementwise::AddRow => 1.0 + N_KERNELS as f32,
            Elementwise::Mul | Elementwise::Relu => 1.0,
        };
        Self::chain_of(b, N_KERNELS, x, expected, |b, y| {
            Ok(match case {
                Elementwise::Add | Elementwise::AddRow => b.add(y, other)?,
                Elementwise::Mul => b.mul(y, other)?,
                Elementwise::Relu => b.relu(y)?,
            })
        })
    }

    /// Additions of one element, each to the one before.
    pub(super) fn chain(n: usize) -> Result<Self> {
        let b = GraphBuilder::new("chain");
        let x = full(&b, [1], 1.0)?;
        #[expect(clippy::cast_precision_loss, reason = "small enough to be exact")]
        Self::chain_of(b, n, x, 1.0 + n as f32, |b, y| Ok(b.add(y, x)?))
    }

    /// A small network of convolutions, biases and activations.
    pub(super) fn convolutions() -> Result<Self> {
        let b = GraphBuilder::new("convolutions");
        let x = full(&b, [1, 56, 56, 64], 1.0)?;
        let filters = full(&b, [3, 3, 64, 64], 1.0 / (9.0 * 64.0))?;
        let bias = full(&b, [64], 0.0)?;
        let mut y = x;
        for layer in 0..N_LAYERS {
            let convolved = b.conv2d(y, filters, Conv2d::new(Padding::Same))?;
            let biased = b.bias_add(convolved, bias)?;
            y = if layer + 1 == N_LAYERS {
                b.named(LAST).relu(biased)?
            } else {
                b.relu(biased)?
            };
        }
        Ok(Self {
            graph: b.finish(),
            expected: None,
        })
    }

    fn chain_of(
        b: GraphBuilder,
        n: usize,
        first: Value<f32>,
        expected: f32,
        next: impl Fn(&GraphBuilder, Value<f32>) -> Result<Value<f32>>,
    ) -> Result<Self> {
        let mut y = first;
        let mut links = Vec::with_capacity(n);
        for _ in 0..n {
            y = next(&b, y)?;
            links.push(y.operation());
        }
        // Who waits for each of them keeps them from being computed as one.
        let each = b.control_dependencies(links).no_op()?;
        let last = b.control_dependencies([each]).named(LAST);
        last.identity(y)?;
        Ok(Self {
            graph: b.finish(),
            expected: Some(expected),
        })
    }
}

/// A constant whose elements are one number.
fn full<const N: usize>(b: &GraphBuilder, shape: [usize; N], value: f32) -> Result<Value<f32>> {
    let len = shape.iter().product();
    let shape = Shape::new(&shape);
    let tensor = Tensor::from_values(shape, &vec![value; len])?;
    Ok(b.tensor(&tensor)?)
}
