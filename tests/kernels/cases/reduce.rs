//! Reductions, positions of extremes, cumulative sums.

use half::bf16;
use half::f16;
use placewright::tensor::DType;
use placewright::tensor::Element;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;
use crate::case::typed_tensor;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn reduce<T: Element>(
    name: &str,
    op: &'static str,
    dims: &[usize],
    values: &[T],
    axes: &[i32],
) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", T::DTYPE)
        .typed("Tidx", DType::I32)
        .input(tensor(dims, values))
        .named_input("reduction_indices", tensor(&[axes.len()], axes))
}

fn booleans(name: &str, op: &'static str, dims: &[usize], values: &[u8], axes: &[i32]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("Tidx", DType::I32)
        .input(typed_tensor(DType::Bool, dims, values))
        .named_input("reduction_indices", tensor(&[axes.len()], axes))
}

fn along<T: Element>(
    name: &str,
    op: &'static str,
    dims: &[usize],
    values: &[T],
    axis: i32,
) -> Case {
    let axis_name = if op.starts_with("Arg") {
        "dimension"
    } else {
        "axis"
    };
    case(&format!("{op}: {name}"), op)
        .typed("T", T::DTYPE)
        .typed("Tidx", DType::I32)
        .input(tensor(dims, values))
        .named_input(axis_name, tensor(&[], &[axis]))
}

fn arg<T: Element>(name: &str, op: &'static str, dims: &[usize], values: &[T], axis: i32) -> Case {
    along(name, op, dims, values, axis).typed("output_type", DType::I64)
}

