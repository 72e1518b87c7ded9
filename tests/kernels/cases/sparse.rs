//! Sparse and ragged tensors.

use placewright::graph::AttrValue;
use placewright::tensor::Boolean;
use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = dense();
    cases.extend(sparse());
    cases.extend(matmuls());
    cases.extend(ragged());
    cases.extend(counts());
    cases.extend(crosses());
    cases
}

fn cross(name: &str, sparse: &[[Tensor; 3]], dense: &[Tensor], is_hashed: bool) -> Case {
    let dtype = if is_hashed { DType::I64 } else { DType::String };
    let start = case(&format!("SparseCross: {name}"), "SparseCross")
        .int("N", i64::try_from(sparse.len()).unwrap())
        .typed("out_type", dtype)
        .typed("internal_type", dtype)
        .bool("hashed_output", is_hashed)
        .int("hash_key", 0xde_cafc_affe)
        .with_outputs(3);
    let parts = (0..3).flat_map(|part| sparse.iter().map(move |column| &column[part]));
    let inputs = parts.chain(dense);
    inputs.fold(start, |case, input| case.input(input.clone()))
}

fn strings(dims: &[usize], values: &[&str]) -> Tensor {
    let values = values.iter().map(|value| value.as_bytes().into());
    Tensor::from_strings(dims.into(), values.collect()).unwrap()
}

/// The hashes are TensorFlow's.
fn crosses() -> Vec<Case> {
    let column = || {
        let places = tensor(&[3, 2], &[0i64, 0, 0, 1, 2, 0]);
        let values = strings(&[3], &["x", "y", "z"]);
        [places, values, tensor(&[2], &[3i64, 2])]
    };
    let places = || tensor(&[6, 2], &[0i64, 0, 0, 1, 0, 2, 0, 3, 2, 0, 2, 1]);
    let numbers = || tensor(&[3, 2], &[1i64, -2, 3, 4, 5, 6]);
    let words = strings(&[3, 2], &["a", "b", "c", "d", "e", ""]);
    let row = |places: &[i64]| tensor(&[places.len() / 2, 2], places);
    let [four, shape] = [row(&[0, 0, 0, 1, 0, 2, 0, 3]), tensor(&[2], &[1i64, 4])];
    vec![
        cross("numbers", &[], &[row(&[5, 7]), row(&[1, -2])], true)
            .int("num_buckets", 0)
            .gives_all(vec![
                four.clone(),
                tensor(
                    &[4],
                    &[
                        6_945_244_610_988_568_008i64,
                        821_289_574_611_351_801,
                        4_091_893_631_688_526_645,
                        5_990_080_941_237_767_559,
                    ],
                ),
                shape.clone(),
            ]),
        cross(
            "strings and numbers",
            &[],
            &[strings(&[1, 2], &["a", "b"]), row(&[1, -2])],
            true,
        )
        .int("num_buckets", 100)
        .gives_all(vec![four, tensor(&[4], &[85i64, 18, 83, 54]), shape]),
        cross("sparse strings", &[column()], &[numbers()], true)
            .int("num_buckets", 100)
            .gives_all(vec![
                places(),
                tensor(&[6], &[27i64, 16, 26, 12, 74, 7]),
                tensor(&[2], &[3i64, 4]),
            ]),
        cross("joined", &[column()], &[words], false)
            .int("num_buckets", 0)
            .gives_all(vec![
                places(),
                strings(&[6], &["x_X_a", "x_X_b", "y_X_a", "y_X_b", "z_X_e", "z_X_"]),
                tensor(&[2], &[3i64, 4]),
            ]),
        cross("joined numbers", &[], &[row(&[5, -7])], false)
            .int("num_buckets", 0)
            .gives_all(vec![
                row(&[0, 0, 0, 1]),
                strings(&[2], &["5", "-7"]),
                tensor(&[2], &[1i64, 2]),
            ]),
        cross("nothing", &[], &[], true)
            .int("num_buckets", 0)
            .refused("there must be at least one input"),
        cross("other rows", &[column()], &[row(&[1, 2])], true)
            .int("num_buckets", 0)
            .refused("Expected batch size 3, got 1"),
        cross("a vector", &[], &[tensor(&[2], &[1i64, 2])], true)
            .int("num_buckets", 0)
            .refused("Dense inputs should be a matrix but received shape [2]"),
        cross(
            "a row that does not exist",
            &[{
                let [_, values, shape] = column();
                [tensor(&[3, 2], &[0i64, 0, 3, 0, 3, 1]), values, shape]
            }],
            &[],
            true,
        )
        .int("num_buckets", 0)
        .refused("index 1 is outside of the 3 rows"),
    ]
}

