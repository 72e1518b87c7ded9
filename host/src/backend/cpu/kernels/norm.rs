//! Normalisation over batches and over neighbouring channels.

use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::bad_attr;
use crate::backend::cpu::kernels::bool_attr;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::float_attr;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::output;
use crate::backend::cpu::kernels::raw::product;
use crate::backend::cpu::kernels::string_attr;
use crate::backend::cpu::kernels::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::graph::AttrValue;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::norm::Channels;
use crate::kernels::norm::LocalResponse;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("FusedBatchNorm")
            .with_types("T", &[DType::F32])
            .with_factory(batch_norm),
    );
    for op in ["FusedBatchNormV2", "FusedBatchNormV3"] {
        registry.register(
            def(op)
                .with_types("T", &[DType::F32, DType::F16, DType::BF16])
                .with_types("U", &[DType::F32])
                .with_factory(batch_norm),
        );
    }
    registry.register(
        def("LRN")
            .with_types("T", &[DType::F32, DType::F16])
            .with_factory(local_response),
    );
}

/// TensorFlow `LRN`.
fn local_response(node: &KernelConstruction<'_>) -> Made {
    let plan = response(node)?;
    dispatch!(type_attr(node, "T")?, [F32: f32, F16: half::f16], T => kernel(move |context| {
        let input = context.input(0)?;
        let channels = response_channels(input.shape())?;
        let x = input.as_slice::<T>()?;
        output(context, input.shape().clone(), |out| {
            plan.apply(x, channels, out, Threads::of(context))
        })
    }))
}

/// Returns the attributes of `LRN`.
pub(in crate::backend) fn response(
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
pub(in crate::backend) fn response_channels(input: &Shape) -> Result<usize, KernelError> {
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

/// TensorFlow `FusedBatchNorm`, `FusedBatchNormV2` and `FusedBatchNormV3`. Mean and variance are
/// inputs or, in training, those of the batch.
fn batch_norm(node: &KernelConstruction<'_>) -> Made {
    let plan = BatchNorm::new(node)?;
    dispatch!(
        type_attr(node, "T")?,
        [F32: f32, F16: half::f16, BF16: half::bf16],
        T => kernel(move |context| plan.compute::<T>(context))
    )
}

impl BatchNorm {
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

    fn compute<T: Real<Wide = f32>>(&self, context: &KernelContext<'_>) -> Result<(), KernelError> {
        let input = context.input(0)?;
        let channels = self.channels(input.shape())?;
        let n = channels.channels;
        let given = |index: usize, name: &str| -> Result<&[f32], KernelError> {
            let tensor = context.input(index)?;
            self.check_given(name, tensor.shape(), channels, input.shape())?;
            Ok(tensor.as_slice::<f32>()?)
        };
        let (scale, offset) = (given(1, "scale")?, given(2, "offset")?);
        let (old_mean, old_variance) = (given(3, "mean")?, given(4, "variance")?);
        let x = input.as_slice::<T>()?;
        let threads = Threads::of(context);
        let computed = match self.training {
            Some(_) if !x.is_empty() => Some(channels.moments(x, threads)?),
            _ => None,
        };
        let (mean, variance) = match &computed {
            Some([mean, variance]) => (&mean[..], &variance[..]),
            None => (old_mean, old_variance),
        };
        let mut factor = threads.scratch::<f32>(variance.len())?;
        for (factor, (&variance, &scale)) in factor.iter_mut().zip(variance.iter().zip(scale)) {
            *factor = 1.0 / (variance + self.epsilon).sqrt() * scale;
        }
        context.fill_output::<T>(0, input.shape(), |out| {
            let parameters = [mean, &factor, offset];
            channels.normalise(x, parameters, out, threads);
            Ok(())
        })?;
        let fill = |index: usize, value: &dyn Fn(usize) -> f32| {
            context.fill_output::<f32>(index, &Shape::from([n]), |out| {
                for (channel, o) in out.iter_mut().enumerate() {
                    *o = value(channel);
                }
                Ok(())
            })
        };
        if x.is_empty() {
            for index in 1..5 {
                fill(index, &|_| f32::NAN)?;
            }
        } else {
            #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
            let n_values = (channels.outer * channels.inner) as f32;
            // Bessel's correction applies to the running variance only.
            let correction = n_values / (n_values - 1.0).max(1.0);
            let running =
                |old: &[f32], new: &[f32], correction: f32, channel: usize| match self.training {
                    None => new[channel],
                    Some(Training { factor: 1.0 }) => new[channel] * correction,
                    Some(Training { factor }) => {
                        (1.0 - factor) * old[channel] + factor * correction * new[channel]
                    }
                };
            fill(1, &|channel| running(old_mean, mean, 1.0, channel))?;
            fill(2, &|channel| {
                running(old_variance, variance, correction, channel)
            })?;
            fill(3, &|channel| mean[channel])?;
            fill(4, &|channel| variance[channel])?;
        }
        if self.has_third_space {
            // Only GPU libraries store anything in this output.
            context.fill_output::<f32>(5, &Shape::scalar(), |out| {
                out.fill(0.0);
                Ok(())
            })?;
        }
        Ok(())
    }
}
