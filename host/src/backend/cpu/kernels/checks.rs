//! Kernels that check values, and that show them.

use std::fmt::Write as _;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering;

use tracing::info;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::view;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Tensor;
use crate::trace::targets;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("Assert").with_factory(assert));
    registry.register(def("EnsureShape").with_factory(ensure_shape));
    registry.register(
        def("CheckNumerics")
            .with_types("T", &REALS)
            .with_factory(check_numerics),
    );
    registry.register(def("Print").with_factory(print));
    registry.register(def("PrintV2").with_factory(|_| kernel(print_text)));
    registry.register(def("Abort").with_factory(abort));
    for op in ["IteratorV2", "IteratorGetNext"] {
        registry.register(def(op).with_factory(|_| kernel(input_pipeline)));
    }
}

/// TensorFlow `IteratorV2` and `IteratorGetNext`: the input pipeline is not in the graph, so that
/// runs feed what the iterator would return.
fn input_pipeline(context: &KernelContext<'_>) -> Result<(), KernelError> {
    Err(KernelError::invalid(format!(
        "{} belongs to an input pipeline, which is not part of the graph; feed the outputs of \
         IteratorGetNext (`NODE:0`, `NODE:1`, ..) instead",
        context.node()
    )))
}

/// TensorFlow `Assert`: fails with the data if the condition is false.
fn assert(node: &KernelConstruction<'_>) -> Made {
    let n_shown = int_attr(node, "summarize", Some(3))?;
    kernel(move |context| {
        let condition = context.input(0)?;
        let (0, &[condition]) = (condition.shape().rank(), condition.as_bools()?) else {
            return Err(KernelError::invalid(format!(
                "the condition must be a scalar, but it has shape {}",
                condition.shape()
            )));
        };
        if condition != 0 {
            return Ok(());
        }
        let data = context
            .inputs()
            .skip(1)
            .map(|tensor| summary(tensor, n_shown));
        let data: Vec<String> = data.collect();
        Err(KernelError::invalid(format!(
            "assertion failed: {}",
            data.join(" ")
        )))
    })
}

/// TensorFlow `EnsureShape`.
fn ensure_shape(node: &KernelConstruction<'_>) -> Made {
    let expected = node.attrs.shape("shape").cloned().unwrap_or_default();
    view(move |context| {
        let shape = context.input(0)?.shape();
        if expected.matches(shape) {
            return Ok(shape.clone());
        }
        Err(KernelError::invalid(format!(
            "the tensor has shape {shape}, which is not compatible with {expected}"
        )))
    })
}

/// TensorFlow `CheckNumerics`.
fn check_numerics(node: &KernelConstruction<'_>) -> Made {
    let message = string_attr(node, "message", "")?.to_owned();
    let dtype = node.input_dtypes.first().copied().unwrap_or(DType::F32);
    view(move |context| {
        let tensor = context.input(0)?;
        let (has_nan, has_infinity) = match dtype {
            DType::F32 => special::<f32>(tensor, f64::from)?,
            DType::F64 => special::<f64>(tensor, |x| x)?,
            DType::F16 => special::<half::f16>(tensor, f64::from)?,
            _ => special::<half::bf16>(tensor, f64::from)?,
        };
        let found = match (has_nan, has_infinity) {
            (false, false) => return Ok(tensor.shape().clone()),
            (true, false) => "NaN",
            (false, true) => "Inf",
            (true, true) => "Inf and NaN",
        };
        Err(KernelError::invalid(format!(
            "{message} : Tensor had {found} values"
        )))
    })
}

/// Returns whether there are NaNs and infinities.
fn special<T: Element>(
    tensor: &Tensor,
    widen: impl Fn(T) -> f64,
) -> Result<(bool, bool), KernelError> {
    let mut found = (false, false);
    for &value in tensor.as_slice::<T>()? {
        let value = widen(value);
        found.0 |= value.is_nan();
        found.1 |= value.is_infinite();
    }
    Ok(found)
}

/// TensorFlow `Abort`, which ends the process there. Here it ends the run: the process is an app's.
fn abort(node: &KernelConstruction<'_>) -> Made {
    let message = string_attr(node, "error_msg", "")?.to_owned();
    kernel(move |_| Err(KernelError::invalid(format!("aborted: {message}"))))
}

