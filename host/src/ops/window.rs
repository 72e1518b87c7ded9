//! Convolutions, pooling and resizing of images.

use super::array::image_axes;
use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::infer::elements;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::merge;
use super::rules::merge_dims;
use super::rules::multiply_dims;
use super::rules::same_as_input;
use super::rules::size;
use super::work::per_output;
use super::work::with_flops;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::PartialShape;

const CONV: &str = "T: {half, bfloat16, float, double, int32}; strides: list(int); use_cudnn_on_gpu: bool = true; \
                    padding: {'SAME', 'VALID', 'EXPLICIT'}; explicit_paddings: list(int) = []; \
                    data_format: {'NHWC', 'NCHW'} = 'NHWC'; dilations: list(int) = [1, 1, 1, 1]";
const DEPTHWISE: &str = "T: {half, bfloat16, float, double}; strides: list(int); padding: {'SAME', 'VALID', 'EXPLICIT'}; \
                         explicit_paddings: list(int) = []; data_format: {'NHWC', 'NCHW'} = 'NHWC'; \
                         dilations: list(int) = [1, 1, 1, 1]";
const POOL: &str = "T: {half, bfloat16, float, double, int32, int64, uint8, int16, int8, uint16} = DT_FLOAT; \
                    ksize: list(int) >= 4; strides: list(int) >= 4; padding: {'SAME', 'VALID', 'EXPLICIT'}; \
                    explicit_paddings: list(int) = []; data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'";
const AVG_POOL: &str = "T: {half, bfloat16, float, double}; ksize: list(int) >= 4; strides: list(int) >= 4; \
                        padding: {'SAME', 'VALID'}; data_format: {'NHWC', 'NCHW'} = 'NHWC'";
const RESIZE: &str = "T: {int8, uint8, int16, uint16, int32, int64, half, float, double, bfloat16}; \
                      align_corners: bool = false; half_pixel_centers: bool = false";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = vec![
        op("Conv2D", "input: T, filter: T", "output: T", CONV)
            .with_shape(convolved)
            .with_work(convolution_work),
        op(
            "_FusedConv2D",
            "input: T, filter: T, args: num_args * T",
            "output: T",
            &format!("{CONV}; num_args: int >= 0; fused_ops: list(string) = []; epsilon: float = 0.0001; leakyrelu_alpha: float = 0.2"),
        )
            .with_shape(convolved)
            .with_work(convolution_work),
        op("DepthwiseConv2dNative", "input: T, filter: T", "output: T", DEPTHWISE)
            .with_shape(convolved_by_channel)
            .with_work(work_by_channel),
        op(
            "_FusedDepthwiseConv2dNative",
            "input: T, filter: T, args: num_args * T",
            "output: T",
            &format!("{DEPTHWISE}; num_args: int >= 0; fused_ops: list(string) = []; epsilon: float = 0.0001; leakyrelu_alpha: float = 0.2"),
        )
            .with_shape(convolved_by_channel)
            .with_work(work_by_channel),
        op("Conv2DBackpropInput", "input_sizes: int32, filter: T, out_backprop: T", "output: T", CONV)
            .with_shape(|context| spelled(context, 0, 2))
            .with_work(|context, outputs| {
                // Each element of out_backprop is multiplied by each filter element of its own
                // channel once.
                let filter = context.shape(1);
                let kernel: PartialShape = (0..3).map(|axis| filter.dim(axis)).collect();
                let flops = 2.0 * context.input_elements(2) * elements(&kernel);
                with_flops(context, outputs, flops)
            }),
        op("Conv2DBackpropFilter", "input: T, filter_sizes: int32, out_backprop: T", "output: T", CONV)
            .with_shape(|context| spelled(context, 1, 2))
            .with_work(|context, outputs| {
                let filter = outputs.first().map(|output| output.shape.clone()).unwrap_or_default();
                let kernel: PartialShape = (0..3).map(|axis| filter.dim(axis)).collect();
                let flops = 2.0 * context.input_elements(2) * elements(&kernel);
                with_flops(context, outputs, flops)
            }),
        op("MaxPool", "input: T", "output: T", POOL)
            .with_shape(pooled)
            .with_work(pool_work),
        op("AvgPool", "value: T", "output: T", AVG_POOL)
            .with_shape(pooled)
            .with_work(pool_work),
        op("MaxPoolGrad", "orig_input: T, orig_output: T, grad: T", "output: T", POOL)
            .with_shape(same_as_input),
        op("AvgPoolGrad", "orig_input_shape: int32, grad: T", "output: T", AVG_POOL)
            .with_shape(|context| Ok(vec![context.shape_from_input(0)?])),
        op("ResizeNearestNeighbor", "images: T, size: int32", "resized_images: T", RESIZE)
            .with_shape(resized),
        op("CropAndResize", "image: T, boxes: float, box_ind: int32, crop_size: int32", "crops: float", "T: {uint8, uint16, int8, int16, int32, int64, half, float, double}; method: {'bilinear', 'nearest'} = 'bilinear'; extrapolation_value: float = 0")
            .with_shape(|context| {
                let (image, boxes) = (context.shape_of_rank(0, 4)?, context.shape_of_rank(1, 2)?);
                let [height, width] = image_size(context, 3)?;
                Ok(vec![PartialShape::new(&[boxes.dim(0), height, width, image.dim(3)])])
            })
            .with_work(per_output(8.0)),
        op("ScaleAndTranslate", "images: T, size: int32, scale: float, translation: float", "resized_images: float", "T: {int8, uint8, int16, uint16, int32, int64, bfloat16, half, float, double}; kernel_type: string = 'lanczos3'; antialias: bool = true")
            .with_shape(resized)
            .with_work(per_output(24.0)),
    ];
    for (name, flops) in [
        ("ResizeBilinear", 8.0),
        ("ResizeBicubic", 36.0),
        ("ResizeArea", 8.0),
    ] {
        let attrs = match name {
            "ResizeArea" => RESIZE.replace("; half_pixel_centers: bool = false", ""),
            _ => RESIZE.to_owned(),
        };
        ops.push(
            op(
                name,
                "images: T, size: int32",
                "resized_images: float",
                &attrs,
            )
            .with_shape(resized)
            .with_work(per_output(flops)),
        );
    }
    ops
}

