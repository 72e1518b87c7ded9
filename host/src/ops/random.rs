//! Random numbers.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Shapes;
use super::rules::merge;
use super::rules::same_as_input;
use super::rules::size;
use super::work::TRANSCENDENTAL_FLOPS;
use super::work::per_output;
use crate::tensor::PartialShape;

/// Floating-point operations of one Philox random number.
const RANDOM_FLOPS: f64 = 15.0;

/// Those of a normal random number.
const NORMAL_FLOPS: f64 = RANDOM_FLOPS + 2.0 * TRANSCENDENTAL_FLOPS;

/// Those of a number of a gamma or Poisson distribution, whose samples are rejected now and then.
const REJECTION_FLOPS: f64 = 3.0 * NORMAL_FLOPS;

const FLOATS: &str = "{half, bfloat16, float, double}";
const SEEDS: &str = "seed: int = 0; seed2: int = 0";
const INDEX: &str = "{int32, int64}";
const FULL_INTEGERS: &str = "{int32, int64, uint32, uint64}";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = stateful();
    ops.extend(stateless());
    ops.extend(keyed());
    ops.extend(generators());
    ops.extend(with_parameters());
    ops
}

/// The ops whose kernels have their own generators.
fn stateful() -> Vec<OpDef> {
    let mut ops: Vec<OpDef> = [
        ("RandomUniform", RANDOM_FLOPS),
        ("RandomStandardNormal", NORMAL_FLOPS),
        ("TruncatedNormal", NORMAL_FLOPS),
    ]
    .into_iter()
    .map(|(name, flops)| {
        let attrs = format!("{SEEDS}; dtype: {FLOATS}; T: {INDEX}");
        op(name, "shape: T", "output: dtype", &attrs)
            .stateful()
            .with_shape(|context| Ok(vec![context.shape_from_input(0)?]))
            .with_work(per_output(flops))
    })
    .collect();
    ops.extend([
        op(
            "RandomUniformInt",
            "shape: T, minval: Tout, maxval: Tout",
            "output: Tout",
            &format!("{SEEDS}; Tout: {INDEX}; T: {INDEX}"),
        )
        .stateful()
        .with_shape(|context| bounded(context, 0, 1))
        .with_work(per_output(RANDOM_FLOPS)),
        op(
            "RandomShuffle",
            "value: T",
            "output: T",
            &format!("{SEEDS}; T: type"),
        )
        .stateful()
        .with_shape(same_as_input),
        op(
            "NonDeterministicInts",
            "shape: shape_dtype",
            "output: dtype",
            "dtype: type = DT_INT64; shape_dtype: type = DT_INT64",
        )
        .stateful()
        .with_shape(|context| Ok(vec![context.shape_from_input(0)?]))
        .with_work(per_output(RANDOM_FLOPS)),
    ]);
    ops
}

/// The stateless ops with a seed.
fn stateless() -> Vec<OpDef> {
    let mut ops: Vec<OpDef> = [
        ("StatelessRandomUniform", RANDOM_FLOPS),
        ("StatelessRandomNormal", NORMAL_FLOPS),
        ("StatelessTruncatedNormal", NORMAL_FLOPS),
    ]
    .into_iter()
    .map(|(name, flops)| {
        let attrs =
            format!("dtype: {FLOATS} = DT_FLOAT; T: {INDEX} = DT_INT32; Tseed: {INDEX} = DT_INT64");
        op(name, "shape: T, seed: Tseed", "output: dtype", &attrs)
            .with_shape(seeded)
            .with_work(per_output(flops))
    })
    .collect();
    ops.extend([
        op(
            "StatelessRandomUniformInt",
            "shape: T, seed: Tseed, minval: dtype, maxval: dtype",
            "output: dtype",
            &format!("dtype: {INDEX}; T: {INDEX}; Tseed: {INDEX} = DT_INT64"),
        )
        .with_shape(|context| {
            seeded(context)?;
            bounded(context, 0, 2)
        })
        .with_work(per_output(RANDOM_FLOPS)),
        op(
            "StatelessRandomUniformFullInt",
            "shape: T, seed: Tseed",
            "output: dtype",
            &format!(
                "dtype: {FULL_INTEGERS} = DT_UINT64; T: {INDEX} = DT_INT32; \
                 Tseed: {FULL_INTEGERS} = DT_INT64"
            ),
        )
        .with_shape(seeded)
        .with_work(per_output(RANDOM_FLOPS)),
    ]);
    ops
}

