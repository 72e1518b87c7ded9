//! Slices, permutations and repetitions of tensors.

use crate::backend::cpu::kernels::INDICES;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::bad_attr;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::ints_attr;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::cpu::kernels::raw::integers;
use crate::backend::cpu::kernels::raw::vector;
use crate::backend::cpu::kernels::type_attr;
use crate::backend::cpu::kernels::view;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::graph::AttrValue;
use crate::kernels::Threads;
use crate::kernels::slice;
use crate::kernels::slice::SliceMasks;
use crate::kernels::slice::axis_index;
use crate::kernels::strided::StridedCopy;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Slice")
            .with_types("T", &MOVED)
            .with_types("Index", &INDICES)
            .with_host_memory("begin")
            .with_host_memory("size")
            .with_factory(rearrange),
    );
    registry.register(
        def("StridedSlice")
            .with_types("T", &MOVED)
            .with_host_memory("begin")
            .with_host_memory("end")
            .with_host_memory("strides")
            .with_factory(rearrange),
    );
    registry.register(
        def("ReverseV2")
            .with_types("T", &MOVED)
            .with_types("Tidx", &INDICES)
            .with_host_memory("axis")
            .with_factory(rearrange),
    );
    registry.register(
        def("Transpose")
            .with_types("T", &MOVED)
            .with_types("Tperm", &INDICES)
            .with_host_memory("perm")
            .with_factory(rearrange),
    );
    registry.register(
        def("Tile")
            .with_types("Tmultiples", &INDICES)
            .with_host_memory("multiples")
            .with_factory(rearrange),
    );
    registry.register(
        def("ExpandDims")
            .with_types("Tdim", &INDICES)
            .with_host_memory("dim")
            .with_factory(expand_dims),
    );
    registry.register(def("Squeeze").with_factory(squeeze));
}

/// Writes the elements of input 0 to output 0 in another order, or forwards input 0 if the order is
/// unchanged.
pub(super) fn rearranged<W: RawElements>(
    context: &KernelContext<'_>,
    shape: Shape,
    copy: &StridedCopy,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    if copy.is_identity(input.shape().n_elements()) {
        return context.forward_input(0, 0, &shape);
    }
    let elements = W::read(input)?;
    W::write(context, 0, input.dtype(), shape, |out| {
        copy.apply(&elements, out, Threads::of(context));
        Ok(())
    })
}

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
        "StridedSlice" => strided_slice(node)?,
        "ReverseV2" => Box::new(|context| {
            let input = context.input(0)?.shape();
            let axes = vector(context.input(1)?, "axis")?;
            Ok((input.clone(), slice::reverse(input, &axes)?))
        }),
        "Transpose" => Box::new(|context| {
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

fn rearrange(node: &KernelConstruction<'_>) -> Made {
    let plan = rearrangement(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let (shape, copy) = plan(context)?;
        rearranged::<W>(context, shape, &copy)
    }))
}

fn strided_slice(node: &KernelConstruction<'_>) -> Result<Rearrangement, KernelError> {
    let masks = SliceMasks {
        begin: mask_attr(node, "begin_mask")?,
        end: mask_attr(node, "end_mask")?,
        ellipsis: mask_attr(node, "ellipsis_mask")?,
        new_axis: mask_attr(node, "new_axis_mask")?,
        shrink: mask_attr(node, "shrink_axis_mask")?,
    };
    Ok(Box::new(move |context| {
        let begin = vector(context.input(1)?, "begin")?;
        let end = vector(context.input(2)?, "end")?;
        let strides = vector(context.input(3)?, "strides")?;
        slice::strided_slice(context.input(0)?.shape(), &begin, &end, &strides, masks)
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

/// TensorFlow `ExpandDims`: no copy.
pub(in crate::backend) fn expand_dims(_: &KernelConstruction<'_>) -> Made {
    view(|context| {
        let (input, dim) = (context.input(0)?.shape(), context.input(1)?);
        let &[wanted] = &integers(dim)?[..] else {
            return Err(KernelError::invalid(format!(
                "'dim' must be a tensor with a single value, not of shape {}",
                dim.shape()
            )));
        };
        let rank = input.rank();
        let axis = axis_index(wanted, rank + 1).ok_or_else(|| {
            KernelError::invalid(format!(
                "tried to expand dim index {wanted} for tensor with {rank} dimensions: {input}"
            ))
        })?;
        let (before, after) = input.dims().split_at(axis);
        Ok(before.iter().chain(&[1]).chain(after).copied().collect())
    })
}

/// TensorFlow `Squeeze`: no copy.
pub(in crate::backend) fn squeeze(node: &KernelConstruction<'_>) -> Made {
    let axes = ints_attr(node, "squeeze_dims", &[])?;
    view(move |context| {
        let input = context.input(0)?.shape();
        if axes.is_empty() {
            let left = input.dims().iter().copied().filter(|&dim| dim != 1);
            return Ok(left.collect());
        }
        let mut dims = input.dims().to_vec();
        for &wanted in &axes {
            let axis = axis_index(wanted, input.rank()).ok_or_else(|| {
                KernelError::invalid(format!(
                    "tried to squeeze dim index {wanted} for tensor with {} dimensions: {input}",
                    input.rank()
                ))
            })?;
            if input.dims()[axis] != 1 {
                return Err(KernelError::invalid(format!(
                    "can not squeeze dim[{axis}], expected a dimension of 1, got {}: {input}",
                    input.dims()[axis]
                )));
            }
            // A dimension may be listed twice.
            dims[axis] = usize::MAX;
        }
        let left = dims.into_iter().filter(|&dim| dim != usize::MAX);
        Ok(left.collect())
    })
}
