//! Factorizations of matrices, and Fourier transforms.

use half::f16;
use placewright::tensor::Complex64;
use placewright::tensor::Complex128;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = of_type(|re, _| f64::from(re), 1e-12);
    cases.extend(of_type(|re, _| re, 1e-5));
    cases.extend(of_type(Complex64::new, 1e-5));
    cases.extend(of_type(
        |re, im| Complex128::new(re.into(), im.into()),
        1e-12,
    ));
    cases.extend(edges());
    cases.extend(spectra());
    cases.extend(transforms());
    cases
}

fn on(op: &'static str, name: &str, inputs: &[Tensor]) -> Case {
    let case = case(&format!("{op}: {name}"), op).typed("T", inputs[0].dtype());
    inputs
        .iter()
        .fold(case, |case, input| case.input(input.clone()))
}

/// Cases of known results; `number` makes one of real and imaginary part, which real types ignore.
fn of_type<T: Element>(number: impl Fn(f32, f32) -> T, tolerance: f64) -> Vec<Case> {
    let real = |dims: &[usize], values: &[f32]| {
        tensor(
            dims,
            &values.iter().map(|&x| number(x, 0.0)).collect::<Vec<T>>(),
        )
    };
    let whole = |dims: &[usize], values: &[[f32; 2]]| {
        tensor(
            dims,
            &values
                .iter()
                .map(|&[re, im]| number(re, im))
                .collect::<Vec<T>>(),
        )
    };
    let name = format!("{}", T::DTYPE);
    let is_complex = matches!(T::DTYPE, DType::Complex64 | DType::Complex128);
    // The lower factor is [[2, 0], [1 - i, 3]].
    let lower = whole(&[2, 2], &[[2.0, 0.0], [0.0, 0.0], [1.0, -1.0], [3.0, 0.0]]);
    let product = whole(
        &[2, 2],
        &[
            [4.0, 0.0],
            [2.0, 2.0],
            [2.0, -2.0],
            [if is_complex { 11.0 } else { 10.0 }, 0.0],
        ],
    );
    let a = real(&[1, 2, 2], &[1.0, 2.0, 3.0, 5.0]);
    let inverse = real(&[1, 2, 2], &[-5.0, 2.0, 3.0, -1.0]);
    let transposed = real(&[1, 2, 2], &[-5.0, 3.0, 2.0, -1.0]);
    let right = real(&[1, 2, 1], &[8.0, 21.0]);
    let triangle = real(&[2, 2], &[2.0, 9.0, 1.0, 4.0]);
    vec![
        on("Cholesky", &name, &[product]).gives_within(lower, tolerance),
        on("MatrixInverse", &name, std::slice::from_ref(&a)).gives_within(inverse, tolerance),
        on(
            "MatrixInverse",
            &format!("{name}, adjoint"),
            std::slice::from_ref(&a),
        )
        .bool("adjoint", true)
        .gives_within(transposed, tolerance),
        on("MatrixSolve", &name, &[a.clone(), right.clone()])
            .gives_within(real(&[1, 2, 1], &[2.0, 3.0]), tolerance),
        on(
            "MatrixSolve",
            &format!("{name}, adjoint"),
            &[a.clone(), right],
        )
        .bool("adjoint", true)
        .gives_within(real(&[1, 2, 1], &[23.0, -5.0]), tolerance),
        on(
            "MatrixTriangularSolve",
            &format!("{name}, lower"),
            &[triangle.clone(), real(&[2, 2], &[2.0, 4.0, 9.0, 2.0])],
        )
        .gives_within(real(&[2, 2], &[1.0, 2.0, 2.0, 0.0]), tolerance),
        on(
            "MatrixTriangularSolve",
            &format!("{name}, upper, broadcast"),
            &[triangle.clone(), real(&[2, 2, 1], &[11.0, 4.0, 20.0, 8.0])],
        )
        .bool("lower", false)
        .gives_within(real(&[2, 2, 1], &[1.0, 1.0, 1.0, 2.0]), tolerance),
        on(
            "MatrixTriangularSolve",
            &format!("{name}, adjoint"),
            &[triangle, real(&[2, 1], &[3.0, 4.0])],
        )
        .bool("adjoint", true)
        .gives_within(real(&[2, 1], &[1.0, 1.0]), tolerance),
        on("MatrixDeterminant", &name, std::slice::from_ref(&a))
            .gives_within(real(&[1], &[-1.0]), tolerance),
        on(
            "LogMatrixDeterminant",
            &name,
            &[real(&[2, 2], &[0.0, 1.0, 1.0, 0.0])],
        )
        .gives_all_within(vec![real(&[], &[-1.0]), real(&[], &[0.0])], tolerance),
        on("Lu", &name, std::slice::from_ref(&a))
            .typed("output_idx_type", DType::I64)
            .gives_all_within(
                vec![
                    real(&[1, 2, 2], &[3.0, 5.0, 1.0 / 3.0, 1.0 / 3.0]),
                    tensor(&[1, 2], &[1i64, 0]),
                ],
                // A third is rounded to float before it is widened.
                tolerance.max(1e-7),
            ),
        // The exponential of a nilpotent matrix.
        on(
            "MatrixExponential",
            &name,
            &[real(
                &[3, 3],
                &[0.0, 1.0, 2.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0],
            )],
        )
        .gives_within(
            real(&[3, 3], &[1.0, 1.0, 4.0, 0.0, 1.0, 4.0, 0.0, 0.0, 1.0]),
            tolerance,
        ),
        on(
            "Svd",
            &format!("{name}, values"),
            &[real(&[2, 2], &[0.0, 2.0, 3.0, 0.0])],
        )
        .bool("compute_uv", false)
        .gives_all_within(
            vec![
                real(&[2], &[3.0, 2.0]),
                real(&[], &[0.0]),
                real(&[], &[0.0]),
            ],
            tolerance,
        ),
        on(
            "SelfAdjointEigV2",
            &format!("{name}, values"),
            &[whole(
                &[2, 2],
                &[[2.0, 0.0], [9.0, 9.0], [1.0, 0.0], [2.0, 0.0]],
            )],
        )
        .bool("compute_v", false)
        .gives_all_within(vec![real(&[2], &[1.0, 3.0]), real(&[], &[0.0])], tolerance),
    ]
}

