//! Random numbers: the bits of TensorFlow 2.21.

use half::bf16;
use half::f16;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::tensor;

/// The key and the counter that TensorFlow makes of the seed 7, -3.
const KEY: u64 = 13_399_541_416_664_089_238;
const COUNTER: [u64; 2] = [0, 2_845_039_061_138_926_877];

fn seed() -> Tensor {
    tensor(&[2], &[7i64, -3])
}

/// A stateless op with a shape and a seed.
fn seeded(name: &str, op: &'static str, dtype: DType, dims: &[i32]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("dtype", dtype)
        .input(tensor(&[dims.len()], dims))
        .input(seed())
}

/// The same op with key, counter and algorithm.
fn keyed(name: &str, op: &'static str, dtype: DType, dims: &[i32], algorithm: i32) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("dtype", dtype)
        .input(tensor(&[dims.len()], dims))
        .input(tensor(&[1], &[KEY]))
        .input(tensor(&[2], &COUNTER))
        .input(tensor(&[], &[algorithm]))
}

/// A stateful op with seeds 1 and 2, or 3 and 4.
fn own(name: &str, op: &'static str, seeds: (i64, i64)) -> Case {
    case(&format!("{op}: {name}"), op)
        .int("seed", seeds.0)
        .int("seed2", seeds.1)
}

fn f32s(bits: &[u32]) -> Tensor {
    let values: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
    tensor(&[bits.len()], &values)
}

fn f64s(dims: &[usize], bits: &[u64]) -> Tensor {
    let values: Vec<f64> = bits.iter().map(|&bits| f64::from_bits(bits)).collect();
    tensor(dims, &values)
}

fn f16s(bits: &[u16]) -> Tensor {
    let values: Vec<f16> = bits.iter().map(|&bits| f16::from_bits(bits)).collect();
    tensor(&[bits.len()], &values)
}

fn bf16s(bits: &[u16]) -> Tensor {
    let values: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
    tensor(&[bits.len()], &values)
}

/// Logarithms and sines differ in the last place among mathematical libraries.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 1e-2,
        DType::F32 => 1e-6,
        _ => 1e-14,
    }
}