fn to_dense(name: &str, indices: Tensor, sizes: &[i64], values: Tensor) -> Case {
    let default = typed_tensor(values.dtype(), &[], &[1]);
    case(&format!("SparseToDense: {name}"), "SparseToDense")
        .typed("T", values.dtype())
        .typed("Tindices", DType::I64)
        .input(indices)
        .input(tensor(&[sizes.len()], sizes))
        .input(values)
        .input(default)
}

fn dense() -> Vec<Case> {
    let two = |places: &[i64]| tensor(&[2, 2], places);
    let mut cases = vec![
        to_dense(
            "a matrix",
            two(&[0, 1, 1, 0]),
            &[2, 2],
            tensor(&[2], &[5, 6]),
        )
        .gives(tensor(&[2, 2], &[1, 5, 6, 1])),
        to_dense(
            "one value for all",
            tensor(&[2], &[0i64, 2]),
            &[3],
            tensor(&[], &[5]),
        )
        .gives(tensor(&[3], &[5, 1, 5])),
        to_dense("one place", tensor(&[], &[1i64]), &[2], tensor(&[], &[5]))
            .gives(tensor(&[2], &[1, 5])),
        to_dense(
            "nothing",
            tensor::<i64>(&[0, 1], &[]),
            &[2],
            tensor::<f32>(&[0], &[]),
        )
        .gives(tensor(&[2], &[1.0f32, 1.0])),
        to_dense(
            "no place",
            tensor::<i64>(&[0, 2], &[]),
            &[2, 0],
            tensor::<f32>(&[0], &[]),
        )
        .gives(tensor::<f32>(&[2, 0], &[])),
        to_dense(
            "out of order",
            two(&[1, 0, 0, 1]),
            &[2, 2],
            tensor(&[2], &[5, 6]),
        )
        .refused("indices[1] = [0, 1] is out of order"),
        to_dense(
            "repeated",
            two(&[1, 0, 1, 0]),
            &[2, 2],
            tensor(&[2], &[5, 6]),
        )
        .refused("indices[1] = [1, 0] is repeated"),
        to_dense(
            "unchecked order",
            two(&[1, 0, 0, 1]),
            &[2, 2],
            tensor(&[2], &[5, 6]),
        )
        .bool("validate_indices", false)
        .gives(tensor(&[2, 2], &[1, 6, 5, 1])),
        to_dense(
            "outside",
            two(&[0, 1, 2, 0]),
            &[2, 2],
            tensor(&[2], &[5, 6]),
        )
        .refused("indices[1] = [2, 0] is out of bounds"),
        to_dense(
            "another rank",
            two(&[0, 1, 1, 0]),
            &[4],
            tensor(&[2], &[5, 6]),
        )
        .refused("output_shape has incorrect number of elements: 1 should be: 2"),
        to_dense(
            "another number",
            two(&[0, 1, 1, 0]),
            &[2, 2],
            tensor(&[3], &[5, 6, 7]),
        )
        .refused("sparse_values has incorrect shape [3], should be [] or [2]"),
    ];
    for dtype in MOVED {
        let values = typed_tensor(dtype, &[1], &[0]);
        cases.push(
            to_dense(dtype.name(), tensor(&[1, 1], &[1i64]), &[2], values).gives(typed_tensor(
                dtype,
                &[2],
                &[1, 0],
            )),
        );
    }
    cases
}

