//! Ops that scatter, combine segments, and distribute rows.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = scatters();
    cases.extend(segments());
    cases.extend(partitions());
    cases.extend(stitches());
    cases
}

fn is_number(dtype: &DType) -> bool {
    dtype.is_floating() || dtype.is_integer()
}

fn is_complex(dtype: &DType) -> bool {
    matches!(dtype, DType::Complex64 | DType::Complex128)
}

fn tensor_scatter(op: &'static str, name: &str, [old, indices, new]: [Tensor; 3]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", old.dtype())
        .typed("Tindices", indices.dtype())
        .input(old)
        .input(indices)
        .input(new)
}

/// Returns the result of rows of size 1 that are written one after the other.
fn written(old: &[u8], indices: &[i32], new: &[u8], join: impl Fn(u8, u8) -> u8) -> Vec<u8> {
    let mut out = old.to_vec();
    for (&index, &new) in indices.iter().zip(new) {
        let slot = &mut out[usize::try_from(index).expect("in range")];
        *slot = join(*slot, new);
    }
    out
}

/// An op, and how it combines an element with its update.
type Join = (&'static str, fn(u8, u8) -> u8);

fn scatters() -> Vec<Case> {
    let mut cases = Vec::new();
    let (old, indices, new) = ([5u8, 4, 3, 9], [2, 0, 2], [2u8, 7, 4]);
    let joins: [Join; 5] = [
        ("TensorScatterUpdate", |_, new| new),
        ("TensorScatterAdd", |old, new| old + new),
        ("TensorScatterSub", |old, new| old.saturating_sub(new)),
        ("TensorScatterMax", u8::max),
        ("TensorScatterMin", u8::min),
    ];
    for (op, join) in joins {
        for dtype in MOVED {
            let fits = match op {
                "TensorScatterUpdate" => true,
                "TensorScatterAdd" | "TensorScatterSub" => is_number(&dtype) || is_complex(&dtype),
                _ => is_number(&dtype),
            };
            if !fits {
                continue;
            }
            // Differences stay above 0, for unsigned types.
            let old = if op == "TensorScatterSub" {
                [9; 4]
            } else {
                old
            };
            cases.push(
                tensor_scatter(
                    op,
                    &format!("{dtype}"),
                    [
                        typed_tensor(dtype, &[4], &old),
                        tensor(&[3, 1], &indices),
                        typed_tensor(dtype, &[3], &new),
                    ],
                )
                .gives(typed_tensor(
                    dtype,
                    &[4],
                    &written(&old, &indices, &new, join),
                )),
            );
        }
    }
    let update = |name: &str, dims: &[usize], indices: Tensor, new: Tensor| {
        let old: Vec<i32> = (0..).take(dims.iter().product()).collect();
        tensor_scatter(
            "TensorScatterUpdate",
            name,
            [tensor(dims, &old), indices, new],
        )
    };
    let none: [i32; 0] = [];
    cases.extend([
        update(
            "rows",
            &[3, 2],
            tensor(&[1, 1], &[2i64]),
            tensor(&[1, 2], &[8, 9]),
        )
        .gives(tensor(&[3, 2], &[0, 1, 2, 3, 8, 9])),
        update(
            "rank 6",
            &[1, 2, 1, 3, 1, 1],
            tensor(&[1, 4], &[0, 1, 0, 2]),
            tensor(&[1, 1, 1], &[7]),
        )
        .gives(tensor(&[1, 2, 1, 3, 1, 1], &[0, 1, 2, 3, 4, 7])),
        update(
            "indices of rank 1 are rows",
            &[3],
            tensor(&[2], &[2, 0]),
            tensor(&[2], &[8, 9]),
        )
        .gives(tensor(&[3], &[9, 1, 8])),
        update(
            "no updates",
            &[2],
            tensor(&[0, 1], &none),
            tensor(&[0], &none),
        )
        .gives(tensor(&[2], &[0, 1])),
        update(
            "an index out of range",
            &[3],
            tensor(&[2, 1], &[0, 3]),
            tensor(&[2], &[8, 9]),
        )
        .refused("indices[1] = [3] does not index into shape [3]"),
        update(
            "a negative index",
            &[3],
            tensor(&[1, 1], &[-1]),
            tensor(&[1], &[8]),
        )
        .refused("does not index into shape [3]"),
        update(
            "an ignored index",
            &[3],
            tensor(&[2, 1], &[-1, 1]),
            tensor(&[2], &[8, 9]),
        )
        .text("bad_indices_policy", "IGNORE")
        .gives(tensor(&[3], &[0, 9, 2])),
        update(
            "updates of another shape",
            &[3],
            tensor(&[2, 1], &[0, 1]),
            tensor(&[3], &[7, 8, 9]),
        )
        .refused("updates of shape [3] do not match indices of shape [2,1]"),
        update(
            "too many indices",
            &[3],
            tensor(&[1, 2], &[0, 1]),
            tensor(&[1], &[7]),
        )
        .refused("do not match"),
        update("a scalar", &[], tensor(&[1, 1], &[0]), tensor(&[1], &[7]))
            .refused("output must be at least 1-D"),
        update(
            "updates of nothing",
            &[0],
            tensor(&[1, 1], &[0]),
            tensor(&[1], &[7]),
        )
        .refused("specified for empty output"),
    ]);
    let nd = |name: &str, indices: Tensor, updates: Tensor, shape: &[i32]| {
        case(&format!("ScatterNd: {name}"), "ScatterNd")
            .typed("T", updates.dtype())
            .typed("Tindices", DType::I32)
            .input(indices)
            .input(updates)
            .named_input("shape", tensor(&[shape.len()], shape))
    };
    for dtype in MOVED.into_iter().filter(|&dtype| dtype != DType::String) {
        let sum = if dtype == DType::Bool { 1 } else { 4 };
        cases.push(
            nd(
                &format!("{dtype}"),
                tensor(&[2, 1], &[1, 1]),
                typed_tensor(dtype, &[2], &[1, 3]),
                &[3],
            )
            .gives(typed_tensor(dtype, &[3], &[0, sum, 0])),
        );
    }
    cases.extend([
        nd(
            "matrices",
            tensor(&[2, 1], &[1, 0]),
            tensor(&[2, 2], &[1, 2, 3, 4]),
            &[2, 2],
        )
        .gives(tensor(&[2, 2], &[3, 4, 1, 2])),
        nd(
            "no updates",
            tensor(&[0, 1], &none),
            tensor(&[0], &none),
            &[2],
        )
        .gives(tensor(&[2], &[0, 0])),
        nd(
            "a negative size",
            tensor(&[1, 1], &[0]),
            tensor(&[1], &[1]),
            &[-2],
        )
        .refused("dimension -2 must be >= 0"),
    ]);
    cases
}

fn segment(op: &'static str, name: &str, data: Tensor, ids: Tensor, n: Option<i32>) -> Case {
    let case = case(&format!("{op}: {name}"), op)
        .typed("T", data.dtype())
        .typed("Tindices", ids.dtype())
        .typed("Tnumsegments", DType::I32)
        .input(data)
        .input(ids);
    match n {
        Some(n) => case.named_input("num_segments", tensor(&[], &[n])),
        None => case,
    }
}

/// Sums, products, smallest and largest of the rows of each segment by a plain loop: `[n, 3]`.
fn combined(op: &str, data: &[u8], ids: &[i32], n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for segment in 0..n {
        for column in 0..3 {
            let rows = ids.iter().enumerate();
            let rows = rows.filter(|&(_, &id)| usize::try_from(id) == Ok(segment));
            let terms: Vec<u8> = rows.map(|(row, _)| data[row * 3 + column]).collect();
            let n_terms = u8::try_from(terms.len()).expect("few");
            out.push(if op.ends_with("Sum") {
                terms.iter().sum()
            } else if op.ends_with("Prod") {
                terms.iter().product()
            } else if op.ends_with("Max") {
                terms.iter().copied().max().unwrap_or(0)
            } else if op.ends_with("Min") {
                terms.iter().copied().min().unwrap_or(0)
            } else {
                terms.iter().sum::<u8>().checked_div(n_terms).unwrap_or(0)
            });
        }
    }
    out
}

fn segments() -> Vec<Case> {
    let mut cases = Vec::new();
    // Means are whole.
    let data = [1u8, 2, 3, 3, 0, 1, 2, 5, 4];
    let numbers = MOVED
        .into_iter()
        .filter(|dtype| is_number(dtype) || is_complex(dtype));
    for dtype in numbers {
        for op in [
            "SegmentSum",
            "SegmentMean",
            "SegmentProd",
            "SegmentMax",
            "SegmentMin",
        ] {
            if is_complex(&dtype) && op != "SegmentSum" && op != "SegmentMean" {
                continue;
            }
            let ids = [0, 0, 2];
            cases.push(
                segment(
                    op,
                    &format!("{dtype}"),
                    typed_tensor(dtype, &[3, 3], &data),
                    tensor(&[3], &ids),
                    None,
                )
                .gives(typed_tensor(dtype, &[3, 3], &combined(op, &data, &ids, 3))),
            );
        }
        for op in [
            "UnsortedSegmentSum",
            "UnsortedSegmentProd",
            "UnsortedSegmentMax",
            "UnsortedSegmentMin",
        ] {
            if is_complex(&dtype) && op != "UnsortedSegmentSum" {
                continue;
            }
            let ids = [1, 0, 1];
            cases.push(
                segment(
                    op,
                    &format!("{dtype}"),
                    typed_tensor(dtype, &[3, 3], &data),
                    tensor(&[3], &ids),
                    Some(2),
                )
                .gives(typed_tensor(dtype, &[2, 3], &combined(op, &data, &ids, 2))),
            );
        }
    }
    let (floats, none) = (
        |dims: &[usize]| tensor(dims, &noise(dims.iter().product(), 3)),
        [0i32; 0],
    );
    let (sorted, unsorted) = ("SegmentSum", "UnsortedSegmentSum");
    cases.extend([
        segment(
            sorted,
            "nothing",
            floats(&[0, 2]),
            tensor(&[0], &none),
            None,
        )
        .gives(floats(&[0, 2])),
        segment(
            "SegmentProd",
            "a gap",
            tensor(&[1], &[5]),
            tensor(&[1], &[1i64]),
            None,
        )
        .gives(tensor(&[2], &[1, 5])),
        segment(
            sorted,
            "descending ids",
            tensor(&[2], &[5, 6]),
            tensor(&[2], &[1, 0]),
            None,
        )
        .refused("segment ids are not increasing"),
        segment(
            sorted,
            "a negative id",
            tensor(&[1], &[5]),
            tensor(&[1], &[-1]),
            None,
        )
        .refused("segment ids must be >= 0"),
        segment(
            sorted,
            "too few ids",
            tensor(&[2], &[5, 6]),
            tensor(&[1], &[0]),
            None,
        )
        .refused("should be the same size as dimension 0 of input: 1 vs. 2"),
        segment(
            sorted,
            "ids of rank 2",
            tensor(&[1], &[5]),
            tensor(&[1, 1], &[0]),
            None,
        )
        .refused("segment_ids should be a vector"),
        segment(
            unsorted,
            "dropped rows",
            tensor(&[3], &[5, 6, 7]),
            tensor(&[3], &[-1, 0, 0]),
            Some(1),
        )
        .gives(tensor(&[1], &[13])),
        segment(
            unsorted,
            "a scalar",
            tensor(&[], &[5]),
            tensor(&[], &[1]),
            Some(2),
        )
        .gives(tensor(&[2], &[0, 5])),
        segment(
            unsorted,
            "ids of rank 2",
            tensor(&[2, 1, 2], &[1, 2, 3, 4]),
            tensor(&[2, 1], &[1i16, 1]),
            Some(2),
        )
        .gives(tensor(&[2, 2], &[0, 0, 4, 6])),
        segment(
            "UnsortedSegmentMax",
            "an empty segment",
            tensor(&[0], &[0.0f32; 0]),
            tensor(&[0], &none),
            Some(1),
        )
        .gives(tensor(&[1], &[f32::MIN])),
        segment(
            "UnsortedSegmentMin",
            "an empty segment",
            tensor(&[0], &none),
            tensor(&[0], &none),
            Some(1),
        )
        .gives(tensor(&[1], &[i32::MAX])),
        segment(
            unsorted,
            "an id out of range",
            tensor(&[1], &[5]),
            tensor(&[1], &[2]),
            Some(2),
        )
        .refused("segment_ids at position 0 = 2 is out of range [0, 2)"),
        segment(
            unsorted,
            "a negative number of segments",
            tensor(&[1], &[5]),
            tensor(&[1], &[0]),
            Some(-1),
        )
        .refused("input num_segments == -1 must not be negative"),
        segment(
            unsorted,
            "ids of another shape",
            tensor(&[2], &[5, 6]),
            tensor(&[1], &[0]),
            Some(1),
        )
        .refused("data.shape = [2] does not start with segment_ids.shape = [1]"),
    ]);
    cases
}

fn partition(name: &str, data: Tensor, partitions: Tensor, n: i64) -> Case {
    case(&format!("DynamicPartition: {name}"), "DynamicPartition")
        .typed("T", data.dtype())
        .int("num_partitions", n)
        .input(data)
        .input(partitions)
}

fn partitions() -> Vec<Case> {
    let mut cases = Vec::new();
    let none: [i32; 0] = [];
    for dtype in MOVED {
        let data = typed_tensor(dtype, &[3, 2], &[1, 2, 3, 4, 5, 6]);
        cases.push(
            partition(&format!("{dtype}"), data, tensor(&[3], &[2, 0, 2]), 3).gives_all(vec![
                typed_tensor(dtype, &[1, 2], &[3, 4]),
                typed_tensor(dtype, &[0, 2], &[]),
                typed_tensor(dtype, &[2, 2], &[1, 2, 5, 6]),
            ]),
        );
        cases.push(
            stitch(
                "DynamicStitch",
                &format!("{dtype}"),
                &[tensor(&[2], &[0, 2]), tensor(&[], &[1])],
                &[
                    typed_tensor(dtype, &[2, 2], &[1, 2, 5, 6]),
                    typed_tensor(dtype, &[2], &[3, 4]),
                ],
            )
            .gives(typed_tensor(dtype, &[3, 2], &[1, 2, 3, 4, 5, 6])),
        );
    }
    cases.extend([
        partition("a scalar", tensor(&[], &[7]), tensor(&[], &[1]), 2)
            .gives_all(vec![tensor(&[0], &none), tensor(&[1], &[7])]),
        partition(
            "rank 4",
            tensor(&[1, 2, 1, 1], &[7, 8]),
            tensor(&[1, 2], &[1, 0]),
            2,
        )
        .gives_all(vec![tensor(&[1, 1, 1], &[8]), tensor(&[1, 1, 1], &[7])]),
        partition("nothing", tensor(&[0, 3], &none), tensor(&[0], &none), 1)
            .gives_all(vec![tensor(&[0, 3], &none)]),
        partition(
            "a partition out of range",
            tensor(&[2], &[7, 8]),
            tensor(&[2], &[0, 2]),
            2,
        )
        .with_outputs(2)
        .refused("element 1 = 2 is not in [0, 2)"),
        partition(
            "partitions of another shape",
            tensor(&[2], &[7, 8]),
            tensor(&[1], &[0]),
            1,
        )
        .refused("data.shape must start with partitions.shape"),
    ]);
    cases
}

fn stitch(op: &'static str, name: &str, indices: &[Tensor], data: &[Tensor]) -> Case {
    indices.iter().chain(data).fold(
        case(&format!("{op}: {name}"), op).typed("T", data[0].dtype()),
        |case, input| case.input(input.clone()),
    )
}

fn stitches() -> Vec<Case> {
    let op = "DynamicStitch";
    let none: [i32; 0] = [];
    vec![
        stitch(
            op,
            "the last of several wins",
            &[tensor(&[2], &[0, 0])],
            &[tensor(&[2], &[7, 8])],
        )
        .gives(tensor(&[1], &[8])),
        stitch(
            "ParallelDynamicStitch",
            "two parts",
            &[tensor(&[1], &[1]), tensor(&[1, 1], &[0])],
            &[tensor(&[1], &[7]), tensor(&[1, 1], &[8])],
        )
        .gives(tensor(&[2], &[8, 7])),
        stitch(
            op,
            "a row that is not given is 0",
            &[tensor(&[1], &[1])],
            &[tensor(&[1], &[7])],
        )
        .gives(tensor(&[2], &[0, 7])),
        stitch(
            op,
            "nothing",
            &[tensor(&[0], &none)],
            &[tensor(&[0, 2], &none)],
        )
        .gives(tensor(&[0, 2], &none)),
        stitch(
            op,
            "a negative index",
            &[tensor(&[2], &[1, -1])],
            &[tensor(&[2], &[7, 8])],
        )
        .refused("indices[0]: element 1 = -1 is out of range"),
        stitch(
            op,
            "indices of another shape",
            &[tensor(&[1], &[0])],
            &[tensor(&[2], &[7, 8])],
        )
        .refused("data[0].shape = [2] does not start with indices[0].shape = [1]"),
        stitch(
            op,
            "rows that differ",
            &[tensor(&[1], &[0]), tensor(&[1], &[1])],
            &[tensor(&[1], &[7]), tensor(&[1, 1], &[8])],
        )
        .refused("need data[0].shape[1:] = data[1].shape[1:]"),
        case("InvertPermutation: long", "InvertPermutation")
            .typed("T", DType::I64)
            .input(tensor(&[3], &[2i64, 0, 1]))
            .gives(tensor(&[3], &[1i64, 2, 0])),
        case("InvertPermutation: nothing", "InvertPermutation")
            .typed("T", DType::I32)
            .input(tensor(&[0], &none))
            .gives(tensor(&[0], &none)),
        case("InvertPermutation: twice", "InvertPermutation")
            .typed("T", DType::I32)
            .input(tensor(&[2], &[1, 1]))
            .refused("1 is duplicated in the input"),
        case("InvertPermutation: too large", "InvertPermutation")
            .typed("T", DType::I32)
            .input(tensor(&[2], &[0, 2]))
            .refused("2 is not between 0 and 2"),
    ]
}
