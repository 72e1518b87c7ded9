//! Windows over volumes: convolution and pooling.

use crate::backend::plan::attr::ints_attr;
use crate::backend::plan::attr::string_attr;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::volume::VolumeConvolution;
use crate::kernels::volume::VolumePool;
use crate::kernels::volume::VolumeWindows;
use crate::kernels::window::WindowAxis;
use crate::kernels::window::WindowSpec;
use crate::ops::Padding;
use crate::tensor::Shape;

/// Strides, dilations and padding of windows over volumes.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct VolumeAttrs {
    strides: [usize; 3],
    dilations: [usize; 3],
    padding: Padding,
}

impl VolumeAttrs {
    /// Reads the attributes.
    pub(in crate::backend) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        match string_attr(node, "data_format", "NDHWC")? {
            "NDHWC" => {}
            other => {
                return Err(KernelError::Unimplemented(format!(
                    "{} with data_format `{other}`; only NDHWC is implemented",
                    node.op
                )));
            }
        }
        let padding = match string_attr(node, "padding", "")? {
            "SAME" => Padding::Same,
            "VALID" => Padding::Valid,
            other => {
                return Err(KernelError::invalid(format!(
                    "attribute `padding` is `{other}`; expected `SAME` or `VALID`"
                )));
            }
        };
        Ok(Self {
            strides: spatial(node, "strides", None)?,
            dilations: spatial(node, "dilations", Some(&[1; 5]))?,
            padding,
        })
    }

    fn windows(
        self,
        batch: usize,
        sizes: [usize; 3],
        lengths: [usize; 3],
    ) -> Result<VolumeWindows, KernelError> {
        let axis = |index: usize| -> Result<WindowAxis, KernelError> {
            WindowSpec {
                size: sizes[index],
                stride: self.strides[index],
                dilation: self.dilations[index],
                padding: self.padding,
            }
            .over(lengths[index])
        };
        let axes = [axis(0)?, axis(1)?, axis(2)?];
        // Where windows leave elements out, TensorFlow centres them (a negative padding), unlike
        // those over images.
        let skipped = axes.map(|axis| match self.padding {
            Padding::Same => axis.input.saturating_sub(axis.span(axis.output)) / 2,
            _ => 0,
        });
        Ok(VolumeWindows {
            batch,
            axes,
            skipped,
        })
    }

    /// Plans the convolution of inputs of these shapes, and returns the result's shape.
    pub(in crate::backend) fn convolution(
        self,
        input: &Shape,
        filter: &Shape,
    ) -> Result<(VolumeConvolution, Shape), KernelError> {
        let shapes = || format!("input {input}, filter {filter}");
        let (
            &[batch, planes, rows, columns, channels],
            &[z, y, x, filter_channels, output_channels],
        ) = (input.dims(), filter.dims())
        else {
            return Err(KernelError::invalid(format!(
                "input and filter must be 5-dimensional: {}",
                shapes()
            )));
        };
        if filter.n_elements() == 0 {
            return Err(KernelError::invalid(format!(
                "filter must not have zero elements: {}",
                shapes()
            )));
        }
        if channels != filter_channels {
            return Err(KernelError::invalid(format!(
                "input and filter must have the same depth: {channels} vs {filter_channels} ({})",
                shapes()
            )));
        }
        let windows = self
            .windows(batch, [z, y, x], [planes, rows, columns])
            .map_err(|error| KernelError::invalid(format!("{error}: {}", shapes())))?;
        let [z, y, x] = windows.axes.map(|axis| axis.output);
        let convolution = VolumeConvolution {
            windows,
            input_channels: channels,
            output_channels,
        };
        Ok((convolution, [batch, z, y, x, output_channels].into()))
    }

    /// Plans the transposed convolution to a result of these sizes.
    pub(in crate::backend) fn transposed(
        self,
        sizes: &[i64],
        filter: &Shape,
        given: &Shape,
    ) -> Result<(VolumeConvolution, Shape), KernelError> {
        let dims: Result<Shape, _> = sizes.iter().map(|&size| usize::try_from(size)).collect();
        let shape = dims.map_err(|_| {
            KernelError::invalid(format!("input_sizes must not be negative: {sizes:?}"))
        })?;
        let (mut convolution, result) = self.convolution(&shape, filter)?;
        // TensorFlow's gradient starts at the first element, although its convolution does not.
        convolution.windows.skipped = [0; 3];
        if result != *given {
            return Err(KernelError::invalid(format!(
                "out_backprop of shape {given} does not match the shape computed from input_sizes \
                 and filter: {result}"
            )));
        }
        Ok((convolution, shape))
    }
}

/// The windows of TensorFlow `MaxPool3D` and `AvgPool3D`.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct VolumePoolWindows {
    attrs: VolumeAttrs,
    sizes: [usize; 3],
}

impl VolumePoolWindows {
    /// Reads the attributes.
    pub(in crate::backend) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        Ok(Self {
            attrs: VolumeAttrs::new(node)?,
            sizes: spatial(node, "ksize", None)?,
        })
    }

    /// Plans the pooling of an input of this shape, and returns the result's shape.
    pub(in crate::backend) fn over(
        self,
        input: &Shape,
    ) -> Result<(VolumePool, Shape), KernelError> {
        let &[batch, planes, rows, columns, channels] = input.dims() else {
            return Err(KernelError::invalid(format!(
                "input must be 5-dimensional, found {input}"
            )));
        };
        let windows = self
            .attrs
            .windows(batch, self.sizes, [planes, rows, columns])
            .map_err(|error| KernelError::invalid(format!("{error}: input {input}")))?;
        let [z, y, x] = windows.axes.map(|axis| axis.output);
        let shape = [batch, z, y, x, channels].into();
        Ok((VolumePool { windows, channels }, shape))
    }
}

/// Returns the plane, row and column entries of a list of five, whose batch and channel entries
/// must be 1.
fn spatial(
    node: &KernelConstruction<'_>,
    name: &str,
    default: Option<&[i64]>,
) -> Result<[usize; 3], KernelError> {
    let list = ints_attr(node, name, default.unwrap_or(&[]))?;
    let &[1, planes, rows, columns, 1] = &list[..] else {
        return Err(KernelError::invalid(format!(
            "attribute `{name}` must have 5 elements, 1 for batch and depth, found {list:?}"
        )));
    };
    let positive = |value: i64| {
        let value = i32::try_from(value)
            .ok()
            .and_then(|value| usize::try_from(value).ok());
        value.filter(|&value| value > 0).ok_or_else(|| {
            KernelError::invalid(format!(
                "attribute `{name}` must be positive and below 2^31, found {list:?}"
            ))
        })
    };
    Ok([positive(planes)?, positive(rows)?, positive(columns)?])
}
