//! Kernels that do the same on every device, because they touch host memory only, or leave the
//! memory of the device to its context: they forward their input, keep it, read host-memory
//! arguments, or write shapes (TensorFlow registers one such class, for example `HostConstantOp` or
//! `ShapeOp`, for several device types).
//!
//! Each backend registers them with the types and host-memory arguments of its device.

use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::tensor::Element;
use crate::tensor::Shape;

pub(in crate::backend) mod control;
pub(in crate::backend) mod shape;
pub(in crate::backend) mod state;
pub(in crate::backend) mod variable;

/// The result of creating a kernel.
pub(in crate::backend) type Made = Result<Box<dyn Kernel>, KernelError>;

/// A kernel that consists of one function.
struct Function<F>(F);

impl<F> Kernel for Function<F>
where
    F: Fn(&KernelContext<'_>) -> Result<(), KernelError> + Send + Sync,
{
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        (self.0)(context)
    }
}

/// Creates a kernel from `compute`, which must set every output.
pub(in crate::backend) fn kernel<F>(compute: F) -> Made
where
    F: Fn(&KernelContext<'_>) -> Result<(), KernelError> + Send + Sync + 'static,
{
    Ok(Box::new(Function(compute)))
}

/// A kernel whose output 0 is its input 0 with the shape that `shape` returns.
struct View<F>(F);

impl<F> Kernel for View<F>
where
    F: Fn(&KernelContext<'_>) -> Result<Shape, KernelError> + Send + Sync,
{
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let shape = (self.0)(context)?;
        context.forward_input(0, 0, &shape)
    }

    fn forwarded_input(&self) -> Option<usize> {
        Some(0)
    }
}

/// Creates a kernel that forwards its input 0 with another shape.
pub(in crate::backend) fn view<F>(shape: F) -> Made
where
    F: Fn(&KernelContext<'_>) -> Result<Shape, KernelError> + Send + Sync + 'static,
{
    Ok(Box::new(View(shape)))
}

/// Allocates output 0 with this shape and fills it with `fill`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "for shapes made on the spot; others go to `fill_output`"
)]
pub(in crate::backend) fn output<T: Element>(
    context: &KernelContext<'_>,
    shape: Shape,
    fill: impl FnOnce(&mut [T]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    context.fill_output(0, &shape, fill)
}
