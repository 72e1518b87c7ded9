//! Pooling.

use crate::backend::plan::window::channels_last;
use crate::backend::plan::window::paddings;
use crate::backend::plan::window::spatial;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::pool::Pool;
use crate::kernels::window::WindowSpec;
use crate::ops::Padding;
use crate::tensor::Shape;

/// The windows of TensorFlow `MaxPool` and `AvgPool`, channels last.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct PoolWindows {
    rows: WindowSpec,
    columns: WindowSpec,
}

impl PoolWindows {
    /// Reads the attributes.
    pub(in crate::backend) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        channels_last(node)?;
        let sizes = spatial(node, "ksize", None)?;
        let strides = spatial(node, "strides", None)?;
        Self::of_sizes(sizes, strides, paddings(node)?)
    }

    /// Returns the windows of these sizes and strides, which come from inputs.
    pub(in crate::backend) fn of(
        sizes: [i64; 2],
        strides: [i64; 2],
        padding: [Padding; 2],
    ) -> Result<Self, KernelError> {
        let positive = |value: i64| {
            usize::try_from(value).map_err(|_| {
                KernelError::invalid(format!("window size or stride {value} must be positive"))
            })
        };
        Self::of_sizes(
            [positive(sizes[0])?, positive(sizes[1])?],
            [positive(strides[0])?, positive(strides[1])?],
            padding,
        )
    }

    fn of_sizes(
        sizes: [usize; 2],
        strides: [usize; 2],
        padding: [Padding; 2],
    ) -> Result<Self, KernelError> {
        let spec = |index: usize| WindowSpec {
            size: sizes[index],
            stride: strides[index],
            dilation: 1,
            padding: padding[index],
        };
        for axis in [0, 1] {
            if let Padding::Explicit(before, after) = padding[axis]
                && before.max(after) >= sizes[axis]
            {
                return Err(KernelError::invalid(format!(
                    "a padding of {before} and {after} would leave windows of {} without input",
                    sizes[axis]
                )));
            }
        }
        Ok(Self {
            rows: spec(0),
            columns: spec(1),
        })
    }

    /// Plans the pooling of an input of this shape, and returns the result's shape.
    pub(in crate::backend) fn over(self, input: &Shape) -> Result<(Pool, Shape), KernelError> {
        let &[batch, rows, columns, channels] = input.dims() else {
            return Err(KernelError::invalid(format!(
                "input must be 4-dimensional, found {input}"
            )));
        };
        let over = |spec: WindowSpec, length: usize| {
            spec.over(length)
                .map_err(|error| KernelError::invalid(format!("{error}: input {input}")))
        };
        let pool = Pool {
            batch,
            rows: over(self.rows, rows)?,
            columns: over(self.columns, columns)?,
            channels,
        };
        let shape = Shape::from([batch, pool.rows.output, pool.columns.output, channels]);
        Ok((pool, shape))
    }
}
