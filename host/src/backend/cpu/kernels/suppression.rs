//! Selection of boxes that overlap little.

use std::cmp::Ordering;
use std::ops::Deref;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::value::scalar;
use crate::backend::types::unsupported;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::scratch;
use crate::kernels::suppression;
use crate::kernels::suppression::Scored;
use crate::kernels::suppression::Suppression;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types of boxes and scores.
const BOXES: [DType; 2] = [DType::F16, DType::F32];

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("NonMaxSuppression").with_factory(suppress));
    for op in [
        "NonMaxSuppressionV2",
        "NonMaxSuppressionV3",
        "NonMaxSuppressionV4",
        "NonMaxSuppressionV5",
    ] {
        registry.register(def(op).with_types("T", &BOXES).with_factory(suppress));
    }
    registry.register(def("NonMaxSuppressionWithOverlaps").with_factory(|_| kernel(with_overlaps)));
    registry.register(def("CombinedNonMaxSuppression").with_factory(combined));
}

/// Returns a scalar, which may be `half` or `float`.
pub(super) fn threshold<T: Real>(tensor: &Tensor, what: &str) -> Result<T, KernelError> {
    if tensor.shape().rank() != 0 {
        return Err(KernelError::invalid(format!(
            "{what} must be 0-D, got shape {}",
            tensor.shape()
        )));
    }
    let value = match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>()?[0].to_f64(),
        DType::F16 => tensor.as_slice::<half::f16>()?[0].to_f64(),
        other => return Err(unsupported(other)),
    };
    Ok(T::from_f64(value))
}

/// TensorFlow `NonMaxSuppression` and its later versions: V2 has a threshold as input, V3 one of
/// scores, V4 returns a number of boxes, V5 lowers scores and returns them.
fn suppress(node: &KernelConstruction<'_>) -> Made {
    let version = match node.op.strip_prefix("NonMaxSuppressionV") {
        Some(version) => version.parse().unwrap_or(1),
        None => 1,
    };
    let overlap_max = float_attr(node, "iou_threshold", 0.5)?;
    let pads = bool_attr(node, "pad_to_max_output_size", false)?;
    let dtype = node.attrs.dtype("T").unwrap_or(DType::F32);
    dispatch!(dtype, [F16: half::f16, F32: f32], T => kernel(move |context| {
        select::<T>(context, version, overlap_max, pads)
    }))
}

fn select<T: Real>(
    context: &KernelContext<'_>,
    version: u32,
    overlap_max: f32,
    pads: bool,
) -> Result<(), KernelError> {
    let (boxes, scores) = (context.input(0)?, context.input(1)?);
    let &[n_boxes, 4] = boxes.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "boxes must be 2-D and have 4 columns, got shape {}",
            boxes.shape()
        )));
    };
    if scores.shape().dims() != [n_boxes] {
        return Err(KernelError::invalid(format!(
            "scores has incompatible shape {}: there are {n_boxes} boxes",
            scores.shape()
        )));
    }
    let given = scalar(context.input(2)?, "max_output_size")?;
    let n_max = usize::try_from(given).map_err(|_| {
        KernelError::invalid(format!("output size must be non-negative, got {given}"))
    })?;
    let given_threshold = |index: usize, what: &str, since: u32, otherwise: T| {
        if version < since {
            return Ok(otherwise);
        }
        threshold::<T>(context.input(index)?, what)
    };
    let default = T::from_f64(overlap_max.into());
    let suppression = Suppression {
        n_max,
        overlap_max: given_threshold(3, "iou_threshold", 2, default)?,
        score_min: given_threshold(4, "score_threshold", 3, T::LOWEST_FINITE)?,
        sigma: given_threshold(5, "soft_nms_sigma", 5, T::ZERO)?,
    };
    if !(T::ZERO..=T::ONE).contains(&suppression.overlap_max) {
        return Err(KernelError::invalid(format!(
            "iou_threshold must be in [0, 1], got {:?}",
            suppression.overlap_max
        )));
    }
    if suppression.sigma < T::ZERO {
        return Err(KernelError::invalid(format!(
            "soft_nms_sigma must be non-negative, got {:?}",
            suppression.sigma
        )));
    }
    let corners = boxes.as_slice::<T>()?;
    let corner = |index: usize| {
        let corner = &corners[index * 4..];
        [0, 1, 2, 3].map(|axis| {
            #[expect(clippy::cast_possible_truncation, reason = "widened from f32 at most")]
            let single = corner[axis].to_f64() as f32;
            single
        })
    };
    let overlap = |a: usize, b: usize| suppression::overlap(corner(a), corner(b));
    let found = suppression.select(scores.as_slice::<T>()?, overlap)?;
    let n = found.len();
    let shape = Shape::from([if pads { n_max } else { n }]);
    let mut selected = scratch::list(n)?;
    selected.extend(found);
    context.fill_output(0, &shape, |out: &mut [i32]| {
        out.fill(0);
        for (slot, found) in out.iter_mut().zip(&selected) {
            *slot = i32::try_from(found.index).unwrap_or(i32::MAX);
        }
        Ok(())
    })?;
    if version == 5 {
        context.fill_output(1, &shape, |out: &mut [T]| {
            out.fill(T::ZERO);
            for (slot, found) in out.iter_mut().zip(&selected) {
                *slot = found.score;
            }
            Ok(())
        })?;
    }
    if version >= 4 {
        let index = if version == 5 { 2 } else { 1 };
        context.fill_output(index, &Shape::scalar(), |out: &mut [i32]| {
            out[0] = i32::try_from(n).unwrap_or(i32::MAX);
            Ok(())
        })?;
    }
    Ok(())
}

