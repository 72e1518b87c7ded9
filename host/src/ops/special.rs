//! Special functions, simulated quantization, cells of recurrent networks and decoding.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Shapes;
use super::rules::broadcast_inputs;
use super::rules::merge;
use super::rules::merge_dims;
use super::rules::same_as_input;
use super::work::TRANSCENDENTAL_FLOPS;
use super::work::per_input;
use super::work::per_output;
use super::work::with_flops;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::PartialShape;

/// Floating-point operations of a function that is computed by a series of dozens of terms.
const SERIES_FLOPS: f64 = 100.0;

const QUANTIZED: &str = "num_bits: int = 8; narrow_range: bool = false";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = vec![
        op("Betainc", "a: T, b: T, x: T", "z: T", "T: {float, double}")
            .with_shape(one_shape_or_scalars)
            .with_work(per_output(SERIES_FLOPS)),
        op("Polygamma", "a: T, x: T", "z: T", "T: {float, double}")
            .with_shape(broadcast_inputs)
            .with_work(per_output(SERIES_FLOPS)),
        op("FakeQuantWithMinMaxArgs", "inputs: float", "outputs: float", &format!("min: float = -6.0; max: float = 6.0; {QUANTIZED}"))
            .with_shape(same_as_input)
            .with_work(per_output(7.0)),
        op("FakeQuantWithMinMaxVars", "inputs: float, min: float, max: float", "outputs: float", QUANTIZED)
            .with_shape(|context| {
                context.shape_of_rank(1, 0)?;
                context.shape_of_rank(2, 0)?;
                same_as_input(context)
            })
            .with_work(per_output(7.0)),
        op("FakeQuantWithMinMaxVarsPerChannel", "inputs: float, min: float, max: float", "outputs: float", QUANTIZED)
            .with_shape(quantized_by_channel)
            .with_work(per_output(7.0)),
        op("LSTMBlockCell", "x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, b: T", "i: T, cs: T, f: T, o: T, ci: T, co: T, h: T", "forget_bias: float = 1.0; cell_clip: float = 3.0; use_peephole: bool = false; T: {half, float}")
            .with_shape(|context| {
                let (x, before) = (context.shape_of_rank(0, 2)?, context.shape_of_rank(1, 2)?);
                let batch = merge_dims(x.dim(0), before.dim(0), "batches of x and cs_prev")?;
                Ok(vec![PartialShape::new(&[batch, before.dim(1)]); 7])
            })
            .with_work(cell_work),
        op("GRUBlockCell", "x: T, h_prev: T, w_ru: T, w_c: T, b_ru: T, b_c: T", "r: T, u: T, c: T, h: T", "T: {float}")
            .with_shape(|context| {
                let (x, before) = (context.shape_of_rank(0, 2)?, context.shape_of_rank(1, 2)?);
                let batch = merge_dims(x.dim(0), before.dim(0), "batches of x and h_prev")?;
                Ok(vec![PartialShape::new(&[batch, before.dim(1)]); 4])
            })
            .with_work(|context, outputs| {
                let rows = context.shape(0).dim(0).unwrap_or(0);
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let rows = rows as f64;
                let products = 2.0 * rows * (context.input_elements(2) + context.input_elements(3));
                let functions = 3.0 * TRANSCENDENTAL_FLOPS * context.input_elements(1);
                with_flops(context, outputs, products + functions)
            }),
        op("CTCGreedyDecoder", "inputs: T, sequence_length: int32", "decoded_indices: int64, decoded_values: int64, decoded_shape: int64, log_probability: T", "merge_repeated: bool = false; blank_index: int = -1; T: {float, double} = DT_FLOAT")
            .with_shape(|context| {
                let (inputs, lengths) = (context.shape_of_rank(0, 3)?, context.shape_of_rank(1, 1)?);
                let batch = merge_dims(inputs.dim(1), lengths.dim(0), "batches of both inputs")?;
                Ok(vec![
                    PartialShape::new(&[None, Some(2)]),
                    PartialShape::of_rank(1),
                    PartialShape::new(&[Some(2)]),
                    PartialShape::new(&[batch, Some(1)]),
                ])
            })
            .with_work(per_input(1.0)),
        op("CTCBeamSearchDecoder", "inputs: T, sequence_length: int32", "decoded_indices: top_paths * int64, decoded_values: top_paths * int64, decoded_shape: top_paths * int64, log_probability: T", "beam_width: int >= 1; top_paths: int >= 1; merge_repeated: bool = true; T: {float, double} = DT_FLOAT")
            .with_shape(|context| {
                let (inputs, lengths) = (context.shape_of_rank(0, 3)?, context.shape_of_rank(1, 1)?);
                let batch = merge_dims(inputs.dim(1), lengths.dim(0), "batches of both inputs")?;
                let n_paths = (context.n_outputs() - 1) / 3;
                let mut shapes = vec![PartialShape::new(&[None, Some(2)]); n_paths];
                shapes.extend(vec![PartialShape::of_rank(1); n_paths]);
                shapes.extend(vec![PartialShape::new(&[Some(2)]); n_paths]);
                shapes.push(PartialShape::new(&[batch, Some(n_paths)]));
                Ok(shapes)
            })
            .with_work(|context, outputs| {
                // Each beam is extended by each class.
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let n_beams = context.int("beam_width").unwrap_or(1) as f64;
                with_flops(context, outputs, TRANSCENDENTAL_FLOPS * n_beams * context.input_elements(0))
            }),
        op("DecodeRaw", "bytes: string", "output: out_type", "out_type: {half, float, double, int32, uint16, uint8, int16, int8, int64, complex64, complex128, bool, bfloat16}; little_endian: bool = true")
            .with_shape(|context| {
                let dims = context.shape(0).dims();
                Ok(vec![dims.map_or_else(PartialShape::unknown, |dims| {
                    dims.iter().copied().chain([None]).collect()
                })])
            }),
    ];
    for (version, attrs) in [
        ("", "forget_bias: float = 1.0; cell_clip: float = 3.0"),
        ("V2", "cell_clip: float = 0.0"),
    ] {
        ops.push(
            op(
                &format!("BlockLSTM{version}"),
                "seq_len_max: int64, x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, \
                 b: T",
                "i: T, cs: T, f: T, o: T, ci: T, co: T, h: T",
                &format!("{attrs}; use_peephole: bool = false; T: {{half, float}}"),
            )
            .with_shape(|context| {
                context.shape_of_rank(0, 0)?;
                let (x, before) = (context.shape_of_rank(1, 3)?, context.shape_of_rank(2, 2)?);
                let batch = merge_dims(x.dim(1), before.dim(0), "batches of x and cs_prev")?;
                Ok(vec![
                    PartialShape::new(&[x.dim(0), batch, before.dim(1)]);
                    7
                ])
            })
            .with_work(|context, outputs| {
                let steps = context.shape(1).dim(0).unwrap_or(0);
                let rows = context.shape(1).dim(1).unwrap_or(0);
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let (steps, rows) = (steps as f64, rows as f64);
                let products = 2.0 * rows * context.input_elements(4);
                let functions = 5.0 * TRANSCENDENTAL_FLOPS * context.input_elements(2);
                with_flops(context, outputs, steps * (products + functions))
            }),
        );
    }
    let range = "signed_input: bool = true; T: {bfloat16, half, float, double}; \
                 narrow_range: bool = false; axis: int = -1";
    let rounding = "num_bits: int = 8; range_given: bool = false; \
                    round_mode: {'HALF_TO_EVEN', 'HALF_UP'} = 'HALF_TO_EVEN'";
    for (version, bits, more) in [
        ("V2", "", rounding),
        ("V3", ", num_bits: int32", "range_given: bool = true"),
        ("V4", "", rounding),
    ] {
        ops.push(
            op(
                &format!("QuantizeAndDequantize{version}"),
                &format!("input: T, input_min: T, input_max: T{bits}"),
                "output: T",
                &format!("{range}; {more}"),
            )
            .with_shape(same_as_input)
            .with_work(per_output(5.0)),
        );
    }
    ops
}

