//! Sparse tensors that are joined, cut, added and reduced, and sets, in all types and many ranks.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = joined();
    cases.extend(reduced());
    cases.extend(sets());
    cases
}

/// Returns a matrix of indices with these rows.
fn rows(rank: usize, values: &[i64]) -> Tensor {
    tensor(&[values.len() / rank, rank], values)
}

fn sizes(values: &[i64]) -> Tensor {
    tensor(&[values.len()], values)
}

fn joined() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in MOVED {
        cases.push(
            case(&format!("SparseConcat: {dtype}"), "SparseConcat")
                .typed("T", dtype)
                .int("concat_dim", 0)
                .input(rows(1, &[0, 2]))
                .input(rows(1, &[1]))
                .input(typed_tensor(dtype, &[2], &[1, 0]))
                .input(typed_tensor(dtype, &[1], &[5]))
                .input(sizes(&[3]))
                .input(sizes(&[2]))
                .gives_all(vec![
                    rows(1, &[0, 2, 4]),
                    typed_tensor(dtype, &[3], &[1, 0, 5]),
                    sizes(&[5]),
                ]),
        );
        cases.push(
            case(&format!("SparseSlice: {dtype}"), "SparseSlice")
                .typed("T", dtype)
                .input(rows(2, &[0, 1, 1, 0, 1, 2]))
                .input(typed_tensor(dtype, &[3], &[1, 4, 7]))
                .input(sizes(&[2, 3]))
                .input(sizes(&[1, 0]))
                .input(sizes(&[1, 3]))
                .gives_all(vec![
                    rows(2, &[0, 0, 0, 2]),
                    typed_tensor(dtype, &[2], &[4, 7]),
                    sizes(&[1, 3]),
                ]),
        );
    }
    for (dtype, real) in [
        (DType::F32, DType::F32),
        (DType::F64, DType::F64),
        (DType::I8, DType::I8),
        (DType::I16, DType::I16),
        (DType::I32, DType::I32),
        (DType::I64, DType::I64),
        (DType::Complex64, DType::F32),
        (DType::Complex128, DType::F64),
    ] {
        cases.push(
            case(&format!("SparseAdd: {dtype}"), "SparseAdd")
                .typed("T", dtype)
                .typed("Treal", real)
                .input(rows(1, &[0, 2]))
                .input(typed_tensor(dtype, &[2], &[1, 3]))
                .input(sizes(&[4]))
                .input(rows(1, &[2, 3]))
                .input(typed_tensor(dtype, &[2], &[4, 5]))
                .input(sizes(&[4]))
                .input(typed_tensor(real, &[], &[8]))
                .gives_all(vec![
                    rows(1, &[0, 3]),
                    typed_tensor(dtype, &[2], &[1, 5]),
                    sizes(&[4]),
                ]),
        );
    }
    cases
}

fn reduced() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in MOVED {
        let is_complex = matches!(dtype, DType::Complex64 | DType::Complex128);
        if !(dtype.is_floating() || dtype.is_integer() || is_complex) {
            continue;
        }
        for (op, expected) in [("SparseReduceSum", [8, 4]), ("SparseReduceMax", [5, 4])] {
            if op == "SparseReduceMax" && is_complex {
                continue;
            }
            cases.push(
                case(&format!("{op}: {dtype}"), op)
                    .typed("T", dtype)
                    .input(rows(2, &[0, 1, 0, 2, 1, 0]))
                    .input(typed_tensor(dtype, &[3], &[3, 5, 4]))
                    .input(sizes(&[2, 3]))
                    .input(tensor(&[1], &[1]))
                    .gives(typed_tensor(dtype, &[2], &expected)),
            );
        }
    }
    // One value in each place of a tensor of this rank; the plain loop adds them all up.
    for rank in 1..=6 {
        let dims = vec![2usize; rank];
        let n = 1usize << rank;
        let indices: Vec<i64> = (0..n)
            .flat_map(|place| (0..rank).map(move |axis| i64::from(place >> axis & 1 == 1)))
            .collect();
        let values: Vec<i32> = (1..).take(n).collect();
        let mut expected = [0, 0];
        for (row, value) in indices.chunks_exact(rank).zip(&values) {
            expected[usize::try_from(row[rank - 1]).expect("0 or 1")] += value;
        }
        let axes: Vec<i32> = (0..).take(rank - 1).collect();
        let dims: Vec<i64> = dims.iter().map(|_| 2).collect();
        cases.push(
            case(&format!("SparseReduceSum: rank {rank}"), "SparseReduceSum")
                .typed("T", DType::I32)
                .input(rows(rank, &indices))
                .input(tensor(&[n], &values))
                .input(sizes(&dims))
                .input(tensor(&[axes.len()], &axes))
                .gives(tensor(&[2], &expected)),
        );
    }
    cases
}

fn sets() -> Vec<Case> {
    let types = [
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::String,
    ];
    let cases = types.into_iter().map(|dtype| {
        let name = format!("DenseToDenseSetOperation: {dtype}");
        case(&name, "DenseToDenseSetOperation")
            .typed("T", dtype)
            .text("set_operation", "union")
            .input(typed_tensor(dtype, &[1, 1, 3], &[3, 1, 3]))
            .input(typed_tensor(dtype, &[1, 1, 2], &[2, 1]))
            .gives_all(vec![
                rows(3, &[0, 0, 0, 0, 0, 1, 0, 0, 2]),
                typed_tensor(dtype, &[3], &[1, 2, 3]),
                sizes(&[1, 1, 3]),
            ])
    });
    cases.collect()
}
