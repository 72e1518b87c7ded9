//! Slices, permutations and repetitions of tensors.

use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::value::vector;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::graph::AttrValue;
use crate::kernels::slice;
use crate::kernels::slice::SliceMasks;
use crate::kernels::strided::StridedCopy;
use crate::tensor::Shape;

/// Which elements of input 0 become a node's output 0, and its shape.
pub(in crate::backend) type Rearrangement =
    Box<dyn Fn(&KernelContext<'_>) -> Result<(Shape, StridedCopy), KernelError> + Send + Sync>;

/// TensorFlow `Slice`, `StridedSlice`, `ReverseV2`, `Transpose` and `Tile`.
pub(in crate::backend) fn rearrangement(
    node: &KernelConstruction<'_>,
) -> Result<Rearrangement, KernelError> {
    Ok(match node.op {
        "Slice" => Box::new(|context| {
            let begin = vector(context.input(1)?, "begin")?;
            let sizes = vector(context.input(2)?, "size")?;
            slice::slice(context.input(0)?.shape(), &begin, &sizes)
        }),
        "StridedSlice" => {
            let slice_of = strided_slice(node)?;
            Box::new(move |context| slice_of(context, context.input(0)?.shape()))
        }
        "ReverseV2" => Box::new(|context| {
            let input = context.input(0)?.shape();
            let axes = vector(context.input(1)?, "axis")?;
            Ok((input.clone(), slice::reverse(input, &axes)?))
        }),
        "Transpose" | "ConjugateTranspose" => Box::new(|context| {
            let permutation = vector(context.input(1)?, "perm")?;
            slice::transpose(context.input(0)?.shape(), &permutation)
        }),
        // Of any type, including `uint16`, which TensorFlow registers but its kernel rejects.
        "Tile" => Box::new(|context| {
            let multiples = vector(context.input(1)?, "multiples")?;
            slice::tile(context.input(0)?.shape(), &multiples)
        }),
        other => {
            return Err(KernelError::Unimplemented(format!(
                "{other} does not rearrange elements"
            )));
        }
    })
}

/// The slice of a tensor of a shape that inputs 1 to 3 of a node select.
pub(in crate::backend) type SliceOf = Box<
    dyn Fn(&KernelContext<'_>, &Shape) -> Result<(Shape, StridedCopy), KernelError> + Send + Sync,
>;

/// TensorFlow `StridedSlice`, and ops that write to such a slice.
pub(in crate::backend) fn strided_slice(
    node: &KernelConstruction<'_>,
) -> Result<SliceOf, KernelError> {
    let masks = SliceMasks {
        begin: mask_attr(node, "begin_mask")?,
        end: mask_attr(node, "end_mask")?,
        ellipsis: mask_attr(node, "ellipsis_mask")?,
        new_axis: mask_attr(node, "new_axis_mask")?,
        shrink: mask_attr(node, "shrink_axis_mask")?,
    };
    Ok(Box::new(move |context, shape| {
        let begin = vector(context.input(1)?, "begin")?;
        let end = vector(context.input(2)?, "end")?;
        let strides = vector(context.input(3)?, "strides")?;
        slice::strided_slice(shape, &begin, &end, &strides, masks)
    }))
}

/// Returns a mask; only its lower 32 bits have a meaning.
fn mask_attr(node: &KernelConstruction<'_>, name: &str) -> Result<u32, KernelError> {
    match node.attrs.get(name) {
        None => Ok(0),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bits, not a number"
        )]
        Some(AttrValue::Int(value)) => Ok(*value as u32),
        Some(_) => Err(bad_attr(node, name, "int")),
    }
}
