//! Conversions of element types.

use half::bf16;
use half::f16;
use placewright::tensor::Boolean;
use placewright::tensor::Complex64;
use placewright::tensor::Complex128;
use placewright::tensor::DType;
use placewright::tensor::Element;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;
use crate::case::typed_tensor;

fn cast<S: Element, D: Element>(name: &str, values: &[S], expected: &[D]) -> Case {
    let (source, target) = (S::DTYPE, D::DTYPE);
    case(&format!("{source} to {target}: {name}"), "Cast")
        .typed("SrcT", source)
        .typed("DstT", target)
        .input(tensor(&[values.len()], values))
        .gives_bits(tensor(&[expected.len()], expected))
}

pub(crate) fn cases() -> Vec<Case> {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let mut cases = vec![
        cast(
            "towards zero",
            &[1.9f32, -1.9, 0.5, -0.0],
            &[1i32, -1, 0, 0],
        ),
        // If C++ leaves the result undefined, it is that of x86-64.
        cast("out of range", &[3e9f32, -3e9, inf, nan], &[i32::MIN; 4]),
        cast("out of range", &[1e19f64, -1e19, f64::NAN], &[i64::MIN; 3]),
        cast(
            "out of range",
            &[300.7f32, -1.5, 1e10, nan],
            &[44i8, -1, 0, 0],
        ),
        cast("out of range", &[300.7f64, -1.5, 1e10], &[44u8, 255, 0]),
        cast("out of range", &[-1.0f32, 5e9], &[u32::MAX, 705_032_704]),
        cast(
            "the upper half",
            &[1e19f64, 5.0],
            &[10_000_000_000_000_000_000u64, 5],
        ),
        cast(
            "out of range",
            &[f16::INFINITY, f16::from_f32(-2.5)],
            &[i32::MIN, -2],
        ),
        cast("the low bits", &[300i32, -1, 128], &[44u8, 255, 128]),
        cast("the sign", &[-1i8, 127], &[u64::MAX, 127]),
        cast("rounded", &[16_777_217i64, -1], &[16_777_216f32, -1.0]),
        cast(
            "beyond single precision",
            &[1e300f64, -0.0, 0.1],
            &[inf, -0.0, 0.1],
        ),
        cast(
            "to even",
            &[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, nan, f32::MAX],
            &[1.0, 1.0 + 4.0 / 256.0, nan, inf].map(bf16::from_f32),
        ),
        cast(
            "overflow",
            &[65_519.0f32, 65_520.0, 1e-8],
            &[65_504.0, inf, 0.0].map(f16::from_f32),
        ),
        cast(
            "what is not zero",
            &[0.0f32, -0.0, 0.1, nan],
            &[false, false, true, true].map(Boolean::from),
        ),
        cast(
            "what is not zero",
            &[0i64, 256, -1],
            &[false, true, true].map(Boolean::from),
        ),
        cast(
            "zero and one",
            &[Boolean::TRUE, Boolean::FALSE],
            &[1.0f32, 0.0],
        ),
        cast(
            "the real part",
            &[
                Complex64 { re: 2.5, im: 7.0 },
                Complex64 { re: -1.0, im: nan },
            ],
            &[2i32, -1],
        ),
        cast(
            "without imaginary part",
            &[2.5f32, -1.0],
            &[
                Complex128 { re: 2.5, im: 0.0 },
                Complex128 { re: -1.0, im: 0.0 },
            ],
        ),
        cast("nothing", &[] as &[f32], &[] as &[i64]),
        case("float to bfloat16: truncated", "Cast")
            .typed("SrcT", DType::F32)
            .typed("DstT", DType::BF16)
            .bool("Truncate", true)
            .input(tensor(&[3], &[1.0 + 255.0 / 32_768.0, -1.999_999f32, nan]))
            .gives(tensor(&[3], &[1.0, -1.992_187_5, nan].map(bf16::from_f32))),
        case("int32 to float: Truncate says nothing", "Cast")
            .typed("SrcT", DType::I32)
            .typed("DstT", DType::F32)
            .bool("Truncate", true)
            .input(tensor(&[1], &[16_777_219]))
            .gives(tensor(&[1], &[16_777_220.0f32])),
        case("a scalar", "Cast")
            .typed("SrcT", DType::F32)
            .typed("DstT", DType::U8)
            .input(tensor(&[], &[7.5f32]))
            .gives(tensor(&[], &[7u8])),
        case("of strings", "Cast")
            .typed("SrcT", DType::String)
            .typed("DstT", DType::F32)
            .input(typed_tensor(DType::String, &[1], &[1]))
            .refused("no kernel"),
    ];
    // Long enough for several threads.
    let values: Vec<f32> = noise(70_001, 4).iter().map(|x| x * 1000.0).collect();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the conversion in question"
    )]
    let expected: Vec<i16> = values.iter().map(|&x| x as i16).collect();
    cases.push(cast("many", &values, &expected));
    // Every type to every type. Complex numbers have an imaginary part only if both types are
    // complex.
    let fixed = || MOVED.into_iter().filter(|&dtype| dtype != DType::String);
    for source in fixed() {
        for target in fixed() {
            let complex = |dtype| matches!(dtype, DType::Complex64 | DType::Complex128);
            if complex(target) && !complex(source) {
                continue;
            }
            cases.push(
                case(&format!("{source} to {target}: 0 and 1"), "Cast")
                    .typed("SrcT", source)
                    .typed("DstT", target)
                    .input(typed_tensor(source, &[1, 2], &[0, 1]))
                    .gives(typed_tensor(target, &[1, 2], &[0, 1])),
            );
        }
    }
    cases
}