/// TensorFlow `Print`, which writes to the app's log: a library does not write to standard error.
fn print(node: &KernelConstruction<'_>) -> Made {
    let n_times = int_attr(node, "first_n", Some(-1))?;
    let n_printed = AtomicI64::new(0);
    let n_shown = int_attr(node, "summarize", Some(3))?;
    let message = string_attr(node, "message", "")?.to_owned();
    kernel(move |context| {
        // Negative: always.
        let prints = n_times < 0 || n_printed.fetch_add(1, Ordering::Relaxed) < n_times;
        if prints {
            let data = context.inputs().skip(1);
            let data: String = data.map(|tensor| summary(tensor, n_shown)).collect();
            info!(target: targets::EXECUTE, node = context.node(), "{message}{data}");
        }
        context.forward_input(0, 0, context.input(0)?.shape())
    })
}

/// TensorFlow `PrintV2`, which writes to the app's log.
fn print_text(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (0, [text]) = (input.shape().rank(), input.as_strings()?) else {
        return Err(KernelError::invalid(format!(
            "the text must be a scalar, but it has shape {}",
            input.shape()
        )));
    };
    let text = String::from_utf8_lossy(text);
    info!(target: targets::EXECUTE, node = context.node(), "{}", text.trim_end());
    Ok(())
}

/// Returns the first elements in brackets, as TensorFlow's `Tensor::SummarizeValue` shows them; a
/// negative number means all.
fn summary(tensor: &Tensor, n_shown: i64) -> String {
    let n = tensor.shape().n_elements();
    let limit = usize::try_from(n_shown).unwrap_or(usize::MAX).min(n);
    let mut text = "[".to_owned();
    let mut n_written = 0;
    let dims = match tensor.shape().dims() {
        [] => &[1][..],
        dims => dims,
    };
    write_dim(tensor, dims, true, limit, &mut n_written, &mut text);
    text.push_str(if n > limit { "...]" } else { "]" });
    text
}

/// Writes the elements of the axes `dims`, each inner axis in brackets.
fn write_dim(
    tensor: &Tensor,
    dims: &[usize],
    is_outermost: bool,
    limit: usize,
    n_written: &mut usize,
    text: &mut String,
) {
    let [size, inner @ ..] = dims else { return };
    for index in 0..*size {
        if *n_written >= limit {
            if inner.is_empty() && !is_outermost {
                text.push_str("...");
            }
            return;
        }
        if inner.is_empty() {
            if index > 0 {
                text.push(' ');
            }
            write_element(tensor, *n_written, text);
            *n_written += 1;
        } else {
            text.push('[');
            write_dim(tensor, inner, false, limit, n_written, text);
            text.push(']');
        }
    }
}

/// Writes one element as TensorFlow shows it.
pub(super) fn write_element(tensor: &Tensor, index: usize, text: &mut String) {
    fn number<T: Element>(tensor: &Tensor, index: usize) -> T {
        let elements = tensor.as_slice::<T>().unwrap_or_default();
        elements.get(index).copied().unwrap_or_else(T::zeroed)
    }
    let float = |value: f32| {
        let short = general(value.into(), 6);
        match short.parse() == Ok(value) {
            true => short,
            false => general(value.into(), 9),
        }
    };
    let shown = match tensor.dtype() {
        DType::F32 => float(number::<f32>(tensor, index)),
        DType::F16 => float(number::<half::f16>(tensor, index).into()),
        DType::BF16 => float(number::<half::bf16>(tensor, index).into()),
        DType::F64 => {
            let value = number::<f64>(tensor, index);
            let short = general(value, 15);
            match short.parse() == Ok(value) {
                true => short,
                false => general(value, 17),
            }
        }
        DType::I8 => number::<i8>(tensor, index).to_string(),
        DType::I16 => number::<i16>(tensor, index).to_string(),
        DType::I32 => number::<i32>(tensor, index).to_string(),
        DType::I64 => number::<i64>(tensor, index).to_string(),
        DType::U8 => number::<u8>(tensor, index).to_string(),
        DType::U16 => number::<u16>(tensor, index).to_string(),
        DType::U32 => number::<u32>(tensor, index).to_string(),
        DType::U64 => number::<u64>(tensor, index).to_string(),
        DType::Bool => {
            let values = tensor.as_bools().unwrap_or_default();
            let is_true = values.get(index).is_some_and(|&value| value != 0);
            u8::from(is_true).to_string()
        }
        DType::String => {
            let strings = tensor.as_strings().unwrap_or_default();
            strings
                .get(index)
                .map_or_else(String::new, |string| escaped(string))
        }
        // Complex numbers, resources and variants, as in TensorFlow.
        _ => "?".to_owned(),
    };
    text.push_str(&shown);
}

