//! Kernels that check values, and that show them.

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
}

/// TensorFlow `Assert`: fails with the data if the condition is false.
fn assert(node: &KernelConstruction<'_>) -> Made {
    let n_shown = int_attr(node, "summarize", Some(3))?;
    kernel(move |context| {
        let condition = context.input(0)?;
        let &[condition] = condition.as_bools()? else {
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

/// TensorFlow `Print`, which writes to the app's log.
fn print(node: &KernelConstruction<'_>) -> Made {
    let n_shown = int_attr(node, "summarize", Some(3))?;
    let message = string_attr(node, "message", "")?.to_owned();
    kernel(move |context| {
        let data = context
            .inputs()
            .skip(1)
            .map(|tensor| summary(tensor, n_shown));
        let data: String = data.collect();
        info!(target: targets::EXECUTE, node = context.node(), "{message}{data}");
        context.forward_input(0, 0, context.input(0)?.shape())
    })
}

/// TensorFlow `PrintV2`, which writes to the app's log.
fn print_text(context: &KernelContext<'_>) -> Result<(), KernelError> {
    for text in context.input(0)?.as_strings()? {
        let text = String::from_utf8_lossy(text);
        info!(target: targets::EXECUTE, node = context.node(), "{}", text.trim_end());
    }
    Ok(())
}

/// Returns the first elements in brackets; a negative number means all.
fn summary(tensor: &Tensor, n_shown: i64) -> String {
    let n_shown = usize::try_from(n_shown).unwrap_or(usize::MAX);
    let n = tensor.shape().n_elements();
    let shown = shown(tensor, n_shown.min(n));
    let rest = if n > n_shown { "..." } else { "" };
    format!("[{}{rest}]", shown.join(" "))
}

fn shown(tensor: &Tensor, n: usize) -> Vec<String> {
    fn numbers<T: Element + ToString>(tensor: &Tensor, n: usize) -> Vec<String> {
        let values = tensor.as_slice::<T>().unwrap_or_default().iter();
        values.take(n).map(T::to_string).collect()
    }
    match tensor.dtype() {
        DType::F32 => numbers::<f32>(tensor, n),
        DType::F64 => numbers::<f64>(tensor, n),
        DType::F16 => numbers::<half::f16>(tensor, n),
        DType::BF16 => numbers::<half::bf16>(tensor, n),
        DType::I8 => numbers::<i8>(tensor, n),
        DType::I16 => numbers::<i16>(tensor, n),
        DType::I32 => numbers::<i32>(tensor, n),
        DType::I64 => numbers::<i64>(tensor, n),
        DType::U8 => numbers::<u8>(tensor, n),
        DType::U16 => numbers::<u16>(tensor, n),
        DType::U32 => numbers::<u32>(tensor, n),
        DType::U64 => numbers::<u64>(tensor, n),
        DType::Bool => {
            let values = tensor.as_bools().unwrap_or_default().iter().take(n);
            values
                .map(|&value| u8::from(value != 0).to_string())
                .collect()
        }
        DType::String => {
            let values = tensor.as_strings().unwrap_or_default().iter().take(n);
            values
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .collect()
        }
        other => vec![format!("{other} {}", tensor.shape())],
    }
}
