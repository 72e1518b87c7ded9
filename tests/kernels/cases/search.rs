//! Ops that count, search, and find positions.

use placewright::graph::AttrValue;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = counts();
    cases.extend(searches());
    cases.extend(sets());
    cases.extend(positions());
    cases
}

fn is_number(dtype: &DType) -> bool {
    dtype.is_floating() || dtype.is_integer()
}

fn is_complex(dtype: &DType) -> bool {
    matches!(dtype, DType::Complex64 | DType::Complex128)
}

fn count<T: Element>(
    op: &'static str,
    name: &str,
    values: Tensor,
    size: i32,
    weights: &Tensor,
    expected: impl Into<Option<Tensor>>,
) -> Case {
    let case = case(&format!("{op}: {name}, {}", T::DTYPE), op)
        .typed("T", T::DTYPE)
        .typed("Tidx", DType::I32)
        .input(values)
        .named_input("size", tensor(&[], &[size]))
        .input(weights.clone());
    match expected.into() {
        Some(expected) => case.gives(expected),
        None => case.refused("must"),
    }
}

fn counted<T: Element>(number: impl Fn(u8) -> T) -> Vec<Case> {
    let numbers = |values: &[u8]| values.iter().map(|&x| number(x)).collect::<Vec<T>>();
    let none = tensor::<T>(&[0], &[]);
    let histogram = |name: &str, values: &[u8], range: [u8; 2], n: i32| {
        case(
            &format!("HistogramFixedWidth: {name}, {}", T::DTYPE),
            "HistogramFixedWidth",
        )
        .typed("T", T::DTYPE)
        .typed("dtype", DType::I64)
        .input(tensor(&[values.len()], &numbers(values)))
        .input(tensor(&[2], &numbers(&range)))
        .named_input("nbins", tensor(&[], &[n]))
    };
    vec![
        count::<T>(
            "Bincount",
            "without weights",
            tensor(&[2, 2], &[1, 3, 1, 9]),
            4,
            &none,
            tensor(&[4], &numbers(&[0, 2, 0, 1])),
        ),
        count::<T>(
            "Bincount",
            "with weights",
            tensor(&[3], &[1, 0, 1]),
            2,
            &tensor(&[3], &numbers(&[5, 6, 7])),
            tensor(&[2], &numbers(&[6, 12])),
        ),
        count::<T>(
            "Bincount",
            "no bins",
            tensor(&[1], &[0]),
            0,
            &none,
            none.clone(),
        ),
        count::<T>(
            "Bincount",
            "a negative value",
            tensor(&[1], &[-1]),
            1,
            &none,
            None,
        ),
        count::<T>(
            "Bincount",
            "a negative size",
            tensor(&[1], &[0]),
            -1,
            &none,
            None,
        ),
        count::<T>(
            "Bincount",
            "weights of another shape",
            tensor(&[1], &[0]),
            1,
            &tensor(&[2], &numbers(&[1, 2])),
            None,
        ),
        count::<T>(
            "DenseBincount",
            "a vector",
            tensor(&[3], &[1, 0, 1]),
            3,
            &none,
            tensor(&[3], &numbers(&[1, 2, 0])),
        ),
        count::<T>(
            "DenseBincount",
            "rows",
            tensor(&[2, 2], &[1, 0, 1, 1]),
            2,
            &tensor(&[2, 2], &numbers(&[5, 6, 7, 8])),
            tensor(&[2, 2], &numbers(&[6, 5, 0, 15])),
        ),
        count::<T>(
            "DenseBincount",
            "rank 3",
            tensor(&[1, 1, 1], &[0]),
            1,
            &none,
            None,
        ),
        count::<T>(
            "DenseBincount",
            "binary",
            tensor(&[3], &[1, 0, 1]),
            3,
            &none,
            tensor(&[3], &numbers(&[1, 1, 0])),
        )
        .bool("binary_output", true),
        histogram("values outside", &[0, 2, 3, 9, 4], [2, 6], 2).gives(tensor(&[2], &[3i64, 2])),
        histogram("nothing", &[], [0, 1], 1).gives(tensor(&[1], &[0i64])),
        histogram("an empty range", &[0], [1, 1], 1).refused("value_range[0] < value_range[1]"),
        histogram("no bins", &[0], [0, 1], 0).refused("nbins should be a positive number"),
    ]
}