fn work_by_channel(context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
    let filter = context.shape(1);
    let taps = filter.dim(0).zip(filter.dim(1));
    window_work(context, outputs, 2.0, taps)
}

/// Window attributes: step, dilation and padding of each spatial axis (height, width).
struct Window {
    axes: [usize; 3],
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: [Padding; 2],
}

/// Padding of a spatial axis.
///
/// Shape rules and kernels use this type. The builder has its own, without explicit sizes, because
/// not all ops with windows allow them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Padding that gives one output per `stride` inputs; an odd element goes to the end.
    Same,
    /// No padding.
    Valid,
    /// This many elements before and after.
    Explicit(usize, usize),
}

impl Window {
    fn new(context: &InferenceContext<'_>) -> Result<Self, ShapeError> {
        let format = context.text("data_format")?;
        if format == "NCHW_VECT_C" {
            return Err(ShapeError::new("data format NCHW_VECT_C is not supported"));
        }
        let axes = image_axes(format);
        let [h, w, c] = axes;
        let pair = |name: &str| -> Result<[usize; 2], ShapeError> {
            let values = context.int_list(name)?;
            if values.len() != 4 || values.iter().any(|&v| v < 1) {
                return Err(ShapeError::new(format!(
                    "`{name}` must be four positive numbers; it is {values:?}"
                )));
            }
            if values.iter().any(|&v| i32::try_from(v).is_err()) {
                return Err(ShapeError::new(format!(
                    "`{name}` must be below 2^31; it is {values:?}"
                )));
            }
            if values[0] != 1 || values[c] != 1 && name == "dilations" {
                return Err(ShapeError::new(format!(
                    "`{name}` of batch and channels must be 1; it is {values:?}"
                )));
            }
            Ok([size(values[h], name)?, size(values[w], name)?])
        };
        let strides = pair("strides")?;
        let dilations = match context.attrs().get("dilations") {
            Some(_) => pair("dilations")?,
            None => [1, 1],
        };
        let padding = match context.text("padding")? {
            "SAME" => [Padding::Same; 2],
            "VALID" => [Padding::Valid; 2],
            _ => explicit(&context.int_list("explicit_paddings")?, [h, w])?,
        };
        Ok(Self {
            axes,
            strides,
            dilations,
            padding,
        })
    }