fn counted(dims: &[usize]) -> Tensor {
    tensor(dims, &noise(dims.iter().product(), 8))
}

fn edges() -> Vec<Case> {
    let none = tensor::<f32>(&[0, 3, 3], &[]);
    let empty = tensor::<f32>(&[2, 0, 0], &[]);
    let (singular, wide) = (tensor(&[2, 2], &[1.0f32, 2.0, 2.0, 4.0]), counted(&[2, 3]));
    let mut cases = Vec::new();
    for op in ["Cholesky", "MatrixInverse", "MatrixExponential"] {
        cases.push(on(op, "no matrices", std::slice::from_ref(&none)).gives(none.clone()));
        cases.push(on(op, "empty matrices", std::slice::from_ref(&empty)).gives(empty.clone()));
        cases.push(
            on(op, "not square", std::slice::from_ref(&wide))
                .refused("input matrices must be square"),
        );
        cases.push(on(op, "a vector", &[counted(&[2])]).refused("must have rank >= 2"));
    }
    let half = |values: &[f32]| {
        tensor(
            &[2, 2],
            &values
                .iter()
                .map(|&x| f16::from_f32(x))
                .collect::<Vec<f16>>(),
        )
    };
    cases.extend([
        on("Cholesky", "not positive", &[tensor(&[1, 1], &[-1.0f32])])
            .gives(tensor(&[1, 1], &[f32::NAN])),
        on("MatrixInverse", "singular", std::slice::from_ref(&singular))
            .refused("Input is not invertible."),
        on("MatrixInverse", "half", &[half(&[2.0, 0.0, 0.0, 4.0])])
            .gives(half(&[0.5, 0.0, 0.0, 0.25])),
        on("Lu", "singular", std::slice::from_ref(&singular))
            .with_outputs(2)
            .refused("Input is not invertible."),
        on(
            "MatrixSolve",
            "singular",
            &[singular.clone(), counted(&[2, 1])],
        )
        .refused("Input matrix is not invertible."),
        on(
            "MatrixSolve",
            "no columns",
            &[singular.clone(), tensor::<f32>(&[2, 0], &[])],
        )
        .gives(tensor::<f32>(&[2, 0], &[])),
        on(
            "MatrixSolve",
            "other rows",
            &[singular.clone(), counted(&[3, 1])],
        )
        .refused("input matrix and rhs are incompatible"),
        on(
            "MatrixTriangularSolve",
            "singular",
            &[
                tensor(&[2, 2], &[1.0f32, 0.0, 1.0, 0.0]),
                tensor(&[2, 1], &[3.0f32, 5.0]),
            ],
        )
        .gives(tensor(&[2, 1], &[3.0, f32::INFINITY])),
        on(
            "MatrixTriangularSolve",
            "other rows",
            &[singular.clone(), counted(&[3, 1])],
        )
        .refused("mismatch"),
        on(
            "MatrixDeterminant",
            "singular",
            std::slice::from_ref(&singular),
        )
        .gives(tensor(&[], &[0.0f32])),
        on(
            "MatrixDeterminant",
            "empty matrices",
            std::slice::from_ref(&empty),
        )
        .gives(tensor(&[2], &[1.0f32; 2])),
        on(
            "MatrixDeterminant",
            "not square",
            std::slice::from_ref(&wide),
        )
        .refused("input matrices must be square"),
        on("LogMatrixDeterminant", "singular", &[singular]).gives_all(vec![
            tensor(&[], &[0.0f32]),
            tensor(&[], &[f32::NEG_INFINITY]),
        ]),
        on("Qr", "a column", &[tensor(&[2, 1], &[3.0f32, 4.0])]).gives_all_within(
            vec![
                tensor(&[2, 1], &[-0.6f32, -0.8]),
                tensor(&[1, 1], &[-5.0f32]),
            ],
            1e-6,
        ),
        on(
            "Qr",
            "a column, all vectors",
            &[tensor(&[2, 1], &[3.0f32, 4.0])],
        )
        .bool("full_matrices", true)
        .gives_all_within(
            vec![
                tensor(&[2, 2], &[-0.6f32, -0.8, -0.8, 0.6]),
                tensor(&[2, 1], &[-5.0f32, 0.0]),
            ],
            1e-6,
        ),
        on("Qr", "wide", &[tensor(&[1, 1, 2], &[2.0f64, 3.0])]).gives_all(vec![
            tensor(&[1, 1, 1], &[1.0f64]),
            tensor(&[1, 1, 2], &[2.0f64, 3.0]),
        ]),
        on(
            "Qr",
            "complex",
            &[tensor(
                &[2, 1],
                &[Complex128::new(0.0, 3.0), Complex128::new(4.0, 0.0)],
            )],
        )
        .gives_all_within(
            vec![
                tensor(
                    &[2, 1],
                    &[Complex128::new(0.0, -0.6), Complex128::new(-0.8, 0.0)],
                ),
                tensor(&[1, 1], &[Complex128::new(-5.0, 0.0)]),
            ],
            1e-14,
        ),
        on("Qr", "no rows", &[tensor::<f32>(&[0, 2], &[])]).gives_all(vec![
            tensor::<f32>(&[0, 0], &[]),
            tensor::<f32>(&[0, 2], &[]),
        ]),
        on("Qr", "a vector", &[counted(&[2])])
            .with_outputs(2)
            .refused("must have rank >= 2"),
        on("Svd", "no columns", &[tensor::<f32>(&[2, 0], &[])])
            .bool("full_matrices", true)
            .gives_all(vec![
                tensor::<f32>(&[0], &[]),
                tensor(&[2, 2], &[1.0f32, 0.0, 0.0, 1.0]),
                tensor::<f32>(&[0, 0], &[]),
            ]),
        on("Svd", "a vector", &[counted(&[2])])
            .with_outputs(3)
            .refused("must have rank >= 2"),
        on("SelfAdjointEigV2", "not square", &[wide])
            .with_outputs(2)
            .refused("input matrices must be square"),
        on("SelfAdjointEigV2", "no matrices", &[none]).gives_all(vec![
            tensor::<f32>(&[0, 3], &[]),
            tensor::<f32>(&[0, 3, 3], &[]),
        ]),
    ]);
    cases
}

