//! Convolutions: `Conv2D`, depthwise and transposed ones.

use crate::backend::plan::value::vector;
use crate::backend::plan::window::channels_last;
use crate::backend::plan::window::paddings;
use crate::backend::plan::window::spatial;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::conv::Convolution;
use crate::kernels::depthwise::Depthwise;
use crate::kernels::depthwise::Transposed;
use crate::kernels::window::WindowAxis;
use crate::kernels::window::WindowSpec;
use crate::ops::Padding;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The attributes of `Conv2D`.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct ConvolutionWindows {
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: [Padding; 2],
}

impl ConvolutionWindows {
    /// Reads the attributes.
    pub(in crate::backend) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        channels_last(node)?;
        Ok(Self {
            strides: spatial(node, "strides", None)?,
            dilations: spatial(node, "dilations", Some(&[1, 1, 1, 1]))?,
            padding: paddings(node)?,
        })
    }

    /// Plans the convolution of inputs of these shapes, and returns the result's shape.
    pub(in crate::backend) fn over(
        self,
        input: &Shape,
        filter: &Shape,
    ) -> Result<(Convolution, Shape), KernelError> {
        let shapes = || format!("input {input}, filter {filter}");
        let (
            &[batch, in_rows, in_columns, input_channels],
            &[rows, columns, filter_channels, output_channels],
        ) = (input.dims(), filter.dims())
        else {
            return Err(KernelError::invalid(format!(
                "input and filter must be 4-dimensional: {}",
                shapes()
            )));
        };
        if filter.n_elements() == 0 {
            return Err(KernelError::invalid(format!(
                "filter must not have zero elements: {}",
                shapes()
            )));
        }
        if !input_channels.is_multiple_of(filter_channels) {
            return Err(KernelError::invalid(format!(
                "input depth must be evenly divisible by filter depth: {input_channels} vs {filter_channels} ({})",
                shapes()
            )));
        }
        let n_groups = input_channels / filter_channels;
        if n_groups == 0 || !output_channels.is_multiple_of(n_groups) {
            return Err(KernelError::invalid(format!(
                "output depth must be evenly divisible by the number of groups: {output_channels} vs {n_groups} ({})",
                shapes()
            )));
        }
        let axis = |index: usize, size: usize, length: usize| -> Result<WindowAxis, KernelError> {
            WindowSpec {
                size,
                stride: self.strides[index],
                dilation: self.dilations[index],
                padding: self.padding[index],
            }
            .over(length)
            .map_err(|error| KernelError::invalid(format!("{error}: {}", shapes())))
        };
        let convolution = Convolution {
            batch,
            rows: axis(0, rows, in_rows)?,
            columns: axis(1, columns, in_columns)?,
            input_channels,
            filter_channels,
            output_channels,
        };
        let shape = Shape::from([
            batch,
            convolution.rows.output,
            convolution.columns.output,
            output_channels,
        ]);
        Ok((convolution, shape))
    }
}

/// Strides and padding. TensorFlow's CPU kernels of this family support no dilations.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct UndilatedWindows {
    strides: [usize; 2],
    padding: [Padding; 2],
}

impl UndilatedWindows {
    /// Reads the attributes.
    pub(in crate::backend) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        channels_last(node)?;
        let dilations = spatial(node, "dilations", Some(&[1, 1, 1, 1]))?;
        if dilations != [1, 1] {
            return Err(KernelError::Unimplemented(format!(
                "{} with dilations {dilations:?}; only 1 is implemented",
                node.op
            )));
        }
        Ok(Self {
            strides: spatial(node, "strides", None)?,
            padding: paddings(node)?,
        })
    }

    /// Reads the attributes of `DepthwiseConv2dNative`, whose strides are equal in both dimensions.
    pub(in crate::backend) fn of_depthwise(
        node: &KernelConstruction<'_>,
    ) -> Result<Self, KernelError> {
        let windows = Self::new(node)?;
        if windows.strides[0] != windows.strides[1] {
            return Err(KernelError::invalid(format!(
                "strides {:?}: only equal strides in the row and column dimensions",
                windows.strides
            )));
        }
        Ok(windows)
    }

    fn axis(&self, index: usize, size: usize, length: usize) -> Result<WindowAxis, KernelError> {
        WindowSpec {
            size,
            stride: self.strides[index],
            dilation: 1,
            padding: self.padding[index],
        }
        .over(length)
    }
}

