//! Conversion of element types.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::host_kernels::view;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::ELEMENTS;
use crate::device::KernelConstruction;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::cast;
use crate::kernels::cast::CastTo;
use crate::kernels::cast::Truncate;
use crate::tensor::Complex64;
use crate::tensor::Complex128;
use crate::tensor::DType;
use crate::tensor::Element;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Cast")
            .with_types("SrcT", &ELEMENTS)
            .with_types("DstT", &ELEMENTS)
            .with_factory(make),
    );
}

/// TensorFlow `Cast`. [`crate::kernels::cast`] describes the result for values that the target type
/// cannot represent.
fn make(node: &KernelConstruction<'_>) -> Made {
    let (source, target) = (type_attr(node, "SrcT")?, type_attr(node, "DstT")?);
    if source == target {
        return view(|context| Ok(context.input(0)?.shape().clone()));
    }
    if bool_attr(node, "Truncate", false)?
        && let Some(made) = truncating(source, target)
    {
        return made;
    }
    dispatch_element!(source, S => dispatch_element!(target, D => casting::<S, D>()))
}

fn casting<S: CastTo<D>, D: Element>() -> Made {
    kernel(|context| {
        let input = context.input(0)?;
        let x = input.as_slice::<S>()?;
        output(context, input.shape().clone(), |out: &mut [D]| {
            cast::cast(x, out, Threads::of(context));
            Ok(())
        })
    })
}

/// Returns the kernel for pairs for which TensorFlow honours `Truncate`; the others convert as
/// without it.
fn truncating(source: DType, target: DType) -> Option<Made> {
    fn made<S: CastTo<D> + Truncate<D>, D: Element>() -> Option<Made> {
        Some(kernel(|context| {
            let input = context.input(0)?;
            let x = input.as_slice::<S>()?;
            output(context, input.shape().clone(), |out: &mut [D]| {
                cast::truncate(x, out, Threads::of(context));
                Ok(())
            })
        }))
    }
    match (source, target) {
        (DType::F64, DType::F32) => made::<f64, f32>(),
        (DType::F64, DType::F16) => made::<f64, half::f16>(),
        (DType::F32, DType::F16) => made::<f32, half::f16>(),
        (DType::F32, DType::BF16) => made::<f32, half::bf16>(),
        (DType::F64, DType::Complex64) => made::<f64, Complex64>(),
        (DType::Complex64, DType::F16) => made::<Complex64, half::f16>(),
        (DType::Complex128, DType::F16) => made::<Complex128, half::f16>(),
        (DType::Complex128, DType::F32) => made::<Complex128, f32>(),
        (DType::Complex128, DType::Complex64) => made::<Complex128, Complex64>(),
        _ => None,
    }
}