fn sparse() -> Vec<Case> {
    let reshape = |name: &str, requested: &[i64]| {
        case(&format!("SparseReshape: {name}"), "SparseReshape")
            .input(tensor(&[2, 2], &[0i64, 1, 1, 2]))
            .input(tensor(&[2], &[2i64, 3]))
            .input(tensor(&[requested.len()], requested))
            .with_outputs(2)
    };
    let fill = |name: &str, places: &[i64], n_rows: i64| {
        let n = places.len() / 2;
        let values: Vec<i32> = (0..).take(n).collect();
        case(
            &format!("SparseFillEmptyRows: {name}"),
            "SparseFillEmptyRows",
        )
        .typed("T", DType::I32)
        .input(tensor(&[n, 2], places))
        .input(tensor(&[n], &values))
        .input(tensor(&[2], &[n_rows, 5]))
        .input(tensor(&[], &[-1]))
        .with_outputs(4)
    };
    let truths = |values: &[bool]| {
        let values: Vec<Boolean> = values.iter().map(|&value| value.into()).collect();
        tensor(&[values.len()], &values)
    };
    let mut cases = vec![
        reshape("a vector", &[6])
            .gives_all(vec![tensor(&[2, 1], &[1i64, 5]), tensor(&[1], &[6i64])]),
        reshape("a missing size", &[3, -1]).gives_all(vec![
            tensor(&[2, 2], &[0i64, 1, 2, 1]),
            tensor(&[2], &[3i64, 2]),
        ]),
        reshape("two missing sizes", &[-1, -1])
            .refused("only one output dimension may be -1, not both 0 and 1"),
        reshape("another number", &[5]).refused(
            "Input to reshape is a tensor with 6 dense values, but the requested shape has 5",
        ),
        fill("rows", &[0, 3, 2, 1, 2, 0], 4).gives_all(vec![
            tensor(&[5, 2], &[0i64, 3, 1, 0, 2, 1, 2, 0, 3, 0]),
            tensor(&[5], &[0, -1, 1, 2, -1]),
            truths(&[false, true, false, true]),
            tensor(&[3], &[0i64, 2, 3]),
        ]),
        fill("nothing", &[], 0).gives_all(vec![
            tensor::<i64>(&[0, 2], &[]),
            tensor::<i32>(&[0], &[]),
            truths(&[]),
            tensor::<i64>(&[0], &[]),
        ]),
        fill("a row outside", &[4, 0], 4).refused("indices(0, 0) is invalid: 4 >= 4"),
        fill("no rows", &[0, 0], 0)
            .refused("Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = 1"),
    ];
    for dtype in MOVED {
        cases.push(
            case(&format!("SparseReorder: {dtype}"), "SparseReorder")
                .typed("T", dtype)
                .input(tensor(&[2, 2], &[1i64, 0, 0, 1]))
                .input(typed_tensor(dtype, &[2], &[1, 0]))
                .input(tensor(&[2], &[2i64, 2]))
                .gives_all(vec![
                    tensor(&[2, 2], &[0i64, 1, 1, 0]),
                    typed_tensor(dtype, &[2], &[0, 1]),
                ]),
        );
    }
    cases
}

fn matmuls() -> Vec<Case> {
    let matmul = |name: &str, dtype: DType, adjoint_a: bool, adjoint_b: bool| {
        case(
            &format!("SparseTensorDenseMatMul: {name}"),
            "SparseTensorDenseMatMul",
        )
        .typed("T", dtype)
        .typed("Tindices", DType::I64)
        .bool("adjoint_a", adjoint_a)
        .bool("adjoint_b", adjoint_b)
        // [[0, 2], [3, 0]]
        .input(tensor(&[2, 2], &[0i64, 1, 1, 0]))
        .input(typed_tensor(dtype, &[2], &[2, 3]))
        .input(tensor(&[2], &[2i64, 2]))
        .input(typed_tensor(dtype, &[2, 2], &[1, 2, 3, 4]))
    };
    let mut cases = vec![
        matmul("adjoint a", DType::F32, true, false)
            .gives(tensor(&[2, 2], &[9.0f32, 12.0, 2.0, 4.0])),
        matmul("adjoint b", DType::F32, false, true)
            .gives(tensor(&[2, 2], &[4.0f32, 8.0, 3.0, 9.0])),
        case(
            "SparseTensorDenseMatMul: other sizes",
            "SparseTensorDenseMatMul",
        )
        .typed("T", DType::F32)
        .typed("Tindices", DType::I64)
        .input(tensor(&[1, 2], &[0i64, 1]))
        .input(tensor(&[1], &[1.0f32]))
        .input(tensor(&[2], &[2i64, 3]))
        .input(tensor(&[2, 1], &[1.0f32, 2.0]))
        .refused("inner dimension does not match: 3 vs. 2"),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I32] {
        cases.push(
            matmul(dtype.name(), dtype, false, false).gives(typed_tensor(
                dtype,
                &[2, 2],
                &[6, 8, 3, 6],
            )),
        );
    }
    cases
}

