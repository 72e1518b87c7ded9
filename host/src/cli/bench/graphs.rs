//! Graphs whose runs repeat one kernel many times, so that the fixed cost of a run does not count.

use std::sync::Arc;

use anyhow::Result;

#[cfg(any(feature = "cuda", feature = "opencl"))]
use crate::builder::Conv2d;
use crate::builder::Float;
use crate::builder::GraphBuilder;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use crate::builder::Padding;
use crate::builder::Scalar;
use crate::builder::Scope;
use crate::builder::Value;
use crate::graph::Graph;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::Shape;

/// Matmuls or elementwise kernels in one run.
pub(super) const N_KERNELS: usize = 8;

/// Columns of the tensors of elementwise kernels.
#[cfg(feature = "opencl")]
pub(super) const ROW: usize = 1024;

/// Layers of the network of convolutions.
#[cfg(feature = "opencl")]
const N_LAYERS: usize = 4;

/// Name of the last node of each graph.
pub(super) const LAST: &str = "last";

/// Nodes of [`BenchGraph::overlap`]: the feed on the device, and the feed after all matmuls.
#[cfg(feature = "cuda")]
pub(super) const COPIED: &str = "copied";
#[cfg(feature = "cuda")]
pub(super) const BOTH: &str = "both";

/// Elementwise kernels.
#[cfg(feature = "opencl")]
#[derive(Debug, Clone, Copy)]
pub(super) enum Elementwise {
    Add,
    Mul,
    Relu,
    /// A row is added to each row.
    AddRow,
}

#[cfg(feature = "opencl")]
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

/// An element type of matmuls.
pub(super) trait Factor: Scalar + Float {
    /// Relative error of sums of which each is of a thousand others, and of a factor that is
    /// rounded.
    const TOLERANCE: f32;

    fn of_f32(value: f32) -> Self;
}

impl Factor for f32 {
    const TOLERANCE: f32 = 1e-4;

    fn of_f32(value: f32) -> Self {
        value
    }
}

impl Factor for half::bf16 {
    /// Eight times that of a factor with eight bits, and then some.
    const TOLERANCE: f32 = 0.05;

    fn of_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// The value of each element of a graph's last node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) value: f32,
    /// Relative.
    pub(super) tolerance: f32,
}

/// A graph without feeds, and its expected result.
pub(super) struct BenchGraph {
    pub(super) graph: Graph,
    pub(super) expected: Option<Expected>,
}

impl BenchGraph {
    /// Matmuls of square matrices, each of the one before. `is_weight`: their second factor is a
    /// constant, which a device may bring into whatever order it likes, once.
    pub(super) fn matmuls<T: Factor>(side: usize, is_weight: bool) -> Result<Self> {
        let b = GraphBuilder::new("matmuls");
        add_matmuls::<T>(&b, side, N_KERNELS, is_weight)?;
        Ok(Self::expecting(b, 1.0, T::TOLERANCE))
    }

    #[cfg(feature = "opencl")]
    pub(super) fn elementwise(case: Elementwise, n_rows: usize) -> Result<Self> {
        let b = GraphBuilder::new(case.name());
        let x = full(&b, [n_rows, ROW], 1f32)?;
        let other = match case {
            Elementwise::AddRow => full(&b, [1, ROW], 1f32)?,
            _ => full(&b, [n_rows, ROW], 1f32)?,
        };
        let expected = match case {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            Elementwise::Add | Elementwise::AddRow => 1.0 + N_KERNELS as f32,
            Elementwise::Mul | Elementwise::Relu => 1.0,
        };
        add_chain(&b, N_KERNELS, x, |b, y| {
            Ok(match case {
                Elementwise::Add | Elementwise::AddRow => b.add(y, other)?,
                Elementwise::Mul => b.mul(y, other)?,
                Elementwise::Relu => b.relu(y)?,
            })
        })?;
        Ok(Self::expecting(b, expected, f32::TOLERANCE))
    }

    /// Additions of one element, each to the one before.
    pub(super) fn chain(n: usize) -> Result<Self> {
        let b = GraphBuilder::new("chain");
        let x = full(&b, [1], 1f32)?;
        add_chain(&b, n, x, |b, y| Ok(b.add(y, x)?))?;
        #[expect(clippy::cast_precision_loss, reason = "small enough to be exact")]
        let expected = 1.0 + n as f32;
        Ok(Self::expecting(b, expected, f32::TOLERANCE))
    }

