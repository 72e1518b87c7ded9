//! Segments of rows that indices select.

use placewright::tensor::DType;

use crate::case::Case;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

fn segments(name: &str, op: &'static str, dtype: DType, rows: &[i32], ids: &[i64]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", dtype)
        .typed("Tidx", DType::I32)
        .typed("Tsegmentids", DType::I64)
        .input(typed_tensor(dtype, &[3, 2], &[1, 2, 3, 4, 5, 6]))
        .input(tensor(&[rows.len()], rows))
        .input(tensor(&[ids.len()], ids))
}

pub(crate) fn cases() -> Vec<Case> {
    let (sum, mean, root) = (
        "SparseSegmentSum",
        "SparseSegmentMean",
        "SparseSegmentSqrtN",
    );
    let float = |name: &str, rows: &[i32], ids: &[i64]| segments(name, sum, DType::F32, rows, ids);
    let counted = |name: &str, n: i32| {
        segments(
            name,
            "SparseSegmentSumWithNumSegments",
            DType::F32,
            &[1],
            &[1],
        )
        .input(tensor(&[], &[n]))
    };
    let mut cases = vec![
        float("nothing", &[], &[]).gives(tensor::<f32>(&[0, 2], &[])),
        float("a row outside", &[0, 3], &[0, 0])
            .refused("Bad: indices[1] == 3 out of range [0, 3)"),
        float("backwards", &[0, 1, 2], &[2, 1, 2]).refused("segment ids are not increasing"),
        float("a negative segment", &[0], &[-2]).refused("segment ids must be >= 0"),
        float("another number", &[0], &[0, 1])
            .refused("segment_ids and indices should have same size."),
        counted("more segments", 3).gives(tensor(&[3, 2], &[0.0f32, 0.0, 3.0, 4.0, 0.0, 0.0])),
        counted("too few segments", 1).refused("segment ids must be < num_segments"),
        counted("a negative number", -1).refused("segment ids must be < num_segments"),
        segments("four rows", root, DType::F64, &[0, 0, 1, 1], &[0; 4])
            .gives(tensor(&[1, 2], &[4.0f64, 6.0])),
    ];
    for dtype in [
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ] {
        cases.push(
            segments(dtype.name(), sum, dtype, &[0, 2, 2], &[0, 0, 2]).gives(typed_tensor(
                dtype,
                &[3, 2],
                &[6, 8, 0, 0, 5, 6],
            )),
        );
        if dtype.is_floating() {
            cases.push(
                segments(dtype.name(), mean, dtype, &[0, 2, 2], &[0, 0, 1]).gives(typed_tensor(
                    dtype,
                    &[2, 2],
                    &[3, 4, 5, 6],
                )),
            );
        }
    }
    cases
}
