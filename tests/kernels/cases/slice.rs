//! Slices, strided slices, reversals, transpositions, repetitions, dimensions of size 1.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = slices();
    cases.extend(strided_slices());
    cases.extend(reversals());
    cases.extend(transpositions());
    cases.extend(repetitions());
    cases.extend(dimensions());
    cases.extend(updates());
    cases.extend(strided_updates());
    cases
}

/// Returns `0, 1, 2, ..` in this shape.
fn counted(dims: &[usize]) -> Tensor {
    let values: Vec<i32> = (0..).take(dims.iter().product()).collect();
    tensor(dims, &values)
}

fn update(name: &str, input: Tensor, update: Tensor, starts: Tensor) -> Case {
    case(
        &format!("XlaDynamicUpdateSlice: {name}"),
        "XlaDynamicUpdateSlice",
    )
    .typed("T", input.dtype())
    .typed("Tindices", starts.dtype())
    .input(input)
    .input(update)
    .named_input("indices", starts)
}

fn updates() -> Vec<Case> {
    let part = tensor(&[2, 2], &[-1, -2, -3, -4]);
    let at = |starts: &[i64]| tensor(&[starts.len()], starts);
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let input = typed_tensor(dtype, &[2, 2], &[1, 2, 3, 4]);
            let part = typed_tensor(dtype, &[2, 1], &[5, 6]);
            update(&format!("{dtype}"), input, part, tensor(&[2], &[0, 1])).gives(typed_tensor(
                dtype,
                &[2, 2],
                &[1, 5, 3, 6],
            ))
        })
        .collect();
    cases.extend([
        update(
            "beyond the end",
            counted(&[3, 3]),
            part.clone(),
            at(&[2, i64::MAX]),
        )
        .gives(tensor(&[3, 3], &[0, 1, 2, 3, -1, -2, 6, -3, -4])),
        update(
            "before the start",
            counted(&[3, 3]),
            part.clone(),
            at(&[-5, 1]),
        )
        .gives(tensor(&[3, 3], &[0, -1, -2, 3, -3, -4, 6, 7, 8])),
        update("a scalar", counted(&[]), tensor(&[], &[7]), at(&[])).gives(tensor(&[], &[7])),
        update("nothing", counted(&[2]), tensor::<i32>(&[0], &[]), at(&[9])).gives(counted(&[2])),
        update("too large", counted(&[3, 1]), part.clone(), at(&[0, 0]))
            .refused("update of shape [2,2] must fit into input of shape [3,1]"),
        update("another rank", counted(&[9]), part.clone(), at(&[0]))
            .refused("update of shape [2,2] must fit into input of shape [9]"),
        update("too few starts", counted(&[3, 3]), part, at(&[0]))
            .refused("indices must be a vector with an element per dimension"),
    ]);
    cases
}

fn slice(name: &str, input: Tensor, begin: &[i32], size: &[i32]) -> Case {
    case(&format!("Slice: {name}"), "Slice")
        .typed("T", input.dtype())
        .typed("Index", DType::I32)
        .input(input)
        .named_input("begin", tensor(&[begin.len()], begin))
        .named_input("size", tensor(&[size.len()], size))
}

