//! Resizing of images by areas and by cubic interpolation, and resized parts of images.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::image::IMAGES;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::image::ResizeAttrs;
use crate::backend::plan::image::ResizePlan;
use crate::backend::plan::image::image_dims;
use crate::backend::plan::value::vector;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::image::Resize;
use crate::kernels::resample;
use crate::kernels::resample::Axis;
use crate::kernels::resample::Crops;

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in ["ResizeArea", "ResizeBicubic"] {
        registry.register(
            def(op)
                .with_types("T", &IMAGES)
                .with_host_memory("size")
                .with_factory(resized),
        );
    }
    registry.register(
        def("CropAndResize")
            .with_types("T", &IMAGES)
            .with_host_memory("crop_size")
            .with_factory(cropped),
    );
}

/// TensorFlow `ResizeArea` and `ResizeBicubic`. The result is always `float`.
fn resized(node: &KernelConstruction<'_>) -> Made {
    let attrs = ResizeAttrs::new(node)?;
    let is_cubic = node.op == "ResizeBicubic";
    dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
        let ResizePlan { shape, rows, columns, channels } = attrs.plan(context)?;
        let axis = |resize: &Resize| Axis {
            input: resize.input,
            output: resize.output,
            scale: resize.scale(),
            is_centered: resize.half_pixel_centers,
        };
        let (rows, columns) = (axis(&rows), axis(&columns));
        let x = context.input(0)?.as_slice::<T>()?;
        output(context, shape, |out| {
            let resize = match is_cubic {
                true => resample::resize_cubic::<T>,
                false => resample::resize_area::<T>,
            };
            resize(x, [&rows, &columns], channels, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `CropAndResize`. The result is always `float`.
fn cropped(node: &KernelConstruction<'_>) -> Made {
    let is_bilinear = match string_attr(node, "method", "bilinear")? {
        "bilinear" => true,
        "nearest" => false,
        other => {
            return Err(KernelError::invalid(format!(
                "method must be 'bilinear' or 'nearest', not '{other}'"
            )));
        }
    };
    let outside = float_attr(node, "extrapolation_value", 0.0)?;
    dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
        let (image, boxes, images) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let [batch, rows, columns, channels] = image_dims(image.shape())?;
        if rows == 0 || columns == 0 {
            return Err(KernelError::invalid(format!(
                "image dimensions must be positive: {}",
                image.shape()
            )));
        }
        let n = match *boxes.shape().dims() {
            [n, 4] if images.shape().dims() == [n] => n,
            _ => {
                return Err(KernelError::invalid(format!(
                    "boxes must be 2-D with 4 columns, and box_index as long, not {} and {}",
                    boxes.shape(),
                    images.shape()
                )));
            }
        };
        let threads = Threads::of(context);
        let mut checked = threads.scratch::<usize>(n)?;
        for (slot, &image) in checked.iter_mut().zip(images.as_slice::<i32>()?) {
            let image = usize::try_from(image).ok().filter(|&image| image < batch);
            *slot = image.ok_or_else(|| {
                KernelError::invalid(format!("box_index has values outside [0, {batch})"))
            })?;
        }
        let sizes = vector(context.input(3)?, "crop_size")?;
        let size = |index: usize| {
            let size = sizes.get(index).and_then(|&size| usize::try_from(size).ok());
            size.filter(|&size| size > 0 && sizes.len() == 2).ok_or_else(|| {
                KernelError::invalid(format!(
                    "crop dimensions must be two positive sizes, not {:?}",
                    &sizes[..]
                ))
            })
        };
        let plan = Crops {
            input: [rows, columns],
            output: [size(0)?, size(1)?],
            channels,
            is_bilinear,
            outside,
        };
        let (x, boxes) = (image.as_slice::<T>()?, boxes.as_slice::<f32>()?);
        let shape = [n, plan.output[0], plan.output[1], channels].into();
        output(context, shape, |out| {
            plan.apply(x, boxes, &checked, out, threads);
            Ok(())
        })
    }))
}
