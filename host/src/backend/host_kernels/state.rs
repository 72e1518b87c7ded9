//! Constants, feeds and nodes that forward their input.

use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::view;
use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::type_attr;
use crate::device::AllocatorAttributes;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;

/// TensorFlow `Const`: the tensor is created once, with the kernel; executions share it.
pub(in crate::backend) fn constant(node: &KernelConstruction<'_>) -> Made {
    let literal = node
        .attrs
        .tensor("value")
        .ok_or_else(|| bad_attr(node, "value", "tensor"))?;
    let dtype = type_attr(node, "dtype")?;
    if literal.dtype() != dtype {
        return Err(KernelError::invalid(format!(
            "attribute `value` holds {}, attribute `dtype` says {dtype}",
            literal.dtype()
        )));
    }
    let value = node
        .device
        .make_tensor(literal, AllocatorAttributes::default())?;
    kernel(move |context| context.set_output(0, value.clone()))
}

/// TensorFlow `Placeholder`: not executed if it is fed.
pub(in crate::backend) fn placeholder(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    let shape = node
        .attrs
        .shape("shape")
        .filter(|shape| shape.dims().is_some())
        .map_or_else(String::new, |shape| format!(" and shape {shape}"));
    let message = format!(
        "you must feed a value for placeholder `{}` with dtype {dtype}{shape}",
        node.node
    );
    kernel(move |_| Err(KernelError::invalid(message.clone())))
}

/// TensorFlow `Identity`, and ops that differ from it only in the gradient or the feed: no copy.
pub(in crate::backend) fn identity(_: &KernelConstruction<'_>) -> Made {
    view(|context| Ok(context.input(0)?.shape().clone()))
}

/// TensorFlow `IdentityN`.
pub(in crate::backend) fn identity_n(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        for index in 0..context.n_inputs() {
            context.set_output(index, context.input(index)?.clone())?;
        }
        Ok(())
    })
}

/// TensorFlow `NoOp`.
pub(in crate::backend) fn no_op(_: &KernelConstruction<'_>) -> Made {
    Ok(Box::new(NoOp))
}

pub(in crate::backend) struct NoOp;

impl Kernel for NoOp {
    fn compute(&self, _: &mut KernelContext<'_>) -> Result<(), KernelError> {
        Ok(())
    }
}
