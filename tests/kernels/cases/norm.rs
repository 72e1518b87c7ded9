//! Normalisation over batches and over neighbouring channels; activations of floats.

use half::bf16;
use half::f16;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = batches();
    cases.extend(responses());
    cases.extend(activations());
    cases.extend(logarithms());
    cases
}

/// `scale`, `offset`, `mean`, `variance`.
type Parameters<'a> = [&'a [f32]; 4];

const TWO: Parameters<'_> = [&[2.0, 1.0], &[0.5, 0.0], &[1.0, -1.0], &[3.0, 0.0]];

fn batch_norm(name: &str, op: &'static str, x: Tensor, parameters: Parameters<'_>) -> Case {
    let case = case(&format!("{op}: {name}"), op)
        .typed("T", x.dtype())
        .typed("U", DType::F32)
        .float("epsilon", 1.0)
        .bool("is_training", false)
        .text("data_format", "NHWC")
        .with_outputs(if op == "FusedBatchNormV3" { 6 } else { 5 })
        .input(x);
    parameters.iter().fold(case, |case, values| {
        case.input(tensor(&[values.len()], values))
    })
}

/// Returns the result, mean and variance, and mean and variance of the batch.
fn outputs(
    y: Tensor,
    mean: &[f32],
    variance: &[f32],
    saved: [&[f32]; 2],
    third: bool,
) -> Vec<Tensor> {
    let vector = |values: &[f32]| tensor(&[values.len()], values);
    let mut all = vec![y];
    all.extend([mean, variance, saved[0], saved[1]].map(vector));
    if third {
        all.push(tensor(&[], &[0.0f32]));
    }
    all
}

/// Plain reference loop, in double precision: 17 channels of 3 x 7 pixels, in both layouts.
fn random_batches(channels_first: bool) -> Case {
    let (images, pixels, channels) = (2, 21, 17);
    let x = noise(images * pixels * channels, 1);
    let [scale, offset, mean] = [2, 3, 4].map(|seed| noise(channels, seed));
    let variance: Vec<f32> = noise(channels, 5).iter().map(|v| v * v).collect();
    let channel_of = |index: usize| {
        if channels_first {
            index / pixels % channels
        } else {
            index % channels
        }
    };
    let y: Vec<f32> = x
        .iter()
        .enumerate()
        .map(|(index, &x)| {
            let c = channel_of(index);
            let [s, o, m, v] = [scale[c], offset[c], mean[c], variance[c]].map(f64::from);
            #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
            let y = ((f64::from(x) - m) / (v + 1.0).sqrt() * s + o) as f32;
            y
        })
        .collect();
    let (dims, format) = if channels_first {
        ([images, channels, 3, 7], "NCHW")
    } else {
        ([images, 3, 7, channels], "NHWC")
    };
    batch_norm(
        &format!("17 channels, {format}"),
        "FusedBatchNorm",
        tensor(&dims, &x),
        [&scale, &offset, &mean, &variance],
    )
    .text("data_format", format)
    // Four roundings of numbers below 4.
    .gives_all_within(
        outputs(
            tensor(&dims, &y),
            &mean,
            &variance,
            [&mean, &variance],
            false,
        ),
        1e-6,
    )
}

