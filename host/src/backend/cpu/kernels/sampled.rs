//! Resizing of images by a sampling kernel.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::image::IMAGES;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::image::image_dims;
use crate::backend::plan::value::vector;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::sampled::Sampler;
use crate::kernels::sampled::ScaledAxis;
use crate::kernels::sampled::Spans;
use crate::kernels::sampled::resize_sampled;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("ScaleAndTranslate")
            .with_types("T", &IMAGES)
            .with_host_memory("size")
            .with_host_memory("scale")
            .with_host_memory("translation")
            .with_factory(scale_and_translate),
    );
}

/// TensorFlow `ScaleAndTranslate`. The result is always `float`.
fn scale_and_translate(node: &KernelConstruction<'_>) -> Made {
    let name = string_attr(node, "kernel_type", "lanczos3")?;
    let sampler = Sampler::of(name).ok_or_else(|| {
        KernelError::invalid(format!(
            "Unrecognized kernel type: {name}; known are lanczos1, lanczos3, lanczos5, gaussian, \
             box, triangle, keyscubic and mitchellcubic"
        ))
    })?;
    let antialias = bool_attr(node, "antialias", true)?;
    dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
        let input = context.input(0)?;
        let [batch, rows, columns, channels] = image_dims(input.shape())?;
        if rows == 0 || columns == 0 {
            return Err(KernelError::invalid(format!(
                "input image must be of non-zero size: {}",
                input.shape()
            )));
        }
        let wanted = vector(context.input(1)?, "size")?;
        let size = |index: usize| {
            let size = wanted.get(index).and_then(|&size| usize::try_from(size).ok());
            size.filter(|&size| size > 0 && wanted.len() == 2).ok_or_else(|| {
                KernelError::invalid(format!(
                    "size must have two elements, and output dimensions must be positive: {:?}",
                    &wanted[..]
                ))
            })
        };
        let (scales, translations) = (pair(context, 2, "scale")?, pair(context, 3, "translation")?);
        if !scales.iter().all(|&scale| scale > 0.0) {
            return Err(KernelError::invalid(format!(
                "Scale must be greater than zero: {scales:?}"
            )));
        }
        let spans = |index: usize, input: usize| {
            let axis = ScaledAxis {
                input,
                output: size(index)?,
                scale: scales[index],
                translation: translations[index],
            };
            Spans::new(sampler, axis, antialias)
        };
        let shape = [batch, size(0)?, size(1)?, channels].into();
        let (of_rows, of_columns) = (spans(0, rows)?, spans(1, columns)?);
        let x = input.as_slice::<T>()?;
        output(context, shape, |out| {
            resize_sampled(x, [&of_rows, &of_columns], channels, out, Threads::of(context))
        })
    }))
}

/// Returns the two numbers of an input.
fn pair(context: &KernelContext<'_>, index: usize, what: &str) -> Result<[f32; 2], KernelError> {
    let input = context.input(index)?;
    let numbers = <[f32; 2]>::try_from(input.as_slice::<f32>()?).ok();
    numbers
        .filter(|_| input.shape().rank() == 1)
        .ok_or_else(|| {
            KernelError::invalid(format!(
                "{what} must have two elements, not shape {}",
                input.shape()
            ))
        })
}
