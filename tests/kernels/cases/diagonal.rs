//! Diagonals and bands of matrices, and cross products.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = parts();
    cases.extend(matrices());
    cases.extend(bands());
    cases.extend(crosses());
    cases
}

fn elements() -> impl Iterator<Item = DType> {
    MOVED.into_iter().filter(|&dtype| dtype != DType::String)
}

fn diagonals(values: &[i32]) -> Tensor {
    match values {
        [only] => tensor(&[], &[*only]),
        values => tensor(&[values.len()], values),
    }
}

fn part(name: &str, x: Tensor, k: &[i32], align: &str) -> Case {
    let fill = typed_tensor(x.dtype(), &[], &[9]);
    case(&format!("MatrixDiagPartV3: {name}"), "MatrixDiagPartV3")
        .typed("T", x.dtype())
        .text("align", align)
        .input(x)
        .input(diagonals(k))
        .input(fill)
}

fn set(name: &str, x: Tensor, new: Tensor, k: &[i32], align: &str) -> Case {
    case(&format!("MatrixSetDiagV3: {name}"), "MatrixSetDiagV3")
        .typed("T", x.dtype())
        .text("align", align)
        .input(x)
        .input(new)
        .input(diagonals(k))
}

/// Elements of a matrix of 3 x 4 on diagonals -1 to 2, by the definition: element (i, j) is on
/// diagonal j - i.
fn expected(align: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for diagonal in [2i32, 1, 0, -1] {
        let mut row = Vec::new();
        for i in 0..3i32 {
            for j in 0..4i32 {
                if j - i == diagonal {
                    row.push(u8::try_from(i * 4 + j).expect("small"));
                }
            }
        }
        let (above, below) = align.split_once('_').expect("two sides");
        // The main diagonal is as long as any.
        let side = if diagonal >= 0 { above } else { below };
        while row.len() < 3 {
            let at = if side == "LEFT" { row.len() } else { 0 };
            row.insert(at, 9);
        }
        out.extend(row);
    }
    out
}

