//! Normalisation over batches and over neighbouring channels.

use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::product;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::graph::AttrValue;
use crate::kernels::norm::Channels;
use crate::kernels::norm::LocalResponse;
use crate::tensor::Shape;

/// Returns the attributes of `LRN`.
pub(in crate::backend) fn lrn_attrs(
    node: &KernelConstruction<'_>,
) -> Result<LocalResponse, KernelError> {
    let radius = match node.attrs.get("depth_radius") {
        None => 5,
        Some(AttrValue::Int(radius)) if *radius > i64::from(i32::MAX) => {
            return Err(KernelError::invalid(format!(
                "depth_radius = {radius} larger than int max"
            )));
        }
        Some(AttrValue::Int(radius)) => usize::try_from(*radius).map_err(|_| {
            KernelError::invalid(format!("depth_radius = {radius} must not be negative"))
        })?,
        Some(_) => return Err(bad_attr(node, "depth_radius", "int")),
    };
    Ok(LocalResponse {
        radius,
        bias: float_attr(node, "bias", 1.0)?,
        alpha: float_attr(node, "alpha", 1.0)?,
        beta: float_attr(node, "beta", 0.5)?,
    })
}

/// Returns the number of channels of an input of `LRN`.
pub(in crate::backend) fn lrn_channels(input: &Shape) -> Result<usize, KernelError> {
    match *input.dims() {
        [_, _, _, channels] => Ok(channels),
        [] => Err(KernelError::invalid(
            "in must be 4-dimensional, found a scalar",
        )),
        _ => Err(KernelError::invalid(format!(
            "in must be 4-dimensional, found {input}"
        ))),
    }
}

/// The attributes of a batch normalisation.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct BatchNorm {
    rank: usize,
    channels_first: bool,
    pub(in crate::backend) epsilon: f32,
    /// `None` if mean and variance are inputs.
    pub(in crate::backend) training: Option<Training>,
    pub(in crate::backend) has_third_space: bool,
}

#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct Training {
    /// The weight of this batch in the running mean and variance.
    pub(in crate::backend) factor: f32,
}

impl BatchNorm {
    /// Reads the attributes.
    pub(in crate::backend) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let (rank, channels_first) = match string_attr(node, "data_format", "NHWC")? {
            "NHWC" => (4, false),
            "NCHW" => (4, true),
            "NDHWC" if node.op == "FusedBatchNormV3" => (5, false),
            "NCDHW" if node.op == "FusedBatchNormV3" => (5, true),
            other => {
                return Err(KernelError::invalid(format!(
                    "attribute `data_format` is `{other}`; expected `NHWC` or `NCHW`"
                )));
            }
        };
        let factor = float_attr(node, "exponential_avg_factor", 1.0)?;
        Ok(Self {
            rank,
            channels_first,
            epsilon: float_attr(node, "epsilon", 1e-4)?,
            training: bool_attr(node, "is_training", true)?.then_some(Training { factor }),
            has_third_space: node.op == "FusedBatchNormV3",
        })
    }

    /// Returns the channels of an input of this shape.
    pub(in crate::backend) fn channels(&self, input: &Shape) -> Result<Channels, KernelError> {
        let dims = input.dims();
        if dims.len() != self.rank {
            return Err(KernelError::invalid(format!(
                "input must be {}-dimensional: {input}",
                self.rank
            )));
        }
        let axis = if self.channels_first {
            1
        } else {
            self.rank - 1
        };
        Ok(Channels {
            outer: product(&dims[..axis]),
            channels: dims[axis],
            inner: product(&dims[axis + 1..]),
        })
    }

    /// Checks that a tensor has one number per channel of the input. A tensor that is not read may
    /// have any length.
    pub(in crate::backend) fn check_given(
        &self,
        name: &str,
        given: &Shape,
        channels: Channels,
        input: &Shape,
    ) -> Result<(), KernelError> {
        let n = channels.channels;
        let is_read = matches!(name, "scale" | "offset") || self.reads_old();
        if given.rank() != 1 || is_read && given.dims() != [n] {
            return Err(KernelError::invalid(format!(
                "{name} must have the same number of elements as the channels of x, got {given} and {n} (x {input})"
            )));
        }
        Ok(())
    }

    /// Returns whether the input mean and variance are used.
    pub(in crate::backend) fn reads_old(&self) -> bool {
        self.training.is_none_or(|training| training.factor != 1.0)
    }
}
