//! Ops on volumes and images: windows, patches, colours and transforms.

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
use super::work::TRANSCENDENTAL_FLOPS;
use super::work::per_output;
use super::work::with_flops;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::PartialShape;

const VOLUME: &str = "T: {half, bfloat16, float, double}; strides: list(int) >= 5; padding: {'SAME', 'VALID'}; \
                      data_format: {'NDHWC', 'NCDHW'} = 'NDHWC'; dilations: list(int) = [1, 1, 1, 1, 1]";
const POOLED: &str = "ksize: list(int) >= 5; strides: list(int) >= 5; padding: {'SAME', 'VALID'}; \
                      data_format: {'NDHWC', 'NCDHW'} = 'NDHWC'";

/// Floating-point operations per pixel of a conversion between colour spaces, and per component.
const COLOR_FLOPS: f64 = 10.0;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = vec![
        op("Conv3D", "input: T, filter: T", "output: T", VOLUME)
            .with_shape(convolved)
            .with_work(|context, outputs| filter_work(context, outputs, elements_of(outputs))),
        op("Conv3DBackpropInputV2", "input_sizes: Tshape, filter: T, out_backprop: T", "output: T", &format!("{VOLUME}; Tshape: {{int32, int64}} = DT_INT32"))
            .with_shape(|context| {
                let sizes = context.shape_from_input(0)?;
                Ok(vec![merge(&sizes, &PartialShape::of_rank(5), "input_sizes and five sizes")?])
            })
            .with_work(|context, outputs| filter_work(context, outputs, context.input_elements(2))),
        op("MaxPool3D", "input: T", "output: T", &format!("{POOLED}; T: {{half, bfloat16, float}}"))
            .with_shape(pooled)
            .with_work(pool_work),
        op("AvgPool3D", "input: T", "output: T", &format!("{POOLED}; T: {{half, bfloat16, float, double}}"))
            .with_shape(pooled)
            .with_work(pool_work),
        op("MaxPoolV2", "input: T, ksize: int32, strides: int32", "output: T", "T: {half, bfloat16, float, double, int32, int64, uint8, int16, int8, uint16} = DT_FLOAT; padding: {'SAME', 'VALID'}; data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'")
            .with_shape(|context| {
                let image = context.shape_of_rank(0, 4)?;
                let (Some(sizes), Some(strides)) = (context.known_ints(1), context.known_ints(2)) else {
                    return Ok(vec![PartialShape::of_rank(4)]);
                };
                let (rows, columns) = (spatial_axes(context)[0], spatial_axes(context)[1]);
                windowed(context, &image, &[rows, columns], &sizes, &strides, &[1; 4]).map(|shape| vec![shape])
            })
            .with_work(|context, outputs| {
                let taps: f64 = context.known_ints(1).map_or(0.0, |sizes| product(&sizes));
                with_flops(context, outputs, taps * elements_of(outputs))
            }),
        op("MaxPoolWithArgmax", "input: T", "output: T, argmax: Targmax", "ksize: list(int) >= 4; strides: list(int) >= 4; Targmax: {int32, int64} = DT_INT64; padding: {'SAME', 'VALID'}; include_batch_in_index: bool = false; T: realnumbertype")
            .with_shape(|context| {
                let image = context.shape_of_rank(0, 4)?;
                let (sizes, strides) = (context.int_list("ksize")?, context.int_list("strides")?);
                let shape = windowed(context, &image, &[1, 2], &sizes, &strides, &[1; 4])?;
                Ok(vec![shape; 2])
            })
            .with_work(pool_work),
        op("Dilation2D", "input: T, filter: T", "output: T", "T: realnumbertype; strides: list(int) >= 4; rates: list(int) >= 4; padding: {'SAME', 'VALID'}")
            .with_shape(|context| {
                let (image, filter) = (context.shape_of_rank(0, 4)?, context.shape_of_rank(1, 3)?);
                let depth = merge_dims(image.dim(3), filter.dim(2), "depths of input and filter")?;
                let (Some(rows), Some(columns)) = (filter.dim(0), filter.dim(1)) else {
                    return Ok(vec![PartialShape::new(&[image.dim(0), None, None, depth])]);
                };
                let sizes = [1, rows, columns, 1].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
                let (strides, rates) = (context.int_list("strides")?, context.int_list("rates")?);
                windowed(context, &image, &[1, 2], &sizes, &strides, &rates).map(|shape| vec![shape])
            })
            .with_work(|context, outputs| {
                let taps = context.shape(1).dim(0).zip(context.shape(1).dim(1));
                let taps = taps.map_or_else(PartialShape::unknown, |(y, x)| PartialShape::new(&[Some(y), Some(x)]));
                with_flops(context, outputs, 2.0 * elements(&taps) * elements_of(outputs))
            }),
        op("ExtractImagePatches", "images: T", "patches: T", "ksizes: list(int) >= 4; strides: list(int) >= 4; rates: list(int) >= 4; T: {bfloat16, half, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, complex64, complex128, bool}; padding: {'SAME', 'VALID'}")
            .with_shape(|context| {
                let image = context.shape_of_rank(0, 4)?;
                let [sizes, strides, rates] = ["ksizes", "strides", "rates"].map(|name| context.int_list(name));
                let (sizes, strides, rates) = (sizes?, strides?, rates?);
                let patches = windowed(context, &image, &[1, 2], &sizes, &strides, &rates)?;
                let area = multiply_dims(Some(size(sizes[1], "ksizes")?), Some(size(sizes[2], "ksizes")?))?;
                let depth = multiply_dims(area, image.dim(3))?;
                Ok(vec![PartialShape::new(&[patches.dim(0), patches.dim(1), patches.dim(2), depth])])
            }),
        op("AdjustContrastv2", "images: T, contrast_factor: float", "output: T", "T: {half, float} = DT_FLOAT")
            .with_shape(|context| adjusted(context, false))
            .with_work(per_output(5.0)),
        op("AdjustHue", "images: T, delta: float", "output: T", "T: {half, float} = DT_FLOAT")
            .with_shape(|context| adjusted(context, true))
            .with_work(per_output(COLOR_FLOPS)),
        op("AdjustSaturation", "images: T, scale: float", "output: T", "T: {half, float} = DT_FLOAT")
            .with_shape(|context| adjusted(context, true))
            .with_work(per_output(COLOR_FLOPS)),
        op("ImageProjectiveTransformV2", "images: dtype, transforms: float, output_shape: int32", "transformed_images: dtype", "dtype: {uint8, int32, int64, half, bfloat16, float, double}; interpolation: string; fill_mode: string = 'CONSTANT'")
            .with_shape(transformed)
            .with_work(per_output(TRANSCENDENTAL_FLOPS)),
        op("ImageProjectiveTransformV3", "images: dtype, transforms: float, output_shape: int32, fill_value: float", "transformed_images: dtype", "dtype: {uint8, int32, int64, half, bfloat16, float, double}; interpolation: string; fill_mode: string = 'CONSTANT'")
            .with_shape(transformed)
            .with_work(per_output(TRANSCENDENTAL_FLOPS)),
    ];
    for (name, more) in [
        ("DrawBoundingBoxes", ""),
        ("DrawBoundingBoxesV2", ", colors: float"),
    ] {
        ops.push(
            op(
                name,
                &format!("images: T, boxes: float{more}"),
                "output: T",
                "T: {float, half} = DT_FLOAT",
            )
            .with_shape(|context| {
                context.shape_of_rank(1, 3)?;
                Ok(vec![context.shape_of_rank(0, 4)?])
            }),
        );
    }
    for name in ["RGBToHSV", "HSVToRGB"] {
        ops.push(
            op(
                name,
                "images: T",
                "output: T",
                "T: {half, bfloat16, float, double} = DT_FLOAT",
            )
            .with_shape(|context| {
                if let Some(dims) = context.dims_of_rank_at_least(0, 1)? {
                    merge_dims(dims[dims.len() - 1], Some(3), "channels")?;
                }
                same_as_input(context)
            })
            .with_work(per_output(COLOR_FLOPS)),
        );
    }
    ops
}