pub(crate) fn cases() -> Vec<Case> {
    let six = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let mut cases = vec![
        reduce("the last axis", "Sum", &[2, 3], &six, &[-1]).gives(tensor(&[2], &[6.0f32, 15.0])),
        reduce("the first axis", "Sum", &[2, 3], &six, &[0])
            .gives(tensor(&[3], &[5.0f32, 7.0, 9.0])),
        reduce("all axes", "Sum", &[2, 3], &six, &[1, 0]).gives(tensor(&[], &[21.0f32])),
        reduce("no axis", "Sum", &[2, 3], &six, &[]).gives(tensor(&[2, 3], &six)),
        reduce("kept", "Sum", &[2, 3], &six, &[1])
            .bool("keep_dims", true)
            .gives(tensor(&[2, 1], &[6.0f32, 15.0])),
        reduce("all kept", "Mean", &[2, 3], &six, &[0, 1])
            .bool("keep_dims", true)
            .gives(tensor(&[1, 1], &[3.5f32])),
        reduce("a scalar", "Sum", &[], &[5i32], &[]).gives(tensor(&[], &[5])),
        reduce("axes of one", "Max", &[2, 1, 3], &six, &[1]).gives(tensor(&[2, 3], &six)),
        case("Sum: long axes, a scalar", "Sum")
            .typed("T", DType::F32)
            .typed("Tidx", DType::I64)
            .input(tensor(&[2, 3], &six))
            .named_input("reduction_indices", tensor(&[], &[-2i64]))
            .gives(tensor(&[3], &[5.0f32, 7.0, 9.0])),
        reduce("integers wrap around", "Sum", &[2], &[i32::MAX, 1], &[0])
            .gives(tensor(&[], &[i32::MIN])),
        reduce("integers wrap around", "Prod", &[2], &[100u8, 3], &[0]).gives(tensor(&[], &[44u8])),
        // Eigen's mean of short integers is summed in 64 bits, and its quotient is rounded towards
        // zero.
        reduce("of integers", "Mean", &[2, 2], &[100i8, 101, -7, 0], &[1])
            .gives(tensor(&[2], &[100i8, -3])),
        reduce("not a number", "Max", &[2, 2], &[1.0, NAN, NAN, 2.0], &[1])
            .gives(tensor(&[2], &[NAN, NAN])),
        reduce("not a number", "Min", &[2, 2], &[1.0, NAN, 5.0, 2.0], &[0])
            .gives(tensor(&[2], &[1.0, NAN])),
        reduce("infinities", "Sum", &[2, 2], &[INF, -INF, INF, 1.0], &[1])
            .gives(tensor(&[2], &[NAN, INF])),
        reduce("infinities", "Prod", &[2], &[INF, 0.0], &[0]).gives(tensor(&[], &[NAN])),
        reduce("infinities", "Max", &[2], &[-INF, -INF], &[0]).gives(tensor(&[], &[-INF])),
        reduce("of nothing", "Sum", &[0, 2], &[] as &[f32], &[0]).gives(tensor(&[2], &[0.0f32; 2])),
        reduce("of nothing", "Prod", &[2, 0], &[] as &[i64], &[1]).gives(tensor(&[2], &[1i64; 2])),
        reduce("of nothing", "Mean", &[0], &[] as &[f32], &[0]).gives(tensor(&[], &[NAN])),
        reduce("of no integers", "Mean", &[0], &[] as &[i32], &[0]).gives(tensor(&[], &[0])),
        reduce("of nothing", "Max", &[0], &[] as &[f32], &[0]).gives(tensor(&[], &[-INF])),
        reduce("of nothing", "Min", &[0], &[] as &[f64], &[0]).gives(tensor(&[], &[f64::INFINITY])),
        reduce("of no integers", "Max", &[0], &[] as &[i8], &[0]).gives(tensor(&[], &[i8::MIN])),
        reduce("of no integers", "Min", &[0], &[] as &[u16], &[0]).gives(tensor(&[], &[u16::MAX])),
        reduce("to nothing", "Sum", &[0, 2], &[] as &[f32], &[1]).gives(tensor::<f32>(&[0], &[])),
        reduce("an axis that is not there", "Sum", &[2, 3], &six, &[2]).refused(
            "invalid reduction dimension (2 for input with 2 dimension(s), of shape [2,3])",
        ),
        reduce("an axis that is not there", "Max", &[2, 3], &six, &[-3])
            .refused("invalid reduction dimension (-3"),
        reduce("an axis of a scalar", "Mean", &[], &[1.0f32], &[0])
            .refused("invalid reduction dimension (0 for input with 0 dimension(s)"),
        reduce("an axis twice", "Sum", &[2, 3], &six, &[1, -1])
            .refused("axes contains duplicate dimension: 1"),
        booleans("rows", "Any", &[3, 2], &[0, 0, 0, 1, 1, 1], &[1]).gives(typed_tensor(
            DType::Bool,
            &[3],
            &[0, 1, 1],
        )),
        booleans("rows", "All", &[3, 2], &[0, 0, 0, 1, 1, 1], &[1]).gives(typed_tensor(
            DType::Bool,
            &[3],
            &[0, 0, 1],
        )),
        booleans("columns, kept", "All", &[3, 2], &[0, 1, 0, 1, 1, 1], &[0])
            .bool("keep_dims", true)
            .gives(typed_tensor(DType::Bool, &[1, 2], &[0, 1])),
        booleans("of nothing", "Any", &[0], &[], &[0]).gives(typed_tensor(DType::Bool, &[], &[0])),
        booleans("of nothing", "All", &[0], &[], &[0]).gives(typed_tensor(DType::Bool, &[], &[1])),
        booleans("an axis that is not there", "All", &[1], &[1], &[1])
            .refused("invalid reduction dimension (1"),
        // Summed in single precision: 2048 + 1 is not an f16.
        reduce(
            "half",
            "Sum",
            &[3],
            &[2048.0, 1.0, 1.0].map(f16::from_f32),
            &[0],
        )
        .gives(tensor(&[], &[f16::from_f32(2050.0)])),
        reduce(
            "bfloat16",
            "Mean",
            &[4],
            &[256.0, 1.0, 1.0, 2.0].map(bf16::from_f32),
            &[0],
        )
        .gives(tensor(&[], &[bf16::from_f32(65.0)])),
    ];
    cases.extend(every_type());
    cases.extend(every_axis());
    cases.extend(long_axes());
    cases.extend(positions());
    cases.extend(scans());
    cases
}

