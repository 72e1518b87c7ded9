//! Elementwise functions of one operand.

use half::bf16;
use half::f16;
use placewright::tensor::Element;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

/// An op and its formula.
type Formula = (&'static str, fn(f64) -> f64);

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn unary<T: Element>(name: &str, op: &'static str, values: &[T]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", T::DTYPE)
        .input(tensor(&[values.len()], values))
}

pub(crate) fn cases() -> Vec<Case> {
    let edges = [NAN, INF, -INF, -0.0f32];
    let mut cases = vec![
        unary("edges", "Floor", &[NAN, INF, -0.5, -0.0, 1.5])
            .gives_bits(tensor(&[5], &[NAN, INF, -1.0, -0.0, 1.0])),
        unary("halves to even", "Rint", &[0.5f32, 1.5, -0.5, -2.5])
            .gives(tensor(&[4], &[0.0f32, 2.0, -0.0, -2.0])),
        unary("an integer", "Floor", &[1i32]).refused("no kernel"),
        unary("edges", "Tanh", &edges).gives_bits(tensor(&[4], &[NAN, 1.0, -1.0, -0.0])),
        unary("edges", "Exp", &edges).gives(tensor(&[4], &[NAN, INF, 0.0, 1.0])),
        unary("edges", "Sigmoid", &edges).gives(tensor(&[4], &[NAN, 1.0, 0.0, 0.5])),
        unary("edges", "Erf", &[NAN, INF, -INF]).gives(tensor(&[3], &[NAN, 1.0, -1.0])),
        unary("edges", "Log", &[0.0f32, -1.0, INF, 1.0])
            .gives(tensor(&[4], &[-INF, NAN, INF, 0.0])),
        unary("edges", "Sqrt", &[-1.0f32, INF, 4.0, -0.0])
            .gives_bits(tensor(&[4], &[NAN, INF, 2.0, -0.0])),
        unary("edges", "Rsqrt", &[0.0f32, -1.0, 4.0, INF])
            .gives(tensor(&[4], &[INF, NAN, 0.5, 0.0])),
        unary("edges", "Neg", &[0.0f32, INF, -2.0]).gives_bits(tensor(&[3], &[-0.0f32, -INF, 2.0])),
        unary("the smallest integer", "Neg", &[i32::MIN, 5]).gives(tensor(&[2], &[i32::MIN, -5])),
        unary("edges", "Abs", &[-0.0f32, -INF, NAN]).gives_bits(tensor(&[3], &[0.0f32, INF, NAN])),
        unary("the smallest integer", "Abs", &[i8::MIN, -3]).gives(tensor(&[2], &[i8::MIN, 3])),
        unary("integers wrap around", "Square", &[16u8, 3]).gives(tensor(&[2], &[0u8, 9])),
        unary("edges", "Relu", &[NAN, INF, -INF, -1.0, 2.0])
            .gives(tensor(&[5], &[NAN, INF, 0.0, 0.0, 2.0])),
        unary("integers", "Relu", &[i64::MIN, -1, 0, 9]).gives(tensor(&[4], &[0i64, 0, 0, 9])),
        unary("edges", "Relu6", &[NAN, INF, -1.0, 2.0, 6.5])
            .gives(tensor(&[5], &[NAN, 6.0, 0.0, 2.0, 6.0])),
        unary::<f32>("nothing", "Tanh", &[]).gives(tensor::<f32>(&[0], &[])),
    ];
    let formulas: [Formula; 9] = [
        ("Floor", f64::floor),
        ("Ceil", f64::ceil),
        ("Exp", f64::exp),
        ("Log", |x| x.abs().ln()),
        ("Sqrt", |x| x.abs().sqrt()),
        ("Rsqrt", |x| 1.0 / x.abs().sqrt()),
        ("Sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
        ("Tanh", f64::tanh),
        ("Erf", integral_of_the_bell),
    ];
    for (op, formula) in formulas {
        // Long enough for several threads, and not a multiple of any vector length.
        let input: Vec<f32> = noise(40_003, 9).iter().map(|x| x * 4.0).collect();
        let positive = matches!(op, "Log" | "Sqrt" | "Rsqrt");
        let input: Vec<f32> = input
            .iter()
            .map(|x| if positive { x.abs() + 0.001 } else { *x })
            .collect();
        let double: Vec<f64> = input.iter().map(|&x| formula(x.into())).collect();
        #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
        let single: Vec<f32> = double.iter().map(|&y| y as f32).collect();
        // The library's functions are accurate to a few units in the last place; its error function
        // to 7e-7.
        cases.push(unary("float", op, &input).gives_within(tensor(&[40_003], &single), 1e-6));
        let few = &input[..100];
        let wide: Vec<f64> = few.iter().map(|&x| x.into()).collect();
        cases.push(unary("double", op, &wide).gives_within(tensor(&[100], &double[..100]), 1e-9));
        // f16 and bf16: the input is rounded first, the result to 11 or 8 bits.
        let half: Vec<f16> = few.iter().map(|&x| f16::from_f32(x)).collect();
        let expected: Vec<f16> = half
            .iter()
            .map(|x| f16::from_f64(formula(x.to_f64())))
            .collect();
        cases.push(unary("half", op, &half).gives_within(tensor(&[100], &expected), 1e-3));
        let brain: Vec<bf16> = few.iter().map(|&x| bf16::from_f32(x)).collect();
        let expected: Vec<bf16> = brain
            .iter()
            .map(|x| bf16::from_f64(formula(x.to_f64())))
            .collect();
        cases.push(unary("bfloat16", op, &brain).gives_within(tensor(&[100], &expected), 8e-3));
    }
    cases
}

/// The error function by its definition: Simpson's rule over 2000 intervals, accurate to 1e-11 up
/// to 4.
fn integral_of_the_bell(x: f64) -> f64 {
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