/// Vectors that are unique up to their sign, which is that of the rotations here.
fn spectra() -> Vec<Case> {
    let half = 0.5f64.sqrt();
    vec![
        on(
            "SelfAdjointEigV2",
            "vectors",
            &[tensor(&[2, 2], &[2.0f64, 0.0, 1.0, 2.0])],
        )
        .gives_all_within(
            vec![
                tensor(&[2], &[1.0f64, 3.0]),
                tensor(&[2, 2], &[half, half, -half, half]),
            ],
            1e-14,
        ),
        on(
            "SelfAdjointEigV2",
            "diagonal",
            &[tensor(&[1, 2, 2], &[5.0f32, 0.0, 0.0, 4.0])],
        )
        .gives_all(vec![
            tensor(&[1, 2], &[4.0f32, 5.0]),
            tensor(&[1, 2, 2], &[0.0f32, 1.0, 1.0, 0.0]),
        ]),
        on(
            "Svd",
            "diagonal, wide",
            &[tensor(&[2, 3], &[2.0f32, 0.0, 0.0, 0.0, 3.0, 0.0])],
        )
        .gives_all(vec![
            tensor(&[2], &[3.0f32, 2.0]),
            tensor(&[2, 2], &[0.0f32, 1.0, 1.0, 0.0]),
            tensor(&[3, 2], &[0.0f32, 1.0, 1.0, 0.0, 0.0, 0.0]),
        ]),
    ]
}

