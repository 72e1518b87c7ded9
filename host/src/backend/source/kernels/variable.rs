//! Variables in the memory of the device.

use std::sync::Arc;

use crate::backend::host_kernels::variable;
use crate::backend::plan::attr::type_attr;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::kernel;
use crate::backend::source::kernels::NUMBERS;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::binary;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INDICES;
use crate::device::DeviceFunction;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::tensor::DType;

pub(super) fn register(table: &mut Table<'_>) {
    let def = table.def("VarHandleOp").with_types("dtype", &ELEMENTS);
    table.add(def.with_factory(variable::handle));
    let def = table.def("ReadVariableOp").with_types("dtype", &ELEMENTS);
    table.add(def.with_factory(variable::read_variable));
    let def = table.def("AssignVariableOp").with_types("dtype", &ELEMENTS);
    table.add(def.with_factory(variable::assign));
    for (op, function) in [
        ("AssignAddVariableOp", "add"),
        ("AssignSubVariableOp", "sub"),
    ] {
        let def = table.def(op).with_types("dtype", &NUMBERS);
        table.add(def.with_factory(move |node| update(node, function)));
    }
    let def = table.def("VarIsInitializedOp");
    let def = def.with_host_memory("is_initialized");
    table.add(def.with_factory(variable::is_initialized));
    let def = table.def("VariableShape").with_types("out_type", &INDICES);
    table.add(def.with_host_memory("output").with_factory(variable::shape));
    let def = table.def("DestroyResourceOp");
    table.add(def.with_factory(variable::destroy));
}

/// TensorFlow `AssignAddVariableOp` and `AssignSubVariableOp`. The sum is another tensor, because
/// earlier launches may still read the old value.
fn update(node: &KernelConstruction<'_>, name: &str) -> Made {
    let dtype = type_attr(node, "dtype")?;
    let function = binary::of_one_shape(node, dtype, name)?;
    kernel(node, move |call: &Call<'_, '_>| run(call, dtype, &function))
}

fn run(
    call: &Call<'_, '_>,
    dtype: DType,
    function: &Arc<dyn DeviceFunction>,
) -> Result<(), KernelError> {
    call.typed(1, dtype)?;
    variable::change_by_input(call.context, dtype, &mut |held, delta| {
        *held = binary::launch_of_one_shape(call, function, [held, delta], dtype, &[])?;
        Ok(())
    })
}
