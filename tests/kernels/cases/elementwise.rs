//! Elementwise arithmetic beyond the four operations.

use half::bf16;
use half::f16;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

/// An op, its formula, and the interval in which it is tested.
type Formula = (&'static str, fn(f64) -> f64, f64, f64);

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn unary<T: Element>(name: &str, op: &'static str, values: &[T]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", T::DTYPE)
        .input(tensor(&[values.len()], values))
}

fn binary<T: Element>(name: &str, op: &'static str, lhs: &[T], rhs: &[T]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", T::DTYPE)
        .input(tensor(&[lhs.len()], lhs))
        .input(tensor(&[rhs.len()], rhs))
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = functions();
    cases.extend(edges());
    cases.extend(divisions());
    cases.extend(several());
    cases.extend(repeated());
    cases
}

/// Operands of different shapes, broadcast along every combination of axes: rows long enough to be
/// computed in pieces, and short ones.
fn repeated() -> Vec<Case> {
    let shapes: [(&[usize], &[usize]); 9] = [
        (&[3, 2500], &[2500]),
        (&[2500], &[3, 1]),
        (&[4, 1, 1030], &[5, 1]),
        (&[2, 3, 70], &[2, 1, 70]),
        (&[], &[5000]),
        (&[5000], &[1, 1]),
        (&[7, 3], &[7, 1]),
        (&[3, 1], &[1, 4]),
        (&[2, 1, 3, 1, 5], &[4, 1, 6, 1]),
    ];
    let mut cases = Vec::new();
    for (lhs, rhs) in shapes {
        let name = format!("{lhs:?} and {rhs:?}");
        let pair = |op| case(&format!("{op}: {name}"), op);
        let values = |shape: &[usize], seed| noise(shape.iter().product(), seed);
        let (l, r) = (values(lhs, 3), values(rhs, 4));
        let floats = |op| {
            let typed = pair(op).typed("T", DType::F32);
            typed.input(tensor(lhs, &l)).input(tensor(rhs, &r))
        };
        let (shape, meeting) = meet(lhs, rhs);
        let less: Vec<bool> = meeting.iter().map(|&(i, j)| l[i] < r[j]).collect();
        cases.push(floats("Less").gives(Tensor::from_bools(&shape[..], &less).unwrap()));
        let differences: Vec<f32> = meeting.iter().map(|&(i, j)| l[i] - r[j]).collect();
        cases.push(floats("Sub").gives(tensor(&shape, &differences)));
        #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
        let whole =
            |values: &[f32]| -> Vec<i64> { values.iter().map(|x| (x * 99.0) as i64).collect() };
        let (l, r) = (whole(&l), whole(&r));
        let differences: Vec<i64> = meeting.iter().map(|&(i, j)| l[i] - r[j]).collect();
        let typed = pair("Sub").typed("T", DType::I64);
        let typed = typed.input(tensor(lhs, &l)).input(tensor(rhs, &r));
        cases.push(typed.gives(tensor(&shape, &differences)));
    }
    cases
}

/// Returns the shape of the result, and the positions of the operands' elements, by NumPy's rule,
/// axis by axis.
fn meet(lhs: &[usize], rhs: &[usize]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let rank = lhs.len().max(rhs.len());
    let long = |shape: &[usize]| [vec![1; rank - shape.len()], shape.to_vec()].concat();
    let (lhs, rhs) = (long(lhs), long(rhs));
    let shape: Vec<usize> = lhs.iter().zip(&rhs).map(|(&l, &r)| l.max(r)).collect();
    let n: usize = shape.iter().product();
    let meeting = (0..n).map(|element| {
        let mut rest = element;
        let (mut i, mut j, mut l_step, mut r_step) = (0, 0, 1, 1);
        for axis in (0..rank).rev() {
            let at = rest % shape[axis];
            rest /= shape[axis];
            i += at.min(lhs[axis] - 1) * l_step;
            j += at.min(rhs[axis] - 1) * r_step;
            l_step *= lhs[axis];
            r_step *= rhs[axis];
        }
        (i, j)
    });
    let meeting = meeting.collect();
    (shape, meeting)
}

fn selu(x: f64) -> f64 {
    let (scale, alpha) = (1.050_700_987_355_480_5, 1.673_263_242_354_377_2);
    if x < 0.0 {
        scale * alpha * (x.exp() - 1.0)
    } else {
        scale * x
    }
}

fn functions() -> Vec<Case> {
    let formulas: [Formula; 20] = [
        ("Inv", |x| 1.0 / x, 0.1, 4.0),
        ("Erfc", |x| 1.0 - erf(x), -3.0, 3.0),
        ("Log1p", f64::ln_1p, -0.9, 4.0),
        ("Expm1", f64::exp_m1, -4.0, 4.0),
        ("Sin", f64::sin, -20.0, 20.0),
        ("Cos", f64::cos, -20.0, 20.0),
        ("Tan", f64::tan, -1.5, 1.5),
        ("Asin", f64::asin, -1.0, 1.0),
        ("Acos", f64::acos, -1.0, 1.0),
        ("Atan", f64::atan, -9.0, 9.0),
        ("Sinh", f64::sinh, -4.0, 4.0),
        ("Cosh", f64::cosh, -4.0, 4.0),
        ("Asinh", f64::asinh, -9.0, 9.0),
        ("Acosh", f64::acosh, 1.1, 9.0),
        ("Atanh", f64::atanh, -0.9, 0.9),
        ("Softplus", |x| x.exp().ln_1p(), -20.0, 20.0),
        ("Softsign", |x| x / (1.0 + x.abs()), -9.0, 9.0),
        (
            "Elu",
            |x| if x < 0.0 { x.exp() - 1.0 } else { x },
            -4.0,
            4.0,
        ),
        ("Selu", selu, -4.0, 4.0),
        ("Round", f64::round_ties_even, -9.0, 9.0),
    ];
    let mut cases = Vec::new();
    for (op, formula, low, high) in formulas {
        // Long enough for several threads, and not a multiple of any vector length.
        let n = 20_003;
        #[expect(clippy::cast_possible_truncation, reason = "an argument, rounded")]
        let input: Vec<f32> = noise(n, 9)
            .iter()
            .map(|&x| (low + (f64::from(x) + 1.0) / 2.0 * (high - low)) as f32)
            .collect();
        let double: Vec<f64> = input.iter().map(|&x| formula(x.into())).collect();
        #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
        let single: Vec<f32> = double.iter().map(|&y| y as f32).collect();
        // The libraries' functions are accurate to a few units in the last place.
        cases.push(unary("float", op, &input).gives_within(tensor(&[n], &single), 1e-6));
        let few = &input[..50];
        let wide: Vec<f64> = few.iter().map(|&x| x.into()).collect();
        cases.push(unary("double", op, &wide).gives_within(tensor(&[50], &double[..50]), 1e-9));
        // f16 and bf16: the input is rounded first, the result to 11 or 8 bits.
        let half: Vec<f16> = few.iter().map(|&x| f16::from_f32(x)).collect();
        let expected: Vec<f16> = half
            .iter()
            .map(|x| f16::from_f64(formula(x.to_f64())))
            .collect();
        cases.push(unary("half", op, &half).gives_within(tensor(&[50], &expected), 1e-3));
        let brain: Vec<bf16> = few.iter().map(|&x| bf16::from_f32(x)).collect();
        let expected: Vec<bf16> = brain
            .iter()
            .map(|x| bf16::from_f64(formula(x.to_f64())))
            .collect();
        cases.push(unary("bfloat16", op, &brain).gives_within(tensor(&[50], &expected), 8e-3));
        cases.push(unary::<f32>("nothing", op, &[]).gives(tensor::<f32>(&[0], &[])));
        if op != "Round" {
            cases.push(unary("integers", op, &[1i32]).refused("no kernel"));
        }
    }
    cases
}

/// The error function by its definition: Simpson's rule over 2000 intervals, accurate to 1e-11 up
/// to 4.
fn erf(x: f64) -> f64 {
    const PIECES: u32 = 2000;
    let width = x / f64::from(PIECES);
    let bell = |t: f64| (-t * t).exp();
    let sum: f64 = (0..PIECES)
        .map(|piece| {
            let t = f64::from(piece) * width;
            bell(t) + 4.0 * bell(t + width / 2.0) + bell(t + width)
        })
        .sum();
    std::f64::consts::FRAC_2_SQRT_PI * sum * width / 6.0
}

fn edges() -> Vec<Case> {
    let edges = [NAN, INF, -INF, 0.0];
    let mut cases = Vec::new();
    for (op, expected) in [
        ("Inv", [NAN, 0.0, -0.0, INF]),
        ("Erfc", [NAN, 0.0, 2.0, 1.0]),
        ("Log1p", [NAN, INF, NAN, 0.0]),
        ("Expm1", [NAN, INF, -1.0, 0.0]),
        ("Sin", [NAN, NAN, NAN, 0.0]),
        ("Cos", [NAN, NAN, NAN, 1.0]),
        ("Tan", [NAN, NAN, NAN, 0.0]),
        ("Asin", [NAN, NAN, NAN, 0.0]),
        ("Sinh", [NAN, INF, -INF, 0.0]),
        ("Cosh", [NAN, INF, INF, 1.0]),
        ("Asinh", [NAN, INF, -INF, 0.0]),
        ("Acosh", [NAN, INF, NAN, NAN]),
        ("Atanh", [NAN, NAN, NAN, 0.0]),
        ("Softsign", [NAN, NAN, NAN, 0.0]),
        ("Elu", [NAN, INF, -1.0, 0.0]),
        ("LeakyRelu", [NAN, INF, -INF, 0.0]),
        ("Sign", [NAN, 1.0, -1.0, 0.0]),
        ("Round", [NAN, INF, -INF, 0.0]),
    ] {
        cases.push(unary("edges", op, &edges).gives(tensor(&[4], &expected)));
        let wide = tensor(&[4], &expected.map(f64::from));
        cases.push(unary("edges in double", op, &edges.map(f64::from)).gives(wide));
    }
    cases.extend([
        unary("at the ends", "Atanh", &[1.0f32, -1.0]).gives(tensor(&[2], &[INF, -INF])),
        unary("at the ends", "Log1p", &[-1.0f32, -2.0]).gives(tensor(&[2], &[-INF, NAN])),
        unary("far from 0", "Softplus", &[100.0f32, -INF, NAN])
            .gives(tensor(&[3], &[100.0, 0.0, NAN])),
        unary("keeps digits", "Expm1", &[1e-10f64]).gives_within(tensor(&[1], &[1e-10]), 1e-20),
        // By subtraction, 5.5e-42 would be 0 in single precision.
        unary("keeps digits", "Erfc", &[5.0f64])
            .gives_within(tensor(&[1], &[1.537_459_794_428_035e-12]), 1e-22),
        unary("halves to even", "Round", &[0.5f32, 1.5, 2.5, -0.5, -1.5])
            .gives_bits(tensor(&[5], &[0.0f32, 2.0, 2.0, -0.0, -2.0])),
        unary("integers", "Round", &[i64::MAX, -3]).gives(tensor(&[2], &[i64::MAX, -3])),
        unary("short integers", "Round", &[1i8]).refused("no kernel"),
        unary("floats", "Sign", &[-2.5f32, -0.0, 7.0])
            .gives_bits(tensor(&[3], &[-1.0f32, 0.0, 1.0])),
        unary("half", "Sign", &[-2.5, 0.0, 7.0].map(f16::from_f32))
            .gives(tensor(&[3], &[-1.0, 0.0, 1.0].map(f16::from_f32))),
        unary("bfloat16", "Sign", &[-2.5, 0.0, 7.0].map(bf16::from_f32))
            .gives(tensor(&[3], &[-1.0, 0.0, 1.0].map(bf16::from_f32))),
        unary("int8", "Sign", &[i8::MIN, 0, 5]).gives(tensor(&[3], &[-1i8, 0, 1])),
        unary("int16", "Sign", &[i16::MIN, 0, 5]).gives(tensor(&[3], &[-1i16, 0, 1])),
        unary("int32", "Sign", &[i32::MIN, 0, 5]).gives(tensor(&[3], &[-1, 0, 1])),
        unary("int64", "Sign", &[i64::MIN, 0, 5]).gives(tensor(&[3], &[-1i64, 0, 1])),
        unary("unsigned", "Sign", &[1u8]).refused("no kernel"),
        unary("by default", "LeakyRelu", &[-5.0f32, 5.0]).gives(tensor(&[2], &[-1.0f32, 5.0])),
        unary("by alpha", "LeakyRelu", &[-5.0f64, 5.0])
            .float("alpha", 2.0)
            .gives(tensor(&[2], &[-10.0, 5.0])),
        unary("half", "LeakyRelu", &[-4.0, 5.0].map(f16::from_f32))
            .float("alpha", 0.5)
            .gives(tensor(&[2], &[-2.0, 5.0].map(f16::from_f32))),
        unary("bfloat16", "LeakyRelu", &[-4.0, 5.0].map(bf16::from_f32))
            .float("alpha", 0.5)
            .gives(tensor(&[2], &[-2.0, 5.0].map(bf16::from_f32))),
        binary(
            "quadrants",
            "Atan2",
            &[1.0f32, 1.0, -1.0, -1.0],
            &[1.0, -1.0, -1.0, 1.0],
        )
        .gives_within(
            tensor(
                &[4],
                &[0.25, 0.75, -0.75, -0.25].map(|x| x * std::f32::consts::PI),
            ),
            1e-6,
        ),
        binary(
            "edges",
            "Atan2",
            &[0.0f64, -0.0, f64::NAN],
            &[-1.0, -1.0, 1.0],
        )
        .gives(tensor(
            &[3],
            &[std::f64::consts::PI, -std::f64::consts::PI, f64::NAN],
        )),
        binary("half", "Atan2", &[f16::ONE], &[f16::ZERO])
            .gives(tensor(&[1], &[f16::from_f32(std::f32::consts::FRAC_PI_2)])),
        binary("bfloat16", "Atan2", &[bf16::ONE], &[bf16::ZERO])
            .gives(tensor(&[1], &[bf16::from_f32(std::f32::consts::FRAC_PI_2)])),
        binary("integers", "Atan2", &[1], &[1]).refused("no kernel"),
        binary("0 wins", "Xdivy", &[0.0f32, 2.0, 1.0], &[0.0, 0.0, 4.0])
            .gives(tensor(&[3], &[0.0f32, f32::INFINITY, 0.25])),
        binary(
            "half",
            "Xdivy",
            &[f16::from_f32(2.0)],
            &[f16::from_f32(3.0)],
        )
        .gives(tensor(&[1], &[f16::from_f32(0.6665)])),
        binary("0 wins", "Xlogy", &[0.0f64, -1.0], &[0.0, 0.0])
            .gives(tensor(&[2], &[0.0f64, f64::INFINITY])),
        binary("plain", "Xlogy", &[2.0f32], &[3.0])
            .gives_within(tensor(&[1], &[2.197_224_6f32]), 1e-6),
        binary(
            "bfloat16",
            "Xlogy",
            &[bf16::from_f32(2.0)],
            &[bf16::from_f32(3.0)],
        )
        .gives(tensor(&[1], &[bf16::from_f32(2.20312)])),
        binary("integers", "Xlogy", &[1], &[1]).refused("no kernel"),
    ]);
    cases
}

fn divisions() -> Vec<Case> {
    let (lhs, rhs) = ([7, -7, 7, -7], [3, 3, -3, -3]);
    let mut cases = vec![
        binary("signs", "FloorDiv", &lhs, &rhs).gives(tensor(&[4], &[2, -3, -3, 2])),
        binary("signs", "TruncateDiv", &lhs, &rhs).gives(tensor(&[4], &[2, -2, -2, 2])),
        binary("signs", "Div", &lhs, &rhs).gives(tensor(&[4], &[2, -2, -2, 2])),
        binary("signs", "TruncateMod", &lhs, &rhs).gives(tensor(&[4], &[1, -1, 1, -1])),
        binary("signs", "Mod", &lhs.map(f64::from), &rhs.map(f64::from))
            .gives(tensor(&[4], &[1.0f64, -1.0, 1.0, -1.0])),
        binary("long", "Mod", &[7i64], &[-3]).gives(tensor(&[1], &[1i64])),
        binary("long", "TruncateMod", &[-7i64], &[3]).gives(tensor(&[1], &[-1i64])),
        binary(
            "float",
            "TruncateMod",
            &[7.5f32, -7.5, 1.0, INF, 3.0],
            &[2.0, 2.0, 0.0, 2.0, INF],
        )
        .gives(tensor(&[5], &[1.5, -1.5, NAN, NAN, 3.0])),
        binary("short integers", "Mod", &[7i8], &[3]).refused("no kernel"),
        binary("floats", "TruncateDiv", &[7.0f32, -7.5], &[3.0, 2.0])
            .gives(tensor(&[2], &[2.0f32, -3.0])),
        binary(
            "the smallest integer",
            "FloorDiv",
            &[i32::MIN, i32::MIN],
            &[-1, 2],
        )
        .gives(tensor(&[2], &[i32::MIN, i32::MIN / 2])),
        binary(
            "the smallest integer",
            "FloorDiv",
            &[i8::MIN, 127],
            &[127, i8::MIN],
        )
        .gives(tensor(&[2], &[-2i8, -1])),
        binary("the smallest integer", "TruncateMod", &[i64::MIN], &[-1])
            .gives(tensor(&[1], &[0i64])),
        binary(
            "what is not finite",
            "FloorDiv",
            &[1.0f32, -1.0, 0.0, 7.0],
            &[0.0, 0.0, 0.0, -INF],
        )
        .gives(tensor(&[4], &[INF, -INF, NAN, -0.0])),
        binary(
            "what is not finite",
            "Div",
            &[1.0f32, -1.0, 0.0],
            &[0.0, 0.0, 0.0],
        )
        .gives(tensor(&[3], &[INF, -INF, NAN])),
        binary(
            "by zero",
            "DivNoNan",
            &[1.0f32, 0.0, NAN, 3.0, INF],
            &[0.0, -0.0, 0.0, 2.0, 2.0],
        )
        .gives(tensor(&[5], &[0.0, 0.0, 0.0, 1.5, INF])),
        binary("double", "DivNoNan", &[3.0f64, 1.0], &[2.0, 0.0])
            .gives(tensor(&[2], &[1.5f64, 0.0])),
        binary("half", "DivNoNan", &[f16::ONE], &[f16::ZERO]).gives(tensor(&[1], &[f16::ZERO])),
        binary("bfloat16", "DivNoNan", &[bf16::ONE], &[bf16::ZERO])
            .gives(tensor(&[1], &[bf16::ZERO])),
        binary("integers", "DivNoNan", &[1], &[1]).refused("no kernel"),
        binary("shapes that do not meet", "FloorDiv", &[1, 2], &[1, 2, 3])
            .refused("incompatible shapes: [2] vs. [3]"),
        binary("broadcast", "FloorDiv", &[7, 8, -9], &[2]).gives(tensor(&[3], &[3, 4, -5])),
    ];
    for op in ["FloorDiv", "TruncateDiv", "Div", "Mod", "TruncateMod"] {
        cases.extend([
            binary("an integer by zero", op, &[1, 2], &[1, 0]).refused("integer division by zero"),
            binary("nothing by zero", op, &[] as &[i32], &[0]).gives(tensor::<i32>(&[0], &[])),
        ]);
    }
    macro_rules! integers {
        ($($rust:ty),*) => { vec![$(
            binary::<$rust>(stringify!($rust), "FloorDiv", &[7], &[2]).gives(tensor::<$rust>(&[1], &[3])),
            binary::<$rust>(stringify!($rust), "TruncateDiv", &[7], &[2]).gives(tensor::<$rust>(&[1], &[3])),
            binary::<$rust>(stringify!($rust), "Div", &[7], &[2]).gives(tensor::<$rust>(&[1], &[3])),
        )*] };
    }
    cases.extend(integers!(i8, i16, i32, i64, u8, u16, u32, u64));
    cases.extend(floats::<f32>("f32", |x| x));
    cases.extend(floats::<f64>("f64", f64::from));
    cases.extend(floats::<f16>("f16", f16::from_f32));
    cases.extend(floats::<bf16>("bf16", bf16::from_f32));
    cases
}

fn floats<T: Element>(name: &str, from: fn(f32) -> T) -> [Case; 2] {
    [
        binary(name, "FloorDiv", &[from(-7.0)], &[from(2.0)]).gives(tensor(&[1], &[from(-4.0)])),
        binary(name, "Div", &[from(7.0)], &[from(2.0)]).gives(tensor(&[1], &[from(3.5)])),
    ]
}

fn add_n(name: &str, inputs: &[Tensor]) -> Case {
    let start = case(&format!("AddN: {name}"), "AddN")
        .typed("T", inputs[0].dtype())
        .int("N", i64::try_from(inputs.len()).expect("few"));
    inputs
        .iter()
        .fold(start, |case, input| case.input(input.clone()))
}

fn clip<T: Element>(name: &str, value: &[T], low: Tensor, high: Tensor) -> Case {
    case(&format!("ClipByValue: {name}"), "ClipByValue")
        .typed("T", T::DTYPE)
        .input(tensor(&[value.len()], value))
        .input(low)
        .input(high)
}

fn several() -> Vec<Case> {
    let scalar = |x: f32| tensor(&[], &[x]);
    let row = |values: &[f32]| tensor(&[values.len()], values);
    let values = [-5.0, 0.5, 5.0, NAN, INF];
    let mut cases = vec![
        add_n("three", &[row(&[1.0, 2.0]), row(&[3.0, 4.0]), row(&[0.5, INF])]).gives(row(&[4.5, INF])),
        add_n("one", &[row(&[1.0, 2.0])]).gives(row(&[1.0, 2.0])),
        add_n("nothing", &[row(&[]), row(&[])]).gives(row(&[])),
        add_n("different shapes", &[row(&[1.0, 2.0]), row(&[3.0])])
            .refused("must have the same size and shape. Input 0: [2] != input 1: [1]"),
        clip("scalars", &values, scalar(-1.0), scalar(1.0)).gives(row(&[-1.0, 0.5, 1.0, NAN, 1.0])),
        clip("a low tensor", &values, row(&[0.0; 5]), scalar(1.0)).gives(row(&[0.0, 0.5, 1.0, NAN, 1.0])),
        clip("a high tensor", &values, scalar(-1.0), row(&[0.0; 5])).gives(row(&[-1.0, 0.0, 0.0, NAN, 0.0])),
        clip("tensors", &values, row(&[-9.0; 5]), row(&[9.0; 5])).gives(row(&[-5.0, 0.5, 5.0, NAN, 9.0])),
        clip("bounds that are no numbers", &values[..3], scalar(NAN), scalar(NAN)).gives(row(&values[..3])),
        clip("bounds the wrong way round", &values[..3], scalar(2.0), scalar(1.0)).gives(row(&[2.0; 3])),
        clip("nothing", &[] as &[f32], scalar(0.0), scalar(1.0)).gives(row(&[])),
        clip("bounds of another shape", &values, row(&[0.0; 2]), scalar(1.0))
            .refused("must be either of the same shape as input, or a scalar. input shape: [5], clip_value_min shape: [2], clip_value_max shape: []"),
        clip("unsigned longs", &[1u64], tensor(&[], &[1u64]), tensor(&[], &[1u64])).refused("no kernel"),
        case("ClipByValue: a scalar", "ClipByValue")
            .typed("T", DType::I32)
            .input(tensor(&[], &[7]))
            .input(tensor(&[], &[1]))
            .input(tensor(&[], &[5]))
            .gives(tensor(&[], &[5])),
    ];
    macro_rules! types {
        ($clipped:ident, $($rust:ty, $of:expr);*) => { $(
            let [one, two, three] = [1u8, 2, 3].map($of);
            cases.push(add_n(stringify!($rust), &[tensor(&[1], &[one]), tensor(&[1], &[two])]).gives(tensor(&[1], &[three])));
            if $clipped {
                cases.push(
                    clip(stringify!($rust), &[one, two, three], tensor(&[], &[two]), tensor(&[], &[two])).gives(tensor(&[3], &[two; 3])),
                );
            }
        )* };
    }
    let clipped = true;
    types! {
        clipped, f32, f32::from; f64, f64::from; f16, f16::from; bf16, |x| bf16::from_f32(f32::from(x));
        i8, |x: u8| i8::try_from(x).expect("small"); i16, i16::from; i32, i32::from; i64, i64::from;
        u8, |x: u8| x; u16, u16::from
    }
    let clipped = false;
    types! { clipped, u32, u32::from; u64, u64::from }
    let (a, b) = (noise(50_001, 1), noise(50_001, 2));
    let expected: Vec<f32> = a.iter().zip(&b).map(|(x, y)| x + y + x).collect();
    cases.push(add_n("many", &[row(&a), row(&b), row(&a)]).gives(row(&expected)));
    cases
}
