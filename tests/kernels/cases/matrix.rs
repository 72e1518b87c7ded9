//! Batched matmuls, einsum.

use half::bf16;
use half::f16;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = matmuls();
    cases.extend(equations());
    cases
}

fn matmul(name: &str, x: Tensor, y: Tensor, adjoint: [bool; 2]) -> Case {
    case(&format!("BatchMatMulV2: {name}"), "BatchMatMulV2")
        .typed("T", x.dtype())
        .bool("adj_x", adjoint[0])
        .bool("adj_y", adjoint[1])
        .input(x)
        .input(y)
}

/// Plain reference loop, in double precision: `x` is `[a, b, m, k]`, `y` is `[c, d, k, n]`. If
/// batch sizes differ, one is 1.
fn random(x_batch: [usize; 2], y_batch: [usize; 2], size: [usize; 3], adjoint: [bool; 2]) -> Case {
    let [m, k, n] = size;
    let dims = |batch: [usize; 2], rows: usize, columns: usize, swapped: bool| {
        let [a, b] = batch;
        if swapped {
            [a, b, columns, rows]
        } else {
            [a, b, rows, columns]
        }
    };
    let (x_dims, y_dims) = (
        dims(x_batch, m, k, adjoint[0]),
        dims(y_batch, k, n, adjoint[1]),
    );
    let x = noise(x_dims.iter().product(), 1);
    let y = noise(y_dims.iter().product(), 2);
    let at = |dims: [usize; 4], batch: [usize; 2], i: usize, j: usize, swapped: bool| {
        let (i, j) = if swapped { (j, i) } else { (i, j) };
        let own = [batch[0] % dims[0], batch[1] % dims[1]];
        ((own[0] * dims[1] + own[1]) * dims[2] + i) * dims[3] + j
    };
    let batch = [0, 1].map(|axis| x_batch[axis].max(y_batch[axis]));
    let mut expected = Vec::new();
    for index in 0..batch[0] * batch[1] {
        let here = [index / batch[1], index % batch[1]];
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k)
                    .map(|p| {
                        f64::from(x[at(x_dims, here, i, p, adjoint[0])])
                            * f64::from(y[at(y_dims, here, p, j, adjoint[1])])
                    })
                    .sum();
                #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
                expected.push(sum as f32);
            }
        }
    }
    // At most 300 products of numbers below 1, each rounded, in another order.
    matmul(
        &format!("{x_dims:?} x {y_dims:?}, adjoint {adjoint:?}"),
        tensor(&x_dims, &x),
        tensor(&y_dims, &y),
        adjoint,
    )
    .gives_within(tensor(&[batch[0], batch[1], m, n], &expected), 1e-5)
}

fn small<T: Element>(number: impl Fn(i8) -> T) -> Case {
    let values = |list: [i8; 4]| list.map(&number);
    matmul(
        &format!("{}", T::DTYPE),
        tensor(&[1, 2, 2], &values([1, 2, 3, 4])),
        tensor(&[1, 2, 2], &values([0, 1, 1, 0])),
        [false, true],
    )
    .gives(tensor(&[1, 2, 2], &values([2, 1, 4, 3])))
}

