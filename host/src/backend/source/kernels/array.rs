//! Slices, permutations and repetitions of tensors; concatenation and splits.

use smallvec::SmallVec;

use crate::backend::plan::attr::int_attr;
use crate::backend::plan::concat::concat_plan;
use crate::backend::plan::concat::split_plan;
use crate::backend::plan::concat::split_v_plan;
use crate::backend::plan::fill::broadcast_plan;
use crate::backend::plan::pack::pack_plan;
use crate::backend::plan::pack::unpack_plan;
use crate::backend::plan::product;
use crate::backend::plan::slice::rearrangement;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::kernel;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::moved::Copier;
use crate::backend::source::kernels::moved::CopyAxis;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::strided::row_major_strides;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(table: &mut Table<'_>) {
    for (op, index_attr, host) in [
        ("Slice", "Index", &["begin", "size"][..]),
        ("StridedSlice", "Index", &["begin", "end", "strides"]),
        ("ReverseV2", "Tidx", &["axis"]),
        ("Transpose", "Tperm", &["perm"]),
        ("Tile", "Tmultiples", &["multiples"]),
        ("BroadcastTo", "Tidx", &["shape"]),
        ("ConcatV2", "Tidx", &["axis"]),
    ] {
        let mut def = table.def(op).with_types("T", &ELEMENTS);
        // As on CPUs, any type of index is accepted.
        if op != "StridedSlice" {
            def = def.with_types(index_attr, &INDICES);
        }
        for arg in host {
            def = def.with_host_memory(*arg);
        }
        table.add(match op {
            "BroadcastTo" => def.with_factory(broadcast_to),
            "ConcatV2" => def.with_factory(|node| concat(node, false)),
            _ => def.with_factory(rearranged),
        });
    }
    let def = table.def("Concat").with_types("T", &ELEMENTS);
    let def = def.with_host_memory("concat_dim");
    table.add(def.with_factory(|node| concat(node, true)));
    let def = table.def("Split").with_types("T", &ELEMENTS);
    table.add(def.with_host_memory("split_dim").with_factory(split));
    let def = table.def("SplitV").with_types("T", &ELEMENTS);
    let def = def.with_types("Tlen", &[DType::I8, DType::I32, DType::I64]);
    let def = def.with_host_memory("size_splits");
    table.add(def.with_host_memory("split_dim").with_factory(split));
    let def = table.def("Pack").with_types("T", &ELEMENTS);
    table.add(def.with_factory(pack));
    let def = table.def("Unpack").with_types("T", &ELEMENTS);
    table.add(def.with_factory(unpack));
}

/// TensorFlow `Slice`, `StridedSlice`, `ReverseV2`, `Transpose` and `Tile`.
fn rearranged(node: &KernelConstruction<'_>) -> Made {
    let plan = rearrangement(node)?;
    let copier = Copier::new(node, "T")?;
    kernel(node, move |call| {
        let (shape, copy) = plan(call.context)?;
        let input = call.input(0)?;
        if copy.is_identity(input.shape().n_elements()) {
            return call.context.forward_input(0, 0, &shape);
        }
        let out = call.output(input.dtype(), &shape)?;
        copier.copy(
            call,
            input,
            &out,
            [copy.start(), 0],
            into_order(copy.axes()),
        )?;
        call.set_output(0, out)
    })
}

/// Returns the strides of the source next to those of a contiguous result.
fn into_order(
    axes: impl ExactSizeIterator<Item = (usize, isize)>,
) -> impl Iterator<Item = CopyAxis> {
    let axes: SmallVec<[(usize, isize); 6]> = axes.collect();
    let sizes: SmallVec<[usize; 6]> = axes.iter().map(|axis| axis.0).collect();
    let order = row_major_strides(&sizes);
    axes.into_iter()
        .zip(order)
        .map(|((size, from), to)| (size, [from, to]))
}

/// TensorFlow `BroadcastTo`.
fn broadcast_to(node: &KernelConstruction<'_>) -> Made {
    let copier = Copier::new(node, "T")?;
    kernel(node, move |call| {
        let (shape, spread) = broadcast_plan(call.context)?;
        let input = call.input(0)?;
        if input.shape() == &shape {
            return call.context.forward_input(0, 0, &shape);
        }
        let out = call.output(input.dtype(), &shape)?;
        let axes = spread.axes().map(|(size, [stride])| (size, stride));
        let axes: SmallVec<[(usize, isize); 6]> = axes
            .map(|(size, stride)| (size, isize::try_from(stride).unwrap_or(isize::MAX)))
            .collect();
        copier.copy(call, input, &out, [0, 0], into_order(axes.into_iter()))?;
        call.set_output(0, out)
    })
}

