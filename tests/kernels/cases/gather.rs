//! Gathers and one-hot vectors.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = gathers();
    cases.extend(slices());
    cases.extend(one_hots());
    cases
}

fn counted(dims: &[usize]) -> Tensor {
    let values: Vec<i32> = (0..).take(dims.iter().product()).collect();
    tensor(dims, &values)
}

fn gather(name: &str, params: Tensor, indices: Tensor, axis: i32) -> Case {
    case(&format!("GatherV2: {name}"), "GatherV2")
        .typed("Tparams", params.dtype())
        .typed("Tindices", indices.dtype())
        .typed("Taxis", DType::I32)
        .input(params)
        .named_input("indices", indices)
        .named_input("axis", tensor(&[], &[axis]))
}

fn gathers() -> Vec<Case> {
    let picks = |values: &[i32]| tensor(&[values.len()], values);
    let none: [i32; 0] = [];
    let long_rows: Vec<i32> = (0..300).map(|i| i * 7 % 50).collect();
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let params = typed_tensor(dtype, &[3], &[1, 2, 4]);
            gather(&format!("{dtype}"), params, picks(&[2, 0]), 0).gives(typed_tensor(
                dtype,
                &[2],
                &[4, 1],
            ))
        })
        .collect();
    cases.extend([
        gather("rows", counted(&[3, 2]), picks(&[2, 0, 2]), 0)
            .gives(tensor(&[3, 2], &[4, 5, 0, 1, 4, 5])),
        gather("columns", counted(&[2, 3]), picks(&[2, 0]), 1)
            .gives(tensor(&[2, 2], &[2, 0, 5, 3])),
        gather("the last axis", counted(&[2, 3]), picks(&[1]), -1).gives(tensor(&[2, 1], &[1, 4])),
        gather(
            "by a matrix",
            counted(&[2, 2]),
            tensor(&[2, 1], &[1i64, 0]),
            0,
        )
        .gives(tensor(&[2, 1, 2], &[2, 3, 0, 1])),
        gather("by a scalar", counted(&[2, 2]), tensor(&[], &[1]), 0).gives(tensor(&[2], &[2, 3])),
        gather("by short indices", counted(&[2]), tensor(&[1], &[1i16]), 0)
            .gives(tensor(&[1], &[1])),
        gather("by nothing", counted(&[2, 2]), picks(&[]), 1).gives(tensor(&[2, 0], &none)),
        // TensorFlow checks no index if nothing is copied.
        gather("nothing by anything", counted(&[2, 0]), picks(&[7]), 0)
            .gives(tensor(&[1, 0], &none)),
        gather(
            "per row",
            counted(&[2, 3]),
            tensor(&[2, 2], &[2, 0, 1, 1]),
            1,
        )
        .int("batch_dims", 1)
        .gives(tensor(&[2, 2], &[2, 0, 4, 4])),
        gather(
            "per row, counted from the end",
            counted(&[2, 3]),
            tensor(&[2, 1], &[2, 0]),
            1,
        )
        .int("batch_dims", -1)
        .gives(tensor(&[2, 1], &[2, 3])),
        gather(
            "per row, an axis further",
            counted(&[2, 2, 2]),
            tensor(&[2, 1], &[1, 0]),
            2,
        )
        .int("batch_dims", 1)
        .gives(tensor(&[2, 2, 1], &[1, 3, 4, 6])),
        gather("long rows", counted(&[50, 64]), picks(&long_rows), 0).gives(tensor(
            &[300, 64],
            &long_rows
                .iter()
                .flat_map(|row| row * 64..(row + 1) * 64)
                .collect::<Vec<i32>>(),
        )),
        gather("per element", counted(&[2]), picks(&[0, 1]), 0)
            .int("batch_dims", 1)
            .refused("batch_dims (1) must be less than or equal to axis (0)"),
        gather(
            "batches that differ",
            counted(&[2, 3]),
            tensor(&[1, 1], &[0]),
            1,
        )
        .int("batch_dims", 1)
        .refused("params [2,3] should be equal to those of indices [1,1]"),
        gather("too many batches", counted(&[2, 3]), picks(&[0]), 1)
            .int("batch_dims", 2)
            .refused("expected batch_dims in the range [-1, 1], but got 2"),
        gather(
            "an index too large",
            counted(&[3]),
            tensor(&[1, 2], &[0, 3]),
            0,
        )
        .refused("indices[0,1] = 3 is not in [0, 3)"),
        gather("a negative index", counted(&[3]), tensor(&[], &[-1]), 0)
            .refused("indices = -1 is not in [0, 3)"),
        gather("out of nothing", counted(&[0, 2]), picks(&[0]), 0)
            .refused("indices[0] = 0 is not in [0, 0)"),
        gather("an axis that is not there", counted(&[3]), picks(&[0]), 1)
            .refused("expected axis in the range [-1, 1), but got 1"),
        gather("of a scalar", counted(&[]), picks(&[0]), 0)
            .refused("params must be at least 1 dimensional"),
        case("Gather: rows", "Gather")
            .typed("Tparams", DType::I32)
            .typed("Tindices", DType::I32)
            .input(counted(&[3, 2]))
            .named_input("indices", picks(&[1]))
            .gives(tensor(&[1, 2], &[2, 3])),
    ]);
    cases
}

fn gather_nd(name: &str, params: Tensor, indices: Tensor) -> Case {
    case(&format!("GatherNd: {name}"), "GatherNd")
        .typed("Tparams", params.dtype())
        .typed("Tindices", indices.dtype())
        .input(params)
        .named_input("indices", indices)
}