fn ragged() -> Vec<Case> {
    let names = |names: &[&str]| {
        let names = names
            .iter()
            .map(|name| AttrValue::Bytes(name.as_bytes().into()));
        AttrValue::List(names.collect())
    };
    let to_tensor = |name: &str, sizes: Tensor, values: Tensor| {
        let default = typed_tensor(values.dtype(), &[], &[0]);
        case(
            &format!("RaggedTensorToTensor: {name}"),
            "RaggedTensorToTensor",
        )
        .typed("T", values.dtype())
        .typed("Tindex", DType::I64)
        .typed("Tshape", DType::I64)
        .attr("row_partition_types", names(&["ROW_SPLITS"]))
        .input(sizes)
        .input(values)
        .input(default)
        .input(tensor(&[4], &[0i64, 2, 2, 3]))
    };
    let any = || tensor(&[], &[-1i64]);
    let gather = |name: &str, rows: Tensor, n_outputs: i64| {
        case(&format!("RaggedGather: {name}"), "RaggedGather")
            .typed("Tvalues", DType::F32)
            .typed("Tsplits", DType::I64)
            .typed("Tindices", DType::I32)
            .int("PARAMS_RAGGED_RANK", 1)
            .int("OUTPUT_RAGGED_RANK", n_outputs)
            .input(tensor(&[4], &[0i64, 2, 2, 3]))
            .input(tensor(&[3], &[1.0f32, 2.0, 3.0]))
            .input(rows)
            .with_outputs(2)
    };
    let range = |name: &str, starts: Tensor, limits: Tensor, deltas: Tensor| {
        case(&format!("RaggedRange: {name}"), "RaggedRange")
            .typed("T", starts.dtype())
            .typed("Tsplits", DType::I64)
            .input(starts)
            .input(limits)
            .input(deltas)
            .with_outputs(2)
    };
    let mut cases = vec![
        to_tensor(
            "a given shape",
            tensor(&[2], &[4i64, 1]),
            tensor(&[3], &[1, 2, 3]),
        )
        .gives(tensor(&[4, 1], &[1, 0, 3, 0])),
        to_tensor(
            "rows of values",
            any(),
            tensor(&[3, 2], &[1, 2, 3, 4, 5, 6]),
        )
        .gives(tensor(&[3, 2, 2], &[1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 0, 0])),
        to_tensor("another number of values", any(), tensor(&[2], &[1, 2]))
            .refused("there are 2 values, expected 3"),
        to_tensor(
            "another rank",
            tensor(&[3], &[4i64, 1, 1]),
            tensor(&[3], &[1, 2, 3]),
        )
        .refused("rt_input.rank = 2 but shape.rank = 3"),
        case("RaggedTensorToSparse: rows", "RaggedTensorToSparse")
            .typed("T", DType::F32)
            .typed("Tsplits", DType::I32)
            .int("RAGGED_RANK", 1)
            .input(tensor(&[4], &[0, 2, 2, 3]))
            .input(tensor(&[3], &[1.0f32, 2.0, 3.0]))
            .gives_all(vec![
                tensor(&[3, 2], &[0i64, 0, 0, 1, 2, 0]),
                tensor(&[3], &[1.0f32, 2.0, 3.0]),
                tensor(&[2], &[3i64, 2]),
            ]),
        case("RaggedTensorToSparse: a wrong end", "RaggedTensorToSparse")
            .typed("T", DType::F32)
            .typed("Tsplits", DType::I32)
            .int("RAGGED_RANK", 1)
            .input(tensor(&[2], &[0, 2]))
            .input(tensor(&[3], &[1.0f32, 2.0, 3.0]))
            .with_outputs(3)
            .refused("Final value of ragged splits must match"),
        gather("rows", tensor(&[2], &[2, 0]), 1).gives_all(vec![
            tensor(&[3], &[0i64, 1, 3]),
            tensor(&[3], &[3.0f32, 1.0, 2.0]),
        ]),
        gather("a row that is not there", tensor(&[1], &[3]), 1)
            .refused("indices[0] = 3 is not in [0, 3)"),
        range(
            "rows",
            tensor(&[2], &[0, 5]),
            tensor(&[2], &[3, 1]),
            tensor(&[2], &[2, -2]),
        )
        .gives_all(vec![
            tensor(&[3], &[0i64, 2, 4]),
            tensor(&[4], &[0, 2, 5, 3]),
        ]),
        range(
            "scalars",
            tensor(&[], &[0.0f64]),
            tensor(&[], &[1.0f64]),
            tensor(&[], &[0.5f64]),
        )
        .gives_all(vec![tensor(&[2], &[0i64, 2]), tensor(&[2], &[0.0f64, 0.5])]),
        range(
            "no step",
            tensor(&[], &[0]),
            tensor(&[], &[3]),
            tensor(&[], &[0]),
        )
        .refused("Requires delta != 0"),
        range(
            "more than any machine holds",
            tensor(&[], &[0i64]),
            tensor(&[], &[i64::MAX]),
            tensor(&[], &[1i64]),
        )
        .refused("larger than this machine can address"),
    ];
    for dtype in MOVED {
        cases.push(
            to_tensor(dtype.name(), any(), typed_tensor(dtype, &[3], &[1, 1, 1]))
                .gives(typed_tensor(dtype, &[3, 2], &[1, 1, 0, 0, 1, 0])),
        );
    }
    cases
}

