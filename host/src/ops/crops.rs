//! Random boxes, overlaps of boxes, patches of volumes, and messages with tensors.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::rules::Shapes;
use super::rules::size;
use super::work::free;
use super::work::per_input;
use crate::graph::AttrValue;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = boxes();
    ops.extend([
        op(
            "NonMaxSuppressionWithOverlaps",
            "overlaps: float, scores: float, max_output_size: int32, overlap_threshold: float, \
             score_threshold: float",
            "selected_indices: int32",
            "",
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 2)?;
            context.shape_of_rank(1, 1)?;
            Ok(vec![PartialShape::of_rank(1)])
        })
        .with_work(per_input(1.0)),
        op(
            "ExtractVolumePatches",
            "input: T",
            "patches: T",
            "ksizes: list(int) >= 5; strides: list(int) >= 5; T: realnumbertype; \
             padding: {'SAME', 'VALID'}",
        )
        .with_shape(volume_patches),
        op(
            "SerializeTensor",
            "tensor: T",
            "serialized: string",
            "T: type",
        )
        .with_shape(|_| Ok(vec![PartialShape::scalar()]))
        .with_work(per_input(0.0)),
        op(
            "ParseTensor",
            "serialized: string",
            "output: out_type",
            "out_type: type",
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 0)?;
            Ok(vec![PartialShape::unknown()])
        }),
        // An input pipeline is not part of the graph. Runs feed its results.
        op(
            "IteratorV2",
            "",
            "handle: resource",
            "shared_name: string; container: string; output_types: list(type) >= 1; \
             output_shapes: list(shape) >= 1",
        )
        .stateful()
        .with_shape(|_| Ok(vec![PartialShape::scalar()]))
        .with_work(free),
        op(
            "IteratorGetNext",
            "iterator: resource",
            "components: output_types",
            "output_types: list(type) >= 1; output_shapes: list(shape) >= 1",
        )
        .stateful()
        .with_shape(|context| {
            let shapes = context.attrs().list("output_shapes").unwrap_or_default();
            let shapes = shapes.iter().map(|shape| match shape {
                AttrValue::Shape(shape) => shape.clone(),
                _ => PartialShape::unknown(),
            });
            Ok(shapes.collect())
        })
        .with_work(free),
    ]);
    ops
}

/// Ops that take a box of an image by chance.
fn boxes() -> Vec<OpDef> {
    let result = "begin: T, size: T, bboxes: float";
    let types = "T: {uint8, int8, int16, int32, int64}";
    let ranges = "aspect_ratio_range: list(float) = [0.75, 1.33]; \
                  area_range: list(float) = [0.05, 1.0]; max_attempts: int = 100; \
                  use_image_if_no_bounding_boxes: bool = false";
    let shapes = |context: &InferenceContext<'_>| {
        context.shape_of_rank(0, 1)?;
        context.shape_of_rank(1, 3)?;
        Ok(vec![[3].into(), [3].into(), [1, 1, 4].into()])
    };
    let seeds = "seed: int = 0; seed2: int = 0";
    vec![
        op(
            "SampleDistortedBoundingBox",
            "image_size: T, bounding_boxes: float",
            result,
            &format!("{seeds}; min_object_covered: float = 0.1; {ranges}; {types}"),
        )
        .stateful()
        .with_shape(shapes)
        .with_work(free),
        op(
            "SampleDistortedBoundingBoxV2",
            "image_size: T, bounding_boxes: float, min_object_covered: float",
            result,
            &format!("{seeds}; {ranges}; {types}"),
        )
        .stateful()
        .with_shape(shapes)
        .with_work(free),
        op(
            "StatelessSampleDistortedBoundingBox",
            "image_size: T, bounding_boxes: float, min_object_covered: float, seed: Tseed",
            result,
            &format!("{ranges}; {types}; Tseed: {{int32, int64}}"),
        )
        .with_shape(shapes)
        .with_work(free),
    ]
}

/// Windows over three axes; each becomes the channels of one position.
fn volume_patches(context: &InferenceContext<'_>) -> Shapes {
    let volume = context.shape_of_rank(0, 5)?;
    let (sizes, strides) = (context.int_list("ksizes")?, context.int_list("strides")?);
    let is_same = context.text("padding")? == "SAME";
    let mut dims = vec![volume.dim(0)];
    let mut depth = volume.dim(4);
    for axis in 1..4 {
        let of = |list: &[i64]| list.get(axis).copied().unwrap_or(1);
        let (window, stride) = (
            size(of(&sizes), "ksizes")?,
            size(of(&strides), "strides")?.max(1),
        );
        depth = depth.and_then(|depth| depth.checked_mul(window));
        dims.push(volume.dim(axis).map(|n| match is_same {
            true => n.div_ceil(stride),
            false => (n + 1).saturating_sub(window).div_ceil(stride),
        }));
    }
    dims.push(depth);
    Ok(vec![PartialShape::new(&dims)])
}