fn matmuls() -> Vec<Case> {
    let ones = |dims: &[usize]| tensor(dims, &vec![1i32; dims.iter().product()]);
    let mut cases = vec![
        small(f32::from),
        small(f64::from),
        small(|x| f16::from_f32(x.into())),
        small(|x| bf16::from_f32(x.into())),
        small(i16::from),
        small(i32::from),
        small(i64::from),
    ];
    for adjoint in [[false, false], [false, true], [true, false], [true, true]] {
        cases.push(random([2, 3], [2, 3], [4, 5, 6], adjoint));
        cases.push(random([2, 1], [1, 3], [4, 5, 6], adjoint));
        cases.push(random([2, 3], [1, 1], [4, 5, 6], adjoint));
        // Beyond one tile, on both sides of the size above which a right side is copied into
        // panels.
        cases.push(random([2, 3], [2, 3], [41, 17, 33], adjoint));
        cases.push(random([2, 1], [1, 3], [9, 11, 18], adjoint));
        cases.push(random([1, 3], [2, 1], [40, 5, 16], adjoint));
    }
    cases.extend([
        // Many, distributed over threads; few and large; one row each.
        random([8, 12], [8, 12], [32, 64, 32], [false, true]),
        // More matrices than CUDA allows in the third dimension of a launch.
        random([300, 220], [300, 220], [1, 2, 1], [false, false]),
        random([1, 2], [1, 2], [300, 300, 100], [false, false]),
        random([4, 5], [1, 1], [1, 7, 9], [false, false]),
        random([1, 1], [4, 5], [1, 7, 9], [false, false]),
        matmul(
            "a matrix by a batch",
            ones(&[1, 2]),
            ones(&[2, 2, 1]),
            [false, false],
        )
        .gives(tensor(&[2, 1, 1], &[2, 2])),
        matmul("two matrices", ones(&[1, 2]), ones(&[2, 1]), [false, false])
            .gives(tensor(&[1, 1], &[2])),
        matmul(
            "empty sums",
            ones(&[1, 2, 0]),
            ones(&[1, 0, 1]),
            [false, false],
        )
        .gives(tensor(&[1, 2, 1], &[0, 0])),
        matmul(
            "no matrices",
            ones(&[0, 2, 3]),
            ones(&[0, 3, 4]),
            [false, false],
        )
        .gives(ones(&[0, 2, 4])),
        matmul(
            "none by one",
            ones(&[0, 2, 3]),
            ones(&[1, 3, 4]),
            [false, false],
        )
        .gives(ones(&[0, 2, 4])),
        matmul(
            "not a number",
            tensor(&[1, 1, 1], &[f32::NAN]),
            tensor(&[1, 1, 1], &[0.0f32]),
            [false, false],
        )
        .gives(tensor(&[1, 1, 1], &[f32::NAN])),
        matmul(
            "sizes that differ",
            ones(&[1, 2, 3]),
            ones(&[1, 2, 3]),
            [false, false],
        )
        .refused("matrix size-incompatible: In[0]: [1,2,3], In[1]: [1,2,3]"),
        matmul(
            "batches that differ",
            ones(&[2, 1, 1]),
            ones(&[3, 1, 1]),
            [false, false],
        )
        .refused("compatible batch dimensions: [2,1,1] vs. [3,1,1]"),
        matmul("a vector", ones(&[2]), ones(&[2, 1]), [false, false])
            .refused("ndims must be >= 2: [2], [2,1]"),
        case("BatchMatMul: equal batches", "BatchMatMul")
            .typed("T", DType::I32)
            .input(ones(&[2, 1, 2]))
            .input(ones(&[2, 2, 1]))
            .gives(tensor(&[2, 1, 1], &[2, 2])),
        case("BatchMatMul: batches do not broadcast", "BatchMatMul")
            .typed("T", DType::I32)
            .input(ones(&[2, 1, 2]))
            .input(ones(&[1, 2, 1]))
            .refused("the same batch dimensions: [2,1,2] vs. [1,2,1]"),
        case("BatchMatMulV3: three types", "BatchMatMulV3")
            .typed("Ta", DType::I32)
            .typed("Tb", DType::I32)
            .typed("Tout", DType::I32)
            .input(ones(&[1, 2]))
            .input(ones(&[2, 1]))
            .gives(tensor(&[1, 1], &[2])),
        bytes(
            tensor(&[1, 2], &[-128i8, 127]),
            tensor(&[2, 1], &[-128i8, 127]),
            DType::I32,
        )
        .gives(tensor(&[1, 1], &[32_513])),
        bytes(
            tensor(&[1, 2], &[-128i8, 3]),
            tensor(&[2, 1], &[255u8, 1]),
            DType::I32,
        )
        .gives(tensor(&[1, 1], &[-32_637])),
        bytes(
            typed_tensor(DType::BF16, &[1, 2], &[2, 3]),
            tensor(&[2, 1], &[4u8, 5]),
            DType::BF16,
        )
        .gives(typed_tensor(DType::BF16, &[1, 1], &[23])),
    ]);
    cases
}

fn bytes(x: Tensor, y: Tensor, out: DType) -> Case {
    let name = format!("BatchMatMulV3: {} and {}", x.dtype(), y.dtype());
    case(&name, "BatchMatMulV3")
        .typed("Ta", x.dtype())
        .typed("Tb", y.dtype())
        .typed("Tout", out)
        .input(x)
        .input(y)
}

fn einsum(equation: &str, inputs: &[Tensor]) -> Case {
    inputs
        .iter()
        .fold(
            case(&format!("Einsum: {equation}"), "Einsum"),
            |case, input| case.input(input.clone()),
        )
        .typed("T", inputs[0].dtype())
        .text("equation", equation)
}