/// All inputs have one shape; scalars are repeated.
fn one_shape_or_scalars(context: &InferenceContext<'_>) -> Shapes {
    let mut shape: Option<PartialShape> = None;
    for index in 0..context.n_inputs() {
        match context.shape(index).dims() {
            None => return Ok(vec![PartialShape::unknown()]),
            Some([]) => {}
            Some(_) => {
                let other = context.shape(index);
                shape = Some(match shape {
                    Some(shape) => merge(&shape, other, "shapes of inputs that are not scalars")?,
                    None => other.clone(),
                });
            }
        }
    }
    Ok(vec![shape.unwrap_or_else(PartialShape::scalar)])
}

fn quantized_by_channel(context: &InferenceContext<'_>) -> Shapes {
    let (min, max) = (context.shape_of_rank(1, 1)?, context.shape_of_rank(2, 1)?);
    let n = merge_dims(min.dim(0), max.dim(0), "sizes of min and max")?;
    let Some(dims) = context.dims_of_rank_at_least(0, 1)? else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let mut dims = dims.to_vec();
    let Some(last) = dims.last_mut() else {
        return Err(ShapeError::new("the input must have rank 1 or more"));
    };
    *last = merge_dims(*last, n, "the last dimension and the size of min")?;
    Ok(vec![PartialShape::new(&dims)])
}

/// A matmul of the joined inputs, and five functions per element of the state.
fn cell_work(context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
    let rows = context.shape(0).dim(0).unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let products = 2.0 * rows as f64 * context.input_elements(3);
    let functions = 5.0 * TRANSCENDENTAL_FLOPS * context.input_elements(1);
    with_flops(context, outputs, products + functions)
}
