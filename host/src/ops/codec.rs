//! Files, and images in files.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::rules::Shapes;
use super::rules::size;
use super::work::per_output;
use crate::tensor::PartialShape;

/// Operations per sample of a decoded or encoded image: codes, a transform and colours.
const CODEC_FLOPS: f64 = 20.0;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let jpeg = "channels: int = 0; ratio: int = 1; fancy_upscaling: bool = true; \
                try_recover_truncated: bool = false; acceptable_fraction: float = 1.0; \
                dct_method: string = ''";
    vec![
        op("ReadFile", "filename: string", "contents: string", "").with_shape(|context| {
            context.shape_of_rank(0, 0)?;
            Ok(vec![PartialShape::scalar()])
        }),
        op("DecodeJpeg", "contents: string", "image: uint8", jpeg)
            .with_shape(image)
            .with_work(per_output(CODEC_FLOPS)),
        op(
            "DecodeAndCropJpeg",
            "contents: string, crop_window: int32",
            "image: uint8",
            jpeg,
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 0)?;
            context.shape_of_rank(1, 1)?;
            let window = context.known_ints(1);
            let dim = |index: usize| {
                let size = window.as_ref().and_then(|window| window.get(index));
                size.and_then(|&size| usize::try_from(size).ok())
            };
            Ok(vec![PartialShape::new(&[
                dim(2),
                dim(3),
                channels(context)?,
            ])])
        })
        .with_work(per_output(CODEC_FLOPS)),
        op(
            "ExtractJpegShape",
            "contents: string",
            "image_shape: output_type",
            "output_type: {int32, int64} = DT_INT32",
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 0)?;
            Ok(vec![[3].into()])
        }),
        op(
            "DecodePng",
            "contents: string",
            "image: dtype",
            "channels: int = 0; dtype: {uint8, uint16} = DT_UINT8",
        )
        .with_shape(image)
        .with_work(per_output(CODEC_FLOPS)),
        op(
            "DecodeBmp",
            "contents: string",
            "image: uint8",
            "channels: int = 0",
        )
        .with_shape(image)
        .with_work(per_output(1.0)),
        op(
            "DecodeImage",
            "contents: string",
            "image: dtype",
            "channels: int = 0; dtype: {uint8, uint16, float} = DT_UINT8; \
             expand_animations: bool = true",
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 0)?;
            // Animations have frames, too.
            Ok(vec![match context.bool("expand_animations")? {
                true => PartialShape::unknown(),
                false => PartialShape::new(&[None, None, channels(context)?]),
            }])
        })
        .with_work(per_output(CODEC_FLOPS)),
        op(
            "EncodePng",
            "image: T",
            "contents: string",
            "compression: int = -1; T: {uint8, uint16} = DT_UINT8",
        )
        .with_shape(|context| {
            let dims = context.dims_of_rank_at_least(0, 3)?;
            Ok(vec![dims.map_or_else(PartialShape::unknown, |dims| {
                PartialShape::new(&dims[..dims.len() - 3])
            })])
        })
        .with_work(super::work::per_input(CODEC_FLOPS)),
    ]
}

/// Rows, columns and channels.
fn image(context: &InferenceContext<'_>) -> Shapes {
    context.shape_of_rank(0, 0)?;
    Ok(vec![PartialShape::new(&[None, None, channels(context)?])])
}

/// The number of channels, if it is not that of the file.
fn channels(context: &InferenceContext<'_>) -> Result<super::rules::Dim, super::infer::ShapeError> {
    Ok(match size(context.int("channels")?, "channels")? {
        0 => None,
        n => Some(n),
    })
}
