//! Simulated quantization.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::suppression::threshold;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::int_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::quantize::FakeQuantization;
use crate::kernels::unary;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("FakeQuantWithMinMaxArgs").with_factory(by_attributes));
    registry.register(def("FakeQuantWithMinMaxVars").with_factory(by_inputs));
    registry.register(def("FakeQuantWithMinMaxVarsPerChannel").with_factory(by_channel));
}

/// Bits and whether the range is narrow.
fn attrs(node: &KernelConstruction<'_>) -> Result<(u32, bool), KernelError> {
    let given = int_attr(node, "num_bits", Some(8))?;
    let n_bits = u32::try_from(given).ok().filter(|n| (2..=16).contains(n));
    let n_bits = n_bits.ok_or_else(|| {
        KernelError::invalid(format!(
            "num_bits must be between 2 and 16, inclusive, not {given}"
        ))
    })?;
    Ok((n_bits, bool_attr(node, "narrow_range", false)?))
}

fn by_attributes(node: &KernelConstruction<'_>) -> Made {
    let (n_bits, is_narrow) = attrs(node)?;
    let (min, max) = (
        float_attr(node, "min", -6.0)?,
        float_attr(node, "max", 6.0)?,
    );
    if min.is_nan() || max.is_nan() || min >= max {
        return Err(KernelError::invalid(format!(
            "min has to be smaller than max, was: {min} >= {max}"
        )));
    }
    let range = FakeQuantization::new(min, max, n_bits, is_narrow);
    kernel(move |context| rounded(context, range))
}

fn by_inputs(node: &KernelConstruction<'_>) -> Made {
    let (n_bits, is_narrow) = attrs(node)?;
    kernel(move |context| {
        let min = threshold::<f32>(context.input(1)?, "min")?;
        let max = threshold::<f32>(context.input(2)?, "max")?;
        rounded(context, FakeQuantization::new(min, max, n_bits, is_narrow))
    })
}

fn rounded(
    context: &KernelContext<'_>,
    range: Option<FakeQuantization>,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let x = input.as_slice::<f32>()?;
    context.fill_output(0, input.shape(), |out| {
        unary::map(x, out, Threads::of(context), |x| {
            range.map_or(0.0, |range| range.apply(x))
        });
        Ok(())
    })
}

/// One range per element of the last dimension.
fn by_channel(node: &KernelConstruction<'_>) -> Made {
    let (n_bits, is_narrow) = attrs(node)?;
    kernel(move |context| {
        let (input, min, max) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let Some(&n) = input.shape().dims().last() else {
            return Err(KernelError::invalid("the input must be at least 1-D"));
        };
        for (given, what) in [(min, "min"), (max, "max")] {
            if given.shape().dims() != [n] {
                return Err(KernelError::invalid(format!(
                    "{what} has incorrect size, expected [{n}] was {}",
                    given.shape()
                )));
            }
        }
        let (min, max) = (min.as_slice::<f32>()?, max.as_slice::<f32>()?);
        let x = input.as_slice::<f32>()?;
        context.fill_output(0, input.shape(), |out: &mut [f32]| {
            if out.is_empty() {
                return Ok(());
            }
            for (channel, (&min, &max)) in min.iter().zip(max).enumerate() {
                let range = FakeQuantization::new(min, max, n_bits, is_narrow);
                let from = x[channel..].iter().step_by(n);
                for (slot, &x) in out[channel..].iter_mut().step_by(n).zip(from) {
                    *slot = range.map_or(0.0, |range| range.apply(x));
                }
            }
            Ok(())
        })
    })
}
