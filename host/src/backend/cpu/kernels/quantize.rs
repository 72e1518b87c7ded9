//! Simulated quantization.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::suppression::threshold;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::scalar;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::quantize::FakeQuantization;
use crate::kernels::quantize::Steps;
use crate::kernels::scratch;
use crate::kernels::unary;
use crate::tensor::DType;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("FakeQuantWithMinMaxArgs").with_factory(by_attributes));
    registry.register(def("FakeQuantWithMinMaxVars").with_factory(by_inputs));
    registry.register(def("FakeQuantWithMinMaxVarsPerChannel").with_factory(by_channel));
    for op in [
        "QuantizeAndDequantizeV2",
        "QuantizeAndDequantizeV3",
        "QuantizeAndDequantizeV4",
    ] {
        registry.register(
            def(op)
                .with_types("T", &[DType::F32, DType::F64])
                .with_factory(in_steps),
        );
    }
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

/// The attributes of `QuantizeAndDequantizeV2` to `V4`.
#[derive(Debug, Clone, Copy)]
struct StepAttrs {
    is_signed: bool,
    is_narrow: bool,
    is_given: bool,
    rounds_up: bool,
    axis: Option<usize>,
}

/// TensorFlow `QuantizeAndDequantizeV2` to `V4`.
fn in_steps(node: &KernelConstruction<'_>) -> Made {
    let is_third = node.op == "QuantizeAndDequantizeV3";
    let n_bits = match is_third {
        true => None,
        false => Some(int_attr(node, "num_bits", Some(8))?),
    };
    let axis = int_attr(node, "axis", Some(-1))?;
    if axis < -1 {
        return Err(KernelError::invalid(format!(
            "Axis must be at least -1, not {axis}"
        )));
    }
    let attrs = StepAttrs {
        is_signed: bool_attr(node, "signed_input", true)?,
        is_narrow: bool_attr(node, "narrow_range", false)?,
        is_given: bool_attr(node, "range_given", is_third)?,
        rounds_up: string_attr(node, "round_mode", "HALF_TO_EVEN")? == "HALF_UP",
        axis: usize::try_from(axis).ok(),
    };
    dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64], T => kernel(move |context| {
        let n_bits = match n_bits {
            Some(n_bits) => n_bits,
            None => scalar(context.input(3)?, "num_bits")?,
        };
        steps::<T>(context, attrs, n_bits)
    }))
}

fn steps<T: Number>(
    context: &KernelContext<'_>,
    attrs: StepAttrs,
    n_bits: i64,
) -> Result<(), KernelError> {
    let bits_max = if attrs.is_signed { 62 } else { 63 };
    if !(1..bits_max).contains(&n_bits) {
        return Err(KernelError::invalid(format!(
            "num_bits is out of range: {n_bits} with signed_input {}",
            attrs.is_signed
        )));
    }
    let quantized = match attrs.is_signed {
        true => [
            i64::from(attrs.is_narrow) - (1 << (n_bits - 1)),
            (1 << (n_bits - 1)) - 1,
        ],
        false => [0, (1 << n_bits) - 1],
    };
    let input = context.input(0)?;
    let dims = input.shape().dims();
    // One range for each element of the axis, whose elements are so far apart.
    let (n_ranges, inner) = match attrs.axis {
        None => (1, input.shape().n_elements().max(1)),
        Some(axis) => match dims.get(axis) {
            Some(&n) => (n, dims[axis + 1..].iter().product::<usize>().max(1)),
            None => {
                return Err(KernelError::invalid(format!(
                    "Shape must be at least rank {} but is rank {}",
                    axis + 1,
                    dims.len()
                )));
            }
        },
    };
    let x = input.as_slice::<T>()?;
    let mut ranges = scratch::list::<[T; 2]>(n_ranges)?;
    if attrs.is_given {
        let ends = |index: usize, what: &str| -> Result<&[T], KernelError> {
            let end: &Tensor = context.input(index)?;
            if end.shape().n_elements() != n_ranges {
                return Err(KernelError::invalid(format!(
                    "{what} has incorrect size, was {}, expected {n_ranges} elements",
                    end.shape()
                )));
            }
            Ok(end.as_slice::<T>()?)
        };
        for (&min, &max) in ends(1, "input_min")?.iter().zip(ends(2, "input_max")?) {
            if max < min {
                return Err(KernelError::invalid(format!(
                    "Invalid range: input_min {} > input_max {}",
                    min.to_f64(),
                    max.to_f64()
                )));
            }
            ranges.push([min, max]);
        }
    } else {
        ranges.resize(n_ranges, [T::HIGHEST, T::LOWEST]);
        for (row, values) in x.chunks(inner).enumerate() {
            let range = &mut ranges[row % n_ranges];
            for &x in values {
                range[0] = if x < range[0] { x } else { range[0] };
                range[1] = if range[1] < x { x } else { range[1] };
            }
        }
    }
    let mut steps = scratch::list::<Steps<T>>(n_ranges)?;
    steps.extend(ranges.iter().map(|&range| Steps::new(range, quantized)));
    context.fill_output(0, input.shape(), |out: &mut [T]| {
        for (row, (out, x)) in out.chunks_mut(inner).zip(x.chunks(inner)).enumerate() {
            let steps = &steps[row % n_ranges];
            for (slot, &x) in out.iter_mut().zip(x) {
                let x = if attrs.is_given { steps.clamped(x) } else { x };
                *slot = steps.rounded(x, attrs.rounds_up);
            }
        }
        Ok(())
    })
}