/// TensorFlow `NonMaxSuppressionWithOverlaps`: any measure of two boxes instead of their overlap.
fn with_overlaps(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (overlaps, scores) = (context.input(0)?, context.input(1)?);
    let n = scores.shape().n_elements();
    if scores.shape().rank() != 1 || overlaps.shape().dims() != [n, n] {
        return Err(KernelError::invalid(format!(
            "overlaps must be square, with a row for each score, not {} for scores of shape {}",
            overlaps.shape(),
            scores.shape()
        )));
    }
    let given = scalar(context.input(2)?, "max_output_size")?;
    let n_max = usize::try_from(given).map_err(|_| {
        KernelError::invalid(format!("output size must be non-negative, got {given}"))
    })?;
    let suppression = Suppression::<f32> {
        n_max,
        overlap_max: threshold(context.input(3)?, "overlap_threshold")?,
        score_min: threshold(context.input(4)?, "score_threshold")?,
        sigma: 0.0,
    };
    let overlaps = overlaps.as_slice::<f32>()?;
    let found = suppression.select(scores.as_slice::<f32>()?, |a, b| overlaps[a * n + b])?;
    context.fill_output(0, &Shape::from([found.len()]), |out: &mut [i32]| {
        for (slot, found) in out.iter_mut().zip(found) {
            *slot = i32::try_from(found.index).unwrap_or(i32::MAX);
        }
        Ok(())
    })
}

/// TensorFlow `CombinedNonMaxSuppression`: selects boxes for each class of each image, and the best
/// of all classes.
fn combined(node: &KernelConstruction<'_>) -> Made {
    let pads_per_class = bool_attr(node, "pad_per_class", false)?;
    let clips = bool_attr(node, "clip_boxes", true)?;
    kernel(move |context| {
        let plan = CombinedPlan::new(context, pads_per_class)?;
        let n = plan.n_results;
        let mut found = scratch::list(plan.n_images)?;
        for image in 0..plan.n_images {
            found.push(plan.best(context, image)?);
        }
        let shape =
            |last: &[usize]| -> Shape { [plan.n_images, n].iter().chain(last).copied().collect() };
        context.fill_output(0, &shape(&[4]), |out: &mut [f32]| {
            out.fill(0.0);
            for (image, found) in found.iter().enumerate() {
                for (rank, best) in found.iter().enumerate() {
                    for (axis, slot) in out[(image * n + rank) * 4..][..4].iter_mut().enumerate() {
                        let at = best.corners[axis];
                        *slot = if clips { at.clamp(0.0, 1.0) } else { at };
                    }
                }
            }
            Ok(())
        })?;
        let of_each = |index: usize, value: &dyn Fn(&Best) -> f32| {
            context.fill_output(index, &shape(&[]), |out: &mut [f32]| {
                out.fill(0.0);
                for (image, found) in found.iter().enumerate() {
                    for (slot, best) in out[image * n..].iter_mut().zip(&**found) {
                        *slot = value(best);
                    }
                }
                Ok(())
            })
        };
        of_each(1, &|best| best.scored.score)?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "classes are numbers in TensorFlow"
        )]
        of_each(2, &|best| best.class as f32)?;
        context.fill_output(3, &Shape::from([plan.n_images]), |out: &mut [i32]| {
            for (slot, found) in out.iter_mut().zip(&found) {
                *slot = i32::try_from(found.len()).unwrap_or(i32::MAX);
            }
            Ok(())
        })
    })
}