fn counts() -> Vec<Case> {
    let mut cases = counted(f32::from);
    cases.extend(counted(f64::from));
    cases.extend(counted(i32::from));
    cases.extend(counted(i64::from));
    cases
}

fn bucketize(name: &str, x: Tensor, boundaries: &[f32]) -> Case {
    let boundaries = boundaries.iter().map(|&b| AttrValue::Float(b)).collect();
    case(&format!("Bucketize: {name}"), "Bucketize")
        .typed("T", x.dtype())
        .attr("boundaries", AttrValue::List(boundaries))
        .input(x)
}

fn searches() -> Vec<Case> {
    let mut cases = vec![
        bucketize(
            "float",
            tensor(&[5], &[-1.0f32, 0.0, 0.5, 2.0, f32::NAN]),
            &[0.0, 0.5],
        )
        .gives(tensor(&[5], &[0, 1, 2, 2, 2])),
        bucketize("double", tensor(&[2], &[0.1, 0.1f64.next_down()]), &[0.1])
            .gives(tensor(&[2], &[0, 0])),
        bucketize("int32", tensor(&[1, 2], &[1, 2]), &[1.5]).gives(tensor(&[1, 2], &[0, 1])),
        bucketize("int64", tensor(&[], &[3i64]), &[1.0, 2.0]).gives(tensor(&[], &[2])),
        bucketize("no boundaries", tensor(&[1], &[1]), &[]).gives(tensor(&[1], &[0])),
        bucketize("nothing", tensor(&[0], &[0i64; 0]), &[1.0]).gives(tensor(&[0], &[0i32; 0])),
        bucketize("descending boundaries", tensor(&[1], &[1]), &[2.0, 1.0])
            .refused("expected sorted boundaries"),
    ];
    let bound = |op: &'static str, name: &str, sorted: Tensor, values: Tensor, out: DType| {
        case(&format!("{op}: {name}"), op)
            .typed("T", sorted.dtype())
            .typed("out_type", out)
            .input(sorted)
            .input(values)
    };
    for dtype in MOVED.into_iter().filter(is_number) {
        let sorted = typed_tensor(dtype, &[2, 3], &[1, 1, 4, 0, 2, 2]);
        let values = typed_tensor(dtype, &[2, 2], &[1, 9, 2, 0]);
        cases.push(
            bound(
                "LowerBound",
                &format!("{dtype}"),
                sorted.clone(),
                values.clone(),
                DType::I32,
            )
            .gives(tensor(&[2, 2], &[0, 3, 1, 0])),
        );
        cases.push(
            bound(
                "UpperBound",
                &format!("{dtype}"),
                sorted,
                values,
                DType::I64,
            )
            .gives(tensor(&[2, 2], &[2i64, 3, 3, 1])),
        );
    }
    let empty = |dims: &[usize]| tensor::<f32>(dims, &vec![0.0; dims.iter().product()]);
    cases.extend([
        bound(
            "LowerBound",
            "no values",
            empty(&[2, 3]),
            empty(&[2, 0]),
            DType::I32,
        )
        .gives(tensor(&[2, 0], &[0i32; 0])),
        bound(
            "UpperBound",
            "nothing sorted",
            empty(&[1, 0]),
            empty(&[1, 1]),
            DType::I32,
        )
        .gives(tensor(&[1, 1], &[0])),
        bound(
            "LowerBound",
            "a vector",
            empty(&[2]),
            empty(&[2]),
            DType::I32,
        )
        .refused("must be 2-D"),
        bound(
            "LowerBound",
            "rows that differ",
            empty(&[2, 1]),
            empty(&[1, 1]),
            DType::I32,
        )
        .refused("leading dim_size of both tensors must match"),
    ]);
    cases
}