fn transform(op: &'static str, name: &str, x: Tensor, lengths: Option<&[i32]>) -> Case {
    let (double, is_real) = (
        matches!(x.dtype(), DType::F64 | DType::Complex128),
        lengths.is_some(),
    );
    let case = case(&format!("{op}: {name}"), op)
        .typed(
            "Tcomplex",
            if double {
                DType::Complex128
            } else {
                DType::Complex64
            },
        )
        .input(x);
    match lengths {
        Some(lengths) if is_real => case
            .typed("Treal", if double { DType::F64 } else { DType::F32 })
            .named_input("fft_length", tensor(&[lengths.len()], lengths)),
        _ => case,
    }
}

/// The discrete transform of `[batch, sizes]` by its definition; `sign` is -1 forward.
fn dft(x: &[Complex128], sizes: &[usize], sign: f64) -> Vec<Complex128> {
    let whole: usize = sizes.iter().product();
    let digits = |mut flat: usize| {
        let mut index = vec![0; sizes.len()];
        for (slot, size) in index.iter_mut().zip(sizes).rev() {
            *slot = flat % size;
            flat /= size;
        }
        index
    };
    let mut out = Vec::new();
    for block in x.chunks_exact(whole) {
        for to in 0..whole {
            let mut sum = Complex128::new(0.0, 0.0);
            for (from, x) in block.iter().enumerate() {
                let pairs = digits(to).into_iter().zip(digits(from)).zip(sizes);
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                let turns: f64 = pairs
                    .map(|((a, b), n)| (a * b % n) as f64 / *n as f64)
                    .sum();
                sum += x * Complex128::from_polar(1.0, sign * std::f64::consts::TAU * turns);
            }
            out.push(sum);
        }
    }
    out
}

