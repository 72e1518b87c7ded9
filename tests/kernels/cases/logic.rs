//! Comparisons, and functions of booleans and bits.

use half::bf16;
use half::f16;
use placewright::tensor::Boolean;
use placewright::tensor::Complex64;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;
use crate::case::typed_tensor;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn bools(dims: &[usize], values: &[u8]) -> Tensor {
    typed_tensor(DType::Bool, dims, values)
}

fn op<T: Element>(
    name: &str,
    op: &'static str,
    lhs: (&[usize], &[T]),
    rhs: (&[usize], &[T]),
) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", T::DTYPE)
        .input(tensor(lhs.0, lhs.1))
        .input(tensor(rhs.0, rhs.1))
}

fn one<T: Element>(name: &str, op: &'static str, values: &[T]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", T::DTYPE)
        .input(tensor(&[values.len()], values))
}

fn logical(name: &str, op: &'static str, lhs: Tensor, rhs: Tensor) -> Case {
    case(&format!("{op}: {name}"), op).input(lhs).input(rhs)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let left = [1.0f32, 2.0, 3.0, NAN, NAN, -0.0, INF, -INF];
    let right = [2.0f32, 2.0, 2.0, 1.0, NAN, 0.0, INF, INF];
    for (name, expected) in [
        ("Less", [1u8, 0, 0, 0, 0, 0, 0, 1]),
        ("LessEqual", [1, 1, 0, 0, 0, 1, 1, 1]),
        ("Greater", [0, 0, 1, 0, 0, 0, 0, 0]),
        ("GreaterEqual", [0, 1, 1, 0, 0, 1, 1, 0]),
        ("Equal", [0, 1, 0, 0, 0, 1, 1, 0]),
        ("NotEqual", [1, 0, 1, 1, 1, 0, 0, 1]),
    ] {
        cases.push(
            op("what is not finite", name, (&[8], &left), (&[8], &right))
                .gives(bools(&[8], &expected)),
        );
        let (two, three) = ([2u8, 3], [3u8]);
        let by_order = [expected[0], expected[1]];
        for dtype in MOVED {
            let orders = !matches!(
                dtype,
                DType::Bool | DType::Complex64 | DType::Complex128 | DType::String
            );
            let case = case(&format!("{name}: {dtype}"), name)
                .typed("T", dtype)
                .input(typed_tensor(dtype, &[2], &two))
                .input(typed_tensor(dtype, &[1], &three));
            cases.push(
                if orders
                    || name.ends_with("qual") && !name.contains("ess") && !name.contains("eater")
                {
                    case.gives(bools(&[2], &by_order))
                } else {
                    case.refused("no kernel")
                },
            );
        }
        let (a, b) = (noise(40_000, 1), noise(100, 2));
        let expected: Vec<u8> = a
            .iter()
            .enumerate()
            .map(|(i, &x)| {
                let y = b[i % 100];
                u8::from(match name {
                    "Less" => x < y,
                    "LessEqual" => x <= y,
                    "Greater" => x > y,
                    "GreaterEqual" => x >= y,
                    "Equal" => x == y,
                    _ => x != y,
                })
            })
            .collect();
        cases.extend([
            op("broadcast", name, (&[400, 100], &a), (&[100], &b))
                .gives(bools(&[400, 100], &expected)),
            op("nothing", name, (&[0, 2], &[] as &[i32]), (&[1], &[1])).gives(bools(&[0, 2], &[])),
            op(
                "shapes that do not meet",
                name,
                (&[2], &[1, 2]),
                (&[3], &[1, 2, 3]),
            )
            .refused("incompatible shapes: [2] vs. [3]"),
        ]);
    }
    let byte = |value: u8| boolean_of(value);
    cases.extend([
        op(
            "any byte but 0 is true",
            "Equal",
            (&[2], &[byte(2), byte(0)]),
            (&[2], &[byte(1); 2]),
        )
        .gives(bools(&[2], &[1, 0])),
        op(
            "imaginary parts",
            "Equal",
            (
                &[2],
                &[
                    Complex64 { re: 1.0, im: 2.0 },
                    Complex64 { re: 1.0, im: 3.0 },
                ],
            ),
            (&[], &[Complex64 { re: 1.0, im: 2.0 }]),
        )
        .gives(bools(&[2], &[1, 0])),
        op(
            "shapes that need not meet",
            "Equal",
            (&[2], &[1, 2]),
            (&[3], &[1, 2, 3]),
        )
        .bool("incompatible_shape_error", false)
        .gives(bools(&[], &[0])),
        op(
            "shapes that need not meet",
            "NotEqual",
            (&[2], &[1, 2]),
            (&[3], &[1, 2, 3]),
        )
        .bool("incompatible_shape_error", false)
        .gives(bools(&[], &[1])),
        op("shapes that meet", "NotEqual", (&[2], &[1, 2]), (&[], &[1]))
            .bool("incompatible_shape_error", false)
            .gives(bools(&[2], &[0, 1])),
        logical(
            "a table",
            "LogicalAnd",
            bools(&[2, 1], &[0, 1]),
            bools(&[2], &[0, 1]),
        )
        .gives(bools(&[2, 2], &[0, 0, 0, 1])),
        logical(
            "a table",
            "LogicalOr",
            bools(&[2, 1], &[0, 1]),
            bools(&[2], &[0, 1]),
        )
        .gives(bools(&[2, 2], &[0, 1, 1, 1])),
        logical(
            "any byte but 0 is true",
            "LogicalAnd",
            tensor(&[2], &[byte(2), byte(4)]),
            tensor(&[2], &[byte(1), byte(3)]),
        )
        .gives(bools(&[2], &[1, 1])),
        logical(
            "numbers",
            "LogicalAnd",
            tensor(&[1], &[1u8]),
            tensor(&[1], &[1u8]),
        )
        .refused("the tensor holds uint8, not bool"),
        case("LogicalNot: a table", "LogicalNot")
            .input(tensor(&[3], &[byte(0), byte(1), byte(2)]))
            .gives(bools(&[3], &[1, 0, 0])),
        case("LogicalNot: a scalar", "LogicalNot")
            .input(bools(&[], &[0]))
            .gives(bools(&[], &[1])),
    ]);
    cases.extend(classes());
    cases.extend(bits());
    cases
}