    /// Returns the output size along spatial axis `which` (0 height, 1 width).
    fn output_size(&self, which: usize, input: Dim, kernel: Dim) -> Result<Dim, ShapeError> {
        let (Some(input), stride) = (input, self.strides[which]) else {
            return Ok(None);
        };
        let (before, after) = match self.padding[which] {
            Padding::Same => return Ok(Some(input.div_ceil(stride))),
            Padding::Valid => (0, 0),
            Padding::Explicit(before, after) => (before, after),
        };
        let Some(kernel) = kernel else {
            return Ok(None);
        };
        if kernel == 0 {
            return Err(ShapeError::new("the window is empty"));
        }
        let reach = (kernel - 1).saturating_mul(self.dilations[which]);
        let padded = input.saturating_add(before).saturating_add(after);
        match padded
            .checked_sub(reach)
            .and_then(|places| places.checked_sub(1))
        {
            Some(last) => Ok(Some(last / stride + 1)),
            // If a window is too large, TensorFlow may return an empty result rather than fail.
            None if padded.saturating_add(stride) > reach => Ok(Some(0)),
            None => Err(ShapeError::new(format!(
                "a window of {kernel} (dilated: {}) does not fit the padded size {padded}",
                reach.saturating_add(1)
            ))),
        }
    }

    fn image(&self, batch: Dim, sizes: [Dim; 2], channels: Dim) -> PartialShape {
        let mut dims = [batch; 4];
        let [h, w, c] = self.axes;
        (dims[h], dims[w], dims[c]) = (sizes[0], sizes[1], channels);
        PartialShape::new(&dims)
    }
}

fn explicit(paddings: &[i64], spatial: [usize; 2]) -> Result<[Padding; 2], ShapeError> {
    let bad = || {
        ShapeError::new(format!(
            "`explicit_paddings` must be eight sizes, 0 for batch and channels; they are {paddings:?}"
        ))
    };
    let sizes: Option<Vec<usize>> = paddings.iter().map(|&p| usize::try_from(p).ok()).collect();
    let sizes = sizes.filter(|sizes| sizes.len() == 8).ok_or_else(bad)?;
    let elsewhere = (0..4).filter(|axis| !spatial.contains(axis));
    if elsewhere
        .flat_map(|axis| [2 * axis, 2 * axis + 1])
        .any(|i| sizes[i] != 0)
    {
        return Err(bad());
    }
    Ok(spatial.map(|axis| Padding::Explicit(sizes[2 * axis], sizes[2 * axis + 1])))
}

/// Filter `[kh, kw, in / groups, out]`.
fn convolved(context: &InferenceContext<'_>) -> Shapes {
    let window = Window::new(context)?;
    let (input, filter) = (context.shape_of_rank(0, 4)?, context.shape_of_rank(1, 4)?);
    let [h, w, c] = window.axes;
    if let (Some(channels), Some(depth)) = (input.dim(c), filter.dim(2))
        && (depth == 0 || channels % depth != 0)
    {
        return Err(ShapeError::new(format!(
            "input depth {channels} is not a multiple of filter depth {depth}"
        )));
    }
    let sizes = [
        window.output_size(0, input.dim(h), filter.dim(0))?,
        window.output_size(1, input.dim(w), filter.dim(1))?,
    ];
    Ok(vec![window.image(input.dim(0), sizes, filter.dim(3))])
}

/// Filter `[kh, kw, in, multiplier]`.
fn convolved_by_channel(context: &InferenceContext<'_>) -> Shapes {
    let window = Window::new(context)?;
    let (input, filter) = (context.shape_of_rank(0, 4)?, context.shape_of_rank(1, 4)?);
    let [h, w, c] = window.axes;
    let channels = merge_dims(input.dim(c), filter.dim(2), "depths of input and filter")?;
    let sizes = [
        window.output_size(0, input.dim(h), filter.dim(0))?,
        window.output_size(1, input.dim(w), filter.dim(1))?,
    ];
    let channels = multiply_dims(channels, filter.dim(3))?;
    Ok(vec![window.image(input.dim(0), sizes, channels)])
}