/// The stateless ops with key, counter and algorithm, and the ops that make these.
fn keyed() -> Vec<OpDef> {
    let key = "key: uint64, counter: uint64, alg: int32";
    let mut ops: Vec<OpDef> = [
        ("StatelessRandomUniformV2", FLOATS, "DT_FLOAT", RANDOM_FLOPS),
        ("StatelessRandomNormalV2", FLOATS, "DT_FLOAT", NORMAL_FLOPS),
        (
            "StatelessTruncatedNormalV2",
            FLOATS,
            "DT_FLOAT",
            NORMAL_FLOPS,
        ),
        (
            "StatelessRandomUniformFullIntV2",
            FULL_INTEGERS,
            "DT_UINT64",
            RANDOM_FLOPS,
        ),
    ]
    .into_iter()
    .map(|(name, types, default, flops)| {
        let attrs = format!("dtype: {types} = {default}; Tshape: {INDEX} = DT_INT32");
        let inputs = format!("shape: Tshape, {key}");
        op(name, &inputs, "output: dtype", &attrs)
            .with_shape(|context| {
                check_key(context)?;
                Ok(vec![context.shape_from_input(0)?])
            })
            .with_work(per_output(flops))
    })
    .collect();
    let seed = format!("Tseed: {INDEX} = DT_INT64");
    ops.extend([
        op(
            "StatelessRandomUniformIntV2",
            &format!("shape: Tshape, {key}, minval: dtype, maxval: dtype"),
            "output: dtype",
            &format!("dtype: {FULL_INTEGERS}; Tshape: {INDEX} = DT_INT32"),
        )
        .with_shape(|context| {
            check_key(context)?;
            bounded(context, 0, 4)
        })
        .with_work(per_output(RANDOM_FLOPS)),
        op(
            "StatelessShuffle",
            &format!("value: T, {key}"),
            "output: T",
            "T: type",
        )
        .with_shape(|context| {
            check_key(context)?;
            same_as_input(context)
        }),
        op(
            "StatelessRandomGetKeyCounterAlg",
            "seed: Tseed",
            "key: uint64, counter: uint64, alg: int32",
            &seed,
        )
        .with_shape(|context| {
            check_seed(context, 0)?;
            Ok(vec![[1].into(), [2].into(), PartialShape::scalar()])
        }),
        op(
            "StatelessRandomGetKeyCounter",
            "seed: Tseed",
            "key: uint64, counter: uint64",
            &seed,
        )
        .with_shape(|context| {
            check_seed(context, 0)?;
            Ok(vec![[1].into(), [2].into()])
        }),
        op("StatelessRandomGetAlg", "", "alg: int32", "")
            .stateful()
            .with_shape(|_| Ok(vec![PartialShape::scalar()])),
    ]);
    ops
}

/// The ops of generators that are variables.
fn generators() -> Vec<OpDef> {
    let inputs = "resource: resource, algorithm: int64, shape: shape_dtype";
    let mut ops: Vec<OpDef> = [
        ("StatefulUniform", "DT_FLOAT", RANDOM_FLOPS),
        ("StatefulStandardNormalV2", "DT_FLOAT", NORMAL_FLOPS),
        ("StatefulTruncatedNormal", "DT_FLOAT", NORMAL_FLOPS),
        ("StatefulUniformFullInt", "DT_UINT64", RANDOM_FLOPS),
    ]
    .into_iter()
    .map(|(name, default, flops)| {
        let attrs = format!("dtype: type = {default}; shape_dtype: type = DT_INT64");
        op(name, inputs, "output: dtype", &attrs)
            .stateful()
            .with_shape(|context| {
                context.shape_of_rank(0, 0)?;
                context.shape_of_rank(1, 0)?;
                Ok(vec![context.shape_from_input(2)?])
            })
            .with_work(per_output(flops))
    })
    .collect();
    ops.extend([
        op(
            "StatefulUniformInt",
            &format!("{inputs}, minval: dtype, maxval: dtype"),
            "output: dtype",
            "dtype: type = DT_INT64; shape_dtype: type = DT_INT64",
        )
        .stateful()
        .with_shape(|context| {
            context.shape_of_rank(0, 0)?;
            context.shape_of_rank(1, 0)?;
            bounded(context, 2, 3)
        })
        .with_work(per_output(RANDOM_FLOPS)),
        op(
            "RngReadAndSkip",
            "resource: resource, alg: int32, delta: uint64",
            "value: int64",
            "",
        )
        .stateful()
        .with_shape(|context| {
            for index in 0..3 {
                context.shape_of_rank(index, 0)?;
            }
            Ok(vec![[3].into()])
        }),
        op(
            "RngSkip",
            "resource: resource, algorithm: int64, delta: int64",
            "",
            "",
        )
        .stateful()
        .with_shape(|context| {
            for index in 0..3 {
                context.shape_of_rank(index, 0)?;
            }
            Ok(Vec::new())
        }),
    ]);
    ops
}

