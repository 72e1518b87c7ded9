//! Complex numbers: arithmetic, functions, sums and products, parts. Expected values come from
//! tensorflow-cpu 2.21.

use placewright::tensor::Complex64;
use placewright::tensor::Complex128;
use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::tensor;

/// Rounding error of some operations in single precision.
const SINGLE: f64 = 1e-6;

fn c(re: f64, im: f64) -> Complex128 {
    Complex128 { re, im }
}

fn single(values: &[Complex128]) -> Vec<Complex64> {
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    let narrow = |z: &Complex128| Complex64 {
        re: z.re as f32,
        im: z.im as f32,
    };
    values.iter().map(narrow).collect()
}

/// Creates the same case in both types.
fn both(
    name: &str,
    op: &'static str,
    inputs: &[(&[usize], &[Complex128])],
    expected: (&[usize], &[Complex128]),
    with: impl Fn(Case) -> Case,
) -> Vec<Case> {
    let made = |dtype: DType, of: &dyn Fn(&[usize], &[Complex128]) -> Tensor| {
        let start = case(&format!("{op}: {name}, {dtype}"), op).typed("T", dtype);
        let inputs = inputs.iter().map(|(dims, values)| of(dims, values));
        let case = inputs.fold(start, |case, input| case.input(input));
        with(case).gives_within(of(expected.0, expected.1), SINGLE)
    };
    vec![
        made(DType::Complex64, &|dims, values| {
            tensor(dims, &single(values))
        }),
        made(DType::Complex128, &|dims, values| tensor(dims, values)),
    ]
}

