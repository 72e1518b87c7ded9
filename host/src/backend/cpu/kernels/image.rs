//! Resizing of images, and blocks of pixels as channels or batches.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::cpu::kernels::slice::rearranged;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::image::Blocks;
use crate::backend::plan::image::ResizeAttrs;
use crate::backend::plan::image::ResizePlan;
use crate::backend::plan::image::block_size_attr;
use crate::backend::plan::image::image_dims;
use crate::backend::plan::product;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::image;
use crate::kernels::strided::StridedCopy;
use crate::kernels::strided::row_major_strides;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Types of images that TensorFlow resizes.
pub(super) const IMAGES: [DType; 12] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("ResizeBilinear")
            .with_types("T", &IMAGES)
            .with_host_memory("size")
            .with_factory(resize_bilinear),
    );
    registry.register(
        def("ResizeNearestNeighbor")
            .with_types("T", &IMAGES)
            .with_host_memory("size")
            .with_factory(resize_nearest),
    );
    registry.register(
        def("SpaceToDepth")
            .with_types("T", &MOVED)
            .with_factory(space_to_depth),
    );
    registry.register(
        def("DepthToSpace")
            .with_types("T", &MOVED)
            .with_factory(depth_to_space),
    );
    for (op, margins, make) in [
        (
            "SpaceToBatchND",
            "paddings",
            space_to_batch as fn(&KernelConstruction<'_>) -> Made,
        ),
        ("BatchToSpaceND", "crops", batch_to_space),
    ] {
        registry.register(
            def(op)
                .with_types("T", &NUMBERS)
                .with_types("Tblock_shape", &INDICES)
                .with_types(format!("T{margins}"), &INDICES)
                .with_host_memory("block_shape")
                .with_host_memory(margins)
                .with_factory(make),
        );
    }
    registry.register(
        def("SpaceToBatch")
            .with_types("T", &NUMBERS)
            .with_types("Tpaddings", &INDICES)
            .with_host_memory("paddings")
            .with_factory(space_to_batch),
    );
    registry.register(
        def("BatchToSpace")
            .with_types("T", &NUMBERS)
            .with_types("Tidx", &INDICES)
            .with_host_memory("crops")
            .with_factory(batch_to_space),
    );
}

