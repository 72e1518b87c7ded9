//! Resizing of images, and blocks of pixels as channels or batches.

use crate::backend::cpu::kernels::INDICES;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::NUMBERS;
use crate::backend::cpu::kernels::bad_attr;
use crate::backend::cpu::kernels::bool_attr;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::nn::channels_last;
use crate::backend::cpu::kernels::output;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::cpu::kernels::raw::integers;
use crate::backend::cpu::kernels::raw::product;
use crate::backend::cpu::kernels::raw::vector;
use crate::backend::cpu::kernels::slice::rearranged;
use crate::backend::cpu::kernels::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::image;
use crate::kernels::image::Resize;
use crate::kernels::strided::StridedCopy;
use crate::kernels::strided::row_major_strides;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Types of images that TensorFlow resizes.
const IMAGES: [DType; 12] = [
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
}

/// How pixel positions of input and output correspond.
#[derive(Debug, Clone, Copy)]
struct Placing {
    align_corners: bool,
    half_pixel_centers: bool,
}

/// A resize with checked inputs.
struct Resized {
    shape: Shape,
    rows: Resize,
    columns: Resize,
    channels: usize,
}

impl Placing {
    fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let placing = Self {
            align_corners: bool_attr(node, "align_corners", false)?,
            half_pixel_centers: bool_attr(node, "half_pixel_centers", false)?,
        };
        if placing.align_corners && placing.half_pixel_centers {
            return Err(KernelError::invalid(
                "if half_pixel_centers is True, align_corners must be False",
            ));
        }
        Ok(placing)
    }

    fn plan(self, context: &KernelContext<'_>) -> Result<Resized, KernelError> {
        let (images, size) = (context.input(0)?.shape(), context.input(1)?);
        let &[batch, rows, columns, channels] = images.dims() else {
            return Err(KernelError::invalid(format!(
                "input must be 4-dimensional: {images}"
            )));
        };
        if channels == 0 {
            return Err(KernelError::invalid(format!(
                "image must have at least one channel: {images}"
            )));
        }
        if rows == 0 || columns == 0 {
            return Err(KernelError::invalid(format!(
                "input image must be of non-zero size: {images}"
            )));
        }
        let wanted = vector(size, "shape_t")?;
        let &[new_rows, new_columns] = &wanted[..] else {
            return Err(KernelError::invalid(format!(
                "shape_t must have two elements: {}",
                size.shape()
            )));
        };
        let positive = |size: i64| {
            usize::try_from(size)
                .ok()
                .filter(|&size| size > 0)
                .ok_or_else(|| {
                    KernelError::invalid(format!("output dimensions must be positive: {wanted:?}"))
                })
        };
        let axis = |input: usize, output: usize| Resize {
            input,
            output,
            align_corners: self.align_corners,
            half_pixel_centers: self.half_pixel_centers,
        };
        let (new_rows, new_columns) = (positive(new_rows)?, positive(new_columns)?);
        Ok(Resized {
            shape: [batch, new_rows, new_columns, channels].into(),
            rows: axis(rows, new_rows),
            columns: axis(columns, new_columns),
            channels,
        })
    }
}

