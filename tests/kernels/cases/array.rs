//! Reshape.

use placewright::tensor::DType;

use crate::case::Case;
use crate::case::case;
use crate::case::tensor;

fn reshape(name: &str, dims: &[usize], sizes: &[i32]) -> Case {
    let values: Vec<i32> = (0..).take(dims.iter().product()).collect();
    case(name, "Reshape")
        .typed("T", DType::I32)
        .typed("Tshape", DType::I32)
        .input(tensor(dims, &values))
        .named_input("shape", tensor(&[sizes.len()], sizes))
}

pub(crate) fn cases() -> Vec<Case> {
    let six = [0, 1, 2, 3, 4, 5];
    let none: [i32; 0] = [];
    vec![
        reshape("reshape keeps the order", &[2, 3], &[3, 2]).gives(tensor(&[3, 2], &six)),
        reshape("reshape to as many dimensions as can be", &[1], &[1; 253])
            .gives(tensor(&[1; 253], &[0])),
        reshape("reshape to too many dimensions", &[1], &[1; 254])
            .refused("too many dimensions: must be < 254, but received 254"),
        reshape("reshape fills in what is open", &[2, 3], &[-1, 1, 2])
            .gives(tensor(&[3, 1, 2], &six)),
        reshape("reshape to a scalar", &[1, 1], &[]).gives(tensor(&[], &[0])),
        reshape("reshape of an empty tensor", &[0, 5], &[0, -1]).gives(tensor(&[0, 5], &none)),
        case("reshape takes long sizes", "Reshape")
            .typed("T", DType::F32)
            .typed("Tshape", DType::I64)
            .input(tensor(&[2], &[1.0f32, 2.0]))
            .named_input("shape", tensor(&[2], &[2i64, 1]))
            .gives(tensor(&[2, 1], &[1.0f32, 2.0])),
        reshape("reshape refuses another number of elements", &[6], &[7])
            .refused("6 values, but the requested shape [7] has 7"),
        reshape("reshape refuses a remainder", &[6], &[4, -1]).refused("requires a multiple of 4"),
        reshape("reshape refuses two open sizes", &[6], &[-1, -1]).refused("not both 0 and 1"),
        reshape("reshape refuses negative sizes", &[6], &[-6, -1]).refused("not -6"),
        case("reshape refuses sizes of rank two", "Reshape")
            .typed("T", DType::F32)
            .typed("Tshape", DType::I32)
            .input(tensor(&[2], &[1.0f32, 2.0]))
            .named_input("shape", tensor(&[1, 1], &[2]))
            .refused("sizes input must be 1-D, not [1,1]"),
    ]
}