fn elementwise() -> Vec<Case> {
    let (a, b) = ([c(1.0, 2.0), c(-3.0, 0.5)], [c(2.0, -1.0), c(0.5, 0.5)]);
    let binary: [(&'static str, [Complex128; 2]); 10] = [
        ("Add", [c(3.0, 1.0), c(-2.5, 1.0)]),
        ("AddV2", [c(3.0, 1.0), c(-2.5, 1.0)]),
        ("Div", [c(0.0, 1.0), c(-2.5, 3.5)]),
        ("Sub", [c(-1.0, 3.0), c(-3.5, 0.0)]),
        ("Mul", [c(4.0, 3.0), c(-1.75, -1.25)]),
        ("RealDiv", [c(0.0, 1.0), c(-2.5, 3.5)]),
        ("DivNoNan", [c(0.0, 1.0), c(-2.5, 3.5)]),
        ("SquaredDifference", [c(10.0, 0.0), c(12.25, 0.0)]),
        ("Xdivy", [c(0.0, 1.0), c(-2.5, 3.5)]),
        (
            "Xlogy",
            [c(1.732_014_17, 1.145_790_3), c(0.647_021_69, -2.529_481_28)],
        ),
    ];
    let mut cases: Vec<Case> = binary
        .iter()
        .flat_map(|(op, expected)| {
            both(
                "plain",
                op,
                &[(&[2], &a), (&[2], &b)],
                (&[2], expected),
                |case| case,
            )
        })
        .collect();
    let powers: [(&[usize], &[Complex128]); 2] = [
        (&[2], &[c(1.0, 1.0), c(-1.0, 0.0)]),
        (&[2], &[c(2.0, 0.0), c(0.5, 0.0)]),
    ];
    cases.extend(both(
        "plain",
        "Pow",
        &powers,
        (&[2], &[c(0.0, 2.0), c(0.0, 1.0)]),
        |case| case,
    ));
    let z = [c(2.0, 3.0)];
    for (op, expected) in [
        ("Neg", c(-2.0, -3.0)),
        ("Square", c(-5.0, 12.0)),
        ("Exp", c(-7.315_110_094_9, 1.042_743_656_2)),
        ("Log", c(1.282_474_678_7, 0.982_793_723_2)),
        ("Sqrt", c(1.674_149_228, 0.895_977_476_1)),
        ("Rsqrt", c(0.464_325_453, -0.248_499_441)),
        ("Reciprocal", c(2.0 / 13.0, -3.0 / 13.0)),
        ("Sin", c(9.154_499_147, -4.168_906_96)),
        ("Tanh", c(0.965_385_879, -0.009_884_375_04)),
        ("Sigmoid", c(1.154_147_65, 0.025_452_681_2)),
        ("Sign", c(0.554_700_196, 0.832_050_294)),
        ("Conj", c(2.0, -3.0)),
        ("Inv", c(0.153_846_153_846, -0.230_769_230_769)),
        ("Cos", c(-4.189_625_690_969, -9.109_227_893_755)),
        ("Tan", c(-0.003_764_025_642, 1.003_238_627_354)),
        ("Sinh", c(-3.590_564_589_986, 0.530_921_086_249)),
        ("Cosh", c(-3.724_545_504_915, 0.511_822_569_987)),
        ("Asin", c(0.570_652_784_321, 1.983_387_029_917)),
        ("Acos", c(1.000_143_542_474, -1.983_387_029_917)),
        ("Atan", c(1.409_921_049_597, 0.229_072_682_969)),
        ("Asinh", c(1.968_637_925_793, 0.964_658_504_408)),
        ("Acosh", c(1.983_387_029_917, 1.000_143_542_474)),
        ("Atanh", c(0.146_946_666_226, 1.338_972_522_294)),
        ("Log1p", c(1.445_185_878_948, std::f64::consts::FRAC_PI_4)),
        ("Expm1", c(-8.315_110_094_901, 1.042_743_656_236)),
    ] {
        cases.extend(both(
            "plain",
            op,
            &[(&[1], &z)],
            (&[1], &[expected]),
            |case| case,
        ));
    }
    let bounds: [(&[usize], &[Complex128]); 3] = [
        (&[2], &[c(1.0, 2.0), c(3.0, -4.0)]),
        (&[], &[c(0.0, 3.0)]),
        (&[], &[c(2.0, -1.0)]),
    ];
    let clipped = [c(1.0, 3.0), c(2.0, 3.0)];
    cases.extend(both(
        "each part",
        "ClipByValue",
        &bounds,
        (&[2], &clipped),
        |case| case,
    ));
    let zero: [(&[usize], &[Complex128]); 2] = [(&[1], &z), (&[1], &[c(0.0, 0.0)])];
    cases.extend(both(
        "by zero",
        "DivNoNan",
        &zero,
        (&[1], &[c(0.0, 0.0)]),
        |case| case,
    ));
    for op in ["Xdivy", "Xlogy"] {
        let nothing: (&[usize], &[Complex128]) = (&[1], &[c(0.0, 0.0)]);
        cases.extend(both("0 wins", op, &[nothing, nothing], nothing, |case| {
            case
        }));
    }
    cases
}

fn sums_and_products() -> Vec<Case> {
    let m: (&[usize], &[Complex128]) = (&[1, 2], &[c(1.0, 2.0), c(3.0, -1.0)]);
    let mut cases = Vec::new();
    for (op, expected) in [
        ("Sum", c(4.0, 1.0)),
        ("Mean", c(2.0, 0.5)),
        ("Prod", c(5.0, 5.0)),
    ] {
        cases.extend(both("a row", op, &[m], (&[1], &[expected]), |case| {
            case.typed("Tidx", DType::I32)
                .named_input("reduction_indices", tensor(&[1], &[1]))
        }));
    }
    for (op, running) in [
        ("Cumsum", [c(1.0, 2.0), c(4.0, 1.0)]),
        ("Cumprod", [c(1.0, 2.0), c(5.0, 5.0)]),
    ] {
        cases.extend(both("a row", op, &[m], (&[1, 2], &running), |case| {
            case.typed("Tidx", DType::I32)
                .named_input("axis", tensor(&[], &[1]))
        }));
    }
    let twice = [c(2.0, 4.0), c(6.0, -2.0)];
    cases.extend(both("a row", "AddN", &[m, m], (&[1, 2], &twice), |case| {
        case.int("N", 2)
    }));
    let bias: (&[usize], &[Complex128]) = (&[2], &[c(0.0, 1.0), c(1.0, 0.0)]);
    let shifted = [c(1.0, 3.0), c(4.0, -1.0)];
    cases.extend(both(
        "a row",
        "BiasAdd",
        &[m, bias],
        (&[1, 2], &shifted),
        |case| case,
    ));
    cases.extend(both(
        "plain",
        "BatchMatMul",
        &[m, (&[2, 1], &[c(1.0, 0.0), c(0.0, 1.0)])],
        (&[1, 1], &[c(2.0, 5.0)]),
        |case| case,
    ));
    let gram = [c(5.0, 0.0), c(1.0, -7.0), c(1.0, 7.0), c(10.0, 0.0)];
    cases.extend(both(
        "the adjoint",
        "BatchMatMulV2",
        &[m, m],
        (&[2, 2], &gram),
        |case| case.bool("adj_x", true),
    ));
    let square = [c(-3.0, 4.0), c(5.0, 5.0), c(5.0, 5.0), c(8.0, -6.0)];
    cases.extend(both(
        "transposed",
        "MatMul",
        &[m, m],
        (&[2, 2], &square),
        |case| case.bool("transpose_a", true),
    ));
    cases.extend(both(
        "an equation",
        "Einsum",
        &[m, m],
        (&[2, 2], &square),
        |case| case.text("equation", "ij,ik->jk").int("N", 2),
    ));
    cases
}

fn parts() -> Vec<Case> {
    let z = [c(3.0, -4.0), c(-1.0, 0.0)];
    let mut cases = Vec::new();
    for (op, expected) in [
        ("Real", [3.0, -1.0]),
        ("Imag", [-4.0, 0.0]),
        ("ComplexAbs", [5.0, 1.0]),
        ("Angle", [-0.927_295_218_001_612, std::f64::consts::PI]),
    ] {
        let start = |dtype: DType, part: DType| {
            case(&format!("{op}: {dtype}"), op)
                .typed("T", dtype)
                .typed("Tout", part)
        };
        #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
        let narrow = expected.map(|x| x as f32);
        cases.push(
            start(DType::Complex64, DType::F32)
                .input(tensor(&[2], &single(&z)))
                .gives_within(tensor(&[2], &narrow), SINGLE),
        );
        cases.push(
            start(DType::Complex128, DType::F64)
                .input(tensor(&[2], &z))
                .gives_within(tensor(&[2], &expected), 1e-15),
        );
    }
    cases.push(
        case("Complex: broadcast", "Complex")
            .typed("T", DType::F64)
            .typed("Tout", DType::Complex128)
            .input(tensor(&[2], &[1.0, 2.0]))
            .input(tensor(&[], &[3.0]))
            .gives(tensor(&[2], &[c(1.0, 3.0), c(2.0, 3.0)])),
    );
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let families = [elementwise(), sums_and_products(), parts()];
    families.into_iter().flatten().collect()
}