fn batches() -> Vec<Case> {
    let x = [1.0f32, 0.0, 3.0, 2.0];
    // (x - mean) / sqrt(variance + 1) * scale + offset.
    let y = [0.5f32, 1.0, 2.5, 3.0];
    let given = |y: Tensor, third: bool| outputs(y, TWO[2], TWO[3], [TWO[2], TWO[3]], third);
    let halves =
        |values: &[f32]| -> Vec<f16> { values.iter().map(|&v| f16::from_f32(v)).collect() };
    let brains =
        |values: &[f32]| -> Vec<bf16> { values.iter().map(|&v| bf16::from_f32(v)).collect() };
    // Of the batch: means 2 and 1, variances 1 and 1; `x` is one deviation below or above.
    let root = 0.5f32.sqrt();
    let trained = [0.5 - 2.0 * root, -root, 0.5 + 2.0 * root, root];
    let image = tensor(&[1, 2, 1, 2], &x);
    vec![
        random_batches(false),
        random_batches(true),
        batch_norm("given moments", "FusedBatchNormV3", image.clone(), TWO)
            .gives_all_within(given(tensor(&[1, 2, 1, 2], &y), true), 1e-6),
        batch_norm("given moments", "FusedBatchNormV2", image.clone(), TWO)
            .gives_all_within(given(tensor(&[1, 2, 1, 2], &y), false), 1e-6),
        batch_norm("given moments", "FusedBatchNorm", image.clone(), TWO)
            .gives_all_within(given(tensor(&[1, 2, 1, 2], &y), false), 1e-6),
        batch_norm(
            "half",
            "FusedBatchNormV3",
            tensor(&[1, 2, 1, 2], &halves(&x)),
            TWO,
        )
        .gives_all(given(tensor(&[1, 2, 1, 2], &halves(&y)), true)),
        batch_norm(
            "bfloat16",
            "FusedBatchNormV2",
            tensor(&[1, 2, 1, 2], &brains(&x)),
            TWO,
        )
        .gives_all(given(tensor(&[1, 2, 1, 2], &brains(&y)), false)),
        batch_norm(
            "channels first",
            "FusedBatchNormV3",
            tensor(&[1, 2, 2, 1], &[1.0f32, 3.0, 0.0, 2.0]),
            TWO,
        )
        .text("data_format", "NCHW")
        .gives_all_within(
            given(tensor(&[1, 2, 2, 1], &[0.5f32, 2.5, 1.0, 3.0]), true),
            1e-6,
        ),
        batch_norm(
            "five dimensions",
            "FusedBatchNormV3",
            tensor(&[1, 1, 2, 1, 2], &x),
            TWO,
        )
        .text("data_format", "NDHWC")
        .gives_all_within(given(tensor(&[1, 1, 2, 1, 2], &y), true), 1e-6),
        batch_norm(
            "training",
            "FusedBatchNormV3",
            image.clone(),
            [TWO[0], TWO[1], &[], &[]],
        )
        .bool("is_training", true)
        .gives_all_within(
            outputs(
                tensor(&[1, 2, 1, 2], &trained),
                &[2.0, 1.0],
                &[2.0, 2.0],
                [&[2.0, 1.0], &[1.0, 1.0]],
                true,
            ),
            1e-6,
        ),
        batch_norm(
            "training with a running mean",
            "FusedBatchNormV3",
            image.clone(),
            TWO,
        )
        .bool("is_training", true)
        .float("exponential_avg_factor", 0.5)
        .gives_all_within(
            outputs(
                tensor(&[1, 2, 1, 2], &trained),
                &[1.5, 0.0],
                &[2.5, 1.0],
                [&[2.0, 1.0], &[1.0, 1.0]],
                true,
            ),
            1e-6,
        ),
        batch_norm(
            "nothing",
            "FusedBatchNormV2",
            tensor::<f32>(&[0, 2, 1, 2], &[]),
            TWO,
        )
        .gives_all(outputs(
            tensor::<f32>(&[0, 2, 1, 2], &[]),
            &[f32::NAN; 2],
            &[f32::NAN; 2],
            [&[f32::NAN; 2]; 2],
            false,
        )),
        batch_norm(
            "not a number",
            "FusedBatchNormV2",
            tensor(&[1, 1, 1, 2], &[f32::NAN, 0.0]),
            TWO,
        )
        .gives_all(given(tensor(&[1, 1, 1, 2], &[f32::NAN, 1.0]), false)),
        batch_norm("a matrix", "FusedBatchNormV3", tensor(&[2, 2], &x), TWO)
            .refused("input must be 4-dimensional: [2,2]"),
        batch_norm(
            "another number of scales",
            "FusedBatchNormV3",
            image.clone(),
            [&[1.0], TWO[1], TWO[2], TWO[3]],
        )
        .refused("scale must have the same number of elements as the channels of x, got [1] and 2"),
        batch_norm(
            "no mean given",
            "FusedBatchNormV3",
            image.clone(),
            [TWO[0], TWO[1], &[], TWO[3]],
        )
        .refused("mean must have the same number"),
        batch_norm("an unknown layout", "FusedBatchNormV2", image, TWO)
            .text("data_format", "NDHWC")
            .refused("`data_format` is `NDHWC`"),
    ]
}

