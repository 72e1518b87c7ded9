//! Concatenation and splitting.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = joined();
    cases.extend(split_evenly());
    cases.extend(split_by_sizes());
    cases
}

fn counted(first: i32, dims: &[usize]) -> Tensor {
    let values: Vec<i32> = (first..).take(dims.iter().product()).collect();
    tensor(dims, &values)
}

fn concat(name: &str, values: &[Tensor], axis: i32) -> Case {
    let n = i64::try_from(values.len()).expect("few");
    values
        .iter()
        .fold(
            case(&format!("ConcatV2: {name}"), "ConcatV2"),
            |case, value| case.input(value.clone()),
        )
        .typed("T", values[0].dtype())
        .typed("Tidx", DType::I32)
        .int("N", n)
        .named_input("axis", tensor(&[], &[axis]))
}

fn joined() -> Vec<Case> {
    let none: [i32; 0] = [];
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let values = [
                typed_tensor(dtype, &[1], &[1]),
                typed_tensor(dtype, &[2], &[2, 3]),
            ];
            concat(&format!("{dtype}"), &values, 0).gives(typed_tensor(dtype, &[3], &[1, 2, 3]))
        })
        .collect();
    let big: Vec<i32> = (0..120_000).collect();
    let twice: Vec<i32> = big.iter().chain(&big).copied().collect();
    cases.extend([
        concat("rows", &[counted(0, &[1, 2]), counted(10, &[2, 2])], 0)
            .gives(tensor(&[3, 2], &[0, 1, 10, 11, 12, 13])),
        concat("columns", &[counted(0, &[2, 1]), counted(10, &[2, 2])], -1)
            .gives(tensor(&[2, 3], &[0, 10, 11, 1, 12, 13])),
        concat(
            "whole units",
            &[counted(0, &[300, 8]), counted(2400, &[300, 12])],
            1,
        )
        .gives(tensor(
            &[300, 20],
            &(0..300)
                .flat_map(|row| (row * 8..row * 8 + 8).chain(2400 + row * 12..2412 + row * 12))
                .collect::<Vec<i32>>(),
        )),
        concat(
            "long rows, on threads",
            &[tensor(&[120_000], &big), tensor(&[120_000], &big)],
            0,
        )
        .gives(tensor(&[240_000], &twice)),
        concat(
            "with nothing",
            &[counted(0, &[0]), counted(5, &[2]), counted(0, &[0])],
            0,
        )
        .gives(tensor(&[2], &[5, 6])),
        concat("nothing", &[counted(0, &[2, 0]), counted(0, &[2, 0])], 1)
            .gives(tensor(&[2, 0], &none)),
        concat("one value", &[counted(0, &[2])], 0).gives(counted(0, &[2])),
        case("Concat: the axis comes first", "Concat")
            .typed("T", DType::I32)
            .named_input("concat_dim", tensor(&[], &[1]))
            .input(counted(0, &[2, 1]))
            .input(counted(5, &[2, 1]))
            .gives(tensor(&[2, 2], &[0, 5, 1, 6])),
        concat(
            "an axis that is not there",
            &[counted(0, &[2]), counted(0, &[2])],
            1,
        )
        .refused("in the range [-1, 1), but got 1"),
        concat("scalars", &[counted(0, &[]), counted(0, &[])], 0).refused("[-0, 0), but got 0"),
        concat(
            "ranks that differ",
            &[counted(0, &[2]), counted(0, &[2, 1])],
            0,
        )
        .refused("ranks of all input tensors should match: shape[0] = [2] vs. shape[1] = [2,1]"),
        concat(
            "shapes that differ",
            &[counted(0, &[2, 1]), counted(0, &[2, 2])],
            0,
        )
        .refused("dimension 1 in both shapes must be equal: shape[0] = [2,1] vs. shape[1] = [2,2]"),
    ]);
    cases
}

fn split(name: &str, value: Tensor, axis: i32) -> Case {
    case(&format!("Split: {name}"), "Split")
        .typed("T", value.dtype())
        .named_input("split_dim", tensor(&[], &[axis]))
        .input(value)
}

