//! Random numbers, checks, printing and strings.

use super::definition::OpDef;
use super::definition::op;
use super::rules::same_as_input;
use super::rules::scalars;
use super::rules::size;
use super::rules::unknown;
use super::work::TRANSCENDENTAL_FLOPS;
use super::work::free;
use super::work::per_output;
use crate::tensor::PartialShape;

/// Floating-point operations of one Philox random number.
const RANDOM_FLOPS: f64 = 15.0;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = Vec::new();
    let floats = "{half, bfloat16, float, double}";
    for (name, flops) in [
        ("RandomUniform", RANDOM_FLOPS),
        (
            "RandomStandardNormal",
            RANDOM_FLOPS + 2.0 * TRANSCENDENTAL_FLOPS,
        ),
        ("TruncatedNormal", RANDOM_FLOPS + 2.0 * TRANSCENDENTAL_FLOPS),
    ] {
        ops.push(
            op(
                name,
                "shape: T",
                "output: dtype",
                &format!("seed: int = 0; seed2: int = 0; dtype: {floats}; T: {{int32, int64}}"),
            )
            .stateful()
            .with_shape(|context| Ok(vec![context.shape_from_input(0)?]))
            .with_work(per_output(flops)),
        );
    }
    for (name, flops) in [
        ("StatelessRandomUniform", RANDOM_FLOPS),
        (
            "StatelessRandomNormal",
            RANDOM_FLOPS + 2.0 * TRANSCENDENTAL_FLOPS,
        ),
        (
            "StatelessTruncatedNormal",
            RANDOM_FLOPS + 2.0 * TRANSCENDENTAL_FLOPS,
        ),
    ] {
        ops.push(
            op(
                name,
                "shape: T, seed: Tseed",
                "output: dtype",
                &format!("dtype: {floats} = DT_FLOAT; T: {{int32, int64}} = DT_INT32; Tseed: {{int32, int64}} = DT_INT64"),
            )
            .with_shape(|context| Ok(vec![context.shape_from_input(0)?]))
            .with_work(per_output(flops)),
        );
    }
    ops.extend([
        op("RandomUniformInt", "shape: T, minval: Tout, maxval: Tout", "output: Tout", "seed: int = 0; seed2: int = 0; Tout: {int32, int64}; T: {int32, int64}")
            .stateful()
            .with_shape(|context| Ok(vec![context.shape_from_input(0)?]))
            .with_work(per_output(RANDOM_FLOPS)),
        op("RandomShuffle", "value: T", "output: T", "seed: int = 0; seed2: int = 0; T: type")
            .stateful()
            .with_shape(same_as_input),
        op("Multinomial", "logits: T, num_samples: int32", "output: output_dtype", "seed: int = 0; seed2: int = 0; T: realnumbertype; output_dtype: {int32, int64} = DT_INT64")
            .stateful()
            .with_shape(|context| {
                let logits = context.shape_of_rank(0, 2)?;
                let n = context.scalar_int(1).map(|n| size(n, "num_samples")).transpose()?;
                Ok(vec![PartialShape::new(&[logits.dim(0), n])])
            }),
        op("Assert", "condition: bool, data: T", "", "T: list(type) >= 1; summarize: int = 3")
            .stateful()
            .with_work(free),
        op("Print", "input: T, data: U", "output: T", "T: type; U: list(type) >= 0; message: string = ''; first_n: int = -1; summarize: int = 3")
            .stateful()
            .with_shape(same_as_input)
            .with_work(free),
        op("PrintV2", "input: string", "", "output_stream: string = 'stderr'; end: string = '\n'").stateful(),
        op("Timestamp", "", "ts: double", "").stateful().with_shape(scalars),
        op("StringFormat", "inputs: T", "output: string", "T: list(type) >= 0; template: string = '%s'; placeholder: string = '%s'; summarize: int = 3")
            .with_shape(scalars),
        op("StringJoin", "inputs: N * string", "output: string", "N: int >= 0; separator: string = ''")
            .with_shape(unknown),
        op("AsString", "input: T", "output: string", "T: type; precision: int = -1; scientific: bool = false; shortest: bool = false; width: int = -1; fill: string = ''")
            .with_shape(same_as_input),
    ]);
    ops
}