/// The ops of distributions with parameters.
fn with_parameters() -> Vec<OpDef> {
    let rates = "{half, float, double, int32, int64}";
    vec![
        op(
            "RandomGamma",
            "shape: S, alpha: T",
            "output: T",
            &format!("{SEEDS}; S: {INDEX}; T: {{half, float, double}}"),
        )
        .stateful()
        .with_shape(appended)
        .with_work(per_output(REJECTION_FLOPS)),
        op(
            "RandomPoisson",
            "shape: S, rate: dtype",
            "output: dtype",
            &format!("{SEEDS}; S: {INDEX}; dtype: {{half, float, double}}"),
        )
        .stateful()
        .with_shape(appended)
        .with_work(per_output(REJECTION_FLOPS)),
        op(
            "RandomPoissonV2",
            "shape: S, rate: R",
            "output: dtype",
            &format!("{SEEDS}; S: {INDEX}; R: {rates} = DT_DOUBLE; dtype: {rates} = DT_INT64"),
        )
        .stateful()
        .with_shape(appended)
        .with_work(per_output(REJECTION_FLOPS)),
        op(
            "StatelessRandomPoisson",
            "shape: T, seed: Tseed, lam: Rtype",
            "output: dtype",
            &format!("Rtype: {rates}; dtype: {rates}; T: {INDEX}; Tseed: {INDEX} = DT_INT64"),
        )
        .with_shape(seeded)
        .with_work(per_output(REJECTION_FLOPS)),
        op(
            "StatelessRandomGammaV2",
            "shape: T, seed: Tseed, alpha: dtype",
            "output: dtype",
            &format!("dtype: {{half, float, double}}; T: {INDEX}; Tseed: {INDEX} = DT_INT64"),
        )
        .with_shape(seeded)
        .with_work(per_output(REJECTION_FLOPS)),
        op(
            "StatelessRandomGammaV3",
            "shape: shape_dtype, key: uint64, counter: uint64, alg: int32, alpha: dtype",
            "output: dtype",
            &format!("dtype: {{half, float, double}}; shape_dtype: {INDEX} = DT_INT32"),
        )
        .with_shape(|context| {
            check_key(context)?;
            Ok(vec![context.shape_from_input(0)?])
        })
        .with_work(per_output(REJECTION_FLOPS)),
        op(
            "Multinomial",
            "logits: T, num_samples: int32",
            "output: output_dtype",
            &format!("{SEEDS}; T: realnumbertype; output_dtype: {INDEX} = DT_INT64"),
        )
        .stateful()
        .with_shape(drawn)
        .with_work(per_output(NORMAL_FLOPS)),
        op(
            "StatelessMultinomial",
            "logits: T, num_samples: int32, seed: Tseed",
            "output: output_dtype",
            &format!(
                "T: realnumbertype; Tseed: {INDEX} = DT_INT64; output_dtype: {INDEX} = DT_INT64"
            ),
        )
        .with_shape(|context| {
            check_seed(context, 2)?;
            drawn(context)
        })
        .with_work(per_output(NORMAL_FLOPS)),
    ]
}

/// The shape in input 0; input 1 is a seed.
fn seeded(context: &InferenceContext<'_>) -> Shapes {
    check_seed(context, 1)?;
    Ok(vec![context.shape_from_input(0)?])
}

/// Input `index` must be a seed: two integers.
fn check_seed(context: &InferenceContext<'_>, index: usize) -> Result<(), ShapeError> {
    merge(
        context.shape(index),
        &[2].into(),
        "shape of the seed and [2]",
    )?;
    Ok(())
}

/// Inputs 1 to 3 must be key, counter and algorithm.
fn check_key(context: &InferenceContext<'_>) -> Result<(), ShapeError> {
    merge(context.shape(1), &[1].into(), "shape of the key and [1]")?;
    context.shape_of_rank(2, 1)?;
    context.shape_of_rank(3, 0)?;
    Ok(())
}

/// The shape in input `shape`; inputs `bounds` and the one after it are scalars.
fn bounded(context: &InferenceContext<'_>, shape: usize, bounds: usize) -> Shapes {
    context.shape_of_rank(bounds, 0)?;
    context.shape_of_rank(bounds + 1, 0)?;
    Ok(vec![context.shape_from_input(shape)?])
}

/// The shape in input 0, followed by that of input 1.
fn appended(context: &InferenceContext<'_>) -> Shapes {
    let samples = context.shape_from_input(0)?;
    let (Some(samples), Some(parameters)) = (samples.dims(), context.shape(1).dims()) else {
        return Ok(vec![PartialShape::unknown()]);
    };
    Ok(vec![samples.iter().chain(parameters).copied().collect()])
}

/// One row of samples per row of logits.
fn drawn(context: &InferenceContext<'_>) -> Shapes {
    let logits = context.shape_of_rank(0, 2)?;
    context.shape_of_rank(1, 0)?;
    let n = context.scalar_int(1);
    let n = n.map(|n| size(n, "num_samples")).transpose()?;
    Ok(vec![PartialShape::new(&[logits.dim(0), n])])
}