fn every_type() -> Vec<Case> {
    macro_rules! types {
        ($($rust:ty, $of:expr);*) => { vec![$(
            reduce(stringify!($rust), "Sum", &[3], &[3u8, 1, 2].map($of), &[0]).gives(tensor(&[], &[6u8].map($of))),
            reduce(stringify!($rust), "Mean", &[3], &[3u8, 1, 2].map($of), &[0]).gives(tensor(&[], &[2u8].map($of))),
            reduce(stringify!($rust), "Prod", &[3], &[3u8, 1, 2].map($of), &[0]).gives(tensor(&[], &[6u8].map($of))),
            reduce(stringify!($rust), "Max", &[3], &[3u8, 1, 2].map($of), &[0]).gives(tensor(&[], &[3u8].map($of))),
            reduce(stringify!($rust), "Min", &[3], &[3u8, 1, 2].map($of), &[0]).gives(tensor(&[], &[1u8].map($of))),
            arg(stringify!($rust), "ArgMax", &[3], &[2u8, 3, 1].map($of), 0).gives(tensor(&[], &[1i64])),
            arg(stringify!($rust), "ArgMin", &[3], &[2u8, 3, 1].map($of), 0).gives(tensor(&[], &[2i64])),
            along(stringify!($rust), "Cumsum", &[3], &[3u8, 1, 2].map($of), 0).gives(tensor(&[3], &[3u8, 4, 6].map($of))),
            along(stringify!($rust), "Cumprod", &[3], &[3u8, 1, 2].map($of), 0).gives(tensor(&[3], &[3u8, 3, 6].map($of))),
        )*] };
    }
    types! {
        f32, f32::from; f64, f64::from; f16, f16::from; bf16, |x| bf16::from_f32(f32::from(x));
        i8, |x| i8::try_from(x).expect("small"); i16, i16::from; i32, i32::from; i64, i64::from;
        u8, |x: u8| x; u16, u16::from; u32, u32::from; u64, u64::from
    }
}

/// Reduces one tensor over all sets of axes, and larger ones, the last with several threads.
fn every_axis() -> Vec<Case> {
    let shapes: [&[usize]; 5] = [
        &[3, 4, 5],
        &[2, 1, 3, 2],
        &[70, 300],
        &[3000, 3],
        &[300, 7, 41],
    ];
    let mut cases = Vec::new();
    for dims in shapes {
        let n: usize = dims.iter().product();
        let values = noise(n, 3);
        for mask in 0..1u32 << dims.len() {
            let gone = |axis: usize| mask >> axis & 1 == 1;
            let axes: Vec<i32> = (0..)
                .zip(dims)
                .map(|(i, _)| i)
                .filter(|&i| mask >> i & 1 == 1)
                .collect();
            let left: Vec<usize> = (0..dims.len())
                .filter(|&i| !gone(i))
                .map(|i| dims[i])
                .collect();
            let n_left: usize = left.iter().product();
            let (mut sums, mut largest) = (vec![0.0f64; n_left], vec![f32::NEG_INFINITY; n_left]);
            for (flat, &value) in values.iter().enumerate() {
                let (mut rest, mut index, mut stride) = (flat, 0, 1);
                for axis in (0..dims.len()).rev() {
                    if !gone(axis) {
                        index += rest % dims[axis] * stride;
                        stride *= dims[axis];
                    }
                    rest /= dims[axis];
                }
                sums[index] += f64::from(value);
                largest[index] = largest[index].max(value);
            }
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let count = (n / n_left) as f64;
            #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
            let rounded =
                |scale: f64| -> Vec<f32> { sums.iter().map(|&sum| (sum * scale) as f32).collect() };
            let name = format!("{dims:?} over {axes:?}");
            cases.extend([
                // Terms below 1, in trees: some roundings of the largest partial sum, which is
                // below 300.
                reduce(&name, "Sum", dims, &values, &axes)
                    .gives_within(tensor(&left, &rounded(1.0)), 1e-4),
                reduce(&name, "Mean", dims, &values, &axes)
                    .gives_within(tensor(&left, &rounded(1.0 / count)), 1e-6),
                reduce(&name, "Max", dims, &values, &axes).gives(tensor(&left, &largest)),
            ]);
        }
    }
    cases
}