fn slices() -> Vec<Case> {
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let input = typed_tensor(dtype, &[2, 2], &[1, 2, 3, 4]);
            slice(&format!("{dtype}"), input, &[0, 1], &[2, 1]).gives(typed_tensor(
                dtype,
                &[2, 1],
                &[2, 4],
            ))
        })
        .collect();
    cases.extend([
        slice("a box", counted(&[3, 4]), &[1, 1], &[2, 2]).gives(tensor(&[2, 2], &[5, 6, 9, 10])),
        slice("to the end", counted(&[3, 4]), &[1, 2], &[-1, -1])
            .gives(tensor(&[2, 2], &[6, 7, 10, 11])),
        slice("everything", counted(&[2, 2]), &[0, 0], &[-1, 2]).gives(counted(&[2, 2])),
        slice("nothing, at the end", counted(&[3]), &[3], &[-1]).gives(tensor::<i32>(&[0], &[])),
        slice("a scalar", counted(&[]), &[], &[]).gives(counted(&[])),
        slice("of nothing", counted(&[0, 2]), &[0, 1], &[0, 1]).gives(tensor::<i32>(&[0, 1], &[])),
        case("Slice: long indices", "Slice")
            .typed("T", DType::I32)
            .typed("Index", DType::I64)
            .input(counted(&[3]))
            .named_input("begin", tensor(&[1], &[1i64]))
            .named_input("size", tensor(&[1], &[1i64]))
            .gives(tensor(&[1], &[1])),
        slice("beyond the end", counted(&[3]), &[1], &[3])
            .refused("expected size[0] in [0, 2], but got 3"),
        slice("from beyond the end", counted(&[3]), &[4], &[0])
            .refused("expected begin[0] in [0, 3], but got 4"),
        slice("from before the start", counted(&[3]), &[-1], &[1])
            .refused("expected begin[0] in [0, 3], but got -1"),
        slice("a negative size", counted(&[3]), &[0], &[-2])
            .refused("expected size[0] in [0, 3], but got -2"),
        slice("of another rank", counted(&[3]), &[0, 0], &[1, 1])
            .refused("1-D tensors of size 1, but got 2 and 2"),
        case("Slice: a matrix of sizes", "Slice")
            .typed("T", DType::I32)
            .typed("Index", DType::I32)
            .input(counted(&[1]))
            .named_input("begin", tensor(&[1], &[0]))
            .named_input("size", tensor(&[1, 1], &[1]))
            .refused("size must be 1-D, not [1,1]"),
    ]);
    cases
}

/// Begin, end and stride of one entry, and the masks that have its bit.
#[derive(Clone, Copy)]
struct Entry(i32, i32, i32, &'static str);

/// `a:b:c`.
fn range(begin: i32, end: i32, stride: i32) -> Entry {
    Entry(begin, end, stride, "")
}

fn strided(name: &str, input: Tensor, entries: &[Entry]) -> Case {
    let column = |f: fn(&Entry) -> i32| -> Tensor {
        let values: Vec<i32> = entries.iter().map(f).collect();
        tensor(&[values.len()], &values)
    };
    let mask = |letter: char| -> i64 {
        entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.3.contains(letter))
            .map(|(i, _)| 1 << i)
            .sum()
    };
    case(&format!("StridedSlice: {name}"), "StridedSlice")
        .typed("T", input.dtype())
        .typed("Index", DType::I32)
        .int("begin_mask", mask('b'))
        .int("end_mask", mask('e'))
        .int("ellipsis_mask", mask('.'))
        .int("new_axis_mask", mask('n'))
        .int("shrink_axis_mask", mask('s'))
        .input(input)
        .named_input("begin", column(|e| e.0))
        .named_input("end", column(|e| e.1))
        .named_input("strides", column(|e| e.2))
}

