//! Kernels: one op on one device type.

use super::async_kernel::AsyncKernel;
use super::error::KernelError;
use super::kernel_context::KernelContext;
use super::traits::KernelDevice;
use crate::graph::AttrSet;
use crate::tensor::{DType, PartialShape, Tensor};

/// An op on one device type. A kernel is created once per node, and called once per execution, from
/// any thread.
pub trait Kernel: Send + Sync {
    /// Reads `context.input(i)` and sets every output.
    ///
    /// # Errors
    /// [`KernelError`]; the executor adds node, op, device and shapes.
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError>;

    /// Returns the input that output 0 forwards, possibly with another shape
    /// ([`KernelContext::forward_input`]). Plans then give both the same place.
    fn forwarded_input(&self) -> Option<usize> {
        None
    }

    /// Returns input `index`, which is `constant` in all runs of a plan, in the form that
    /// [`Self::compute`] reads fastest: a tensor on the same device, of any type and shape. Called
    /// once, when the plan is prepared; [`KernelContext::prepacked_input`] returns the result. With
    /// `None` the input is read as it is.
    ///
    /// # Errors
    /// [`KernelError`], if there is not enough memory.
    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        let _ = (index, constant, device);
        Ok(None)
    }

    /// Returns the name of the form that [`Self::prepack_input`] gives input `index`. Kernels of a
    /// device that name the same form share one prepacked tensor per constant, such as the steps of
    /// a recurrent network that is unrolled; they must all prepack it alike. Start the name with
    /// that of your crate. With `None` the kernel has a tensor of its own.
    fn prepacked_form(&self, index: usize) -> Option<&'static str> {
        let _ = index;
        None
    }

    /// Returns whether [`Self::compute`] reads only type and shape of input `index` if that is
    /// prepacked. The executor then keeps the elements of the constant only if something else reads
    /// them.
    fn replaces_prepacked_input(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// Returns the kernel as an asynchronous one, if it is one. It is then started with
    /// [`KernelDevice::compute_async`], and [`Self::compute`] is not called.
    fn as_async(&self) -> Option<&dyn AsyncKernel> {
        None
    }
}

/// What a kernel is created from.
#[derive(Debug)]
pub struct KernelConstruction<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Its op.
    pub op: &'a str,
    /// Its attributes, complete with the op's defaults.
    pub attrs: &'a AttrSet,
    /// Element types of the data inputs.
    pub input_dtypes: &'a [DType],
    /// Shapes of the data inputs, as far as the graph says.
    pub input_shapes: &'a [PartialShape],
    /// Element types of the outputs.
    pub output_dtypes: &'a [DType],
    /// The device that will execute it.
    pub device: &'a dyn KernelDevice,
}