/// Reduces many terms per result, which devices distribute: `[outer, n, inner]` without its second
/// axis.
fn long_axes() -> Vec<Case> {
    let tenths = vec![0.1f32; 1_000_000];
    let mut cases = vec![
        // Added sequentially, they are off by a hundredth.
        reduce("a million tenths", "Mean", &[1_000_000], &tenths, &[0])
            .gives_within(tensor(&[], &[0.1f32]), 2e-6),
    ];
    for dims in [
        [1, 100_000, 1],
        [3, 30_001, 1],
        [1, 30_001, 3],
        [2, 1_001, 40],
        [40, 2_000, 1],
    ] {
        let [outer, n, inner] = dims;
        // Far from 0 on one side, so that rounding errors do not cancel.
        let values: Vec<f32> = noise(outer * n * inner, 7)
            .iter()
            .map(|x| x + 1.25)
            .collect();
        let (mut sums, mut places) = (vec![0.0f64; outer * inner], vec![0i64; outer * inner]);
        let mut largest = vec![f32::MIN; outer * inner];
        let numbers: Vec<i32> = (0..)
            .map(|i: i32| i.wrapping_mul(65_537))
            .take(values.len())
            .collect();
        let mut wrapped = vec![0i32; outer * inner];
        for (flat, &value) in values.iter().enumerate() {
            let result = flat / inner / n * inner + flat % inner;
            sums[result] += f64::from(value);
            wrapped[result] = wrapped[result].wrapping_add(numbers[flat]);
            if value > largest[result] {
                largest[result] = value;
                places[result] = i64::try_from(flat / inner % n).expect("an index");
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let count = n as f64;
        #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
        let rounded =
            |scale: f64| -> Vec<f32> { sums.iter().map(|&sum| (sum * scale) as f32).collect() };
        let (name, left) = (format!("{dims:?} over 1"), [outer, inner]);
        cases.extend([
            // A few roundings of partial sums, each of one part in ten million.
            reduce(&name, "Sum", &dims, &values, &[1])
                .gives_within(tensor(&left, &rounded(1.0)), 2e-6),
            reduce(&name, "Mean", &dims, &values, &[1])
                .gives_within(tensor(&left, &rounded(1.0 / count)), 2e-6),
            reduce(&name, "Max", &dims, &values, &[1]).gives(tensor(&left, &largest)),
            reduce(&format!("{name}, wrapping"), "Sum", &dims, &numbers, &[1])
                .gives(tensor(&left, &wrapped)),
            // There are only 65536 distinct values, so the maximum sometimes occurs more than
            // once.
            arg(&name, "ArgMax", &dims, &values, 1).gives(tensor(&left, &places)),
        ]);
    }
    cases
}

fn positions() -> Vec<Case> {
    let six = [1.0f32, 5.0, 3.0, 4.0, 2.0, 6.0];
    let mut cases = vec![
        arg("the last axis", "ArgMax", &[2, 3], &six, -1).gives(tensor(&[2], &[1i64, 2])),
        arg("the first axis", "ArgMax", &[2, 3], &six, 0).gives(tensor(&[3], &[1i64, 0, 1])),
        arg("the last axis", "ArgMin", &[2, 3], &six, 1).gives(tensor(&[2], &[0i64, 1])),
        arg("the first of equals", "ArgMax", &[4], &[1, 7, 7, 1], 0).gives(tensor(&[], &[1i64])),
        arg("the first of equals", "ArgMin", &[2, 2], &[1, 7, 1, 7], 0)
            .gives(tensor(&[2], &[0i64, 0])),
        // Eigen's comparison skips NaNs, and starts at the lowest finite value.
        arg("not a number", "ArgMax", &[3], &[NAN, 1.0, 2.0], 0).gives(tensor(&[], &[2i64])),
        arg("not a number", "ArgMin", &[3, 1], &[3.0, NAN, 2.0], 0).gives(tensor(&[1], &[2i64])),
        arg("nothing but NaN", "ArgMax", &[2], &[NAN, NAN], 0).gives(tensor(&[], &[0i64])),
        arg("nothing but -inf", "ArgMax", &[2], &[-INF, -INF], 0).gives(tensor(&[], &[0i64])),
        arg(
            "of booleans",
            "ArgMax",
            &[3],
            &[false, true, true].map(placewright::tensor::Boolean::from),
            0,
        )
        .gives(tensor(&[], &[1i64])),
        arg("to nothing", "ArgMax", &[0, 2], &[] as &[f32], 1).gives(tensor::<i64>(&[0], &[])),
        arg("of nothing", "ArgMax", &[0, 2], &[] as &[f32], 0)
            .refused("reduction axis 0 is empty in shape [0,2]"),
        arg("an axis that is not there", "ArgMin", &[2, 3], &six, 2)
            .refused("expected dimension in the range [-2, 2), but got 2 for shape [2,3]"),
        arg("of a scalar", "ArgMax", &[], &[1.0f32], 0).refused("in the range [-0, 0), but got 0"),
        case("ArgMax: axes", "ArgMax")
            .typed("T", DType::F32)
            .typed("Tidx", DType::I32)
            .typed("output_type", DType::I64)
            .input(tensor(&[2, 3], &six))
            .named_input("dimension", tensor(&[1], &[1]))
            .refused("dim must be a scalar, but received tensor of shape: [1]"),
    ];
    let along = |op, dtype| {
        along(&format!("gives {dtype}"), op, &[2, 3], &six, 1).typed("output_type", dtype)
    };
    cases.extend([
        along("ArgMax", DType::I32).gives(tensor(&[2], &[1i32, 2])),
        along("ArgMax", DType::I16).gives(tensor(&[2], &[1i16, 2])),
        along("ArgMax", DType::U16).gives(tensor(&[2], &[1u16, 2])),
        along("ArgMin", DType::I32).gives(tensor(&[2], &[0i32, 1])),
        along("ArgMin", DType::I16).refused("no kernel"),
    ]);
    cases
}

fn scans() -> Vec<Case> {
    let six = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let options = |case: Case, exclusive: bool, reverse: bool| {
        case.bool("exclusive", exclusive).bool("reverse", reverse)
    };
    let mut cases = Vec::new();
    for (exclusive, reverse, last, first, products) in [
        (
            false,
            false,
            [1.0f32, 3.0, 6.0, 4.0, 9.0, 15.0],
            [1.0f32, 2.0, 3.0, 5.0, 7.0, 9.0],
            [1.0f32, 2.0, 6.0, 4.0, 20.0, 120.0],
        ),
        (
            true,
            false,
            [0.0, 1.0, 3.0, 0.0, 4.0, 9.0],
            [0.0, 0.0, 0.0, 1.0, 2.0, 3.0],
            [1.0, 1.0, 2.0, 1.0, 4.0, 20.0],
        ),
        (
            false,
            true,
            [6.0, 5.0, 3.0, 15.0, 11.0, 6.0],
            [5.0, 7.0, 9.0, 4.0, 5.0, 6.0],
            [6.0, 6.0, 3.0, 120.0, 30.0, 6.0],
        ),
        (
            true,
            true,
            [5.0, 3.0, 0.0, 11.0, 6.0, 0.0],
            [4.0, 5.0, 6.0, 0.0, 0.0, 0.0],
            [6.0, 3.0, 1.0, 30.0, 6.0, 1.0],
        ),
    ] {
        let name = |what: &str| format!("{what}, exclusive {exclusive}, reverse {reverse}");
        cases.extend([
            options(
                along(&name("last axis"), "Cumsum", &[2, 3], &six, -1),
                exclusive,
                reverse,
            )
            .gives(tensor(&[2, 3], &last)),
            options(
                along(&name("first axis"), "Cumsum", &[2, 3], &six, 0),
                exclusive,
                reverse,
            )
            .gives(tensor(&[2, 3], &first)),
            options(
                along(&name("last axis"), "Cumprod", &[2, 3], &six, 1),
                exclusive,
                reverse,
            )
            .gives(tensor(&[2, 3], &products)),
        ]);
    }
    cases.extend([
        along("of nothing", "Cumsum", &[2, 0], &[] as &[f32], 1).gives(tensor::<f32>(&[2, 0], &[])),
        along("not a number", "Cumsum", &[4], &[1.0, NAN, 2.0, INF], 0)
            .gives(tensor(&[4], &[1.0, NAN, NAN, NAN])),
        along("integers wrap around", "Cumprod", &[3], &[100u8, 3, 2], 0)
            .gives(tensor(&[3], &[100u8, 44, 88])),
        along("an axis that is not there", "Cumsum", &[2, 3], &six, 2)
            .refused("ScanOp: expected scan axis in the range [-2, 2), but got 2"),
        along("of a scalar", "Cumprod", &[], &[1.0f32], 0).refused("in the range [-0, 0)"),
        case("Cumsum: axes", "Cumsum")
            .typed("T", DType::F32)
            .typed("Tidx", DType::I32)
            .input(tensor(&[2, 3], &six))
            .named_input("axis", tensor(&[1], &[1]))
            .refused("ScanOp: axis must be a scalar, not [1]"),
    ]);
    // Quarters, of which sums are exact; large enough for several threads.
    let values: Vec<f32> = noise(90_000, 5)
        .iter()
        .map(|x| (x * 4.0).round() / 4.0)
        .collect();
    let mut expected = values.clone();
    for flat in 300..expected.len() {
        if flat % 30_000 >= 300 {
            expected[flat] += expected[flat - 300];
        }
    }
    cases.push(
        along("many", "Cumsum", &[3, 100, 300], &values, 1)
            .gives(tensor(&[3, 100, 300], &expected)),
    );
    cases
}