fn strided_slices() -> Vec<Case> {
    let (all, dots) = (Entry(9, 9, 1, "be"), Entry(0, 0, 1, "."));
    let (new, one) = (Entry(0, 0, 1, "n"), Entry(1, 0, 1, "s"));
    let none: [i32; 0] = [];
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let input = typed_tensor(dtype, &[4], &[1, 2, 3, 4]);
            strided(&format!("{dtype}"), input, &[range(-1, -4, -2)]).gives(typed_tensor(
                dtype,
                &[2],
                &[4, 2],
            ))
        })
        .collect();
    cases.extend([
        strided("x[1:3]", counted(&[4]), &[range(1, 3, 1)]).gives(tensor(&[2], &[1, 2])),
        strided("x[-3:-1]", counted(&[4]), &[range(-3, -1, 1)]).gives(tensor(&[2], &[1, 2])),
        strided("x[-100:100:3]", counted(&[4]), &[range(-100, 100, 3)])
            .gives(tensor(&[2], &[0, 3])),
        strided("x[100:-100:-3]", counted(&[4]), &[range(100, -100, -3)])
            .gives(tensor(&[2], &[3, 0])),
        strided("x[::-1]", counted(&[3]), &[Entry(1, 1, -1, "be")]).gives(tensor(&[3], &[2, 1, 0])),
        strided("x[2:]", counted(&[3]), &[Entry(2, 0, 1, "e")]).gives(tensor(&[1], &[2])),
        strided("x[:2]", counted(&[3]), &[Entry(2, 2, 1, "b")]).gives(tensor(&[2], &[0, 1])),
        strided("x[3:1]", counted(&[4]), &[range(3, 1, 1)]).gives(tensor(&[0], &none)),
        strided("x[1:3:-1]", counted(&[4]), &[range(1, 3, -1)]).gives(tensor(&[0], &none)),
        strided("x[:, 1]", counted(&[2, 3]), &[all, one]).gives(tensor(&[2], &[1, 4])),
        strided("x[-1]", counted(&[2, 3]), &[Entry(-1, 0, 1, "s")]).gives(tensor(&[3], &[3, 4, 5])),
        strided("x[..., 1]", counted(&[2, 2, 3]), &[dots, one])
            .gives(tensor(&[2, 2], &[1, 4, 7, 10])),
        strided("x[1, ...]", counted(&[2, 1, 2]), &[one, dots]).gives(tensor(&[1, 2], &[2, 3])),
        strided("x[..., None, 1]", counted(&[2, 2]), &[dots, new, one])
            .gives(tensor(&[2, 1], &[1, 3])),
        strided("x[None, 1, None]", counted(&[2, 2]), &[new, one, new])
            .gives(tensor(&[1, 1, 2], &[2, 3])),
        strided(
            "x[1:-1, ::2, None, ..., -1]",
            counted(&[3, 3, 2]),
            &[
                range(1, -1, 1),
                Entry(0, 0, 2, "be"),
                new,
                dots,
                Entry(-1, 0, 1, "s"),
            ],
        )
        .gives(tensor(&[1, 2, 1], &[7, 11])),
        strided("an ellipsis of nothing", counted(&[2]), &[one, dots]).gives(tensor(&[], &[1])),
        strided("no entries", counted(&[2]), &[]).gives(counted(&[2])),
        strided("a scalar with a new axis", counted(&[]), &[new]).gives(tensor(&[1], &[0])),
        strided(
            "new wins over shrink",
            counted(&[2]),
            &[Entry(7, 7, 7, "ns")],
        )
        .gives(counted(&[1, 2])),
        strided("of nothing", counted(&[0, 2]), &[all, one]).gives(tensor(&[0], &none)),
        strided(
            "from nothing backwards",
            counted(&[0]),
            &[Entry(0, 0, -1, "be")],
        )
        .gives(tensor(&[0], &none)),
        case("StridedSlice: the longest steps", "StridedSlice")
            .typed("T", DType::I32)
            .typed("Index", DType::I64)
            .input(counted(&[2, 2]))
            .named_input("begin", tensor(&[2], &[i64::MIN, i64::MAX]))
            .named_input("end", tensor(&[2], &[i64::MAX, i64::MIN]))
            .named_input("strides", tensor(&[2], &[i64::MAX, i64::MIN]))
            .gives(tensor(&[1, 1], &[1])),
        case("StridedSlice: short indices", "StridedSlice")
            .typed("T", DType::I32)
            .typed("Index", DType::I16)
            .input(counted(&[3]))
            .named_input("begin", tensor(&[1], &[1i16]))
            .named_input("end", tensor(&[1], &[2i16]))
            .named_input("strides", tensor(&[1], &[1i16]))
            .gives(tensor(&[1], &[1])),
        strided("x[3]", counted(&[3]), &[Entry(3, 0, 1, "s")])
            .refused("slice index 3 of dimension 0 out of bounds"),
        strided("x[-4]", counted(&[3]), &[Entry(-4, 0, 1, "s")])
            .refused("slice index -4 of dimension 0 out of bounds"),
        strided("a step of 0", counted(&[3]), &[range(0, 3, 0)])
            .refused("strides[0] must be non-zero"),
        strided(
            "an element backwards",
            counted(&[3]),
            &[Entry(1, 0, -1, "s")],
        )
        .refused("only stride 1 allowed on non-range indexing"),
        strided("two ellipses", counted(&[3]), &[dots, dots])
            .refused("multiple ellipses in slice spec not allowed"),
        strided("more entries than dimensions", counted(&[3]), &[one, one])
            .refused("input has only 1 dims"),
        case("StridedSlice: lengths that differ", "StridedSlice")
            .typed("T", DType::I32)
            .typed("Index", DType::I32)
            .input(counted(&[3]))
            .named_input("begin", tensor(&[1], &[0]))
            .named_input("end", tensor(&[2], &[1, 1]))
            .named_input("strides", tensor(&[1], &[1]))
            .refused("but got 1, 2 and 1 elements"),
    ]);
    cases
}

