//! Samples of distributions with parameters: gamma, Poisson, categorical.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::random::Inputs;
use crate::backend::cpu::kernels::random::Source;
use crate::backend::cpu::kernels::random::seeded;
use crate::backend::cpu::kernels::random::sizes;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::INDICES;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::sampling;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The types of rates, and of samples of Poisson distributions.
const POISSON: [DType; 5] = [DType::F16, DType::F32, DType::F64, DType::I32, DType::I64];

/// The types of logits.
const LOGITS: [DType; 4] = REALS;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("RandomGamma")
            .with_types("T", &REALS)
            .with_factory(|node| gamma(node, "T", Source::own(node)?)),
    );
    for (op, inputs) in [
        ("StatelessRandomGammaV2", Inputs::Seed),
        ("StatelessRandomGammaV3", Inputs::Key),
    ] {
        registry.register(
            def(op)
                .with_types("dtype", &REALS)
                .with_factory(move |node| gamma(node, "dtype", Source::Stateless(inputs))),
        );
    }
    registry.register(
        def("RandomPoisson")
            .with_types("dtype", &POISSON[..3])
            .with_factory(|node| poisson(node, "dtype", Source::own(node)?)),
    );
    registry.register(
        def("RandomPoissonV2")
            .with_types("R", &POISSON)
            .with_types("dtype", &POISSON)
            .with_factory(|node| poisson(node, "R", Source::own(node)?)),
    );
    registry.register(
        def("StatelessRandomPoisson")
            .with_types("Rtype", &POISSON)
            .with_types("dtype", &POISSON)
            .with_factory(|node| poisson(node, "Rtype", Source::Stateless(Inputs::Seed))),
    );
    registry.register(
        def("Multinomial")
            .with_types("T", &LOGITS)
            .with_types("output_dtype", &INDICES)
            .with_factory(|node| multinomial(node, Some(Source::own(node)?))),
    );
    registry.register(
        def("StatelessMultinomial")
            .with_types("T", &LOGITS)
            .with_types("output_dtype", &INDICES)
            .with_factory(|node| multinomial(node, None)),
    );
}

/// Returns the shape of the samples, and the parameters. A stateful op appends the shape of the
/// parameters; that of a stateless one must end with it.
fn sampled<'a>(
    context: &'a KernelContext<'_>,
    source: &Source,
    what: &str,
) -> Result<(Shape, &'a Tensor), KernelError> {
    let index = match source {
        Source::Own(_) | Source::Entropy => 1,
        Source::Stateless(Inputs::Seed) => 2,
        Source::Stateless(Inputs::Key) => 4,
    };
    let (shape, parameters) = (sizes(context, 0)?, context.input(index)?);
    let of_parameters = parameters.shape().dims();
    let shape = match source {
        Source::Own(_) | Source::Entropy => {
            let dims = shape.dims().iter().chain(of_parameters);
            dims.copied().collect()
        }
        Source::Stateless(_) => {
            if shape.n_elements() != 0 && !shape.dims().ends_with(of_parameters) {
                return Err(KernelError::invalid(format!(
                    "Shape passed in must end with broadcasted shape. {what} has shape {}, the \
                     samples have {shape}",
                    parameters.shape()
                )));
            }
            shape
        }
    };
    if shape.n_elements() != 0 && parameters.shape().n_elements() == 0 {
        return Err(KernelError::invalid(format!(
            "Input {what} should have non-zero element count, got: 0"
        )));
    }
    Ok((shape, parameters))
}

/// TensorFlow `RandomGamma` and the stateless ops of that name.
fn gamma(node: &KernelConstruction<'_>, dtype: &str, source: Source) -> Made {
    dispatch_real!(type_attr(node, dtype)?, T => kernel(move |context| {
        let (shape, alphas) = sampled(context, &source, "alpha")?;
        let alphas = alphas.as_slice::<T>()?;
        context.fill_output(0, &shape, |out: &mut [T]| {
            if out.is_empty() {
                return Ok(());
            }
            let generator = source.generator(context, out.len())?;
            let alpha = |index: usize| alphas[index].to_f64();
            let threads = Threads::of(context);
            sampling::gamma(alpha, alphas.len(), out, generator, T::from_f64, threads);
            Ok(())
        })
    }))
}

