//! Images with channels first: they are transposed before and after a kernel for channels last.
//!
//! The optimizer replaces such nodes and transposes once per network. These kernels serve what it
//! leaves.

use smallvec::SmallVec;

use crate::backend::host_kernels::Made;
use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::type_attr;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::Threads;
use crate::kernels::slice;
use crate::ops::CHANNELS_FIRST;
use crate::ops::CHANNELS_LAST;
use crate::ops::attrs_with_channels_last;
use crate::ops::shape_with_channels_last;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::PartialShape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// A kernel whose first input and only output are images with channels first.
struct ChannelsFirst {
    /// The kernel of the same op for channels last.
    inner: Box<dyn Kernel>,
    dtype: DType,
}

/// Returns a kernel of either layout, if `make` makes those for channels last.
pub(super) fn either_layout(
    node: &KernelConstruction<'_>,
    make: impl Fn(&KernelConstruction<'_>) -> Made,
) -> Made {
    if node.attrs.text("data_format") != Some("NCHW") {
        return make(node);
    }
    let attrs = attrs_with_channels_last(node.attrs);
    let attrs = attrs.ok_or_else(|| bad_attr(node, "strides", "list with an entry per axis"))?;
    let mut shapes: SmallVec<[PartialShape; 4]> = node.input_shapes.iter().cloned().collect();
    if let Some(image) = shapes.first_mut() {
        *image = shape_with_channels_last(image);
    }
    let inner = make(&KernelConstruction {
        attrs: &attrs,
        input_shapes: &shapes,
        ..*node
    })?;
    let dtype = type_attr(node, "T")?;
    Ok(Box::new(ChannelsFirst { inner, dtype }))
}

impl ChannelsFirst {
    fn compute_as<T: Element>(&self, context: &KernelContext<'_>) -> Result<(), KernelError> {
        let mut inputs: SmallVec<[Tensor; 4]> = context.inputs().cloned().collect();
        let image = inputs.first_mut().ok_or_else(|| {
            KernelError::invalid("a node with channels first reads an image as its first input")
        })?;
        *image = transposed::<T>(context, image)?;
        let outputs = context.compute_inner(context.node(), &*self.inner, &inputs, &[false])?;
        let [output] = &outputs[..] else {
            return Err(KernelError::invalid(
                "a node with channels first has one output",
            ));
        };
        let (shape, copy) = slice::transpose(output.shape(), &axes(CHANNELS_FIRST))?;
        let elements = output.as_slice::<T>()?;
        context.fill_output(0, &shape, |out: &mut [T]| {
            copy.apply(elements, out, Threads::of(context));
            Ok(())
        })
    }
}

/// Returns an image with channels last.
fn transposed<T: Element>(
    context: &KernelContext<'_>,
    image: &Tensor,
) -> Result<Tensor, KernelError> {
    if image.shape().rank() != 4 {
        return Err(KernelError::invalid(format!(
            "an image with channels first must be 4-dimensional: {}",
            image.shape()
        )));
    }
    let (shape, copy) = slice::transpose(image.shape(), &axes(CHANNELS_LAST))?;
    let mut last = context.allocate_temporary(image.dtype(), shape)?;
    let elements = last.as_slice_mut().ok_or(TensorError::NotOnHost)?;
    copy.apply(image.as_slice::<T>()?, elements, Threads::of(context));
    Ok(last)
}

fn axes(axes: [usize; 4]) -> [i64; 4] {
    axes.map(|axis| axis as i64)
}

impl Kernel for ChannelsFirst {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        dispatch_number!(self.dtype, T => self.compute_as::<T>(context))
    }
}