/// Five elements of each floating-point distribution.
fn floats() -> Vec<Case> {
    let mut cases = Vec::new();
    for (first, second, expected) in [
        (
            "StatelessRandomUniform",
            "StatelessRandomUniformV2",
            [
                f16s(&[0x38b6, 0x39ec, 0x3720, 0x3968, 0x383e]),
                bf16s(&[0x3f36, 0x3f6c, 0x3f10, 0x3ed0, 0x3e78]),
                f32s(&[
                    0x3ede_896c,
                    0x3d85_af60,
                    0x3f3f_6390,
                    0x3e18_55a0,
                    0x3f16_fc3e,
                ]),
                f64s(
                    &[5],
                    &[
                        0x3fde_896c_e821_6bd8,
                        0x3fef_6391_0226_1568,
                        0x3fe6_fc3e_a751_c30a,
                        0x3fdb_510b_1911_25a8,
                        0x3fc3_8f46_f8c2_1ad0,
                    ],
                ),
            ],
        ),
        (
            "StatelessRandomNormal",
            "StatelessRandomNormalV2",
            [
                f16s(&[0x381e, 0x3cbc, 0x38e9, 0x3740, 0x3b74]),
                bf16s(&[0x3f04, 0x3f98, 0x3f1d, 0x3ee8, 0x3f6e]),
                f32s(&[
                    0x3f03_c5d9,
                    0x3f97_8884,
                    0x3f1d_11c8,
                    0x3ee7_fbc6,
                    0x3f6e_7706,
                ]),
                f64s(
                    &[5],
                    &[
                        0xbfc2_a35f_bcdd_7934,
                        0x3ff3_5301_e5e4_fb27,
                        0x3fd7_1a8c_ac47_3633,
                        0xbfe7_53f8_b5c9_a60d,
                        0xbff0_3afc_364d_ec71,
                    ],
                ),
            ],
        ),
        (
            "StatelessTruncatedNormal",
            "StatelessTruncatedNormalV2",
            [
                f16s(&[0x381e, 0x3cbc, 0x38e9, 0x3740, 0x3c0d]),
                bf16s(&[0x3f04, 0x3f98, 0x3f1d, 0x3ee8, 0x3f82]),
                f32s(&[
                    0x3f03_c5d9,
                    0x3f97_8884,
                    0x3f1d_11c8,
                    0x3ee7_fbc6,
                    0x3f81_96c4,
                ]),
                f64s(
                    &[5],
                    &[
                        0xbfc2_a35f_bcdd_7934,
                        0x3ff3_5301_e5e4_fb27,
                        0xbfd2_768e_2cd1_0406,
                        0xbfc2_4170_be9e_6750,
                        0x3fe5_4b0c_0e94_8c51,
                    ],
                ),
            ],
        ),
    ] {
        for expected in expected {
            let dtype = expected.dtype();
            for case in [
                seeded(dtype.name(), first, dtype, &[5]),
                keyed(dtype.name(), second, dtype, &[5], 1),
            ] {
                cases.push(match first {
                    "StatelessRandomUniform" => case.gives_bits(expected.clone()),
                    _ => case.gives_within(expected.clone(), rounding(dtype)),
                });
            }
        }
        let none = || tensor::<f32>(&[2, 0], &[]);
        cases.extend([
            seeded("nothing", first, DType::F32, &[2, 0]).gives(none()),
            keyed("nothing", second, DType::F32, &[2, 0], 3).gives(none()),
            keyed("another algorithm", second, DType::F32, &[1], 2)
                .refused("Unsupported algorithm id: 2"),
            seeded("a negative size", first, DType::F32, &[-1])
                .refused("dimension -1 must be >= 0"),
            case(&format!("{first}: a scalar as shape"), first)
                .typed("dtype", DType::F32)
                .input(tensor(&[], &[3]))
                .input(seed())
                .refused("shape must be a vector of {int32,int64}, got shape []"),
            case(&format!("{first}: three seeds"), first)
                .typed("dtype", DType::F32)
                .input(tensor(&[1], &[3]))
                .input(tensor(&[3], &[1, 2, 3]))
                .refused("seed must have shape [2], not [3]"),
            case(&format!("{second}: two keys"), second)
                .typed("dtype", DType::F32)
                .input(tensor(&[1], &[3]))
                .input(tensor(&[2], &[1u64, 2]))
                .input(tensor(&[2], &COUNTER))
                .input(tensor(&[], &[1]))
                .refused("key must have shape [1], not [2]"),
            case(&format!("{second}: half a counter"), second)
                .typed("dtype", DType::F32)
                .input(tensor(&[1], &[3]))
                .input(tensor(&[1], &[KEY]))
                .input(tensor(&[1], &[1u64]))
                .input(tensor(&[], &[1]))
                .refused("counter must be a vector with length at least 2; got shape: [1]"),
        ]);
    }
    cases
}

fn integers() -> Vec<Case> {
    let mut cases = Vec::new();
    for expected in [
        tensor(
            &[5],
            &[
                2_125_963_867,
                973_626_102,
                694_137_288,
                -2_129_458_508,
                969_637_407,
            ],
        ),
        tensor(
            &[5],
            &[
                2_125_963_867,
                973_626_102,
                694_137_288,
                2_165_508_788u32,
                969_637_407,
            ],
        ),
        tensor(
            &[5],
            &[
                4_181_692_268_747_924_059,
                -9_145_954_649_354_817_080,
                6_028_316_063_551_946_271,
                -4_160_119_432_241_818_558,
                -2_371_071_146_355_166_744i64,
            ],
        ),
        tensor(
            &[5],
            &[
                4_181_692_268_747_924_059,
                9_300_789_424_354_734_536,
                6_028_316_063_551_946_271,
                14_286_624_641_467_733_058u64,
                16_075_672_927_354_384_872,
            ],
        ),
    ] {
        let dtype = expected.dtype();
        let (first, second) = (
            "StatelessRandomUniformFullInt",
            "StatelessRandomUniformFullIntV2",
        );
        cases.extend([
            seeded(dtype.name(), first, dtype, &[5]).gives(expected.clone()),
            keyed(dtype.name(), second, dtype, &[5], 1).gives(expected),
        ]);
    }
    let (first, second) = ("StatelessRandomUniformInt", "StatelessRandomUniformIntV2");
    for (lower, upper, expected) in [
        (
            tensor(&[], &[-10]),
            tensor(&[], &[11]),
            tensor(&[5], &[3, 5, 2, -8, 8]),
        ),
        (
            tensor(&[], &[-10i64]),
            tensor(&[], &[11i64]),
            tensor(&[5], &[0i64, 10, -1, -10, -7]),
        ),
    ] {
        let dtype = expected.dtype();
        cases.extend([
            seeded(dtype.name(), first, dtype, &[5])
                .input(lower.clone())
                .input(upper.clone())
                .gives(expected.clone()),
            keyed(dtype.name(), second, dtype, &[5], 3)
                .input(lower)
                .input(upper)
                .gives(expected),
        ]);
    }
    let empty = |name: &str, dims: &[i32]| {
        seeded(name, first, DType::I32, dims)
            .input(tensor(&[], &[4]))
            .input(tensor(&[], &[4]))
    };
    cases.extend([
        empty("an empty range", &[1]).refused("Need minval < maxval, got 4 >= 4"),
        empty("nothing of an empty range", &[0]).gives(tensor::<i32>(&[0], &[])),
        seeded("a vector as bound", first, DType::I32, &[1])
            .input(tensor(&[1], &[4]))
            .input(tensor(&[], &[5]))
            .refused("minval must be 0-D, got shape [1]"),
    ]);
    cases
}

