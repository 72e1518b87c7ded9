//! Elementwise functions of two operands.

use half::bf16;
use half::f16;
use placewright::tensor::DType;
use placewright::tensor::Element;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

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

/// Applies an op to four elements on either side.
fn four<T: Element>(name: &str, name_of_op: &'static str, lhs: [T; 4], rhs: [T; 4]) -> Case {
    op(name, name_of_op, (&[4], &lhs), (&[4], &rhs))
}

/// Raises numbers to one exponent.
fn powers(name: &str, exponent: f32, bases: [f32; 3], expected: [f32; 3]) -> Case {
    op(name, "Pow", (&[3], &bases), (&[1, 1], &[exponent]))
        .gives_within(tensor(&[1, 3], &expected), 1e-6)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        op(
            "scalar and scalar",
            "AddV2",
            (&[], &[1.5f32]),
            (&[], &[2.0]),
        )
        .gives(tensor(&[], &[3.5f32])),
        op(
            "empty operands",
            "AddV2",
            (&[2, 0], &[] as &[f32]),
            (&[1], &[1.0]),
        )
        .gives(tensor::<f32>(&[2, 0], &[])),
        op(
            "shapes that do not meet",
            "AddV2",
            (&[2, 3], &[0f32; 6]),
            (&[4], &[0.0; 4]),
        )
        .refused("incompatible shapes: [2,3] vs. [4]"),
        op(
            "an empty and a longer dimension",
            "Mul",
            (&[0], &[] as &[f32]),
            (&[2], &[0.0; 2]),
        )
        .refused("incompatible shapes: [0] vs. [2]"),
        case("AddV2: operands of another type than T", "AddV2")
            .typed("T", DType::F32)
            .input(tensor(&[1], &[1]))
            .input(tensor(&[1], &[1]))
            .refused("the tensor holds int32, not float"),
        case("AddV2: a type without kernel", "AddV2")
            .typed("T", DType::Bool)
            .input(tensor(&[1], &[1u8]))
            .input(tensor(&[1], &[1u8]))
            .refused("no kernel"),
        four(
            "infinities",
            "AddV2",
            [INF, INF, -INF, NAN],
            [1.0, -INF, -INF, 1.0],
        )
        .gives(tensor(&[4], &[INF, NAN, -INF, NAN])),
        four(
            "integers wrap around",
            "AddV2",
            [i32::MAX, -1, 0, i32::MIN],
            [1, 1, 0, -1],
        )
        .gives(tensor(&[4], &[i32::MIN, 0, 0, i32::MAX])),
        four(
            "unsigned integers wrap around",
            "Sub",
            [0u8, 5, 255, 1],
            [1, 5, 0, 2],
        )
        .gives(tensor(&[4], &[255u8, 0, 255, 255])),
        four(
            "short integers wrap around",
            "Mul",
            [100i8, -128, 3, 0],
            [2, -1, 3, 9],
        )
        .gives(tensor(&[4], &[-56i8, -128, 9, 0])),
        four(
            "the sign of zero",
            "Mul",
            [0.0f32, -0.0, 1.0, -1.0],
            [-1.0, -1.0, -0.0, 0.0],
        )
        .gives_bits(tensor(&[4], &[-0.0f32, 0.0, -0.0, -0.0])),
        four(
            "by zero",
            "RealDiv",
            [1.0f32, -1.0, 0.0, 1.0],
            [0.0, 0.0, 0.0, -0.0],
        )
        .gives(tensor(&[4], &[INF, -INF, NAN, -INF])),
        four(
            "half precision rounds once",
            "RealDiv",
            [1.0, 2.0, 10.0, -1.0].map(f16::from_f32),
            [3.0; 4].map(f16::from_f32),
        )
        .gives(tensor(
            &[4],
            &[1.0f32, 2.0, 10.0, -1.0].map(|x| f16::from_f32(x / 3.0)),
        )),
        op("of integers", "RealDiv", (&[1], &[1i32]), (&[1], &[1])).refused("no kernel"),
        four(
            "not a number wins on either side",
            "Maximum",
            [NAN, 1.0, NAN, 2.0],
            [1.0, NAN, NAN, 3.0],
        )
        .gives(tensor(&[4], &[NAN, NAN, NAN, 3.0])),
        four(
            "not a number wins on either side",
            "Minimum",
            [NAN, 1.0, NAN, 2.0],
            [1.0, NAN, NAN, 3.0],
        )
        .gives(tensor(&[4], &[NAN, NAN, NAN, 2.0])),
        four(
            "infinities",
            "Minimum",
            [INF, -INF, 1.0, -1.0],
            [1.0, 1.0, INF, -INF],
        )
        .gives(tensor(&[4], &[1.0, -INF, 1.0, -INF])),
        four(
            "signs",
            "Maximum",
            [i64::MIN, -1, 0, 5],
            [i64::MAX, 1, -7, 5],
        )
        .gives(tensor(&[4], &[i64::MAX, 1, 0, 5])),
        four("unsigned", "Maximum", [0u32, u32::MAX, 3, 4], [1, 1, 3, 9])
            .gives(tensor(&[4], &[1u32, u32::MAX, 3, 9])),
        // The signs of the four quadrants; Python's `%` gives the same.
        four(
            "signs of floats",
            "FloorMod",
            [7.0f32, -7.0, 7.0, -7.0],
            [3.0, 3.0, -3.0, -3.0],
        )
        .gives(tensor(&[4], &[1.0f32, 2.0, -2.0, -1.0])),
        four(
            "what is not finite",
            "FloorMod",
            [1.0, INF, 3.0, -3.0],
            [0.0, 2.0, INF, INF],
        )
        .gives(tensor(&[4], &[NAN, NAN, 3.0, INF])),
        four(
            "the sign of zero",
            "FloorMod",
            [0.0f32, -0.0, 6.0, -6.0],
            [3.0, 3.0, -3.0, 3.0],
        )
        .gives_bits(tensor(&[4], &[0.0f32, -0.0, 0.0, -0.0])),
        four(
            "signs of integers",
            "FloorMod",
            [7, -7, 7, -7],
            [3, 3, -3, -3],
        )
        .gives(tensor(&[4], &[1, 2, -2, -1])),
        four(
            "smallest integer",
            "FloorMod",
            [i32::MIN, i32::MIN, 0, 6],
            [-1, 2, 5, -3],
        )
        .gives(tensor(&[4], &[0, 0, 0, 0])),
        four("unsigned", "FloorMod", [7u64, 8, u64::MAX, 0], [3, 3, 2, 9])
            .gives(tensor(&[4], &[1u64, 2, 1, 0])),
        four("an integer by zero", "FloorMod", [1, 2, 3, 4], [1, 0, 1, 1])
            .refused("integer division by zero"),
        op(
            "nothing by zero",
            "FloorMod",
            (&[0], &[] as &[i32]),
            (&[1], &[0]),
        )
        .gives(tensor::<i32>(&[0], &[])),
        four(
            "of floats",
            "SquaredDifference",
            [1.0f32, -2.0, 0.0, INF],
            [3.0, 1.0, 0.0, 1.0],
        )
        .gives(tensor(&[4], &[4.0f32, 9.0, 0.0, INF])),
        four("of integers", "Pow", [2, -3, 0, 7], [10, 3, 0, 1])
            .gives(tensor(&[4], &[1024, -27, 1, 7])),
        four("a negative exponent", "Pow", [2, 1, 1, 1], [-1, 1, 1, 1])
            .refused("negative integer powers"),
        four(
            "of floats",
            "Pow",
            [2.0f32, 4.0, -2.0, -2.0],
            [-1.0, 0.5, 2.0, 0.5],
        )
        .gives_within(tensor(&[4], &[0.5f32, 2.0, 4.0, NAN]), 1e-6),
        powers("squares", 2.0, [-3.0, INF, NAN], [9.0, INF, NAN]),
        powers("cubes", 3.0, [-3.0, -INF, NAN], [-27.0, -INF, NAN]),
        powers("roots", 0.5, [9.0, -0.0, -INF], [3.0, 0.0, INF]),
    ];
    cases.extend(
        [
            "AddV2", "Add", "Sub", "Mul", "RealDiv", "Minimum", "Maximum", "FloorMod",
        ]
        .map(every_shape)
        .into_iter()
        .flatten(),
    );
    cases.extend(every_type());
    cases
}