fn pooled(context: &InferenceContext<'_>) -> Shapes {
    let window = Window::new(context)?;
    let input = context.shape_of_rank(0, 4)?;
    let kernel = context.int_list("ksize")?;
    let [h, w, c] = window.axes;
    let channel_stride = context.int_list("strides")?[c];
    if kernel.len() != 4 || kernel.iter().any(|&k| k < 1) || kernel[0] != 1 {
        return Err(ShapeError::new(format!(
            "`ksize` must be four positive numbers, 1 for the batch; it is {kernel:?}"
        )));
    }
    if kernel[c] != 1 || channel_stride != 1 {
        return Err(ShapeError::new(format!(
            "pooling over channels is not supported (`ksize` {kernel:?})"
        )));
    }
    let sizes = [
        window.output_size(0, input.dim(h), Some(size(kernel[h], "ksize")?))?,
        window.output_size(1, input.dim(w), Some(size(kernel[w], "ksize")?))?,
    ];
    Ok(vec![window.image(input.dim(0), sizes, input.dim(c))])
}

/// Returns the shape in input `sizes`, of rank 4. If it contains only the image size, the batch
/// comes from input `like`.
fn spelled(context: &InferenceContext<'_>, sizes: usize, like: usize) -> Shapes {
    let shape = context.shape_from_input(sizes)?;
    let gradient = context.shape_of_rank(like, 4)?;
    match shape.rank() {
        None => Ok(vec![PartialShape::of_rank(4)]),
        Some(4) => Ok(vec![shape]),
        Some(2) if sizes == 0 => {
            let filter = context.shape_of_rank(1, 4)?;
            let window = Window::new(context)?;
            let image = window.image(gradient.dim(0), [shape.dim(0), shape.dim(1)], filter.dim(2));
            Ok(vec![image])
        }
        Some(_) => Err(ShapeError::new(format!(
            "input {sizes} must contain four sizes, not {shape}"
        ))),
    }
}

fn image_size(context: &InferenceContext<'_>, index: usize) -> Result<[Dim; 2], ShapeError> {
    let sizes = merge(
        &context.shape_from_input(index)?,
        &PartialShape::of_rank(2),
        "size and [height, width]",
    )?;
    Ok([sizes.dim(0), sizes.dim(1)])
}

fn resized(context: &InferenceContext<'_>) -> Shapes {
    let images = context.shape_of_rank(0, 4)?;
    let [height, width] = image_size(context, 1)?;
    Ok(vec![PartialShape::new(&[
        images.dim(0),
        height,
        width,
        images.dim(3),
    ])])
}

/// `2 n oh ow oc kh kw (ic / groups)`.
fn convolution_work(context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
    let filter = context.shape(1);
    let kernel: PartialShape = (0..3).map(|axis| filter.dim(axis)).collect();
    let n_outputs = outputs
        .first()
        .map_or(0.0, |output| elements(&output.shape));
    with_flops(context, outputs, 2.0 * n_outputs * elements(&kernel))
}

/// Counts one operation per output element and element of the window.
fn pool_work(context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
    let taps = context.attrs().ints("ksize").and_then(|kernel| {
        let sizes: Option<Vec<usize>> = kernel.iter().map(|&k| usize::try_from(k).ok()).collect();
        let product = sizes?.into_iter().fold(1usize, usize::saturating_mul);
        Some((product, 1))
    });
    window_work(context, outputs, 1.0, taps)
}

fn window_work(
    context: &InferenceContext<'_>,
    outputs: &[Output],
    flops: f64,
    taps: Option<(usize, usize)>,
) -> Work {
    let taps = taps.map_or_else(PartialShape::unknown, |(h, w)| {
        PartialShape::new(&[Some(h), Some(w)])
    });
    let n_outputs = outputs
        .first()
        .map_or(0.0, |output| elements(&output.shape));
    with_flops(context, outputs, flops * n_outputs * elements(&taps))
}