fn keys() -> Vec<Case> {
    let made = |case: Case, n: usize| {
        let all = [
            tensor(&[1], &[KEY]),
            tensor(&[2], &COUNTER),
            tensor(&[], &[1]),
        ];
        case.gives_all(all[..n].to_vec())
    };
    let of_seed = |op: &'static str| case(op, op).input(seed());
    let shuffled = |name: &str, value: Tensor| {
        case(&format!("StatelessShuffle: {name}"), "StatelessShuffle")
            .typed("T", value.dtype())
            .input(value)
            .input(tensor(&[1], &[KEY]))
            .input(tensor(&[2], &COUNTER))
            .input(tensor(&[], &[1]))
    };
    vec![
        made(of_seed("StatelessRandomGetKeyCounter"), 2),
        made(of_seed("StatelessRandomGetKeyCounterAlg"), 3),
        case("StatelessRandomGetAlg", "StatelessRandomGetAlg").gives(tensor(&[], &[1])),
        shuffled("numbers", tensor(&[6], &[0, 1, 2, 3, 4, 5]))
            .gives(tensor(&[6], &[1, 3, 2, 5, 0, 4])),
        shuffled(
            "rows",
            tensor(&[6, 2], &[0u8, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
        )
        .gives(tensor(&[6, 2], &[1u8, 1, 3, 3, 2, 2, 5, 5, 0, 0, 4, 4])),
        shuffled("a scalar", tensor(&[], &[7.0f64])).gives(tensor(&[], &[7.0f64])),
        shuffled("nothing", tensor::<i64>(&[3, 0], &[])).gives(tensor::<i64>(&[3, 0], &[])),
    ]
}

fn stateful() -> Vec<Case> {
    let ints = |name: &str, upper: i32| {
        own(name, "RandomUniformInt", (1, 2))
            .typed("Tout", DType::I32)
            .typed("T", DType::I64)
            .input(tensor(&[1], &[100i64]))
            .input(tensor(&[], &[3]))
            .input(tensor(&[], &[upper]))
    };
    vec![
        own("float", "RandomUniform", (1, 2))
            .typed("dtype", DType::F32)
            .typed("T", DType::I32)
            .input(tensor(&[1], &[3]))
            .gives_bits(f32s(&[0x3ed0_133c, 0x3f5b_8ba6, 0x3d62_e6c0])),
        own("of another type", "RandomUniform", (1, 2))
            .typed("dtype", DType::I32)
            .typed("T", DType::I32)
            .input(tensor(&[1], &[3]))
            .refused("no kernel"),
        own("numbers", "RandomShuffle", (3, 4))
            .typed("T", DType::I32)
            .input(tensor(&[6], &[0, 1, 2, 3, 4, 5]))
            .gives(tensor(&[6], &[3, 1, 0, 5, 2, 4])),
        ints("one value", 4).gives(tensor(&[100], &[3; 100])),
        ints("an empty range", 3).refused("Need minval < maxval, got 3 >= 3"),
        own("classes", "Multinomial", (1, 2))
            .typed("T", DType::F32)
            .typed("output_dtype", DType::I32)
            .input(tensor(&[1, 3], &[0.0f32, 1.0, 2.0]))
            .input(tensor(&[], &[6]))
            .gives(tensor(&[1, 6], &[1, 2, 1, 1, 2, 2])),
        own("a vector of logits", "Multinomial", (1, 2))
            .typed("T", DType::F32)
            .typed("output_dtype", DType::I32)
            .input(tensor(&[1], &[0.0f32]))
            .input(tensor(&[], &[6]))
            .refused("logits should be a matrix, got shape [1]"),
        own("without classes", "Multinomial", (1, 2))
            .typed("T", DType::F32)
            .typed("output_dtype", DType::I32)
            .input(tensor::<f32>(&[1, 0], &[]))
            .input(tensor(&[], &[6]))
            .refused("num_classes should be positive, got 0"),
        own("a negative number", "Multinomial", (1, 2))
            .typed("T", DType::F32)
            .typed("output_dtype", DType::I32)
            .input(tensor(&[1, 1], &[1.0f32]))
            .input(tensor(&[], &[-6]))
            .refused("num_samples should be nonnegative, got -6"),
    ]
}

fn with_parameters() -> Vec<Case> {
    fn classes<T: Element>(name: &str, logits: &[T]) -> Case {
        case(
            &format!("StatelessMultinomial: {name}"),
            "StatelessMultinomial",
        )
        .typed("T", T::DTYPE)
        .typed("output_dtype", DType::I64)
        .input(tensor(&[2, 3], logits))
        .input(tensor(&[], &[6]))
        .input(seed())
        .gives(tensor(&[2, 6], &[2i64, 2, 2, 2, 1, 2, 0, 0, 2, 2, 2, 2]))
    }
    let logits = [0.0f32, 1.0, 2.0, 0.0, f32::NEG_INFINITY, 0.0];
    let gammas = f64s(
        &[3, 2],
        &[
            0x3ff8_e99e_1eca_8f9d,
            0x3fdc_6126_6d0e_e670,
            0x3fef_d483_964e_9804,
            0x400a_189e_4e57_a0b6,
            0x3fc3_a0ab_7743_ff0a,
            0x3ff5_5629_edb6_1e1d,
        ],
    );
    let alphas = || tensor(&[2], &[0.5f64, 1.0]);
    vec![
        classes("float", &logits),
        classes("double", &logits.map(f64::from)),
        classes("half", &logits.map(f16::from_f32)),
        classes("bfloat16", &logits.map(bf16::from_f32)),
        seeded("double", "StatelessRandomGammaV2", DType::F64, &[3, 2])
            .input(alphas())
            .gives_within(gammas.clone(), 1e-13),
        keyed("double", "StatelessRandomGammaV3", DType::F64, &[3, 2], 1)
            .input(alphas())
            .gives_within(gammas, 1e-13),
        seeded(
            "another shape",
            "StatelessRandomGammaV2",
            DType::F64,
            &[2, 3],
        )
        .input(alphas())
        .refused("Shape passed in must end with broadcasted shape"),
        seeded("nothing", "StatelessRandomGammaV2", DType::F64, &[0, 2])
            .input(alphas())
            .gives(tensor::<f64>(&[0, 2], &[])),
        seeded("samples", "StatelessRandomPoisson", DType::I64, &[3, 2])
            .typed("Rtype", DType::F32)
            .input(tensor(&[2], &[0.5f32, 30.0]))
            .gives(tensor(&[3, 2], &[1i64, 28, 0, 44, 0, 34])),
        own("without rates", "RandomPoissonV2", (1, 2))
            .typed("R", DType::F32)
            .typed("dtype", DType::I32)
            .input(tensor(&[1], &[3]))
            .input(tensor::<f32>(&[0], &[]))
            .gives(tensor::<i32>(&[3, 0], &[])),
        own("shapes are joined", "RandomGamma", (1, 2))
            .typed("T", DType::F32)
            .input(tensor(&[2], &[0, 3]))
            .input(tensor(&[2], &[1.0f32, 2.0]))
            .gives(tensor::<f32>(&[0, 3, 2], &[])),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = floats();
    cases.extend(integers());
    cases.extend(keys());
    cases.extend(stateful());
    cases.extend(with_parameters());
    cases
}
