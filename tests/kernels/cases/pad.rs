//! Padding, constant and mirrored.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

fn pad(name: &str, op: &'static str, input: Tensor, paddings: &[i32]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", input.dtype())
        .typed("Tpaddings", DType::I32)
        .input(input)
        .named_input("paddings", tensor(&[paddings.len() / 2, 2], paddings))
}

fn mirror(name: &str, mode: &str, input: Tensor, paddings: &[i32]) -> Case {
    pad(&format!("{name}, {mode}"), "MirrorPad", input, paddings).text("mode", mode)
}

fn counted(dims: &[usize]) -> Tensor {
    let values: Vec<i32> = (1..).take(dims.iter().product()).collect();
    tensor(dims, &values)
}

/// Returns `counted(&[30, 64])` with margins of 1 and 2 rows, 4 and 8 columns.
fn padded_rows(around: i32) -> Vec<i32> {
    let at = |row: i32, column: i32| match (row - 1, column - 4) {
        (row @ 0..30, column @ 0..64) => row * 64 + column + 1,
        _ => around,
    };
    (0..33)
        .flat_map(|row| (0..76).map(move |column| at(row, column)))
        .collect()
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in MOVED {
        let input = typed_tensor(dtype, &[2], &[1, 2]);
        cases.push(
            pad(&format!("{dtype}"), "Pad", input.clone(), &[1, 1]).gives(typed_tensor(
                dtype,
                &[4],
                &[0, 1, 2, 0],
            )),
        );
        cases.push(
            pad(&format!("{dtype}"), "PadV2", input.clone(), &[0, 1])
                .named_input("constant_values", typed_tensor(dtype, &[], &[5]))
                .gives(typed_tensor(dtype, &[3], &[1, 2, 5])),
        );
        cases.push(
            mirror(&format!("{dtype}"), "SYMMETRIC", input, &[1, 1]).gives(typed_tensor(
                dtype,
                &[4],
                &[1, 1, 2, 2],
            )),
        );
    }
    let none: [i32; 0] = [];
    cases.extend([
        pad("a matrix", "Pad", counted(&[2, 2]), &[1, 0, 0, 1])
            .gives(tensor(&[3, 3], &[0, 0, 0, 1, 2, 0, 3, 4, 0])),
        pad("whole units", "Pad", counted(&[30, 64]), &[1, 2, 4, 8])
            .gives(tensor(&[33, 76], &padded_rows(0))),
        pad("whole units", "PadV2", counted(&[30, 64]), &[1, 2, 4, 8])
            .named_input("constant_values", tensor(&[], &[-7]))
            .gives(tensor(&[33, 76], &padded_rows(-7))),
        pad(
            "rows of channels",
            "Pad",
            counted(&[1, 1, 2, 2]),
            &[0, 0, 1, 0, 0, 1, 0, 0],
        )
        .gives(tensor(&[1, 2, 3, 2], &[0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0])),
        pad("no margin", "Pad", counted(&[2, 2]), &[0; 4]).gives(counted(&[2, 2])),
        pad("a scalar", "Pad", counted(&[]), &[]).gives(counted(&[])),
        pad("around nothing", "Pad", counted(&[0]), &[1, 1]).gives(tensor(&[2], &[0, 0])),
        pad("of nothing", "Pad", counted(&[0, 2]), &[0, 0, 1, 0]).gives(tensor(&[0, 3], &none)),
        pad("less than nothing", "Pad", counted(&[2]), &[-1, 0])
            .refused("paddings must be non-negative: -1 0"),
        pad("of another rank", "Pad", counted(&[2]), &[0; 4])
            .refused("must be the rank of inputs: [2,2], [2]"),
        case("Pad: a vector of paddings", "Pad")
            .typed("T", DType::I32)
            .typed("Tpaddings", DType::I32)
            .input(counted(&[2]))
            .named_input("paddings", tensor(&[2], &[1, 1]))
            .refused("paddings must be a matrix with 2 columns: [2]"),
        case("Pad: long paddings", "Pad")
            .typed("T", DType::I32)
            .typed("Tpaddings", DType::I64)
            .input(counted(&[1]))
            .named_input("paddings", tensor(&[1, 2], &[1i64, 0]))
            .gives(tensor(&[2], &[0, 1])),
        case("Pad: beyond this machine", "Pad")
            .typed("T", DType::I32)
            .typed("Tpaddings", DType::I64)
            .input(counted(&[1]))
            .named_input("paddings", tensor(&[1, 2], &[i64::MAX, i64::MAX]))
            .refused("more than this machine can address"),
        pad("a vector of values", "PadV2", counted(&[2]), &[0, 1])
            .named_input("constant_values", counted(&[1]))
            .refused("constant_values must be a scalar. Found: [1]"),
        mirror("a vector", "REFLECT", counted(&[3]), &[2, 2])
            .gives(tensor(&[7], &[3, 2, 1, 2, 3, 2, 1])),
        mirror("a vector", "SYMMETRIC", counted(&[3]), &[3, 2])
            .gives(tensor(&[8], &[3, 2, 1, 1, 2, 3, 3, 2])),
        mirror("a matrix", "REFLECT", counted(&[2, 3]), &[1, 0, 0, 2]).gives(tensor(
            &[3, 5],
            &[4, 5, 6, 5, 4, 1, 2, 3, 2, 1, 4, 5, 6, 5, 4],
        )),
        mirror(
            "rows as a whole",
            "SYMMETRIC",
            counted(&[2, 2]),
            &[1, 1, 0, 0],
        )
        .gives(tensor(&[4, 2], &[1, 2, 1, 2, 3, 4, 3, 4])),
        mirror("no margin", "REFLECT", counted(&[2]), &[0, 0]).gives(counted(&[2])),
        mirror("a scalar", "SYMMETRIC", counted(&[]), &[]).gives(counted(&[])),
        mirror("too wide", "REFLECT", counted(&[3]), &[3, 0])
            .refused("paddings must be less than the dimension size: 3, 0 for 3"),
        mirror("too wide", "SYMMETRIC", counted(&[3]), &[0, 4])
            .refused("paddings must be no greater than the dimension size: 0, 4 for 3"),
        mirror("nothing to mirror", "REFLECT", counted(&[0]), &[0, 0])
            .refused("less than the dimension size"),
        mirror("an unknown mode", "WRAP", counted(&[3]), &[0, 0]).refused("`mode` is `WRAP`"),
    ]);
    cases
}
