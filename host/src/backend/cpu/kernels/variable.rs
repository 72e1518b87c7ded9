//! Variables of CPU devices, which are updated in place.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::variable;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::ARITHMETIC;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::tensor::DType;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("VarHandleOp").with_factory(variable::handle));
    registry.register(def("ReadVariableOp").with_factory(variable::read_variable));
    registry.register(def("AssignVariableOp").with_factory(variable::assign));
    for op in ["AssignAddVariableOp", "AssignSubVariableOp"] {
        registry.register(
            def(op)
                .with_types("dtype", &ARITHMETIC)
                .with_factory(move |node| update(node, op == "AssignAddVariableOp")),
        );
    }
    registry.register(def("VarIsInitializedOp").with_factory(variable::is_initialized));
    registry.register(
        def("VariableShape")
            .with_types("out_type", &[DType::I32, DType::I64])
            .with_factory(variable::shape),
    );
    registry.register(def("DestroyResourceOp").with_factory(variable::destroy));
}

/// TensorFlow `AssignAddVariableOp` and `AssignSubVariableOp`. Updates happen one after the other,
/// even of concurrent runs.
fn update(node: &KernelConstruction<'_>, is_sum: bool) -> Made {
    dispatch_arithmetic!(type_attr(node, "dtype")?, T => kernel(move |context| {
        let combine = if is_sum { T::plus } else { T::minus };
        update_with::<T>(context, combine)
    }))
}

fn update_with<T: Arithmetic>(
    context: &KernelContext<'_>,
    combine: impl Fn(T, T) -> T,
) -> Result<(), KernelError> {
    variable::change_by_input(context, T::DTYPE, &mut |held, delta| {
        own(context, held)?;
        let delta = delta.as_slice::<T>()?;
        let elements = held.as_slice_mut::<T>();
        let elements = elements.ok_or(TensorError::NotOnHost)?;
        for (element, &delta) in elements.iter_mut().zip(delta) {
            *element = combine(*element, delta);
        }
        Ok(())
    })
}

/// Changes the value of the variable of input 0, which must be of this type. `update` gets a value
/// that nothing else reads.
pub(super) fn change(
    context: &KernelContext<'_>,
    dtype: DType,
    update: &mut dyn FnMut(&mut Tensor) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    variable::change(context, dtype, &mut |held| {
        own(context, held)?;
        update(held)
    })
}

/// Copies a value that something else may still read: earlier readers keep what they read.
pub(super) fn own(context: &KernelContext<'_>, held: &mut Tensor) -> Result<(), KernelError> {
    if held.dtype().size_bytes().is_some() && held.as_bytes_mut().is_none() {
        *held = context.device_context().copy_on_device(held)?;
    }
    Ok(())
}