fn reverse(name: &str, input: Tensor, axes: &[i32]) -> Case {
    case(&format!("ReverseV2: {name}"), "ReverseV2")
        .typed("T", input.dtype())
        .typed("Tidx", DType::I32)
        .input(input)
        .named_input("axis", tensor(&[axes.len()], axes))
}

fn reversals() -> Vec<Case> {
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let input = typed_tensor(dtype, &[3], &[1, 2, 4]);
            reverse(&format!("{dtype}"), input, &[0]).gives(typed_tensor(dtype, &[3], &[4, 2, 1]))
        })
        .collect();
    cases.extend([
        reverse("one axis", counted(&[2, 2]), &[0]).gives(tensor(&[2, 2], &[2, 3, 0, 1])),
        reverse("both axes", counted(&[2, 2]), &[-1, 0]).gives(tensor(&[2, 2], &[3, 2, 1, 0])),
        reverse("no axis", counted(&[2, 2]), &[]).gives(counted(&[2, 2])),
        reverse("a scalar", counted(&[]), &[]).gives(counted(&[])),
        reverse("of nothing", counted(&[2, 0]), &[0, 1]).gives(tensor::<i32>(&[2, 0], &[])),
        reverse("an axis that is not there", counted(&[2, 2]), &[2])
            .refused("axis 2 is out of valid range [0, 2)"),
        reverse("an axis twice", counted(&[2, 2]), &[1, -1])
            .refused("axis 1 specified more than once"),
    ]);
    cases
}

fn transpose(name: &str, input: Tensor, permutation: &[i32]) -> Case {
    case(&format!("Transpose: {name}"), "Transpose")
        .typed("T", input.dtype())
        .typed("Tperm", DType::I32)
        .input(input)
        .named_input("perm", tensor(&[permutation.len()], permutation))
}

/// Plain reference loop: decomposes every output index.
fn permuted(dims: &[usize], permutation: &[i32]) -> Case {
    let axes: Vec<usize> = permutation
        .iter()
        .map(|&axis| usize::try_from(axis).expect("not negative"))
        .collect();
    let x = noise(dims.iter().product(), 5);
    let shape: Vec<usize> = axes.iter().map(|&axis| dims[axis]).collect();
    let expected: Vec<f32> = (0..x.len())
        .map(|mut flat| {
            let mut index = vec![0; dims.len()];
            for (&axis, &size) in axes.iter().zip(&shape).rev() {
                index[axis] = flat % size;
                flat /= size;
            }
            x[index
                .iter()
                .zip(dims)
                .fold(0, |at, (&i, &dim)| at * dim + i)]
        })
        .collect();
    transpose(
        &format!("{dims:?} as {permutation:?}"),
        tensor(dims, &x),
        permutation,
    )
    .gives(tensor(&shape, &expected))
}

