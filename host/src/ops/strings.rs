//! Strings.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::reduce::reduced;
use super::rules::Shapes;
use super::rules::broadcast;
use super::rules::merge;
use super::rules::n_elements;
use super::rules::same_as_input;
use super::rules::scalars;
use super::rules::size;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = elementwise();
    ops.extend(patterns());
    ops.extend(pieces());
    ops.extend(unicode());
    ops
}

/// Ops whose output has the shape of input 0.
fn elementwise() -> Vec<OpDef> {
    let definitions = [
        ("StringLower", "output: string", "encoding: string = ''"),
        ("StringUpper", "output: string", "encoding: string = ''"),
        ("StringStrip", "output: string", ""),
        (
            "StringLength",
            "output: int32",
            "unit: {'BYTE', 'UTF8_CHAR'} = 'BYTE'",
        ),
        (
            "StringToHashBucketFast",
            "output: int64",
            "num_buckets: int >= 1",
        ),
        (
            "StringToHashBucketStrong",
            "output: int64",
            "num_buckets: int >= 1; key: list(int)",
        ),
        ("EncodeBase64", "output: string", "pad: bool = false"),
        ("DecodeBase64", "output: string", ""),
    ];
    let mut ops: Vec<OpDef> = definitions
        .into_iter()
        .map(|(name, output, attrs)| {
            op(name, "input: string", output, attrs).with_shape(same_as_input)
        })
        .collect();
    ops.extend([
        op(
            "StringToHashBucket",
            "string_tensor: string",
            "output: int64",
            "num_buckets: int >= 1",
        )
        .with_shape(same_as_input),
        op(
            "StringToNumber",
            "string_tensor: string",
            "output: out_type",
            "out_type: {float, double, int32, int64, uint32, uint64} = DT_FLOAT",
        )
        .with_shape(same_as_input),
        op(
            "AsString",
            "input: T",
            "output: string",
            "T: {float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, \
             uint64, complex64, complex128, bool, variant, string}; precision: int = -1; \
             scientific: bool = false; shortest: bool = false; width: int = -1; fill: string = ''",
        )
        .with_shape(same_as_input),
        op(
            "Substr",
            "input: string, pos: T, len: T",
            "output: string",
            "T: {int32, int64}; unit: {'BYTE', 'UTF8_CHAR'} = 'BYTE'",
        )
        .with_shape(|context| {
            merge(context.shape(1), context.shape(2), "shapes of pos and len")?;
            Ok(vec![broadcast(context.shape(0), context.shape(1))?])
        }),
    ]);
    ops
}

/// Ops on regular expressions.
fn patterns() -> Vec<OpDef> {
    vec![
        op(
            "RegexReplace",
            "input: string, pattern: string, rewrite: string",
            "output: string",
            "replace_global: bool = true",
        )
        .with_shape(|context| {
            context.shape_of_rank(1, 0)?;
            context.shape_of_rank(2, 0)?;
            same_as_input(context)
        }),
        op(
            "StaticRegexReplace",
            "input: string",
            "output: string",
            "pattern: string; rewrite: string; replace_global: bool = true",
        )
        .with_shape(same_as_input),
        op(
            "RegexFullMatch",
            "input: string, pattern: string",
            "output: bool",
            "",
        )
        .with_shape(|context| {
            context.shape_of_rank(1, 0)?;
            same_as_input(context)
        }),
        op(
            "StaticRegexFullMatch",
            "input: string",
            "output: bool",
            "pattern: string",
        )
        .with_shape(same_as_input),
    ]
}

