//! Normalisation over batches and over neighbouring channels.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::norm::BatchNorm;
use crate::backend::plan::norm::Training;
use crate::backend::plan::norm::lrn_attrs;
use crate::backend::plan::norm::lrn_channels;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Real;
use crate::kernels::Threads;
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
    let plan = lrn_attrs(node)?;
    dispatch!(type_attr(node, "T")?, [F32: f32, F16: half::f16], T => kernel(move |context| {
        let input = context.input(0)?;
        let channels = lrn_channels(input.shape())?;
        let x = input.as_slice::<T>()?;
        output(context, input.shape().clone(), |out| {
            plan.apply(x, channels, out, Threads::of(context))
        })
    }))
}

/// TensorFlow `FusedBatchNorm`, `FusedBatchNormV2` and `FusedBatchNormV3`. Mean and variance are
/// inputs or, in training, those of the batch.
fn batch_norm(node: &KernelConstruction<'_>) -> Made {
    let plan = BatchNorm::new(node)?;
    dispatch!(
        type_attr(node, "T")?,
        [F32: f32, F16: half::f16, BF16: half::bf16],
        T => kernel(move |context| normalise::<T>(&plan, context))
    )
}

fn normalise<T: Real<Wide = f32>>(
    plan: &BatchNorm,
    context: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let channels = plan.channels(input.shape())?;
    let n = channels.channels;
    let given = |index: usize, name: &str| -> Result<&[f32], KernelError> {
        let tensor = context.input(index)?;
        plan.check_given(name, tensor.shape(), channels, input.shape())?;
        Ok(tensor.as_slice::<f32>()?)
    };
    let (scale, offset) = (given(1, "scale")?, given(2, "offset")?);
    let (old_mean, old_variance) = (given(3, "mean")?, given(4, "variance")?);
    let x = input.as_slice::<T>()?;
    let threads = Threads::of(context);
    let computed = match plan.training {
        Some(_) if !x.is_empty() => Some(channels.moments(x, threads)?),
        _ => None,
    };
    let (mean, variance) = match &computed {
        Some([mean, variance]) => (&mean[..], &variance[..]),
        None => (old_mean, old_variance),
    };
    let mut factor = threads.scratch::<f32>(variance.len())?;
    for (factor, (&variance, &scale)) in factor.iter_mut().zip(variance.iter().zip(scale)) {
        *factor = 1.0 / (variance + plan.epsilon).sqrt() * scale;
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
            |old: &[f32], new: &[f32], correction: f32, channel: usize| match plan.training {
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
    if plan.has_third_space {
        // Only GPU libraries store anything in this output.
        context.fill_output::<f32>(5, &Shape::scalar(), |out| {
            out.fill(0.0);
            Ok(())
        })?;
    }
    Ok(())
}