fn sets() -> Vec<Case> {
    let mut cases = Vec::new();
    let positions = |values: &[i32]| tensor(&[values.len()], values);
    let longs = |values: &[i64]| tensor(&[values.len()], values);
    let diff = |name: &str, x: Tensor, y: Tensor| {
        case(&format!("ListDiff: {name}"), "ListDiff")
            .typed("T", x.dtype())
            .typed("out_idx", DType::I64)
            .input(x)
            .input(y)
    };
    let unique = |op: &'static str, name: &str, x: Tensor| {
        case(&format!("{op}: {name}"), op)
            .typed("T", x.dtype())
            .typed("out_idx", DType::I32)
            .input(x)
    };
    for dtype in MOVED.into_iter().filter(|dtype| !is_complex(dtype)) {
        if dtype != DType::Bool {
            cases.push(
                diff(
                    &format!("{dtype}"),
                    typed_tensor(dtype, &[5], &[3, 1, 3, 0, 2]),
                    typed_tensor(dtype, &[3], &[1, 0, 1]),
                )
                .gives_all(vec![
                    typed_tensor(dtype, &[3], &[3, 3, 2]),
                    longs(&[0, 2, 4]),
                ]),
            );
        }
        let x = typed_tensor(dtype, &[4], &[1, 0, 0, 1]);
        let y = typed_tensor(dtype, &[2], &[1, 0]);
        cases.push(
            unique("Unique", &format!("{dtype}"), x.clone())
                .gives_all(vec![y.clone(), positions(&[0, 1, 1, 0])]),
        );
        cases.push(
            unique("UniqueWithCounts", &format!("{dtype}"), x).gives_all(vec![
                y,
                positions(&[0, 1, 1, 0]),
                positions(&[2, 2]),
            ]),
        );
    }
    let along = |op: &'static str, name: &str, x: Tensor, axis: &[i64]| {
        unique(op, name, x).input(tensor(&[axis.len()], axis))
    };
    let (empty, nan) = (tensor::<i32>(&[0], &[]), f32::NAN);
    cases.extend([
        diff("NaN", tensor(&[2], &[nan, 1.0]), tensor(&[2], &[nan, 1.0]))
            .gives_all(vec![tensor(&[1], &[nan]), longs(&[0])]),
        diff("nothing", empty.clone(), empty.clone()).gives_all(vec![empty.clone(), longs(&[])]),
        diff("a matrix", tensor(&[1, 1], &[1]), empty.clone())
            .with_outputs(2)
            .refused("x should be a 1D vector"),
        unique("Unique", "NaN", tensor(&[4], &[nan, -0.0, nan, 0.0])).gives_all(vec![
            tensor(&[3], &[nan, 0.0, nan]),
            positions(&[0, 1, 2, 1]),
        ]),
        unique("Unique", "nothing", empty.clone()).gives_all(vec![empty.clone(), positions(&[])]),
        unique("Unique", "a scalar", tensor(&[], &[1]))
            .with_outputs(2)
            .refused("unique expects a 1D vector"),
        along(
            "UniqueV2",
            "rows",
            tensor(&[3, 2], &[1, 2, 0, 2, 1, 2]),
            &[0],
        )
        .gives_all(vec![tensor(&[2, 2], &[1, 2, 0, 2]), positions(&[0, 1, 0])]),
        along(
            "UniqueV2",
            "columns",
            tensor(&[2, 3], &[1, 1, 2, 3, 3, 3]),
            &[-1],
        )
        .gives_all(vec![tensor(&[2, 2], &[1, 2, 3, 3]), positions(&[0, 0, 1])]),
        along("UniqueV2", "no axis", tensor(&[2], &[4, 4]), &[])
            .gives_all(vec![tensor(&[1], &[4]), positions(&[0, 0])]),
        along(
            "UniqueV2",
            "empty slices",
            tensor(&[2, 0], &[0i32; 0]),
            &[0],
        )
        .gives_all(vec![tensor(&[1, 0], &[0i32; 0]), positions(&[0, 0])]),
        along("UniqueWithCountsV2", "rows", tensor(&[2, 1], &[5, 5]), &[0]).gives_all(vec![
            tensor(&[1, 1], &[5]),
            positions(&[0, 0]),
            positions(&[2]),
        ]),
        along("UniqueV2", "an axis too far", tensor(&[2], &[4, 4]), &[1])
            .with_outputs(2)
            .refused("axis has to be between [0, 1)"),
        along("UniqueV2", "two axes", tensor(&[2], &[4, 4]), &[0, 0])
            .with_outputs(2)
            .refused("larger than 1 elements"),
    ]);
    cases
}