/// Ops that split and join strings.
fn pieces() -> Vec<OpDef> {
    vec![
        op(
            "StringSplit",
            "input: string, delimiter: string",
            "indices: int64, values: string, shape: int64",
            "skip_empty: bool = true",
        )
        .with_shape(split),
        op(
            "StringSplitV2",
            "input: string, sep: string",
            "indices: int64, values: string, shape: int64",
            "maxsplit: int = -1",
        )
        .with_shape(split),
        op(
            "StringNGrams",
            "data: string, data_splits: Tsplits",
            "ngrams: string, ngrams_splits: Tsplits",
            "separator: string; ngram_widths: list(int) >= 0; left_pad: string; right_pad: string; \
             pad_width: int; preserve_short_sequences: bool; Tsplits: {int32, int64} = DT_INT64",
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 1)?;
            let splits = context.shape_of_rank(1, 1)?;
            Ok(vec![PartialShape::of_rank(1), splits])
        }),
        op(
            "StringJoin",
            "inputs: N * string",
            "output: string",
            "N: int >= 0; separator: string = ''",
        )
        .with_shape(|context| {
            let mut shape = PartialShape::scalar();
            for index in 0..context.n_inputs() {
                let input = context.shape(index);
                if input.rank().is_none() {
                    return Ok(vec![PartialShape::unknown()]);
                }
                if shape.rank() == Some(0) {
                    shape = input.clone();
                } else if input.rank() != Some(0) {
                    shape = merge(&shape, input, "shapes of the inputs")?;
                }
            }
            Ok(vec![shape])
        }),
        op(
            "ReduceJoin",
            "inputs: string, reduction_indices: int32",
            "output: string",
            "keep_dims: bool = false; separator: string = ''",
        )
        .with_shape(reduced),
        op(
            "UnsortedSegmentJoin",
            "inputs: string, segment_ids: Tindices, num_segments: Tnumsegments",
            "output: string",
            "separator: string = ''; Tindices: {int32, int64}; \
             Tnumsegments: {int32, int64} = DT_INT32",
        )
        .with_shape(|context| {
            context.shape_of_rank(2, 0)?;
            let n_segments = context.scalar_int(2);
            let n_segments = n_segments.map(|n| size(n, "num_segments")).transpose()?;
            let (inputs, ids) = (context.shape(0).dims(), context.shape(1).rank());
            let rest = inputs.zip(ids).and_then(|(dims, rank)| dims.get(rank..));
            Ok(vec![rest.map_or_else(PartialShape::unknown, |rest| {
                std::iter::once(n_segments)
                    .chain(rest.iter().copied())
                    .collect()
            })])
        }),
        op(
            "StringFormat",
            "inputs: T",
            "output: string",
            "T: list(type) >= 0; template: string = '%s'; placeholder: string = '%s'; \
             summarize: int = 3",
        )
        .with_shape(scalars),
    ]
}

/// The sparse tensor of the pieces of each string.
fn split(context: &InferenceContext<'_>) -> Shapes {
    context.shape_of_rank(0, 1)?;
    context.shape_of_rank(1, 0)?;
    Ok(vec![
        PartialShape::new(&[None, Some(2)]),
        PartialShape::of_rank(1),
        [2].into(),
    ])
}

/// Ops on characters and encodings.
fn unicode() -> Vec<OpDef> {
    let errors = "errors: {'strict', 'replace', 'ignore'} = 'replace'; replacement_char: int = 65533; \
                  replace_control_characters: bool = false";
    let splits = "Tsplits: {int32, int64} = DT_INT64";
    let decoded = |context: &InferenceContext<'_>| -> Shapes {
        let n_rows = context
            .shape(0)
            .dims()
            .map(n_elements)
            .transpose()?
            .flatten();
        let n_splits = n_rows.and_then(|n| n.checked_add(1));
        let mut shapes = vec![PartialShape::of_rank(1); context.n_outputs()];
        shapes[0] = PartialShape::new(&[n_splits]);
        Ok(shapes)
    };
    vec![
        op(
            "UnicodeDecode",
            "input: string",
            "row_splits: Tsplits, char_values: int32",
            &format!("input_encoding: string; {errors}; {splits}"),
        )
        .with_shape(decoded),
        op(
            "UnicodeDecodeWithOffsets",
            "input: string",
            "row_splits: Tsplits, char_values: int32, char_to_byte_starts: int64",
            &format!("input_encoding: string; {errors}; {splits}"),
        )
        .with_shape(decoded),
        op(
            "UnicodeEncode",
            "input_values: int32, input_splits: Tsplits",
            "output: string",
            &format!(
                "errors: {{'ignore', 'replace', 'strict'}} = 'replace'; \
                 output_encoding: {{'UTF-8', 'UTF-16-BE', 'UTF-32-BE'}}; \
                 replacement_char: int = 65533; {splits}"
            ),
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 1)?;
            let n_splits = context.shape_of_rank(1, 1)?.dim(0);
            let n_rows = n_splits.and_then(|n| n.checked_sub(1));
            Ok(vec![PartialShape::new(&[n_rows])])
        }),
        op(
            "UnicodeTranscode",
            "input: string",
            "output: string",
            &format!(
                "input_encoding: string; output_encoding: {{'UTF-8', 'UTF-16-BE', 'UTF-32-BE'}}; \
                 {errors}"
            ),
        )
        .with_shape(same_as_input),
    ]
}