/// Returns the axes of planes, rows and columns, or of rows and columns.
fn spatial_axes(context: &InferenceContext<'_>) -> [usize; 3] {
    match context.attrs().text("data_format") {
        Some(format) if format.starts_with("NC") => [2, 3, 4],
        _ => [1, 2, 3],
    }
}

fn elements_of(outputs: &[Output]) -> f64 {
    outputs
        .first()
        .map_or(0.0, |output| elements(&output.shape))
}

fn product(sizes: &[i64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    sizes.iter().map(|&size| size as f64).product()
}

/// Returns the number of windows along an axis; padding is an attribute, without explicit sizes.
fn n_windows(
    context: &InferenceContext<'_>,
    length: Dim,
    [window, stride, rate]: [i64; 3],
) -> Result<Dim, ShapeError> {
    if window < 1 || stride < 1 || rate < 1 {
        return Err(ShapeError::new(format!(
            "window {window}, stride {stride} and rate {rate} must be positive"
        )));
    }
    let Some(length) = length else {
        return Ok(None);
    };
    let signed = i64::try_from(length).unwrap_or(i64::MAX);
    if context.text("padding")? == "SAME" {
        return Ok(Some(length.div_ceil(size(stride, "a stride")?)));
    }
    let reach = (window - 1).saturating_mul(rate).saturating_add(1);
    let n = signed.saturating_sub(reach).saturating_add(stride) / stride;
    usize::try_from(n).map(Some).map_err(|_| {
        ShapeError::new(format!(
            "a window of {window} (dilated: {reach}) does not fit size {length}"
        ))
    })
}

/// Returns the shape of input 0 with the numbers of windows along `axes`.
fn windowed(
    context: &InferenceContext<'_>,
    shape: &PartialShape,
    axes: &[usize],
    windows: &[i64],
    strides: &[i64],
    rates: &[i64],
) -> Result<PartialShape, ShapeError> {
    let rank = shape.rank().unwrap_or(0);
    if [windows, strides, rates]
        .iter()
        .any(|list| list.len() != rank)
    {
        return Err(ShapeError::new(format!(
            "windows {windows:?}, strides {strides:?} and rates {rates:?} must have {rank} sizes"
        )));
    }
    let mut dims = shape.dims().unwrap_or_default().to_vec();
    for &axis in axes {
        let sizes = [windows[axis], strides[axis], rates[axis]];
        dims[axis] = n_windows(context, dims[axis], sizes)?;
    }
    Ok(PartialShape::new(&dims))
}

/// Filter `[planes, rows, columns, in, out]`.
fn convolved(context: &InferenceContext<'_>) -> Shapes {
    let (input, filter) = (context.shape_of_rank(0, 5)?, context.shape_of_rank(1, 5)?);
    let axes = spatial_axes(context);
    let channel = if axes[0] == 1 { 4 } else { 1 };
    if let (Some(depth), Some(channels)) = (filter.dim(3), input.dim(channel))
        && (depth == 0 || channels % depth != 0)
    {
        return Err(ShapeError::new(format!(
            "input depth {channels} is not a multiple of filter depth {depth}"
        )));
    }
    let (strides, rates) = (context.int_list("strides")?, context.int_list("dilations")?);
    if strides.len() != 5 || rates.len() != 5 {
        return Err(ShapeError::new(format!(
            "strides {strides:?} and dilations {rates:?} must have 5 sizes"
        )));
    }
    let mut dims = input.dims().unwrap_or_default().to_vec();
    for (index, axis) in axes.into_iter().enumerate() {
        let window = filter
            .dim(index)
            .map(|size| i64::try_from(size).unwrap_or(i64::MAX));
        dims[axis] = match window {
            Some(window) => n_windows(context, dims[axis], [window, strides[axis], rates[axis]])?,
            None => None,
        };
    }
    dims[channel] = filter.dim(4);
    Ok(vec![PartialShape::new(&dims)])
}

fn pooled(context: &InferenceContext<'_>) -> Shapes {
    let volume = context.shape_of_rank(0, 5)?;
    let (sizes, strides) = (context.int_list("ksize")?, context.int_list("strides")?);
    let axes = spatial_axes(context);
    Ok(vec![windowed(
        context, &volume, &axes, &sizes, &strides, &[1; 5],
    )?])
}

/// Two operations per element of the larger image and element of the filter of its channel.
fn filter_work(context: &InferenceContext<'_>, outputs: &[Output], n_results: f64) -> Work {
    let kernel: PartialShape = (0..4).map(|axis| context.shape(1).dim(axis)).collect();
    with_flops(context, outputs, 2.0 * n_results * elements(&kernel))
}

/// One operation per output element and element of the window.
fn pool_work(context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
    let taps = context
        .attrs()
        .ints("ksize")
        .map_or(0.0, |sizes| product(&sizes));
    with_flops(context, outputs, taps * elements_of(outputs))
}

/// Input 0 is images, with three channels if they are colours; input 1 is a scalar.
fn adjusted(context: &InferenceContext<'_>, are_colors: bool) -> Shapes {
    if let Some(dims) = context.dims_of_rank_at_least(0, 3)?
        && are_colors
    {
        merge_dims(dims[dims.len() - 1], Some(3), "channels")?;
    }
    context.shape_of_rank(1, 0)?;
    same_as_input(context)
}

fn transformed(context: &InferenceContext<'_>) -> Shapes {
    let images = context.shape_of_rank(0, 4)?;
    let sizes = context.shape_from_input(2)?;
    let sizes = merge(
        &sizes,
        &PartialShape::of_rank(2),
        "output_shape and two sizes",
    )?;
    Ok(vec![PartialShape::new(&[
        images.dim(0),
        sizes.dim(0),
        sizes.dim(1),
        images.dim(3),
    ])])
}