fn parts() -> Vec<Case> {
    let counted: Vec<u8> = (0..12).collect();
    let mut cases = Vec::new();
    for dtype in elements() {
        let x = typed_tensor(dtype, &[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
        let main = typed_tensor(dtype, &[2, 2], &[1, 4, 5, 8]);
        let name = format!("{dtype}");
        cases.push(
            case(&format!("MatrixDiagPart: {name}"), "MatrixDiagPart")
                .typed("T", dtype)
                .input(x.clone())
                .gives(main),
        );
        cases.push(
            part(&name, x.clone(), &[0, 1], "LEFT_LEFT").gives(typed_tensor(
                dtype,
                &[2, 2, 2],
                &[2, 9, 1, 4, 6, 9, 5, 8],
            )),
        );
        cases.push(
            case(&format!("MatrixSetDiag: {name}"), "MatrixSetDiag")
                .typed("T", dtype)
                .input(x)
                .input(typed_tensor(dtype, &[2, 2], &[0, 1, 1, 0]))
                .gives(typed_tensor(dtype, &[2, 2, 2], &[0, 2, 3, 1, 1, 6, 7, 0])),
        );
        cases.push(
            case(&format!("MatrixDiag: {name}"), "MatrixDiag")
                .typed("T", dtype)
                .input(typed_tensor(dtype, &[2], &[1, 3]))
                .gives(typed_tensor(dtype, &[2, 2], &[1, 0, 0, 3])),
        );
    }
    let matrix = typed_tensor(DType::I32, &[3, 4], &counted);
    for align in ["LEFT_LEFT", "LEFT_RIGHT", "RIGHT_LEFT", "RIGHT_RIGHT"] {
        let rows = typed_tensor(DType::I32, &[4, 3], &expected(align));
        cases.push(part(align, matrix.clone(), &[-1, 2], align).gives(rows.clone()));
        // What is taken out is put back.
        cases.push(set(align, matrix.clone(), rows, &[-1, 2], align).gives(matrix.clone()));
    }
    let (none, zero) = (tensor::<i32>(&[0, 3, 3], &[]), tensor(&[], &[0i32]));
    cases.extend([
        part("one below", matrix.clone(), &[-2], "RIGHT_LEFT").gives(tensor(&[1], &[8])),
        part("no matrices", none.clone(), &[0], "LEFT_LEFT").gives(tensor::<i32>(&[0, 3], &[])),
        part("no rows", tensor::<i32>(&[0, 3], &[]), &[0], "LEFT_LEFT")
            .gives(tensor::<i32>(&[0], &[])),
        part("too far", matrix.clone(), &[4], "LEFT_LEFT")
            .refused("lower_diag_index is out of bound: 4"),
        part("in the wrong order", matrix.clone(), &[1, 0], "LEFT_LEFT")
            .refused("must not be larger than upper_diag_index"),
        part("of a vector", tensor(&[2], &[1, 2]), &[0], "LEFT_LEFT")
            .refused("input must be at least 2-dim"),
        part("three diagonals", matrix.clone(), &[0, 1, 2], "LEFT_LEFT")
            .refused("diag_index must be a scalar or vector of one or two"),
        set(
            "of another length",
            matrix.clone(),
            tensor(&[2], &[7, 8]),
            &[0],
            "LEFT_LEFT",
        )
        .refused("diagonal must have shape [3]"),
        set(
            "one above",
            tensor(&[2, 2], &[1, 2, 3, 4]),
            tensor(&[1], &[7]),
            &[1],
            "LEFT_LEFT",
        )
        .gives(tensor(&[2, 2], &[1, 7, 3, 4])),
        set(
            "no matrices",
            none.clone(),
            tensor::<i32>(&[0, 3], &[]),
            &[0],
            "LEFT_LEFT",
        )
        .gives(none),
        case("MatrixDiagPartV2: at the left", "MatrixDiagPartV2")
            .typed("T", DType::I32)
            .input(tensor(&[2, 2], &[1, 2, 3, 4]))
            .input(diagonals(&[-1, 0]))
            .input(zero.clone())
            .gives(tensor(&[2, 2], &[1, 4, 3, 0])),
        case("MatrixSetDiagV2: below", "MatrixSetDiagV2")
            .typed("T", DType::I32)
            .input(tensor(&[2, 2], &[1, 2, 3, 4]))
            .input(tensor(&[1], &[7]))
            .input(diagonals(&[-1]))
            .gives(tensor(&[2, 2], &[1, 2, 7, 4])),
    ]);
    cases
}

fn matrix(name: &str, x: Tensor, k: &[i32], sizes: [i32; 2], align: &str) -> Case {
    let fill = typed_tensor(x.dtype(), &[], &[9]);
    case(&format!("MatrixDiagV3: {name}"), "MatrixDiagV3")
        .typed("T", x.dtype())
        .text("align", align)
        .input(x)
        .input(diagonals(k))
        .input(tensor(&[], &[sizes[0]]))
        .input(tensor(&[], &[sizes[1]]))
        .input(fill)
}

fn matrices() -> Vec<Case> {
    let x = tensor(&[2], &[1, 2]);
    let (left, right) = ("LEFT_LEFT", "RIGHT_LEFT");
    vec![
        matrix("above", x.clone(), &[1], [-1, -1], left)
            .gives(tensor(&[3, 3], &[9, 1, 9, 9, 9, 2, 9, 9, 9])),
        matrix(
            "above, no more rows than needed",
            x.clone(),
            &[1],
            [2, -1],
            left,
        )
        .gives(tensor(&[2, 3], &[9, 1, 9, 9, 9, 2])),
        matrix("wide", x.clone(), &[0], [2, 3], left).gives(tensor(&[2, 3], &[1, 9, 9, 9, 2, 9])),
        matrix(
            "two diagonals at the right",
            tensor(&[2, 2], &[0, 1, 2, 3]),
            &[0, 1],
            [-1, -1],
            right,
        )
        .gives(tensor(&[2, 2], &[2, 1, 9, 3])),
        matrix("batches", tensor(&[2, 1], &[1, 2]), &[-1], [-1, -1], left)
            .gives(tensor(&[2, 2, 2], &[9, 9, 1, 9, 9, 9, 2, 9])),
        matrix("nothing", tensor::<i32>(&[0], &[]), &[0], [-1, -1], left)
            .gives(tensor::<i32>(&[0, 0], &[])),
        matrix("too few rows", x.clone(), &[0], [1, 2], left)
            .refused("the number of rows is too small"),
        matrix("too few columns", x.clone(), &[0], [2, 1], left)
            .refused("the number of columns is too small"),
        matrix("too many of both", x.clone(), &[0], [3, 3], left)
            .refused("is not consistent with the diagonals"),
        matrix("negative rows", x.clone(), &[0], [-2, 3], left)
            .refused("num_rows must be -1 or not negative"),
        matrix("another number of diagonals", x, &[0, 1], [-1, -1], left)
            .refused("does not match the 2 diagonals"),
        case("MatrixDiagV2: at the left", "MatrixDiagV2")
            .typed("T", DType::I32)
            .input(tensor(&[2, 2], &[1, 0, 2, 3]))
            .input(diagonals(&[0, 1]))
            .input(tensor(&[], &[-1]))
            .input(tensor(&[], &[-1]))
            .input(tensor(&[], &[0]))
            .gives(tensor(&[2, 2], &[2, 1, 0, 3])),
        case("MatrixDiag: a scalar", "MatrixDiag")
            .typed("T", DType::I32)
            .input(tensor(&[], &[1]))
            .refused("does not match"),
    ]
}

fn band(name: &str, x: Tensor, [lower, upper]: [i64; 2]) -> Case {
    case(&format!("MatrixBandPart: {name}"), "MatrixBandPart")
        .typed("T", x.dtype())
        .typed("Tindex", DType::I64)
        .input(x)
        .input(tensor(&[], &[lower]))
        .input(tensor(&[], &[upper]))
}

fn bands() -> Vec<Case> {
    let counted = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let x = tensor(&[2, 3, 2], &counted);
    let mut cases = Vec::new();
    for dtype in elements() {
        cases.push(
            band(
                &format!("{dtype}"),
                typed_tensor(dtype, &[2, 2], &[1, 3, 5, 7]),
                [0, -1],
            )
            .gives(typed_tensor(dtype, &[2, 2], &[1, 3, 0, 7])),
        );
    }
    let diag = |op: &'static str, name: &str, x: Tensor| {
        case(&format!("{op}: {name}"), op)
            .typed("T", x.dtype())
            .input(x)
    };
    for dtype in [
        DType::F16,
        DType::F32,
        DType::F64,
        DType::I32,
        DType::I64,
        DType::Complex64,
        DType::Complex128,
    ] {
        let (vector, square) = (
            typed_tensor(dtype, &[2], &[3, 4]),
            typed_tensor(dtype, &[2, 2], &[3, 0, 0, 4]),
        );
        cases.push(diag("Diag", &format!("{dtype}"), vector.clone()).gives(square.clone()));
        cases.push(diag("DiagPart", &format!("{dtype}"), square).gives(vector));
    }
    cases.extend([
        band("all", x.clone(), [-1, -1]).gives(x.clone()),
        band("the diagonal", x.clone(), [0, 0])
            .gives(tensor(&[2, 3, 2], &[1, 0, 0, 4, 0, 0, 7, 0, 0, 10, 0, 0])),
        band("one below", x.clone(), [1, 0])
            .gives(tensor(&[2, 3, 2], &[1, 0, 3, 4, 0, 6, 7, 0, 9, 10, 0, 12])),
        band("nothing", tensor::<i32>(&[0, 2], &[]), [0, 0]).gives(tensor::<i32>(&[0, 2], &[])),
        band("more rows than there are", x.clone(), [4, 0]).refused("number of rows (3) got: 4"),
        band("more columns than there are", x, [0, 3]).refused("number of columns (2) got: 3"),
        band("a vector", tensor(&[2], &[1, 2]), [0, 0]).refused("input must be at least 2-dim"),
        diag("Diag", "a matrix", tensor(&[1, 2], &[3, 4]))
            .gives(tensor(&[1, 2, 1, 2], &[3, 0, 0, 4])),
        diag("DiagPart", "rank 4", tensor(&[1, 2, 1, 2], &[3, 1, 2, 4]))
            .gives(tensor(&[1, 2], &[3, 4])),
        diag("DiagPart", "not square", tensor(&[1, 2], &[3, 1]))
            .refused("the first half of the dimensions"),
    ]);
    cases
}

fn crosses() -> Vec<Case> {
    let cross = |name: &str, a: Tensor, b: Tensor| {
        case(&format!("Cross: {name}"), "Cross")
            .typed("T", a.dtype())
            .input(a)
            .input(b)
    };
    let mut cases = Vec::new();
    for dtype in MOVED
        .into_iter()
        .filter(|dtype| dtype.is_floating() || dtype.is_integer())
    {
        // No component is negative, for unsigned types.
        let a = typed_tensor(dtype, &[2, 3], &[1, 0, 0, 0, 2, 1]);
        let b = typed_tensor(dtype, &[2, 3], &[0, 1, 0, 0, 1, 3]);
        let product = typed_tensor(dtype, &[2, 3], &[0, 0, 1, 5, 0, 0]);
        cases.push(cross(&format!("{dtype}"), a, b).gives(product));
    }
    cases.extend([
        cross(
            "nothing",
            tensor::<f32>(&[0, 3], &[]),
            tensor::<f32>(&[0, 3], &[]),
        )
        .gives(tensor::<f32>(&[0, 3], &[])),
        cross(
            "two components",
            tensor(&[2], &[1, 2]),
            tensor(&[2], &[1, 2]),
        )
        .refused("only defined for 3-element vectors"),
        cross(
            "other shapes",
            tensor(&[3], &[1, 2, 3]),
            tensor(&[1, 3], &[1, 2, 3]),
        )
        .refused("both inputs must be of same shape"),
    ]);
    cases
}