    /// Matmuls as in [`Self::matmuls`], and beside them floats that are fed as `x`: [`LAST`] is
    /// the matmuls alone, [`COPIED`] what was fed alone, [`BOTH`] comes after both.
    #[cfg(feature = "cuda")]
    pub(super) fn overlap(side: usize, n_matmuls: usize) -> Result<Self> {
        let b = GraphBuilder::new("overlap");
        let x = b.placeholder::<f32>("x", [Option::<usize>::None])?;
        b.named(COPIED).identity(x)?;
        let last = add_matmuls::<f32>(&b, side, n_matmuls, true)?;
        let after = b.control_dependencies([last.operation()]).named(BOTH);
        after.identity(x)?;
        Ok(Self::expecting(b, 1.0, f32::TOLERANCE))
    }

    /// Convolutions of square images, each of the one before, with as many channels as it has, and
    /// windows of `taps` times `taps` pixels.
    #[cfg(feature = "cuda")]
    pub(super) fn convolved<T: Factor>([side, channels, taps]: [usize; 3]) -> Result<Self> {
        let b = GraphBuilder::new("convolutions");
        let x = full(&b, [1, side, side, channels], T::of_f32(1.0))?;
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let factor = T::of_f32(1.0 / (taps * taps * channels) as f32);
        let filter = full(&b, [taps, taps, channels, channels], factor)?;
        let windows = || Conv2d::new(Padding::Same);
        add_chain(&b, N_KERNELS, x, |b, y| {
            Ok(b.conv2d(y, filter, windows())?)
        })?;
        Ok(Self {
            graph: b.finish(),
            // Pixels near the edges are smaller.
            expected: None,
        })
    }

    /// A small network of convolutions, biases and activations.
    #[cfg(feature = "opencl")]
    pub(super) fn convolutions() -> Result<Self> {
        let b = GraphBuilder::new("convolutions");
        let x = full(&b, [1, 56, 56, 64], 1f32)?;
        let filters = full(&b, [3, 3, 64, 64], 1f32 / (9.0 * 64.0))?;
        let bias = full(&b, [64], 0f32)?;
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

    fn expecting(b: GraphBuilder, value: f32, tolerance: f32) -> Self {
        Self {
            graph: b.finish(),
            expected: Some(Expected { value, tolerance }),
        }
    }
}

/// Adds `n` matmuls whose results have elements of 1.
fn add_matmuls<T: Factor>(
    b: &GraphBuilder,
    side: usize,
    n: usize,
    is_weight: bool,
) -> Result<Value<T>> {
    let x = full(b, [side, side], T::of_f32(1.0))?;
    // Sums of a row are 1 then, but for rounding.
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let mut factor = full(b, [side, side], T::of_f32(1.0 / side as f32))?;
    if !is_weight {
        factor = b.relu(factor)?;
    }
    add_chain(b, n, x, |b, y| Ok(b.matmul(y, factor)?))
}

/// Adds a chain of `n` nodes; [`LAST`] is the output of the last one.
fn add_chain<T: Scalar>(
    b: &GraphBuilder,
    n: usize,
    first: Value<T>,
    next: impl Fn(&Scope, Value<T>) -> Result<Value<T>>,
) -> Result<Value<T>> {
    let mut y = first;
    let mut links = Vec::with_capacity(n);
    for _ in 0..n {
        y = next(b, y)?;
        links.push(y.operation());
    }
    // A node that waits for each of them keeps them from being fused.
    let each = b.control_dependencies(links).no_op()?;
    let last = b.control_dependencies([each]).named(LAST);
    Ok(last.identity(y)?)
}

/// A constant whose elements are equal, and take no memory but the device's.
fn full<T: Scalar, const N: usize>(
    b: &GraphBuilder,
    shape: [usize; N],
    value: T,
) -> Result<Value<T>> {
    let data = LiteralData::RepeatLast(Arc::new(T::to_bytes(&[value])));
    let literal = Literal::new(T::ELEMENT, Shape::new(&shape), data)?;
    Ok(b.literal(literal)?)
}