/// TensorFlow `RandomPoisson`, `RandomPoissonV2` and `StatelessRandomPoisson`. As there, rates of
/// 16 and 32 bits are computed with as `float`.
fn poisson(node: &KernelConstruction<'_>, rate: &str, source: Source) -> Made {
    let rate = type_attr(node, rate)?;
    let is_double = matches!(rate, DType::F64 | DType::I64);
    dispatch!(type_attr(node, "dtype")?, [F16: half::f16, F32: f32, F64: f64, I32: i32, I64: i64], U => {
        dispatch!(rate, [F16: half::f16, F32: f32, F64: f64, I32: i32, I64: i64], R => {
            kernel(move |context| {
                let (shape, rates) = sampled(context, &source, "rate")?;
                let rates = rates.as_slice::<R>()?;
                context.fill_output(0, &shape, |out: &mut [U]| {
                    if out.is_empty() {
                        return Ok(());
                    }
                    let generator = source.generator(context, out.len())?;
                    let (n, threads) = (rates.len(), Threads::of(context));
                    let highest = -U::LOWEST_FINITE.to_f64();
                    if is_double {
                        let rate = |index: usize| rates[index].to_f64();
                        sampling::poisson_f64(rate, n, out, generator, highest, U::from_f64, threads);
                        return Ok(());
                    }
                    #[expect(clippy::cast_possible_truncation, reason = "as TensorFlow rounds")]
                    let (rate, highest) =
                        (|index: usize| rates[index].to_f64() as f32, highest as f32);
                    let narrow = |x: f32| U::from_f64(x.into());
                    sampling::poisson_f32(rate, n, out, generator, highest, narrow, threads);
                    Ok(())
                })
            })
        })
    })
}

/// TensorFlow `Multinomial` and, without a source, `StatelessMultinomial`.
fn multinomial(node: &KernelConstruction<'_>, source: Option<Source>) -> Made {
    let is_wide = type_attr(node, "output_dtype")? == DType::I64;
    dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
        let (n_classes, shape) = drawn(context)?;
        let logits = context.input(0)?.as_slice::<T>()?;
        let n_samples = shape.dims()[1];
        let n_rows = shape.dims()[0];
        let reserve = || match &source {
            // Two numbers per sample.
            Some(source) => {
                let n = n_samples.next_multiple_of(4).saturating_mul(2);
                source.generator(context, n_rows.saturating_mul(n))
            }
            None => seeded(context.input(2)?),
        };
        let threads = Threads::of(context);
        if is_wide {
            return context.fill_output(0, &shape, |out: &mut [i64]| {
                if out.is_empty() {
                    return Ok(());
                }
                let put = |at: usize, class: usize| out[at] = i64::try_from(class).unwrap_or(i64::MAX);
                sampling::categorical(logits, n_classes, n_samples, reserve()?, |x| x.to_f64(), put, threads)
            });
        }
        context.fill_output(0, &shape, |out: &mut [i32]| {
            if out.is_empty() {
                return Ok(());
            }
            let put = |at: usize, class: usize| out[at] = i32::try_from(class).unwrap_or(i32::MAX);
            sampling::categorical(logits, n_classes, n_samples, reserve()?, |x| x.to_f64(), put, threads)
        })
    }))
}

/// Returns the number of classes, and the shape of the result.
fn drawn(context: &KernelContext<'_>) -> Result<(usize, Shape), KernelError> {
    let (logits, n_samples) = (context.input(0)?, context.input(1)?);
    let &[n_rows, n_classes] = logits.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "logits should be a matrix, got shape {}",
            logits.shape()
        )));
    };
    let (0, &[n_samples]) = (n_samples.shape().rank(), n_samples.as_slice::<i32>()?) else {
        return Err(KernelError::invalid(format!(
            "num_samples should be a scalar, got shape {}",
            n_samples.shape()
        )));
    };
    let n_samples = usize::try_from(n_samples).map_err(|_| {
        KernelError::invalid(format!(
            "num_samples should be nonnegative, got {n_samples}"
        ))
    })?;
    if n_classes == 0 {
        return Err(KernelError::invalid(format!(
            "num_classes should be positive, got {n_classes}"
        )));
    }
    Ok((n_classes, Shape::from([n_rows, n_samples])))
}