/// TensorFlow `ResizeBilinear`. The result is always `float`.
fn resize_bilinear(node: &KernelConstruction<'_>) -> Made {
    let attrs = ResizeAttrs::new(node)?;
    dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
        let ResizePlan { shape, rows, columns, channels } = attrs.plan(context)?;
        let x = context.input(0)?.as_slice::<T>()?;
        output(context, shape, |out| {
            image::resize_bilinear(x, [&rows, &columns], channels, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `ResizeNearestNeighbor`.
fn resize_nearest(node: &KernelConstruction<'_>) -> Made {
    let attrs = ResizeAttrs::new(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let ResizePlan { shape, rows, columns, channels } = attrs.plan(context)?;
        let input = context.input(0)?;
        let x = W::read(input)?;
        W::write(context, 0, input.dtype(), shape, |out| {
            image::resize_nearest(&x, [&rows, &columns], channels, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `SpaceToDepth`, channels last: each block of pixels becomes the channels of one
/// pixel.
fn space_to_depth(node: &KernelConstruction<'_>) -> Made {
    let block = block_size_attr(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let input = context.input(0)?.shape();
        let [batch, rows, columns, channels] = image_dims(input)?;
        if !rows.is_multiple_of(block) || !columns.is_multiple_of(block) {
            return Err(KernelError::invalid(format!(
                "image width {columns} and height {rows} should be divisible by block_size: {block}"
            )));
        }
        let (y, x) = (rows / block, columns / block);
        let depth = product(&[block, block, channels]);
        let strides = row_major_strides(&[batch, y, block, x, block, channels]);
        let axes = [(batch, 0), (y, 1), (x, 3), (block, 2), (block, 4), (channels, 5)];
        let copy = StridedCopy::new(0, axes.map(|(size, axis)| (size, strides[axis])));
        rearranged::<W>(context, [batch, y, x, depth].into(), &copy)
    }))
}

/// TensorFlow `DepthToSpace`, channels last: the channels of a pixel become a block of pixels.
fn depth_to_space(node: &KernelConstruction<'_>) -> Made {
    let block = block_size_attr(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let input = context.input(0)?.shape();
        let [batch, rows, columns, channels] = image_dims(input)?;
        let square = product(&[block, block]);
        if !channels.is_multiple_of(square) {
            return Err(KernelError::invalid(format!(
                "input depth dimension {channels} should be divisible by: {square}"
            )));
        }
        let depth = channels / square;
        let strides = row_major_strides(&[batch, rows, columns, block, block, depth]);
        let axes = [(batch, 0), (rows, 1), (block, 3), (columns, 2), (block, 4), (depth, 5)];
        let copy = StridedCopy::new(0, axes.map(|(size, axis)| (size, strides[axis])));
        let shape = [batch, product(&[rows, block]), product(&[columns, block]), depth].into();
        rearranged::<W>(context, shape, &copy)
    }))
}

/// TensorFlow `SpaceToBatchND`: each position in a block of pixels becomes an image of its own.
fn space_to_batch(node: &KernelConstruction<'_>) -> Made {
    let block_size = node.attrs.int("block_size");
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let input = context.input(0)?;
        let blocks = Blocks::new(context, "paddings", block_size)?;
        let n = blocks.sizes.len();
        let (dims, space) = (input.shape().dims(), &input.shape().dims()[1..=n]);
        let mut batched = space.to_vec();
        for (axis, size) in batched.iter_mut().enumerate() {
            let (before, after) = blocks.margins[axis];
            let padded = size.saturating_add(before).saturating_add(after);
            if !padded.is_multiple_of(blocks.sizes[axis]) {
                return Err(KernelError::invalid(format!(
                    "padded_shape[{axis}]={padded} is not divisible by block_shape[{axis}]={}",
                    blocks.sizes[axis]
                )));
            }
            *size = padded / blocks.sizes[axis];
        }
        let shape: Shape = std::iter::once(product(&[dims[0], blocks.n_blocks]))
            .chain(batched.iter().chain(&dims[n + 1..]).copied())
            .collect();
        let (whole, inner) = (product(space), product(&dims[n + 1..]));
        let n_indices = product(&batched);
        let x = W::read(input)?;
        W::write(context, 0, input.dtype(), shape, |out| {
            if out.is_empty() {
                return Ok(());
            }
            for (row, out) in out.chunks_exact_mut(inner).enumerate() {
                let (image, index) = (row / n_indices, row % n_indices);
                let (block, batch) = (image / dims[0], image % dims[0]);
                match blocks.place(space, &batched, index, block) {
                    Some(place) => out.copy_from_slice(&x[(batch * whole + place) * inner..][..inner]),
                    None => out.fill(<W as RawElements>::Raw::default()),
                }
            }
            Ok(())
        })
    }))
}

/// TensorFlow `BatchToSpaceND`: the inverse of `SpaceToBatchND`, with a cropped margin.
fn batch_to_space(node: &KernelConstruction<'_>) -> Made {
    let block_size = node.attrs.int("block_size");
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let input = context.input(0)?;
        let blocks = Blocks::new(context, "crops", block_size)?;
        let n = blocks.sizes.len();
        let (dims, batched) = (input.shape().dims(), &input.shape().dims()[1..=n]);
        if !dims[0].is_multiple_of(blocks.n_blocks) {
            return Err(KernelError::invalid(format!(
                "input batch dimension ({}) is not divisible by product of block sizes ({})",
                dims[0], blocks.n_blocks
            )));
        }
        let batch = dims[0] / blocks.n_blocks;
        let mut space = batched.to_vec();
        for (axis, size) in space.iter_mut().enumerate() {
            let (before, after) = blocks.margins[axis];
            let whole = size.saturating_mul(blocks.sizes[axis]);
            *size = whole.checked_sub(before.saturating_add(after)).ok_or_else(|| {
                KernelError::invalid(format!(
                    "cropped size must be non-negative: {whole} without {before} and {after}"
                ))
            })?;
        }
        let shape: Shape = std::iter::once(batch)
            .chain(space.iter().chain(&dims[n + 1..]).copied())
            .collect();
        let (whole, inner) = (product(&space), product(&dims[n + 1..]));
        let n_indices = product(batched);
        let x = W::read(input)?;
        W::write(context, 0, input.dtype(), shape, |out| {
            if out.is_empty() {
                return Ok(());
            }
            // Every element of the result has one source; sources in the margin are dropped.
            for (row, x) in x.chunks_exact(inner).enumerate() {
                let (image, index) = (row / n_indices, row % n_indices);
                let (block, image) = (image / batch, image % batch);
                if let Some(place) = blocks.place(&space, batched, index, block) {
                    out[(image * whole + place) * inner..][..inner].copy_from_slice(x);
                }
            }
            Ok(())
        })
    }))
}