fn lrn(name: &str, x: Tensor, radius: i64, [bias, alpha, beta]: [f32; 3]) -> Case {
    case(&format!("LRN: {name}"), "LRN")
        .typed("T", x.dtype())
        .int("depth_radius", radius)
        .float("bias", bias)
        .float("alpha", alpha)
        .float("beta", beta)
        .input(x)
}

/// Plain reference loop, in double precision.
fn random_lrn(channels: usize, radius: usize, [bias, alpha, beta]: [f32; 3]) -> Case {
    let x = noise(6 * channels, 4);
    let mut expected = Vec::new();
    for pixel in x.chunks(channels) {
        for (c, &value) in pixel.iter().enumerate() {
            let near = pixel
                .iter()
                .enumerate()
                .filter(|(other, _)| other.abs_diff(c) <= radius);
            let sum: f64 = near.map(|(_, &v)| f64::from(v) * f64::from(v)).sum();
            let base = f64::from(bias) + f64::from(alpha) * sum;
            #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
            expected.push((f64::from(value) * base.powf(-f64::from(beta))) as f32);
        }
    }
    let dims = [1, 2, 3, channels];
    lrn(
        &format!("{channels} channels, radius {radius}, beta {beta}"),
        tensor(&dims, &x),
        i64::try_from(radius).expect("small"),
        [bias, alpha, beta],
    )
    // A sum of a few squares, a power, a product.
    .gives_within(tensor(&dims, &expected), 2e-6)
}

fn responses() -> Vec<Case> {
    let half = |x: f32| tensor(&[1, 1, 1, 1], &[f16::from_f32(x)]);
    vec![
        random_lrn(7, 2, [1.0, 1e-2, 0.75]),
        random_lrn(7, 2, [1.0, 1.0, 0.5]),
        random_lrn(5, 1, [2.0, 1.0, 1.0]),
        random_lrn(3, 9, [1.0, 1.0, 0.75]),
        random_lrn(1, 0, [1.0, 1.0, 2.0]),
        // As in tensorflow-cpu 2.21: a negative number has no power, not even a whole one.
        lrn(
            "a negative weight",
            tensor(&[1, 1, 1, 3], &[1.0f32, 2.0, 0.5]),
            0,
            [2.0, -1.0, 2.0],
        )
        .gives_within(
            tensor(&[1, 1, 1, 3], &[1.0f32, f32::NAN, 0.5 / (1.75 * 1.75)]),
            2e-6,
        ),
        lrn(
            "a negative weight, beta 1",
            tensor(&[1, 1, 1, 2], &[1.0f32, 2.0]),
            0,
            [2.0, -1.0, 1.0],
        )
        .gives(tensor(&[1, 1, 1, 2], &[1.0f32, -1.0])),
        lrn("a radius beyond 32 bits", half(1.0), 1 << 31, [1.0; 3])
            .refused("depth_radius = 2147483648 larger than int max"),
        lrn("half", half(2.0), 0, [0.0, 1.0, 0.5]).gives(half(1.0)),
        lrn("nothing", tensor::<f32>(&[0, 1, 1, 2], &[]), 1, [1.0; 3])
            .gives(tensor::<f32>(&[0, 1, 1, 2], &[])),
        lrn(
            "no channels",
            tensor::<f32>(&[1, 1, 1, 0], &[]),
            1,
            [1.0; 3],
        )
        .gives(tensor::<f32>(&[1, 1, 1, 0], &[])),
        lrn("a vector", tensor(&[1], &[1.0f32]), 1, [1.0; 3])
            .refused("in must be 4-dimensional, found [1]"),
        lrn("a negative radius", half(1.0), -1, [1.0; 3]).refused("depth_radius = -1"),
    ]
}

fn activation<T: Element>(op: &'static str, x: &[T], y: &[T]) -> Case {
    case(&format!("{op}: {}", T::DTYPE), op)
        .typed("T", T::DTYPE)
        .input(tensor(&[x.len()], x))
        // One exponential, rounded to the type.
        .gives_within(
            tensor(&[y.len()], y),
            if T::DTYPE == DType::BF16 { 8e-3 } else { 1e-3 },
        )
}