/// TensorFlow `Concat` and `ConcatV2`: a copy per value.
fn concat(node: &KernelConstruction<'_>, axis_is_first: bool) -> Made {
    let copier = Copier::new(node, "T")?;
    kernel(node, move |call| {
        let joined = concat_plan(call.context, axis_is_first)?;
        let out = call.output(joined.values[0].dtype(), &joined.shape)?;
        let row = joined.shape.dims()[joined.axis].saturating_mul(joined.inner);
        let outer = product(&joined.shape.dims()[..joined.axis]);
        let mut start = 0usize;
        for &value in &joined.values {
            let length = value.shape().dims()[joined.axis].saturating_mul(joined.inner);
            copier.copy(
                call,
                value,
                &out,
                [0, start],
                rows(outer, length, [length, row]),
            )?;
            start = start.saturating_add(length);
        }
        call.set_output(0, out)
    })
}

/// Returns the axes of `outer` runs of `length` elements that are `strides` apart.
fn rows(outer: usize, length: usize, strides: [usize; 2]) -> [CopyAxis; 2] {
    // Saturates only if a dimension is 0, and then nothing is copied.
    let strides = strides.map(|stride| isize::try_from(stride).unwrap_or(isize::MAX));
    [(outer, strides), (length, [1, 1])]
}

/// TensorFlow `Split` and `SplitV`.
fn split(node: &KernelConstruction<'_>) -> Made {
    let copier = Copier::new(node, "T")?;
    let is_even = node.op == "Split";
    kernel(node, move |call| {
        let (input, (axis, sizes)) = if is_even {
            (1, split_plan(call.context)?)
        } else {
            (0, split_v_plan(call.context)?)
        };
        let value = call.input(input)?;
        if sizes.len() == 1 {
            return call.context.forward_input(input, 0, value.shape());
        }
        let shapes = sizes.iter().map(|&size| {
            let mut part: SmallVec<[usize; 6]> = value.shape().dims().into();
            part[axis] = size;
            Shape::new(&part)
        });
        cut(call, &copier, value, axis, shapes)
    })
}

/// Writes the next part of `value` along the axis to output `i`.
fn cut(
    call: &Call<'_, '_>,
    copier: &Copier,
    value: &Tensor,
    axis: usize,
    shapes: impl Iterator<Item = Shape>,
) -> Result<(), KernelError> {
    let outer = product(&value.shape().dims()[..axis]);
    let row = product(&value.shape().dims()[axis..]);
    let mut start = 0usize;
    for (index, shape) in shapes.enumerate() {
        let out = call.output(value.dtype(), &shape)?;
        let length = product(&shape.dims()[axis..]);
        copier.copy(
            call,
            value,
            &out,
            [start, 0],
            rows(outer, length, [row, length]),
        )?;
        call.set_output(index, out)?;
        start = start.saturating_add(length);
    }
    Ok(())
}

/// TensorFlow `Pack`.
fn pack(node: &KernelConstruction<'_>) -> Made {
    let axis = int_attr(node, "axis", Some(0))?;
    let copier = Copier::new(node, "T")?;
    kernel(node, move |call| {
        let (shape, inner) = pack_plan(call.context, axis)?;
        let n = call.context.n_inputs();
        if n == 1 {
            return call.context.forward_input(0, 0, &shape);
        }
        let out = call.output(call.input(0)?.dtype(), &shape)?;
        let row = inner.saturating_mul(n);
        for (index, value) in call.context.inputs().enumerate() {
            let outer = value.shape().n_elements().checked_div(inner).unwrap_or(0);
            let start = inner.saturating_mul(index);
            copier.copy(
                call,
                value,
                &out,
                [0, start],
                rows(outer, inner, [inner, row]),
            )?;
        }
        call.set_output(0, out)
    })
}

/// TensorFlow `Unpack`.
fn unpack(node: &KernelConstruction<'_>) -> Made {
    let axis = int_attr(node, "axis", Some(0))?;
    let n_parts = int_attr(node, "num", None)?;
    let copier = Copier::new(node, "T")?;
    kernel(node, move |call| {
        let (shape, inner, n) = unpack_plan(call.context, axis, n_parts)?;
        if n == 1 {
            return call.context.forward_input(0, 0, &shape);
        }
        let value = call.input(0)?;
        let outer = shape.n_elements().checked_div(inner).unwrap_or(0);
        let row = inner.saturating_mul(n);
        for index in 0..n {
            let out = call.output(value.dtype(), &shape)?;
            let start = inner.saturating_mul(index);
            copier.copy(
                call,
                value,
                &out,
                [start, 0],
                rows(outer, inner, [row, inner]),
            )?;
            call.set_output(index, out)?;
        }
        Ok(())
    })
}