fn split_evenly() -> Vec<Case> {
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            split(&format!("{dtype}"), typed_tensor(dtype, &[2], &[1, 2]), 0).gives_all(vec![
                typed_tensor(dtype, &[1], &[1]),
                typed_tensor(dtype, &[1], &[2]),
            ])
        })
        .collect();
    cases.extend([
        split("rows", counted(0, &[2, 2]), 0)
            .gives_all(vec![counted(0, &[1, 2]), counted(2, &[1, 2])]),
        split("columns", counted(0, &[2, 4]), -1).gives_all(vec![
            tensor(&[2, 2], &[0, 1, 4, 5]),
            tensor(&[2, 2], &[2, 3, 6, 7]),
        ]),
        split("one part", counted(0, &[3]), 0).gives(counted(0, &[3])),
        split("of nothing", counted(0, &[2, 0]), 0)
            .gives_all(vec![counted(0, &[1, 0]), counted(0, &[1, 0])]),
        split("into nothings", counted(0, &[0]), 0)
            .gives_all(vec![counted(0, &[0]), counted(0, &[0])]),
        split("a remainder", counted(0, &[3]), 0)
            .with_outputs(2)
            .refused("but got split_dim 0 (size = 3) and num_split 2"),
        split("an axis that is not there", counted(0, &[3]), 1)
            .refused("-input rank(-1) <= split_dim < input rank (1), but got 1"),
    ]);
    cases
}

fn split_v(name: &str, value: Tensor, sizes: &[i64], axis: i32) -> Case {
    case(&format!("SplitV: {name}"), "SplitV")
        .typed("T", value.dtype())
        .typed("Tlen", DType::I64)
        .input(value)
        .named_input("size_splits", tensor(&[sizes.len()], sizes))
        .named_input("split_dim", tensor(&[], &[axis]))
        .with_outputs(sizes.len())
}

fn split_by_sizes() -> Vec<Case> {
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let value = typed_tensor(dtype, &[3], &[1, 2, 3]);
            split_v(&format!("{dtype}"), value, &[1, 2], 0).gives_all(vec![
                typed_tensor(dtype, &[1], &[1]),
                typed_tensor(dtype, &[2], &[2, 3]),
            ])
        })
        .collect();
    cases.extend([
        split_v("columns", counted(0, &[2, 3]), &[1, 2], 1).gives_all(vec![
            tensor(&[2, 1], &[0, 3]),
            tensor(&[2, 2], &[1, 2, 4, 5]),
        ]),
        split_v("an open size", counted(0, &[5]), &[1, -1, 2], -1).gives_all(vec![
            counted(0, &[1]),
            counted(1, &[2]),
            counted(3, &[2]),
        ]),
        split_v("a part of nothing", counted(0, &[2]), &[0, -1, 2], 0).gives_all(vec![
            counted(0, &[0]),
            counted(0, &[0]),
            counted(0, &[2]),
        ]),
        split_v("one part", counted(0, &[2]), &[2], 0).gives(counted(0, &[2])),
        case("SplitV: sizes of one byte", "SplitV")
            .typed("T", DType::I32)
            .typed("Tlen", DType::I8)
            .input(counted(0, &[2]))
            .named_input("size_splits", tensor(&[2], &[1i8, 1]))
            .named_input("split_dim", tensor(&[1], &[0]))
            .gives_all(vec![counted(0, &[1]), counted(1, &[1])]),
        split_v("too little", counted(0, &[3]), &[1, 1], 0).refused("Got: 2 of 3"),
        split_v("too much", counted(0, &[3]), &[4, -1], 0).refused("Got: 4 of 3"),
        split_v("two open sizes", counted(0, &[3]), &[-1, -1], 0)
            .refused("there can only be one -1"),
        split_v("a negative size", counted(0, &[3]), &[-2, 5], 0)
            .refused("split size at index 0 must be >= 0. Got: -2"),
        split_v("sizes for other outputs", counted(0, &[3]), &[3], 0)
            .with_outputs(2)
            .refused("[1] for 2 outputs"),
    ]);
    cases
}