fn equations() -> Vec<Case> {
    let counted = |dims: &[usize]| {
        let values: Vec<i32> = (1..).take(dims.iter().product()).collect();
        tensor(dims, &values)
    };
    let float = tensor(&[1, 2], &[1.0f32, 2.0]);
    let half = tensor(&[2], &[1.0, 2.0].map(f16::from_f32));
    let brain = tensor(&[2], &[1.0, 2.0].map(bf16::from_f32));
    vec![
        einsum("ij,jk->ik", &[counted(&[2, 2]), counted(&[2, 2])])
            .gives(tensor(&[2, 2], &[7, 10, 15, 22])),
        einsum("ij, jk -> ki", &[counted(&[2, 2]), counted(&[2, 2])])
            .gives(tensor(&[2, 2], &[7, 15, 10, 22])),
        einsum(
            "bhqd,hdk->bqk",
            &[counted(&[1, 1, 1, 2]), counted(&[1, 2, 1])],
        )
        .gives(tensor(&[1, 1, 1], &[5])),
        einsum("ij->ji", &[counted(&[1, 2])]).gives(tensor(&[2, 1], &[1, 2])),
        einsum("ij->i", &[counted(&[2, 2])]).gives(tensor(&[2], &[3, 7])),
        einsum("ij->", &[counted(&[2, 2])]).gives(tensor(&[], &[10])),
        einsum("ii->i", &[counted(&[2, 2])]).gives(tensor(&[2], &[1, 4])),
        einsum("i->ii", &[counted(&[2])]).gives(tensor(&[2, 2], &[1, 0, 0, 2])),
        einsum("i,i->", &[counted(&[2]), counted(&[2])]).gives(tensor(&[], &[5])),
        einsum("i,j->ij", &[counted(&[2]), counted(&[2])]).gives(tensor(&[2, 2], &[1, 2, 2, 4])),
        einsum("...ij,jk->...ik", &[counted(&[2, 1, 2]), counted(&[2, 1])])
            .gives(tensor(&[2, 1, 1], &[5, 11])),
        einsum("...i,...i->...", &[counted(&[2, 1]), counted(&[1, 1])])
            .gives(tensor(&[2], &[1, 2])),
        einsum("i...,...->i...", &[counted(&[1, 2]), counted(&[2])])
            .gives(tensor(&[1, 2], &[1, 4])),
        einsum("...ij->...ji", &[counted(&[1, 1, 2])]).gives(tensor(&[1, 2, 1], &[1, 2])),
        einsum("ij,jk->ik", &[counted(&[2, 0]), counted(&[0, 1])]).gives(tensor(&[2, 1], &[0, 0])),
        einsum("ij,jk->ik", &[counted(&[0, 2]), counted(&[2, 1])]).gives(counted(&[0, 1])),
        einsum("ij,kj->k", &[float.clone(), float]).gives(tensor(&[1], &[5.0f32])),
        einsum("i,i->", &[tensor(&[1], &[2.0f64]), tensor(&[1], &[3.0f64])])
            .gives(tensor(&[], &[6.0f64])),
        einsum("i,i ->", &[half.clone(), half]).gives(tensor(&[], &[f16::from_f32(5.0)])),
        einsum("i, i->", &[brain.clone(), brain]).gives(tensor(&[], &[bf16::from_f32(5.0)])),
        einsum("i ,i->", &[tensor(&[1], &[2i64]), tensor(&[1], &[3i64])])
            .gives(tensor(&[], &[6i64])),
        einsum("ij,jk->ij k", &[counted(&[1, 2]), counted(&[3, 1])])
            .refused("but got dimension 3 of the input shaped [3,1]"),
        einsum("ijk->i", &[counted(&[1, 2])]).refused("input 0 to have rank 3 but got: 2"),
        einsum("...ijk->...i", &[counted(&[1, 2])])
            .refused("input 0 to have rank at least 3 but got: 2"),
        einsum("...i->i", &[counted(&[1, 2])])
            .refused("1 broadcasting dimension(s) but no ellipsis"),
        einsum("i->j", &[counted(&[1])]).refused("a label of the result is not of an operand"),
        einsum("ij", &[counted(&[1, 1])]).refused("expecting exactly one '->'"),
        einsum("i,i->i", &[counted(&[1])]).refused("expected 2 inputs but got: 1"),
    ]
}