/// Returns a boolean stored as any byte, as external data may have it.
fn boolean_of(value: u8) -> Boolean {
    let bytes = Tensor::from_bytes(DType::Bool, [1].into(), &[value]).expect("one byte");
    bytes.as_slice::<Boolean>().expect("a boolean")[0]
}

fn classes() -> Vec<Case> {
    let values = [0.0f32, NAN, INF, -INF, -1.0, f32::MAX];
    [
        ("IsNan", [0u8, 1, 0, 0, 0, 0]),
        ("IsInf", [0, 0, 1, 1, 0, 0]),
        ("IsFinite", [1, 0, 0, 0, 1, 1]),
    ]
    .into_iter()
    .flat_map(|(name, expected)| {
        let expected = bools(&[6], &expected);
        // The largest f32 exceeds the range of f16 and bf16.
        let short = [0.0f32, NAN, INF, -INF, -1.0, 2.0];
        [
            one("float", name, &values).gives(expected.clone()),
            one("double", name, &values.map(f64::from)).gives(expected.clone()),
            one("half", name, &short.map(f16::from_f32)).gives(expected.clone()),
            one("bfloat16", name, &short.map(bf16::from_f32)).gives(expected),
            one("integers", name, &[1i32]).refused("no kernel"),
        ]
    })
    .collect()
}

fn bits() -> Vec<Case> {
    macro_rules! integers {
        ($($rust:ty),*) => { vec![$(
            op::<$rust>(stringify!($rust), "BitwiseAnd", (&[2], &[12, 7]), (&[], &[10])).gives(tensor::<$rust>(&[2], &[8, 2])),
            op::<$rust>(stringify!($rust), "BitwiseOr", (&[2], &[12, 7]), (&[], &[10])).gives(tensor::<$rust>(&[2], &[14, 15])),
            op::<$rust>(stringify!($rust), "BitwiseXor", (&[2], &[12, 7]), (&[], &[10])).gives(tensor::<$rust>(&[2], &[6, 13])),
            op::<$rust>(stringify!($rust), "LeftShift", (&[2], &[1, 3]), (&[], &[2])).gives(tensor::<$rust>(&[2], &[4, 12])),
            op::<$rust>(stringify!($rust), "RightShift", (&[2], &[12, 3]), (&[], &[2])).gives(tensor::<$rust>(&[2], &[3, 0])),
            one::<$rust>(stringify!($rust), "Invert", &[0, <$rust>::MAX]).gives(tensor::<$rust>(&[2], &[!0, <$rust>::MIN])),
        )*] };
    }
    let mut cases = integers!(i8, i16, i32, i64, u8, u16, u32, u64);
    // C++ leaves these undefined: shift amounts are clamped to 0 and to one less than the number of
    // bits.
    cases.extend([
        op(
            "far",
            "LeftShift",
            (&[3], &[1i8, 1, 5]),
            (&[3], &[7, 100, -1]),
        )
        .gives(tensor(&[3], &[i8::MIN, i8::MIN, 5])),
        op(
            "far",
            "RightShift",
            (&[3], &[-8, i32::MIN, -8]),
            (&[3], &[1, 99, -3]),
        )
        .gives(tensor(&[3], &[-4, -1, -8])),
        op(
            "far",
            "RightShift",
            (&[2], &[u64::MAX; 2]),
            (&[2], &[63, u64::MAX]),
        )
        .gives(tensor(&[2], &[1u64, 1])),
        op("floats", "BitwiseAnd", (&[1], &[1.0f32]), (&[1], &[1.0])).refused("no kernel"),
        op(
            "shapes that do not meet",
            "BitwiseOr",
            (&[2], &[1, 2]),
            (&[3], &[1, 2, 3]),
        )
        .refused("incompatible shapes: [2] vs. [3]"),
        one::<f32>("floats", "Invert", &[1.0]).refused("no kernel"),
    ]);
    cases
}