fn transpositions() -> Vec<Case> {
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let input = typed_tensor(dtype, &[2, 2], &[1, 2, 3, 4]);
            transpose(&format!("{dtype}"), input, &[1, 0]).gives(typed_tensor(
                dtype,
                &[2, 2],
                &[1, 3, 2, 4],
            ))
        })
        .collect();
    // The last one in each row is large enough for threads.
    for (dims, permutation) in [
        (&[5, 7][..], &[1, 0][..]),
        (&[33, 65], &[1, 0]),
        (&[300, 500], &[1, 0]),
        (&[2, 5, 3, 4], &[0, 2, 1, 3]),
        (&[2, 50, 12, 64], &[0, 2, 1, 3]),
        (&[2, 3, 4, 5], &[3, 2, 1, 0]),
        (&[2, 9, 10, 11], &[0, 3, 1, 2]),
        (&[4, 3, 40, 130], &[2, 0, 1, 3]),
        (&[4, 60, 40, 13], &[0, 3, 2, 1]),
        (&[1, 6, 1, 7], &[2, 1, 0, 3]),
        (&[2, 2, 2, 2, 2, 2, 2, 2, 2], &[8, 0, 7, 1, 6, 2, 5, 3, 4]),
    ] {
        cases.push(permuted(dims, permutation));
    }
    cases.extend([
        transpose("negative axes", counted(&[1, 2, 3]), &[-1, 0, -2])
            .gives(tensor(&[3, 1, 2], &[0, 3, 1, 4, 2, 5])),
        transpose("a scalar", counted(&[]), &[]).gives(counted(&[])),
        transpose("of nothing", counted(&[2, 0, 3]), &[2, 1, 0])
            .gives(tensor::<i32>(&[3, 0, 2], &[])),
        transpose("an axis twice", counted(&[2, 2]), &[1, 1])
            .refused("1 appears twice in the permutation [1, 1]"),
        transpose("an axis that is not there", counted(&[2, 2]), &[0, 2])
            .refused("2 is out of range [0 .. 2)"),
        transpose("too few axes", counted(&[2, 2]), &[0])
            .refused("expects a vector of size 2. But input(1) is a vector of size 1"),
    ]);
    cases
}

fn tile(name: &str, input: Tensor, multiples: &[i32]) -> Case {
    case(&format!("Tile: {name}"), "Tile")
        .typed("T", input.dtype())
        .typed("Tmultiples", DType::I32)
        .input(input)
        .named_input("multiples", tensor(&[multiples.len()], multiples))
}

fn repetitions() -> Vec<Case> {
    let mut cases: Vec<Case> = MOVED
        .into_iter()
        .map(|dtype| {
            let input = typed_tensor(dtype, &[2], &[1, 2]);
            tile(&format!("{dtype}"), input, &[2]).gives(typed_tensor(dtype, &[4], &[1, 2, 1, 2]))
        })
        .collect();
    cases.extend([
        tile("both axes", counted(&[2, 2]), &[2, 2]).gives(tensor(
            &[4, 4],
            &[0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3],
        )),
        tile("a column", counted(&[2, 1]), &[1, 3]).gives(tensor(&[2, 3], &[0, 0, 0, 1, 1, 1])),
        tile("once", counted(&[2]), &[1]).gives(counted(&[2])),
        tile("never", counted(&[2, 3]), &[1, 0]).gives(tensor::<i32>(&[2, 0], &[])),
        tile("a scalar", counted(&[]), &[]).gives(counted(&[])),
        tile("less than never", counted(&[2]), &[-1])
            .refused("expected multiples[0] >= 0, but got -1"),
        tile("of another rank", counted(&[2]), &[1, 1])
            .refused("a vector of length 1 but got length 2"),
        tile("too often", counted(&[2, 2]), &[i32::MAX, i32::MAX]).refused("4294967294"),
    ]);
    cases
}

fn expand(name: &str, input: Tensor, dim: Tensor) -> Case {
    case(&format!("ExpandDims: {name}"), "ExpandDims")
        .typed("T", input.dtype())
        .typed("Tdim", dim.dtype())
        .input(input)
        .named_input("dim", dim)
}

fn squeeze(name: &str, input: Tensor, axes: &[i64]) -> Case {
    case(&format!("Squeeze: {name}"), "Squeeze")
        .typed("T", input.dtype())
        .ints("squeeze_dims", axes)
        .input(input)
}