/// A selected box of a class.
struct Best {
    scored: Scored<f32>,
    class: usize,
    corners: [f32; 4],
}

struct CombinedPlan {
    n_images: usize,
    n_boxes: usize,
    /// Classes with boxes of their own: all or 1.
    n_box_classes: usize,
    n_classes: usize,
    /// Results per image, some of them padding.
    n_results: usize,
    suppression: Suppression<f32>,
}

impl CombinedPlan {
    fn new(context: &KernelContext<'_>, pads_per_class: bool) -> Result<Self, KernelError> {
        let (boxes, scores) = (context.input(0)?.shape(), context.input(1)?.shape());
        let (&[n_images, n_boxes, n_box_classes, 4], &[n_score_images, n_score_boxes, n_classes]) =
            (boxes.dims(), scores.dims())
        else {
            return Err(KernelError::invalid(format!(
                "boxes must be 4-D with 4 columns, and scores 3-D, not {boxes} and {scores}"
            )));
        };
        if [n_images, n_boxes] != [n_score_images, n_score_boxes] {
            return Err(KernelError::invalid(format!(
                "boxes and scores must have as many images and boxes, not {boxes} and {scores}"
            )));
        }
        if n_box_classes != 1 && n_box_classes != n_classes {
            return Err(KernelError::invalid(format!(
                "third dimension of boxes must be either 1 or num classes, not {n_box_classes} of \
                 {n_classes}"
            )));
        }
        let positive = |index: usize, what: &str| {
            let value = scalar(context.input(index)?, what)?;
            let positive = usize::try_from(value).ok().filter(|&value| value > 0);
            positive.ok_or_else(|| KernelError::invalid(format!("{what} must be > 0, not {value}")))
        };
        let n_max = positive(2, "max_size_per_class")?;
        let n_total = positive(3, "max_total_size")?;
        let overlap_max = threshold::<f32>(context.input(4)?, "iou_threshold")?;
        if !(0.0..=1.0).contains(&overlap_max) {
            return Err(KernelError::invalid(format!(
                "iou_threshold must be in [0, 1], not {overlap_max}"
            )));
        }
        Ok(Self {
            n_images,
            n_boxes,
            n_box_classes,
            n_classes,
            n_results: if pads_per_class {
                n_total.min(n_max.saturating_mul(n_classes))
            } else {
                n_total
            },
            suppression: Suppression {
                n_max,
                overlap_max,
                score_min: threshold(context.input(5)?, "score_threshold")?,
                sigma: 0.0,
            },
        })
    }

    /// Returns the boxes of an image with the highest scores.
    fn best(
        &self,
        context: &KernelContext<'_>,
        image: usize,
    ) -> Result<impl Deref<Target = [Best]> + use<>, KernelError> {
        let boxes = context.input(0)?.as_slice::<f32>()?;
        let scores = context.input(1)?.as_slice::<f32>()?;
        let mut of_class = Threads::of(context).scratch::<f32>(self.n_boxes)?;
        let n_per_class = self.suppression.n_max.min(self.n_boxes);
        let mut best = scratch::list(n_per_class.saturating_mul(self.n_classes))?;
        for class in 0..self.n_classes {
            for (index, slot) in of_class.iter_mut().enumerate() {
                *slot = scores[(image * self.n_boxes + index) * self.n_classes + class];
            }
            let box_class = class.min(self.n_box_classes - 1);
            let corners = |index: usize| {
                let row = (image * self.n_boxes + index) * self.n_box_classes + box_class;
                let corner = &boxes[row * 4..];
                [corner[0], corner[1], corner[2], corner[3]]
            };
            let overlap = |a: usize, b: usize| suppression::overlap(corners(a), corners(b));
            for scored in self.suppression.select(&of_class, overlap)? {
                best.push(Best {
                    scored,
                    class,
                    corners: corners(scored.index),
                });
            }
        }
        let by_score = |a: &Best, b: &Best| b.scored.score.partial_cmp(&a.scored.score);
        best.sort_by(|a, b| by_score(a, b).unwrap_or(Ordering::Equal));
        best.truncate(self.n_results);
        Ok(best)
    }
}
