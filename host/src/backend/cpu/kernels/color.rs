//! Colours and contrast of images, and their projective transforms.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::suppression::threshold;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::image::image_dims;
use crate::backend::plan::value::vector;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::color;
use crate::kernels::projective::Outside;
use crate::kernels::projective::Projection;
use crate::tensor::DType;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 4 * 1024;

/// Types of images that TensorFlow transforms.
const TRANSFORMED: [DType; 7] = [
    DType::U8,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, make) in [
        (
            "AdjustContrastv2",
            (|_| kernel(contrast)) as fn(&KernelConstruction<'_>) -> Made,
        ),
        ("AdjustHue", |_| {
            kernel(|context| adjusted(context, "delta", color::adjust_hue))
        }),
        ("AdjustSaturation", |_| {
            kernel(|context| adjusted(context, "scale", color::adjust_saturation))
        }),
    ] {
        registry.register(def(op).with_types("T", &[DType::F32]).with_factory(make));
    }
    registry.register(
        def("RGBToHSV")
            .with_types("T", &REALS)
            .with_factory(|node| converted(node, color::rgb_to_hsv)),
    );
    registry.register(
        def("HSVToRGB")
            .with_types("T", &REALS)
            .with_factory(|node| converted(node, color::hsv_to_rgb)),
    );
    for op in ["ImageProjectiveTransformV2", "ImageProjectiveTransformV3"] {
        registry.register(
            def(op)
                .with_types("dtype", &TRANSFORMED)
                .with_host_memory("output_shape")
                .with_factory(transform),
        );
    }
}

/// TensorFlow `AdjustContrastv2`: scales the difference from the mean of each channel of an image.
fn contrast(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let factor = threshold::<f32>(context.input(1)?, "contrast_factor")?;
    let &[.., rows, columns, channels] = input.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "input must be at least 3-D, got shape {}",
            input.shape()
        )));
    };
    let x = input.as_slice::<f32>()?;
    let image = rows * columns * channels;
    context.fill_output(0, input.shape(), |out| {
        if out.is_empty() {
            return Ok(());
        }
        let threads = Threads::of(context);
        threads.try_fill(out, image, GRAIN, |start, part| {
            let mut means = threads.scratch::<f64>(channels)?;
            for (index, out) in part.chunks_exact_mut(image).enumerate() {
                let x = &x[start + index * image..][..image];
                means.fill(0.0);
                for pixel in x.chunks_exact(channels) {
                    for (mean, &x) in means.iter_mut().zip(pixel) {
                        *mean += f64::from(x);
                    }
                }
                #[expect(clippy::cast_precision_loss, reason = "a number of pixels")]
                for mean in means.iter_mut() {
                    *mean /= (rows * columns) as f64;
                }
                let pixels = out.chunks_exact_mut(channels).zip(x.chunks_exact(channels));
                for (out, pixel) in pixels {
                    for ((slot, &x), &mean) in out.iter_mut().zip(pixel).zip(means.iter()) {
                        #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
                        let mean = mean as f32;
                        *slot = (x - mean) * factor + mean;
                    }
                }
            }
            Ok(())
        })
    })
}

/// Checks that the last of the dimensions of an image is its three components.
fn check_components(context: &KernelContext<'_>, rank_min: usize) -> Result<(), KernelError> {
    let shape = context.input(0)?.shape();
    if shape.rank() < rank_min {
        return Err(KernelError::invalid(format!(
            "input must be at least {rank_min}-D, got shape {shape}"
        )));
    }
    if shape.dims().last() != Some(&3) {
        return Err(KernelError::invalid(format!(
            "input must have 3 channels, but its shape is {shape}"
        )));
    }
    Ok(())
}