fn transforms() -> Vec<Case> {
    let mut cases = Vec::new();
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    let narrow = |values: &[Complex128]| -> Vec<Complex64> {
        values
            .iter()
            .map(|z| Complex64::new(z.re as f32, z.im as f32))
            .collect()
    };
    for (ops, sizes) in [
        (["FFT", "IFFT", "RFFT", "IRFFT"], &[7][..]),
        (["FFT", "IFFT", "RFFT", "IRFFT"], &[8]),
        (["FFT", "IFFT", "RFFT", "IRFFT"], &[1]),
        (["FFT2D", "IFFT2D", "RFFT2D", "IRFFT2D"], &[3, 4]),
        (["FFT3D", "IFFT3D", "RFFT3D", "IRFFT3D"], &[2, 3, 5]),
    ] {
        let whole: usize = sizes.iter().product();
        let dims: Vec<usize> = std::iter::once(2).chain(sizes.iter().copied()).collect();
        let (re, im) = (noise(2 * whole, 9), noise(2 * whole, 10));
        let x: Vec<Complex128> = re
            .iter()
            .zip(&im)
            .map(|(&re, &im)| Complex128::new(re.into(), im.into()))
            .collect();
        let name = format!("{sizes:?}");
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let n = whole as f64;
        let back: Vec<Complex128> = dft(&x, sizes, 1.0).iter().map(|z| z / n).collect();
        let forward = dft(&x, sizes, -1.0);
        // Sums of up to 30 terms, each rounded.
        cases.extend([
            transform(ops[0], &name, tensor(&dims, &x), None)
                .gives_within(tensor(&dims, &forward), 1e-13),
            transform(
                ops[0],
                &format!("{name}, single"),
                tensor(&dims, &narrow(&x)),
                None,
            )
            .gives_within(tensor(&dims, &narrow(&forward)), 1e-5),
            transform(ops[1], &name, tensor(&dims, &x), None)
                .gives_within(tensor(&dims, &back), 1e-13),
        ]);
        // Real numbers: half of the spectrum, and the way back.
        let real: Vec<f64> = re.iter().map(|&x| x.into()).collect();
        let spectrum = dft(
            &real.iter().map(|&x| x.into()).collect::<Vec<_>>(),
            sizes,
            -1.0,
        );
        let last = sizes[sizes.len() - 1];
        let half: Vec<Complex128> = spectrum
            .chunks_exact(last)
            .flat_map(|line| line[..=last / 2].to_vec())
            .collect();
        let mut half_dims = dims.clone();
        *half_dims.last_mut().expect("not a scalar") = last / 2 + 1;
        let lengths: Vec<i32> = sizes
            .iter()
            .map(|&n| i32::try_from(n).expect("small"))
            .collect();
        cases.extend([
            transform(ops[2], &name, tensor(&dims, &real), Some(&lengths))
                .gives_within(tensor(&half_dims, &half), 1e-13),
            transform(
                ops[2],
                &format!("{name}, single"),
                tensor(&dims, &re),
                Some(&lengths),
            )
            .gives_within(tensor(&half_dims, &narrow(&half)), 1e-5),
            transform(ops[3], &name, tensor(&half_dims, &half), Some(&lengths))
                .gives_within(tensor(&dims, &real), 1e-13),
        ]);
    }
    let ones = |dims: &[usize]| tensor(dims, &vec![1.0f32; dims.iter().product()]);
    let z = |values: &[f32]| {
        values
            .iter()
            .map(|&x| Complex64::new(x, 0.0))
            .collect::<Vec<_>>()
    };
    cases.extend([
        transform("RFFT", "cropped", ones(&[1, 5]), Some(&[2]))
            .gives(tensor(&[1, 2], &z(&[2.0, 0.0]))),
        transform("RFFT2D", "cropped", ones(&[3, 5]), Some(&[1, 2]))
            .gives(tensor(&[1, 2], &z(&[2.0, 0.0]))),
        transform(
            "IRFFT",
            "cropped",
            tensor(&[3], &z(&[2.0, 0.0, 9.0])),
            Some(&[2]),
        )
        .gives(ones(&[2])),
        transform("RFFT", "no length", ones(&[2]), Some(&[0])).gives(tensor(&[0], &z(&[]))),
        transform("RFFT", "too long", ones(&[2]), Some(&[3]))
            .refused("must have length of at least 3 but got: 2"),
        transform(
            "IRFFT",
            "too long",
            tensor(&[2], &z(&[1.0, 1.0])),
            Some(&[4]),
        )
        .refused("must have length of at least 3 but got: 2"),
        transform("RFFT", "a negative length", ones(&[2]), Some(&[-1]))
            .refused("fft_length must be >= 0"),
        transform("RFFT", "two lengths", ones(&[2]), Some(&[1, 1]))
            .refused("fft_length must have shape [1]"),
        transform("RFFT2D", "a vector", ones(&[2]), Some(&[1, 1]))
            .refused("input must have rank of at least 2"),
        transform("FFT", "a scalar", tensor(&[], &z(&[1.0])), None)
            .refused("input must have rank of at least 1"),
        transform("FFT", "nothing", tensor(&[0, 3], &z(&[])), None).gives(tensor(&[0, 3], &z(&[]))),
        transform("FFT", "no points", tensor(&[2, 0], &z(&[])), None)
            .gives(tensor(&[2, 0], &z(&[]))),
        case("RFFT: other precisions", "RFFT")
            .typed("Treal", DType::F32)
            .typed("Tcomplex", DType::Complex128)
            .input(ones(&[2]))
            .named_input("fft_length", tensor(&[1], &[2]))
            .refused("must have the same precision"),
    ]);
    cases
}