/// Returns the op's result in double precision: exact for the values here, and rounded to `f32`
/// once.
fn formula(op: &str, x: f64, y: f64) -> f64 {
    match op {
        "AddV2" | "Add" => x + y,
        "Sub" => x - y,
        "Mul" => x * y,
        "RealDiv" => x / y,
        "Minimum" => x.min(y),
        "Maximum" => x.max(y),
        "FloorMod" => x - (x / y).floor() * y,
        _ => unreachable!("no formula for {op}"),
    }
}

/// Tests one op with all combinations of operand shapes; the last is large enough for several
/// threads.
fn every_shape(name: &'static str) -> Vec<Case> {
    let shapes: [(&[usize], &[usize], &[usize]); 7] = [
        (&[2, 3], &[2, 3], &[2, 3]),
        (&[2, 3], &[], &[2, 3]),
        (&[1], &[2, 3], &[2, 3]),
        (&[2, 3], &[3], &[2, 3]),
        (&[2, 3], &[2, 1], &[2, 3]),
        (&[2, 1, 4], &[3, 1], &[2, 3, 4]),
        (&[300, 1, 7], &[41, 7], &[300, 41, 7]),
    ];
    shapes
        .into_iter()
        .map(|(l, r, out)| {
            // Quarters: sums and products of them are exact.
            let values = |dims: &[usize], seed| -> Vec<f32> {
                noise(dims.iter().product(), seed)
                    .iter()
                    .map(|x| (x * 16.0).round() / 4.0 + 0.125)
                    .collect()
            };
            let (a, b) = (values(l, 1), values(r, 2));
            let mut expected = Vec::new();
            for flat in 0..out.iter().product() {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "rounded as a kernel rounds"
                )]
                let value =
                    formula(name, a[at(flat, out, l)].into(), b[at(flat, out, r)].into()) as f32;
                expected.push(value);
            }
            // `FloorMod` in floating point may differ from the formula in the last place.
            op(&format!("{l:?} with {r:?}"), name, (l, &a), (r, &b))
                .gives_within(tensor(out, &expected), 1e-6)
        })
        .collect()
}