/// TensorFlow `AdjustHue` and `AdjustSaturation`.
fn adjusted(
    context: &KernelContext<'_>,
    what: &str,
    adjust: fn([f32; 3], f32) -> [f32; 3],
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let amount = threshold::<f32>(context.input(1)?, what)?;
    check_components(context, 3)?;
    let x = input.as_slice::<f32>()?;
    context.fill_output(0, input.shape(), |out| {
        Threads::of(context).fill(out, 3, GRAIN, |start, part| {
            for (out, x) in part.chunks_exact_mut(3).zip(x[start..].chunks_exact(3)) {
                out.copy_from_slice(&adjust([x[0], x[1], x[2]], amount));
            }
        });
        Ok(())
    })
}

/// TensorFlow `RGBToHSV` and `HSVToRGB`.
fn converted(node: &KernelConstruction<'_>, convert: fn([f64; 3]) -> [f64; 3]) -> Made {
    let dtype = node.attrs.dtype("T").unwrap_or(DType::F32);
    dispatch_real!(dtype, T => kernel(move |context| {
        let input = context.input(0)?;
        check_components(context, 1)?;
        let x = input.as_slice::<T>()?;
        context.fill_output(0, input.shape(), |out| {
            Threads::of(context).fill(out, 3, GRAIN, |start, part| {
                for (out, x) in part.chunks_exact_mut(3).zip(x[start..].chunks_exact(3)) {
                    let components = [x[0], x[1], x[2]].map(T::to_f64);
                    out.copy_from_slice(&convert(components).map(<T as Number>::from_f64));
                }
            });
            Ok(())
        })
    }))
}

/// TensorFlow `ImageProjectiveTransformV2` (fills with 0) and `ImageProjectiveTransformV3`.
fn transform(node: &KernelConstruction<'_>) -> Made {
    let is_bilinear = match string_attr(node, "interpolation", "")? {
        "NEAREST" => false,
        "BILINEAR" => true,
        other => {
            return Err(KernelError::invalid(format!(
                "invalid interpolation {other}. Supported types: NEAREST, BILINEAR"
            )));
        }
    };
    let outside = match string_attr(node, "fill_mode", "CONSTANT")? {
        "CONSTANT" => Outside::Constant,
        "REFLECT" => Outside::Reflect,
        "WRAP" => Outside::Wrap,
        "NEAREST" => Outside::Nearest,
        other => {
            return Err(KernelError::invalid(format!(
                "invalid mode {other}. Supported types: REFLECT, WRAP, CONSTANT, NEAREST"
            )));
        }
    };
    let has_fill = node.op == "ImageProjectiveTransformV3";
    dispatch!(
        type_attr(node, "dtype")?,
        [U8: u8, I32: i32, I64: i64, F16: half::f16, BF16: half::bf16, F32: f32, F64: f64],
        T => kernel(move |context| {
            let (images, transforms) = (context.input(0)?, context.input(1)?);
            let [batch, rows, columns, channels] = image_dims(images.shape())?;
            match *transforms.shape().dims() {
                [n, 8] if n == batch || n == 1 => {}
                _ => {
                    return Err(KernelError::invalid(format!(
                        "input transform should be num_images x 8 or 1 x 8, not {}",
                        transforms.shape()
                    )));
                }
            }
            let sizes = vector(context.input(2)?, "output_shape")?;
            let size = |index: usize| {
                let size = sizes.get(index).and_then(|&size| usize::try_from(size).ok());
                size.filter(|&size| size > 0 && sizes.len() == 2).ok_or_else(|| {
                    KernelError::invalid(format!(
                        "output_shape must be two positive sizes, not {:?}",
                        &sizes[..]
                    ))
                })
            };
            let plan = Projection {
                input: [rows, columns],
                output: [size(0)?, size(1)?],
                channels,
                outside,
                is_bilinear,
            };
            let fill = if has_fill {
                threshold::<f32>(context.input(3)?, "fill_value")?
            } else {
                0.0
            };
            let fill = <T as Number>::from_f64(fill.into());
            let (x, transforms) = (images.as_slice::<T>()?, transforms.as_slice::<f32>()?);
            let shape = [batch, plan.output[0], plan.output[1], channels].into();
            output(context, shape, |out| {
                plan.apply(x, transforms, fill, out, Threads::of(context));
                Ok(())
            })
        })
    )
}