fn counts() -> Vec<Case> {
    let ragged = |name: &str, values: &[i64], weights: Tensor| {
        case(&format!("RaggedBincount: {name}"), "RaggedBincount")
            .typed("T", weights.dtype())
            .typed("Tidx", DType::I64)
            .input(tensor(&[3], &[0i64, 2, 3]))
            .input(tensor(&[values.len()], values))
            .input(tensor(&[], &[3i64]))
            .input(weights)
    };
    let sparse = |name: &str, places: &[i64], sizes: &[i64]| {
        let n = places.len() / sizes.len();
        case(&format!("SparseBincount: {name}"), "SparseBincount")
            .typed("T", DType::F32)
            .typed("Tidx", DType::I32)
            .input(tensor(&[n, sizes.len()], places))
            .input(tensor(&[n], &[1, 1, 0][..n]))
            .input(tensor(&[sizes.len()], sizes))
            .input(tensor(&[], &[2]))
            .input(tensor::<f32>(&[0], &[]))
    };
    vec![
        ragged("rows", &[1, 1, 7], tensor::<i32>(&[0], &[]))
            .gives(tensor(&[2, 3], &[0, 2, 0, 0, 0, 0])),
        ragged("weights", &[1, 1, 0], tensor(&[3], &[0.5f64, 1.0, 2.0]))
            .gives(tensor(&[2, 3], &[0.0f64, 1.5, 0.0, 2.0, 0.0, 0.0])),
        ragged("presence", &[1, 1, 0], tensor::<i64>(&[0], &[]))
            .bool("binary_output", true)
            .gives(tensor(&[2, 3], &[0i64, 1, 0, 1, 0, 0])),
        ragged("a negative number", &[-1, 1, 0], tensor::<i32>(&[0], &[]))
            .refused("Input arr must be non-negative!"),
        ragged("too few values", &[1], tensor::<i32>(&[0], &[]))
            .refused("Splits must end with the number of values"),
        sparse("rows", &[0, 0, 2, 0, 2, 1], &[3, 2])
            .gives(tensor(&[3, 2], &[0.0f32, 1.0, 0.0, 0.0, 1.0, 1.0])),
        sparse("a vector", &[0, 1, 4], &[5]).gives(tensor(&[2], &[1.0f32, 2.0])),
        sparse("a row outside", &[3, 0], &[3, 2]).refused("indices[0] = [3, 0] is out of bounds"),
        sparse("a column outside", &[0, 2], &[3, 2])
            .refused("indices[0] = [0, 2] is out of bounds"),
        sparse("an element outside", &[5], &[5]).refused("indices[0] = [5] is out of bounds"),
        sparse("a negative size", &[0], &[-1]).refused("the negative dimension -1"),
    ]
}