fn dimensions() -> Vec<Case> {
    let at = |axis: i32| tensor(&[], &[axis]);
    vec![
        expand("in front", counted(&[2, 3]), at(0)).gives(counted(&[1, 2, 3])),
        expand("in between", counted(&[2, 3]), at(-2)).gives(counted(&[2, 1, 3])),
        expand("at the end", counted(&[2, 3]), at(2)).gives(counted(&[2, 3, 1])),
        expand("at the end, from there", counted(&[2, 3]), at(-1)).gives(counted(&[2, 3, 1])),
        expand("a scalar", counted(&[]), tensor(&[], &[0i64])).gives(counted(&[1])),
        expand("a vector of one axis", counted(&[2]), tensor(&[1], &[0])).gives(counted(&[1, 2])),
        expand("strings", typed_tensor(DType::String, &[1], &[3]), at(0)).gives(typed_tensor(
            DType::String,
            &[1, 1],
            &[3],
        )),
        expand("too far", counted(&[2, 3]), at(3))
            .refused("tried to expand dim index 3 for tensor with 2 dimensions"),
        expand("too far back", counted(&[2, 3]), at(-4))
            .refused("tried to expand dim index -4 for tensor with 2 dimensions"),
        expand("two axes", counted(&[2]), tensor(&[2], &[0, 1]))
            .refused("must be a tensor with a single value, not of shape [2]"),
        squeeze("all", counted(&[1, 2, 1]), &[]).gives(counted(&[2])),
        squeeze("some", counted(&[1, 2, 1]), &[-1]).gives(counted(&[1, 2])),
        squeeze("one twice", counted(&[1, 2, 1]), &[2, -1]).gives(counted(&[1, 2])),
        squeeze("to a scalar", counted(&[1, 1]), &[]).gives(counted(&[])),
        squeeze("of nothing", counted(&[1, 0]), &[0]).gives(tensor::<i32>(&[0], &[])),
        squeeze("another dimension", counted(&[1, 2]), &[1])
            .refused("can not squeeze dim[1], expected a dimension of 1, got 2"),
        squeeze("a dimension that is not there", counted(&[1]), &[1])
            .refused("tried to squeeze dim index 1 for tensor with 1 dimensions"),
    ]
}

/// Slices that are replaced. The plain loop copies the value in steps of 2.
fn strided_updates() -> Vec<Case> {
    let update = |name: &str, input: Tensor, [begin, end, stride]: [i32; 3], value: Tensor| {
        let name = format!("TensorStridedSliceUpdate: {name}");
        case(&name, "TensorStridedSliceUpdate")
            .typed("T", input.dtype())
            .typed("Index", DType::I32)
            .input(input)
            .named_input("begin", tensor(&[1], &[begin]))
            .named_input("end", tensor(&[1], &[end]))
            .named_input("strides", tensor(&[1], &[stride]))
            .input(value)
    };
    let mut cases: Vec<Case> = MOVED
        .iter()
        .map(|&dtype| {
            let old = [1, 2, 3, 4, 5];
            let new = [7, 8, 9];
            let mut expected = old;
            for (slot, new) in expected.iter_mut().step_by(2).zip(new) {
                *slot = new;
            }
            let [input, value] = [&old[..], &new].map(|v| typed_tensor(dtype, &[v.len()], v));
            update(&format!("{dtype}"), input, [0, 5, 2], value).gives(typed_tensor(
                dtype,
                &[5],
                &expected,
            ))
        })
        .collect();
    for rank in 1..=6 {
        let mut dims = vec![1; rank];
        dims[0] = 2;
        let last = tensor(&dims[1..], &[9]);
        let name = format!("rank {rank}");
        cases.push(update(&name, counted(&dims), [1, 2, 1], last).gives(tensor(&dims, &[0, 9])));
    }
    cases.extend([
        update(
            "backwards",
            counted(&[3]),
            [2, -4, -1],
            tensor(&[3], &[7, 8, 9]),
        )
        .gives(tensor(&[3], &[9, 8, 7])),
        update(
            "an empty slice",
            counted(&[3]),
            [2, 2, 1],
            tensor::<i32>(&[0], &[]),
        )
        .gives(counted(&[3])),
        update(
            "nothing",
            counted(&[0]),
            [0, 0, 1],
            tensor::<i32>(&[0], &[]),
        )
        .gives(counted(&[0])),
        update("another length", counted(&[3]), [0, 2, 1], counted(&[3]))
            .refused("a value of shape [3] cannot be broadcast to the slice, which has shape [2]"),
    ]);
    cases
}