/// Returns the position in an operand of shape `dims` for position `flat` of the result, of shape
/// `out`.
fn at(mut flat: usize, out: &[usize], dims: &[usize]) -> usize {
    let (mut offset, mut stride) = (0, 1);
    for axis in (0..out.len()).rev() {
        let index = flat % out[axis];
        flat /= out[axis];
        if let Some(own) = (axis + dims.len()).checked_sub(out.len()) {
            offset += if dims[own] == 1 { 0 } else { index * stride };
            stride *= dims[own];
        }
    }
    offset
}

/// Tests arithmetic and division once in each type that TensorFlow's kernels support.
fn every_type() -> Vec<Case> {
    macro_rules! integers {
        ($($rust:ty),*) => { vec![$(
            four::<$rust>(stringify!($rust), "AddV2", [7; 4], [3; 4]).gives(tensor::<$rust>(&[4], &[10; 4])),
            four::<$rust>(stringify!($rust), "Sub", [7; 4], [3; 4]).gives(tensor::<$rust>(&[4], &[4; 4])),
            four::<$rust>(stringify!($rust), "Mul", [7; 4], [3; 4]).gives(tensor::<$rust>(&[4], &[21; 4])),
            four::<$rust>(stringify!($rust), "Minimum", [7; 4], [3; 4]).gives(tensor::<$rust>(&[4], &[3; 4])),
            four::<$rust>(stringify!($rust), "Maximum", [7; 4], [3; 4]).gives(tensor::<$rust>(&[4], &[7; 4])),
            four::<$rust>(stringify!($rust), "FloorMod", [7; 4], [3; 4]).gives(tensor::<$rust>(&[4], &[1; 4])),
        )*] };
    }
    let mut cases = integers!(i8, i16, i32, i64, u8, u16, u32, u64);
    cases.extend(floats::<f32>("f32", |x| x));
    cases.extend(floats::<f64>("f64", f64::from));
    cases.extend(floats::<f16>("f16", f16::from_f32));
    cases.extend(floats::<bf16>("bf16", bf16::from_f32));
    cases
}

fn floats<T: Element>(name: &str, from: fn(f32) -> T) -> [Case; 7] {
    [
        ("AddV2", 3.0, 10.0),
        ("Sub", 3.0, 4.0),
        ("Mul", 3.0, 21.0),
        // 7 / 4 is exact in every type; 7 / 3 is not.
        ("RealDiv", 4.0, 1.75),
        ("Minimum", 3.0, 3.0),
        ("Maximum", 3.0, 7.0),
        ("FloorMod", 3.0, 1.0),
    ]
    .map(|(op, rhs, expected)| {
        four(name, op, [from(7.0); 4], [from(rhs); 4]).gives(tensor(&[4], &[from(expected); 4]))
    })
}