/// TensorFlow `ResizeBilinear`. The result is always `float`.
fn resize_bilinear(node: &KernelConstruction<'_>) -> Made {
    let placing = Placing::new(node)?;
    dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
        let Resized { shape, rows, columns, channels } = placing.plan(context)?;
        let x = context.input(0)?.as_slice::<T>()?;
        output(context, shape, |out| {
            image::resize_bilinear(x, [&rows, &columns], channels, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `ResizeNearestNeighbor`.
fn resize_nearest(node: &KernelConstruction<'_>) -> Made {
    let placing = Placing::new(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let Resized { shape, rows, columns, channels } = placing.plan(context)?;
        let input = context.input(0)?;
        let x = W::read(input)?;
        W::write(context, 0, input.dtype(), shape, |out| {
            image::resize_nearest(&x, [&rows, &columns], channels, out, Threads::of(context));
            Ok(())
        })
    }))
}

fn block_size(node: &KernelConstruction<'_>) -> Result<usize, KernelError> {
    channels_last(node)?;
    let size = node
        .attrs
        .int("block_size")
        .ok_or_else(|| bad_attr(node, "block_size", "int"))?;
    usize::try_from(size)
        .ok()
        .filter(|&size| size > 1)
        .ok_or_else(|| KernelError::invalid(format!("block size should be > 1, but was: {size}")))
}

fn image_dims(shape: &Shape) -> Result<[usize; 4], KernelError> {
    <[usize; 4]>::try_from(shape.dims())
        .map_err(|_| KernelError::invalid(format!("input rank should be 4: {shape}")))
}

/// TensorFlow `SpaceToDepth`, channels last: each block of pixels becomes the channels of one
/// pixel.
fn space_to_depth(node: &KernelConstruction<'_>) -> Made {
    let block = block_size(node)?;
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
    let block = block_size(node)?;
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

/// Blocks of the dimensions after the batch, and the padding or cropping of each: (before, after).
struct Blocks {
    sizes: Vec<usize>,
    margins: Vec<(usize, usize)>,
    n_blocks: usize,
}

impl Blocks {
    fn new(context: &KernelContext<'_>, what: &str) -> Result<Self, KernelError> {
        let (input, margins) = (context.input(0)?.shape(), context.input(2)?);
        let blocks = vector(context.input(1)?, "block_shape")?;
        if input.rank() < blocks.len() + 1 {
            return Err(KernelError::invalid(format!(
                "input rank should be >= {} instead of {}",
                blocks.len() + 1,
                input.rank()
            )));
        }
        if margins.shape().dims() != [blocks.len(), 2] {
            return Err(KernelError::invalid(format!(
                "{what} should have shape [{}, 2] instead of {}",
                blocks.len(),
                margins.shape()
            )));
        }
        let sizes = blocks.iter().map(|&block| {
            usize::try_from(block)
                .ok()
                .filter(|&block| block > 0)
                .ok_or_else(|| {
                    KernelError::invalid(format!(
                        "all values in block_shape must be positive, got {blocks:?}"
                    ))
                })
        });
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        let values = integers(margins)?;
        let margins = values.chunks_exact(2).map(|pair| {
            usize::try_from(pair[0])
                .ok()
                .zip(usize::try_from(pair[1]).ok())
                .ok_or_else(|| {
                    KernelError::invalid(format!("{what} must be non-negative: {values:?}"))
                })
        });
        Ok(Self {
            margins: margins.collect::<Result<_, _>>()?,
            n_blocks: product(&sizes),
            sizes,
        })
    }

    /// Returns the position in the space, without the batch dimension, of an element of the batched
    /// tensor. `index` and `block` are the row-major numbers of its position and of its position in
    /// the block. `None` in the margin.
    fn place(
        &self,
        space: &[usize],
        batched: &[usize],
        mut index: usize,
        mut block: usize,
    ) -> Option<usize> {
        let (mut place, mut stride) = (0, 1);
        for axis in (0..self.sizes.len()).rev() {
            let size = self.sizes[axis];
            let position = (index % batched[axis] * size + block % size)
                .checked_sub(self.margins[axis].0)
                .filter(|&position| position < space[axis])?;
            place += position * stride;
            stride *= space[axis];
            index /= batched[axis];
            block /= size;
        }
        Some(place)
    }
}

/// TensorFlow `SpaceToBatchND`: each position in a block of pixels becomes an image of its own.
fn space_to_batch(node: &KernelConstruction<'_>) -> Made {
    dispatch_raw!(type_attr(node, "T")?, W => kernel(|context| {
        let input = context.input(0)?;
        let blocks = Blocks::new(context, "paddings")?;
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
    dispatch_raw!(type_attr(node, "T")?, W => kernel(|context| {
        let input = context.input(0)?;
        let blocks = Blocks::new(context, "crops")?;
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