fn positions() -> Vec<Case> {
    let mut cases = Vec::new();
    let set = |name: &str, x: Tensor| {
        case(&format!("Where: {name}"), "Where")
            .typed("T", x.dtype())
            .input(x)
    };
    for dtype in MOVED
        .into_iter()
        .filter(|&dtype| dtype != DType::String && dtype != DType::F16)
    {
        cases.push(
            set(
                &format!("{dtype}"),
                typed_tensor(dtype, &[2, 2], &[0, 1, 3, 0]),
            )
            .gives(tensor(&[2, 2], &[0i64, 1, 1, 0])),
        );
    }
    let top = |name: &str, x: Tensor, k: i32| {
        case(&format!("TopKV2: {name}"), "TopKV2")
            .typed("T", x.dtype())
            .typed("Tk", DType::I32)
            .typed("index_type", DType::I16)
            .input(x)
            .input(tensor(&[], &[k]))
    };
    for dtype in MOVED.into_iter().filter(is_number) {
        cases.push(
            top(
                &format!("{dtype}"),
                typed_tensor(dtype, &[2, 4], &[1, 3, 3, 0, 7, 8, 9, 9]),
                3,
            )
            .gives_all(vec![
                typed_tensor(dtype, &[2, 3], &[3, 3, 1, 9, 9, 8]),
                tensor(&[2, 3], &[1i16, 2, 0, 2, 3, 1]),
            ]),
        );
    }
    let hits = |dims: &[usize], values: &[bool]| {
        Tensor::from_bools(dims.to_vec().as_slice(), values).expect("as many values")
    };
    let in_top = |name: &str, predictions: Tensor, targets: &[i32], k: i32| {
        case(&format!("InTopKV2: {name}"), "InTopKV2")
            .typed("T", DType::I32)
            .input(predictions)
            .input(tensor(&[targets.len()], targets))
            .input(tensor(&[], &[k]))
    };
    let infinite = f32::INFINITY;
    cases.extend([
        set("rank 6", tensor(&[1, 2, 1, 1, 2, 1], &[0, 0, 5, 0]))
            .gives(tensor(&[1, 6], &[0i64, 1, 0, 0, 0, 0])),
        set("nothing", tensor::<f32>(&[0, 3], &[])).gives(tensor::<i64>(&[0, 2], &[])),
        set("a scalar", tensor(&[], &[1])).refused("unhandled input dimensions: 0"),
        set("NaN and -0", tensor(&[2], &[f32::NAN, -0.0])).gives(tensor(&[1, 1], &[0i64])),
        top("NaN", tensor(&[3], &[f32::NAN, 1.0, infinite]), 3).gives_all(vec![
            tensor(&[3], &[infinite, 1.0, f32::NAN]),
            tensor(&[3], &[2i16, 1, 0]),
        ]),
        top("none", tensor(&[2, 1], &[1, 2]), 0).gives_all(vec![
            tensor::<i32>(&[2, 0], &[]),
            tensor::<i16>(&[2, 0], &[]),
        ]),
        top("too many", tensor(&[2], &[1, 2]), 3)
            .with_outputs(2)
            .refused("input must have at least k columns. Had 2, needed 3"),
        top("a negative number", tensor(&[2], &[1, 2]), -1)
            .with_outputs(2)
            .refused("need k >= 0, got -1"),
        top("a scalar", tensor(&[], &[1]), 0)
            .with_outputs(2)
            .refused("input must be >= 1-D"),
        case("TopK: two", "TopK")
            .typed("T", DType::I32)
            .int("k", 2)
            .input(tensor(&[3], &[4, 6, 5]))
            .gives_all(vec![tensor(&[2], &[6, 5]), tensor(&[2], &[1, 2])]),
        in_top(
            "rows",
            tensor(&[2, 3], &[0.1f32, 0.2, 0.3, 0.5, 0.5, 0.4]),
            &[1, 1],
            1,
        )
        .gives(hits(&[2], &[false, true])),
        in_top(
            "infinite and missing",
            tensor(&[3, 2], &[infinite, 1.0, 1.0, 2.0, 1.0, 2.0]),
            &[0, 2, -1],
            2,
        )
        .gives(hits(&[3], &[false; 3])),
        in_top("nothing", tensor::<f32>(&[0, 2], &[]), &[], 1).gives(hits(&[0], &[])),
        in_top("too few targets", tensor(&[2, 1], &[1.0f32, 2.0]), &[0], 1)
            .refused("must match length of targets 1"),
        case("InTopK: one row", "InTopK")
            .typed("T", DType::I64)
            .int("k", 1)
            .input(tensor(&[1, 2], &[1.0f32, 2.0]))
            .input(tensor(&[1], &[1i64]))
            .gives(hits(&[1], &[true])),
    ]);
    cases
}