fn activations() -> Vec<Case> {
    let x = [
        -1e30f32,
        -1.0,
        -1e-6,
        0.0,
        2.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let elu = [
        -1.0f32,
        (-1.0f64).exp_m1() as f32,
        -1e-6,
        0.0,
        2.0,
        f32::INFINITY,
        -1.0,
        f32::NAN,
    ];
    let leaky = x.map(|x| if x > 0.0 { x } else { x * 0.5 });
    let (short_x, short_elu) = ([-1.0f32, 2.0], [elu[1], 2.0]);
    vec![
        case("Elu: float, exactly rounded", "Elu")
            .typed("T", DType::F32)
            .input(tensor(&[8], &x))
            .gives_within(tensor(&[8], &elu), 1e-7),
        activation("Elu", &short_x.map(f64::from), &short_elu.map(f64::from)),
        activation(
            "Elu",
            &short_x.map(f16::from_f32),
            &short_elu.map(f16::from_f32),
        ),
        activation(
            "Elu",
            &short_x.map(bf16::from_f32),
            &short_elu.map(bf16::from_f32),
        ),
        activation("Elu", &[] as &[f32], &[]),
        case("Elu: a scalar", "Elu")
            .typed("T", DType::F32)
            .input(tensor(&[], &[3.0f32]))
            .gives(tensor(&[], &[3.0f32])),
        case("LeakyRelu: float", "LeakyRelu")
            .typed("T", DType::F32)
            .float("alpha", 0.5)
            .input(tensor(&[8], &x))
            .gives(tensor(&[8], &leaky)),
        case("LeakyRelu: a slope above 1", "LeakyRelu")
            .typed("T", DType::F32)
            .float("alpha", 3.0)
            .input(tensor(&[2], &[-1.0f32, 1.0]))
            .gives(tensor(&[2], &[-3.0f32, 1.0])),
        activation("LeakyRelu", &[-5.0f64, 2.0], &[-1.0, 2.0]),
        activation(
            "LeakyRelu",
            &[-5.0, 2.0].map(f16::from_f32),
            &[-1.0, 2.0].map(f16::from_f32),
        ),
        activation(
            "LeakyRelu",
            &[-5.0, 2.0].map(bf16::from_f32),
            &[-1.0, 2.0].map(bf16::from_f32),
        ),
    ]
}

fn logarithms() -> Vec<Case> {
    let log_softmax = |name: &str, input: Tensor| {
        case(&format!("LogSoftmax: {name}"), "LogSoftmax")
            .typed("T", input.dtype())
            .input(input)
    };
    let input: Vec<f32> = noise(4 * 19, 3).iter().map(|x| x * 20.0).collect();
    let wide: Vec<f64> = input.iter().map(|&x| x.into()).collect();
    let mut expected = Vec::new();
    for row in wide.chunks(19) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log = row.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
        expected.extend(row.iter().map(|x| x - max - log));
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    let single: Vec<f32> = expected.iter().map(|&y| y as f32).collect();
    let two = 0.5f32.ln();
    vec![
        // Relative to results up to 40: an exponential, a sum of 19, a logarithm.
        log_softmax("rows of the last dimension", tensor(&[2, 2, 19], &input))
            .gives_within(tensor(&[2, 2, 19], &single), 1e-6),
        log_softmax("double", tensor(&[4, 19], &wide))
            .gives_within(tensor(&[4, 19], &expected), 1e-12),
        log_softmax("half", tensor(&[2], &[f16::ONE; 2]))
            .gives(tensor(&[2], &[f16::from_f32(two); 2])),
        log_softmax("bfloat16", tensor(&[2], &[bf16::ONE; 2]))
            .gives(tensor(&[2], &[bf16::from_f32(two); 2])),
        log_softmax(
            "large numbers do not overflow",
            tensor(&[2], &[1e30f32, 0.0]),
        )
        .gives(tensor(&[2], &[0.0f32, -1e30])),
        log_softmax("a masked element", tensor(&[2], &[f32::NEG_INFINITY, 3.0]))
            .gives(tensor(&[2], &[f32::NEG_INFINITY, 0.0])),
        log_softmax("not a number", tensor(&[2], &[f32::NAN, 3.0]))
            .gives(tensor(&[2], &[f32::NAN; 2])),
        log_softmax("no columns", tensor::<f32>(&[2, 0], &[])).gives(tensor::<f32>(&[2, 0], &[])),
        log_softmax("a scalar", tensor(&[], &[1.0f32])).refused("at least one dimension"),
    ]
}
