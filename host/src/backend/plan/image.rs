//! Resizing of images, and blocks of pixels as channels or batches.

use smallvec::SmallVec;

use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::product;
use crate::backend::plan::value::integers;
use crate::backend::plan::value::vector;
use crate::backend::plan::window::channels_last;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::image::Resize;
use crate::tensor::Shape;

/// The attributes of `ResizeBilinear` and `ResizeNearestNeighbor`: how pixel positions of input and
/// output correspond.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct ResizeAttrs {
    align_corners: bool,
    half_pixel_centers: bool,
}

/// A resize with checked inputs.
pub(in crate::backend) struct ResizePlan {
    pub(in crate::backend) shape: Shape,
    pub(in crate::backend) rows: Resize,
    pub(in crate::backend) columns: Resize,
    pub(in crate::backend) channels: usize,
}

impl ResizeAttrs {
    /// Reads the attributes.
    pub(in crate::backend) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let attrs = Self {
            align_corners: bool_attr(node, "align_corners", false)?,
            half_pixel_centers: bool_attr(node, "half_pixel_centers", false)?,
        };
        if attrs.align_corners && attrs.half_pixel_centers {
            return Err(KernelError::invalid(
                "if half_pixel_centers is True, align_corners must be False",
            ));
        }
        Ok(attrs)
    }

    /// Plans the resize of input 0 to the size in input 1.
    pub(in crate::backend) fn plan(
        self,
        context: &KernelContext<'_>,
    ) -> Result<ResizePlan, KernelError> {
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
        Ok(ResizePlan {
            shape: [batch, new_rows, new_columns, channels].into(),
            rows: axis(rows, new_rows),
            columns: axis(columns, new_columns),
            channels,
        })
    }
}

/// Returns the block size of `SpaceToDepth` or `DepthToSpace`, channels last.
pub(in crate::backend) fn block_size_attr(
    node: &KernelConstruction<'_>,
) -> Result<usize, KernelError> {
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

/// Returns the dimensions of images: batch, rows, columns, channels.
pub(in crate::backend) fn image_dims(shape: &Shape) -> Result<[usize; 4], KernelError> {
    <[usize; 4]>::try_from(shape.dims())
        .map_err(|_| KernelError::invalid(format!("input rank should be 4: {shape}")))
}

/// Blocks of the dimensions after the batch, and the padding or cropping of each: (before, after).
pub(in crate::backend) struct Blocks {
    pub(in crate::backend) sizes: Vec<usize>,
    pub(in crate::backend) margins: Vec<(usize, usize)>,
    pub(in crate::backend) n_blocks: usize,
}

impl Blocks {
    /// Reads inputs 1 and 2: blocks and margins, which `what` names in errors. Ops with attribute
    /// `block_size` have images, and their margins in input 1.
    pub(in crate::backend) fn new(
        context: &KernelContext<'_>,
        what: &str,
        block_size: Option<i64>,
    ) -> Result<Self, KernelError> {
        let input = context.input(0)?.shape();
        let (blocks, margins) = match block_size {
            Some(_) if input.rank() != 4 => {
                return Err(KernelError::invalid(format!(
                    "input rank should be 4 instead of {}",
                    input.rank()
                )));
            }
            Some(size) => (SmallVec::from_slice(&[size; 2]), context.input(1)?),
            None => (vector(context.input(1)?, "block_shape")?, context.input(2)?),
        };
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
    pub(in crate::backend) fn place(
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