fn slices() -> Vec<Case> {
    let pairs = tensor(&[2, 2], &[0, 1, 1, 0]);
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let params = typed_tensor(dtype, &[2, 2], &[1, 2, 3, 4]);
            gather_nd(&format!("{dtype}"), params, pairs.clone()).gives(typed_tensor(
                dtype,
                &[2],
                &[2, 3],
            ))
        })
        .collect();
    cases.extend([
        gather_nd("slices", counted(&[2, 2, 2]), pairs.clone())
            .gives(tensor(&[2, 2], &[2, 3, 4, 5])),
        gather_nd("one element", counted(&[2, 2]), tensor(&[2], &[1i64, 1]))
            .gives(tensor(&[], &[3])),
        gather_nd(
            "everything, twice",
            counted(&[2]),
            tensor::<i32>(&[2, 0], &[]),
        )
        .gives(tensor(&[2, 2], &[0, 1, 0, 1])),
        gather_nd("nothing", counted(&[2]), tensor::<i32>(&[0, 1], &[]))
            .gives(tensor::<i32>(&[0], &[])),
        gather_nd(
            "nothing of nothing",
            counted(&[0]),
            tensor::<i32>(&[0, 1], &[]),
        )
        .gives(tensor::<i32>(&[0], &[])),
        gather_nd("out of nothing", counted(&[0]), tensor(&[1, 1], &[0]))
            .refused("params is empty. Params shape: [0]"),
        gather_nd(
            "beyond the end",
            counted(&[2, 2]),
            tensor(&[2, 2], &[0, 0, 1, 2]),
        )
        .refused("indices[1] = [1, 2] does not index into param shape [2,2], node name: node"),
        gather_nd("before the start", counted(&[2]), tensor(&[1], &[-1]))
            .refused("indices = [-1] does not index into param shape [2]"),
        gather_nd(
            "bad indices ignored",
            counted(&[2]),
            tensor(&[2, 1], &[5, 1]),
        )
        .text("bad_indices_policy", "IGNORE")
        .gives(tensor(&[2], &[0, 1])),
        gather_nd("too many axes", counted(&[2]), tensor(&[1, 2], &[0, 0]))
            .refused("must be <= params rank; saw: 2 vs. 1"),
        gather_nd("by a scalar", counted(&[2]), tensor(&[], &[0]))
            .refused("indices must be at least a vector"),
        gather_nd("of a scalar", counted(&[]), tensor(&[1], &[0]))
            .refused("params must be at least a vector"),
    ]);
    cases
}

fn one_hot(name: &str, indices: Tensor, depth: i32, on: Tensor, off: Tensor) -> Case {
    case(&format!("OneHot: {name}"), "OneHot")
        .typed("T", on.dtype())
        .typed("TI", indices.dtype())
        .input(indices)
        .named_input("depth", tensor(&[], &[depth]))
        .input(on)
        .input(off)
}

fn one_hots() -> Vec<Case> {
    let (on, off) = (tensor(&[], &[1.0f32]), tensor(&[], &[0.0f32]));
    let float = |name: &str, indices: Tensor, depth: i32| {
        one_hot(name, indices, depth, on.clone(), off.clone())
    };
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let (on, off) = (
                typed_tensor(dtype, &[], &[3]),
                typed_tensor(dtype, &[], &[2]),
            );
            one_hot(&format!("{dtype}"), tensor(&[1], &[1]), 2, on, off).gives(typed_tensor(
                dtype,
                &[1, 2],
                &[2, 3],
            ))
        })
        .collect();
    cases.extend([
        float("rows", tensor(&[2], &[2, 0]), 3)
            .gives(tensor(&[2, 3], &[0.0f32, 0.0, 1.0, 1.0, 0.0, 0.0])),
        float("columns", tensor(&[2], &[2i64, 0]), 3)
            .int("axis", 0)
            .gives(tensor(&[3, 2], &[0.0f32, 1.0, 0.0, 0.0, 1.0, 0.0])),
        float("in between", tensor(&[1, 2], &[0u8, 1]), 2)
            .int("axis", 1)
            .gives(tensor(&[1, 2, 2], &[1.0f32, 0.0, 0.0, 1.0])),
        float("indices that are nowhere", tensor(&[3], &[-1i8, 2, 1]), 2)
            .gives(tensor(&[3, 2], &[0.0f32, 0.0, 0.0, 0.0, 0.0, 1.0])),
        float("a scalar", tensor(&[], &[1]), 2).gives(tensor(&[2], &[0.0f32, 1.0])),
        float("no depth", tensor(&[2], &[0, 1]), 0).gives(tensor::<f32>(&[2, 0], &[])),
        float("nothing", tensor::<i32>(&[0], &[]), 2).gives(tensor::<f32>(&[0, 2], &[])),
        float("a negative depth", tensor(&[1], &[0]), -1)
            .refused("depth must be non-negative, got: -1"),
        float("an axis that is not there", tensor(&[1], &[0]), 1)
            .int("axis", 2)
            .refused("expected axis to be -1 or between [0, 2), but received: 2"),
        one_hot(
            "a vector of values",
            tensor(&[1], &[0]),
            1,
            tensor(&[1], &[1.0f32]),
            off.clone(),
        )
        .refused("on_value must be a scalar, but got: [1]"),
    ]);
    cases
}