/// Returns a number as C's format `%.{digits}g` writes it.
fn general(value: f64, digits: i32) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    let places = |places: i32| usize::try_from(places).unwrap_or(0);
    let scientific = format!("{value:.*e}", places(digits - 1));
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let without_zeros = |number: &str| match number.contains('.') {
        true => number
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        false => number.to_owned(),
    };
    if (-4..digits).contains(&exponent) {
        let fixed = format!("{value:.*}", places(digits - 1 - exponent));
        return without_zeros(&fixed);
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
}

/// Returns a string with C's escapes for everything that is not printable ASCII.
fn escaped(string: &[u8]) -> String {
    let mut text = String::new();
    for &byte in string {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b'"' | b'\'' | b'\\' => {
                text.push('\\');
                text.push(byte.into());
            }
            b' '..=b'~' => text.push(byte.into()),
            _ => {
                // Writing to a string does not fail.
                let _ = write!(text, "\\{byte:03o}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Shape;

    /// What TensorFlow 2.21 shows in the message of `Assert`.
    #[test]
    fn values_look_like_tensorflows() {
        let floats = Tensor::from_values([4], &[1.0f32, 2.5, 3e-7, 4.0]).unwrap();
        assert_eq!(summary(&floats, 2), "[1 2.5...]");
        assert_eq!(summary(&floats, -1), "[1 2.5 3e-07 4]");
        assert_eq!(summary(&floats, 0), "[...]");
        let matrix = Tensor::from_values([2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(summary(&matrix, 2), "[[1 2]...]");
        assert_eq!(summary(&matrix, 3), "[[1 2][3...]...]");
        assert_eq!(summary(&matrix, 0), "[...]");
        let numbers: Vec<i64> = (0..8).collect();
        let cube = Tensor::from_values([2, 2, 2], &numbers).unwrap();
        assert_eq!(summary(&cube, 10), "[[[0 1][2 3]][[4 5][6 7]]]");
        assert_eq!(summary(&cube, 3), "[[[0 1][2...]]...]");
        for (value, expected) in [
            (1.0 / 3.0, "[0.333333343]"),
            (1e10, "[1e+10]"),
            (123_456_789.0, "[123456792]"),
            (0.0, "[0]"),
            (-0.0001, "[-0.0001]"),
            (f32::NAN, "[nan]"),
            (f32::NEG_INFINITY, "[-inf]"),
        ] {
            let scalar = Tensor::from_values(Shape::scalar(), &[value]).unwrap();
            assert_eq!(summary(&scalar, 3), expected);
        }
        for (value, expected) in [(1.0 / 3.0, "[0.33333333333333331]"), (1e300, "[1e+300]")] {
            let scalar = Tensor::from_values(Shape::scalar(), &[value]).unwrap();
            assert_eq!(summary(&scalar, 3), expected);
        }
        let half = [half::f16::from_f32(1.0 / 3.0)];
        let half = Tensor::from_values(Shape::scalar(), &half).unwrap();
        assert_eq!(summary(&half, 3), "[0.333251953]");
        let truths = Tensor::from_bools([2], &[true, false]).unwrap();
        assert_eq!(summary(&truths, 3), "[1 0]");
        let strings = ["a", "b\n\"", "c", "d"].map(|text| text.as_bytes().into());
        let strings = Tensor::from_strings([4].into(), strings.to_vec()).unwrap();
        assert_eq!(summary(&strings, 3), "[a b\\n\\\" c...]");
        let byte = Tensor::from_strings([1].into(), vec![b"\xffx".into()]).unwrap();
        assert_eq!(summary(&byte, 3), "[\\377x]");
    }
}
