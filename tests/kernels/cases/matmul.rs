//! Matmuls.

use half::bf16;
use half::f16;
use placewright::graph::AttrValue;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

fn matmul(name: &str, a: Tensor, b: Tensor, transpose: (bool, bool)) -> Case {
    case(name, "MatMul")
        .typed("T", a.dtype())
        .attr("transpose_a", AttrValue::Bool(transpose.0))
        .attr("transpose_b", AttrValue::Bool(transpose.1))
        .input(a)
        .input(b)
}

/// Plain reference loop, in double precision.
fn random(m: usize, k: usize, n: usize, transpose: (bool, bool)) -> Case {
    let (a, b) = (noise(m * k, 5), noise(k * n, 6));
    let at_a = |i: usize, p: usize| {
        if transpose.0 {
            a[p * m + i]
        } else {
            a[i * k + p]
        }
    };
    let at_b = |p: usize, j: usize| {
        if transpose.1 {
            b[j * k + p]
        } else {
            b[p * n + j]
        }
    };
    let mut expected = Vec::new();
    for i in 0..m {
        for j in 0..n {
            let sum: f64 = (0..k)
                .map(|p| f64::from(at_a(i, p)) * f64::from(at_b(p, j)))
                .sum();
            #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
            expected.push(sum as f32);
        }
    }
    let dims = |rows, columns, swapped| {
        if swapped {
            [columns, rows]
        } else {
            [rows, columns]
        }
    };
    matmul(
        &format!("{m} x {k} x {n}, transposed {transpose:?}"),
        tensor(&dims(m, k, transpose.0), &a),
        tensor(&dims(k, n, transpose.1), &b),
        transpose,
    )
    // Sums of at most 800 terms of size 1, each rounded to 24 bits, in any order: 800 * 2^-24.
    .gives_within(tensor(&[m, n], &expected), 5e-5)
}

/// Computes `[1 2 3; 4 5 6] * [1 0; 2 1; 0 3]` in one type.
fn small<T: Element>(name: &str, from: fn(i8) -> T) -> Case {
    let t = |dims: &[usize], values: &[i8]| {
        tensor(dims, &values.iter().map(|&x| from(x)).collect::<Vec<T>>())
    };
    matmul(
        name,
        t(&[2, 3], &[1, 2, 3, 4, 5, 6]),
        t(&[3, 2], &[1, 0, 2, 1, 0, 3]),
        (false, false),
    )
    .gives(t(&[2, 2], &[5, 11, 14, 23]))
}

pub(crate) fn cases() -> Vec<Case> {
    let f = |dims: &[usize]| tensor(dims, &vec![1.0f32; dims.iter().product()]);
    let none: [f32; 0] = [];
    let mut cases = vec![
        small::<f32>("float", f32::from),
        small::<f64>("double", f64::from),
        small::<f16>("half", |x| f16::from_f32(x.into())),
        small::<bf16>("bfloat16", |x| bf16::from_f32(x.into())),
        small::<i32>("int32", i32::from),
        small::<i64>("int64", i64::from),
        matmul(
            "integers wrap around",
            tensor(&[1, 1], &[i32::MAX]),
            tensor(&[1, 1], &[2]),
            (false, false),
        )
        .gives(tensor(&[1, 1], &[-2])),
        matmul(
            "an empty sum is zero",
            f(&[2, 0]),
            f(&[0, 3]),
            (false, false),
        )
        .gives(tensor(&[2, 3], &[0.0f32; 6])),
        matmul("no rows", f(&[0, 4]), f(&[4, 3]), (false, false)).gives(tensor(&[0, 3], &none)),
        matmul(
            "what is not finite spreads along its row",
            tensor(&[2, 2], &[f32::NAN, 1.0, f32::INFINITY, 1.0]),
            f(&[2, 1]),
            (false, false),
        )
        .gives(tensor(&[2, 1], &[f32::NAN, f32::INFINITY])),
        matmul(
            "inner dimensions disagree",
            f(&[2, 3]),
            f(&[2, 3]),
            (false, false),
        )
        .refused("matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]"),
        matmul(
            "inner dimensions agree once transposed",
            f(&[2, 3]),
            f(&[2, 3]),
            (false, true),
        )
        .gives(tensor(&[2, 2], &[3.0f32; 4])),
        matmul("a vector", f(&[3]), f(&[3, 2]), (false, false))
            .refused("both inputs must be matrices: In[0]: [3], In[1]: [3,2]"),
        matmul(
            "unsigned bytes",
            tensor(&[1, 1], &[1u8]),
            tensor(&[1, 1], &[1u8]),
            (false, false),
        )
        .refused("no kernel"),
        case("an attribute of another kind", "MatMul")
            .typed("T", placewright::tensor::DType::F32)
            .attr("transpose_a", AttrValue::Int(1))
            .input(f(&[1, 1]))
            .input(f(&[1, 1]))
            .refused("attribute `transpose_a` of MatMul should be a bool, found: int"),
    ];
    for transpose in [(false, false), (true, false), (false, true), (true, true)] {
        cases.push(random(7, 13, 5, transpose));
        cases.push(random(1, 300, 33, transpose));
        cases.push(random(65, 64, 1, transpose));
        // Large enough for several threads.
        cases.push(random(130, 70, 150, transpose));
        cases.push(random(1, 784, 1500, transpose));
        // Around the sizes of tiles: 1, 4, 6 or 8 rows, one or two vectors of 4, 8 or 16 columns.
        for (m, n) in [
            (2, 4),
            (4, 17),
            (5, 16),
            (8, 33),
            (9, 32),
            (34, 31),
            (41, 65),
        ] {
            cases.push(random(m, 19, n, transpose));
        }
    }
    cases
}
