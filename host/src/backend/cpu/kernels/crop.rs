//! Boxes of an image that are taken by chance.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::random::Inputs;
use crate::backend::cpu::kernels::random::Source;
use crate::backend::cpu::kernels::random::seeded;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::integers;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::graph::AttrValue;
use crate::kernels::Number;
use crate::kernels::crop::CropRules;
use crate::kernels::crop::PixelBox;
use crate::kernels::philox::Singles;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Types of sizes of images.
const SIZES: [DType; 5] = [DType::U8, DType::I8, DType::I16, DType::I32, DType::I64];

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in [
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "StatelessSampleDistortedBoundingBox",
    ] {
        registry.register(def(op).with_types("T", &SIZES).with_factory(sample));
    }
}

fn range(
    node: &KernelConstruction<'_>,
    name: &str,
    default: [f32; 2],
) -> Result<[f32; 2], KernelError> {
    let found = match node.attrs.list(name) {
        None => default,
        Some([AttrValue::Float(least), AttrValue::Float(largest)]) => [*least, *largest],
        Some(_) => return Err(bad_attr(node, name, "list of two floats")),
    };
    match found {
        [least, largest] if least > 0.0 && largest > 0.0 => Ok([least, largest]),
        _ => Err(KernelError::invalid(format!(
            "{name} values must be positive: {found:?}"
        ))),
    }
}

/// TensorFlow `SampleDistortedBoundingBox`, its second version and its stateless form.
fn sample(node: &KernelConstruction<'_>) -> Made {
    let n_attempts = int_attr(node, "max_attempts", Some(100))?;
    let n_attempts = u32::try_from(n_attempts)
        .ok()
        .filter(|&n_attempts| n_attempts > 0);
    let n_attempts =
        n_attempts.ok_or_else(|| KernelError::invalid("max_attempts must be positive"))?;
    let rules = CropRules {
        area: range(node, "area_range", [0.05, 1.0])?,
        aspect: range(node, "aspect_ratio_range", [0.75, 1.33])?,
        covered: float_attr(node, "min_object_covered", 0.1)?,
        n_attempts,
    };
    if rules.area[0] > 1.0 || rules.area[1] > 1.0 {
        return Err(KernelError::invalid(format!(
            "area_range values must be at most 1: {:?}",
            rules.area
        )));
    }
    let takes_whole = bool_attr(node, "use_image_if_no_bounding_boxes", false)?;
    let is_first = node.op == "SampleDistortedBoundingBox";
    let source = match node.op {
        "StatelessSampleDistortedBoundingBox" => Source::Stateless(Inputs::Seed),
        _ => Source::own(node)?,
    };
    dispatch!(
        type_attr(node, "T")?,
        [U8: u8, I8: i8, I16: i16, I32: i32, I64: i64],
        T => kernel(move |context| {
            let mut rules = rules;
            if !is_first {
                rules.covered = match context.input(2)?.as_slice::<f32>()? {
                    [covered] => *covered,
                    _ => return Err(KernelError::invalid("min_object_covered must be 0-D")),
                };
            }
            if !(0.0..=1.0).contains(&rules.covered) {
                return Err(KernelError::invalid(format!(
                    "min_object_covered must be between 0 and 1, not {}",
                    rules.covered
                )));
            }
            let generator = match source {
                Source::Stateless(_) => seeded(context.input(3)?)?,
                _ => source.generator_of_blocks(context, n_attempts.into())?,
            };
            let (size, objects) = boxes(context, takes_whole)?;
            let found = rules.sample(size, &objects, &mut Singles::new(generator));
            set::<T>(context, size, &found)
        })
    )
}

/// Returns height and width of the image, and the objects in it.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "TensorFlow's arithmetic"
)]
fn boxes(
    context: &KernelContext<'_>,
    takes_whole: bool,
) -> Result<([i32; 2], Vec<PixelBox>), KernelError> {
    let sizes = context.input(0)?;
    let found: SmallVec<[i64; 8]> = integers(sizes)?;
    let (&[height, width, _], 1) = (found.as_slice(), sizes.shape().rank()) else {
        return Err(KernelError::invalid(format!(
            "image_size must contain 3 elements, got shape {}",
            sizes.shape()
        )));
    };
    let pixels = |size: i64| i32::try_from(size).ok().filter(|&size| size > 0);
    let (Some(height), Some(width)) = (pixels(height), pixels(width)) else {
        return Err(KernelError::invalid(format!(
            "image height and width must be positive and of 32 bits, not {height} and {width}"
        )));
    };
    let given = context.input(1)?;
    if given.shape().rank() != 3 || given.shape().dims()[2] != 4 {
        return Err(KernelError::invalid(format!(
            "bounding boxes must have shape [batch, N, 4], not {}",
            given.shape()
        )));
    }
    let corners = given.as_slice::<f32>()?.as_chunks::<4>().0;
    let mut objects = scratch::list(corners.len().max(1))?;
    for corner in corners {
        if let Some(outside) = corner.iter().find(|at| !(0.0..=1.0).contains(*at)) {
            return Err(KernelError::invalid(format!(
                "All bounding box coordinates must be in [0.0, 1.0]: {outside}"
            )));
        }
        let [top, left, bottom, right] = *corner;
        let (height, width) = (height as f32, width as f32);
        objects.push(PixelBox {
            top: (top * height) as i32,
            left: (left * width) as i32,
            bottom: (bottom * height) as i32,
            right: (right * width) as i32,
        });
    }
    if objects.is_empty() {
        if !takes_whole {
            return Err(KernelError::invalid(
                "No bounding boxes provided as input; use_image_if_no_bounding_boxes allows that.",
            ));
        }
        objects.push(PixelBox {
            top: 0,
            left: 0,
            bottom: height,
            right: width,
        });
    }
    Ok(([height, width], objects))
}

#[expect(clippy::cast_precision_loss, reason = "TensorFlow's arithmetic")]
fn set<T: Number>(
    context: &KernelContext<'_>,
    [height, width]: [i32; 2],
    found: &PixelBox,
) -> Result<(), KernelError> {
    let numbers = |index: usize, values: [i32; 3]| {
        context.fill_output(index, &Shape::from([3]), |out: &mut [T]| {
            for (slot, value) in out.iter_mut().zip(values) {
                *slot = T::from_i64(value.into());
            }
            Ok(())
        })
    };
    numbers(0, [found.top, found.left, 0])?;
    numbers(1, [found.bottom - found.top, found.right - found.left, -1])?;
    context.fill_output(2, &Shape::from([1, 1, 4]), |out: &mut [f32]| {
        let part = |at: i32, whole: i32| at as f32 / whole as f32;
        out.copy_from_slice(&[
            part(found.top, height),
            part(found.left, width),
            part(found.bottom, height),
            part(found.right, width),
        ]);
        Ok(())
    })
}