/// Plans the depthwise convolution of inputs of these shapes, and returns the result's shape.
pub(in crate::backend) fn depthwise_plan(
    windows: UndilatedWindows,
    input: &Shape,
    filter: &Shape,
) -> Result<(Depthwise, Shape), KernelError> {
    let shapes = || format!("input {input}, filter {filter}");
    let (&[batch, in_rows, in_columns, channels], &[rows, columns, filter_channels, multiplier]) =
        (input.dims(), filter.dims())
    else {
        return Err(KernelError::invalid(format!(
            "input and filter must be 4-dimensional: {}",
            shapes()
        )));
    };
    if channels != filter_channels {
        return Err(KernelError::invalid(format!(
            "input and filter must have the same depth: {channels} vs {filter_channels} ({})",
            shapes()
        )));
    }
    let in_context = |error: KernelError| KernelError::invalid(format!("{error}: {}", shapes()));
    let plan = Depthwise {
        batch,
        rows: windows.axis(0, rows, in_rows).map_err(in_context)?,
        columns: windows.axis(1, columns, in_columns).map_err(in_context)?,
        channels,
        multiplier,
    };
    let depth = channels.checked_mul(multiplier).ok_or_else(|| {
        KernelError::invalid(format!("the result would be too large: {}", shapes()))
    })?;
    let shape = Shape::from([batch, plan.rows.output, plan.columns.output, depth]);
    Ok((plan, shape))
}

/// Plans the transposed convolution of inputs of these shapes, and returns the result's shape.
/// Reads the values of `sizes`.
pub(in crate::backend) fn transposed_plan(
    windows: UndilatedWindows,
    sizes: &Tensor,
    filter: &Shape,
    given: &Shape,
) -> Result<(Transposed, Shape), KernelError> {
    let shapes = || format!("filter {filter}, out_backprop {given}");
    let refused = |what: String| KernelError::invalid(format!("{what} ({})", shapes()));
    let (&[rows, columns, filter_channels, given_channels], &[batch, places_y, places_x, depth]) =
        (filter.dims(), given.dims())
    else {
        return Err(refused(
            "filter and out_backprop must be 4-dimensional".into(),
        ));
    };
    let sizes = vector(sizes, "input_sizes")?;
    let size = |value: i64| {
        usize::try_from(value)
            .map_err(|_| refused(format!("input_sizes must not be negative: {sizes:?}")))
    };
    let [n, in_rows, in_columns, channels] = match sizes[..] {
        [n, y, x, c] => [size(n)?, size(y)?, size(x)?, size(c)?],
        [y, x] => [batch, size(y)?, size(x)?, filter_channels],
        _ => {
            return Err(refused(format!(
                "input_sizes must contain 4 values or 2 values, but got {sizes:?}"
            )));
        }
    };
    if n != batch {
        return Err(refused(format!(
            "input and out_backprop must have the same batch size: {n} vs. {batch}"
        )));
    }
    if channels != filter_channels {
        return Err(refused(format!(
            "gradients of groups are not supported: input depth {channels}, filter depth {filter_channels}"
        )));
    }
    if given_channels != depth {
        return Err(refused(
            "filter and out_backprop must have the same out_depth".into(),
        ));
    }
    let axis = |index: usize, size: usize, length: usize, found: usize| {
        let axis = windows
            .axis(index, size, length)
            .map_err(|error| refused(error.to_string()))?;
        if axis.output == found {
            return Ok(axis);
        }
        Err(refused(format!(
            "size of out_backprop doesn't match computed: actual = {found}, computed = {} for input sizes {sizes:?}",
            axis.output
        )))
    };
    let plan = Transposed {
        batch,
        rows: axis(0, rows, in_rows, places_y)?,
        columns: axis(1, columns, in_columns, places_x)?,
        channels,
        given_channels,
    };
    let shape = Shape::from([batch, in_rows, in_columns, channels]);
    Ok((plan, shape))
}
