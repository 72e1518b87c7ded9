//! Diagonals, linear algebra and Fourier transforms.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::infer::elements;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::broadcast;
use super::rules::merge;
use super::rules::merge_dims;
use super::rules::same_as_input;
use super::rules::size;
use super::rules::unknown;
use super::work::per_output;
use super::work::with_flops;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::PartialShape;

const SOLVED: &str = "T: {double, float, half, complex64, complex128}";
const ALIGN: &str =
    "T: type; align: {'LEFT_RIGHT', 'RIGHT_LEFT', 'LEFT_LEFT', 'RIGHT_RIGHT'} = 'RIGHT_LEFT'";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = diagonals();
    ops.extend(solvers());
    ops.extend(transforms());
    ops
}

fn diagonals() -> Vec<OpDef> {
    vec![
        op("MatrixDiag", "diagonal: T", "output: T", "T: type").with_shape(|context| {
            let Some(dims) = context.dims_of_rank_at_least(0, 1)? else {
                return Ok(vec![PartialShape::unknown()]);
            };
            let last = dims[dims.len() - 1];
            Ok(vec![dims.iter().copied().chain([last]).collect()])
        }),
        op(
            "MatrixDiagV2",
            "diagonal: T, k: int32, num_rows: int32, num_cols: int32, padding_value: T",
            "output: T",
            "T: type",
        )
        .with_shape(matrix_of_diagonals),
        op(
            "MatrixDiagV3",
            "diagonal: T, k: int32, num_rows: int32, num_cols: int32, padding_value: T",
            "output: T",
            ALIGN,
        )
        .with_shape(matrix_of_diagonals),
        op("MatrixDiagPart", "input: T", "diagonal: T", "T: type").with_shape(|context| {
            let Some((batch, [rows, columns])) = matrices(context, 0)? else {
                return Ok(vec![PartialShape::unknown()]);
            };
            let len = rows.zip(columns).map(|(rows, columns)| rows.min(columns));
            Ok(vec![batch.iter().copied().chain([len]).collect()])
        }),
        op(
            "MatrixDiagPartV2",
            "input: T, k: int32, padding_value: T",
            "diagonal: T",
            "T: type",
        )
        .with_shape(diagonals_of_matrix),
        op(
            "MatrixDiagPartV3",
            "input: T, k: int32, padding_value: T",
            "diagonal: T",
            ALIGN,
        )
        .with_shape(diagonals_of_matrix),
        op(
            "MatrixSetDiag",
            "input: T, diagonal: T",
            "output: T",
            "T: type",
        )
        .with_shape(matrix_as_input),
        op(
            "MatrixSetDiagV2",
            "input: T, diagonal: T, k: int32",
            "output: T",
            "T: type",
        )
        .with_shape(matrix_as_input),
        op(
            "MatrixSetDiagV3",
            "input: T, diagonal: T, k: int32",
            "output: T",
            ALIGN,
        )
        .with_shape(matrix_as_input),
        op(
            "DiagPart",
            "input: T",
            "diagonal: T",
            "T: {bfloat16, half, float, double, int32, int64, complex64, complex128}",
        )
        .with_shape(|context| {
            let Some(dims) = context.shape(0).dims() else {
                return Ok(vec![PartialShape::unknown()]);
            };
            if dims.is_empty() || dims.len() % 2 != 0 {
                return Err(ShapeError::new(format!(
                    "the input must have an even and non-zero rank; its shape is {}",
                    context.shape(0)
                )));
            }
            let (front, back) = dims.split_at(dims.len() / 2);
            let both = merge(
                &PartialShape::new(front),
                &PartialShape::new(back),
                "halves of the shape",
            )?;
            Ok(vec![both])
        }),
        op("Cross", "a: T, b: T", "product: T", "T: realnumbertype")
            .with_shape(|context| {
                context.dims_of_rank_at_least(0, 1)?;
                let shape = merge(context.shape(0), context.shape(1), "shapes of both inputs")?;
                if let Some(dims) = shape.dims() {
                    merge_dims(
                        dims[dims.len() - 1],
                        Some(3),
                        "the last dimension and three",
                    )?;
                }
                Ok(vec![shape])
            })
            .with_work(per_output(3.0)),
    ]
}

fn solvers() -> Vec<OpDef> {
    let per_batch = |shape: &[Dim], last: &[Dim]| -> PartialShape {
        shape.iter().chain(last).copied().collect()
    };
    vec![
        op("Cholesky", "input: T", "output: T", SOLVED)
            .with_shape(square)
            .with_work(|context, outputs| cubic(context, outputs, 1.0 / 3.0)),
        op("MatrixInverse", "input: T", "output: T", &format!("adjoint: bool = false; {SOLVED}"))
            .with_shape(square)
            .with_work(|context, outputs| cubic(context, outputs, 2.0)),
        op("MatrixExponential", "input: T", "output: T", SOLVED)
            .with_shape(square)
            .with_work(|context, outputs| cubic(context, outputs, 30.0)),
        op("Qr", "input: T", "q: T, r: T", &format!("full_matrices: bool = false; {SOLVED}"))
            .with_shape(move |context| {
                let Some((batch, [rows, columns])) = matrices(context, 0)? else {
                    return unknown(context);
                };
                let inner = inner_size(context, [rows, columns], rows)?;
                Ok(vec![per_batch(batch, &[rows, inner]), per_batch(batch, &[inner, columns])])
            })
            .with_work(|context, outputs| cubic(context, outputs, 4.0)),
        op("Svd", "input: T", "s: T, u: T, v: T", &format!("compute_uv: bool = true; full_matrices: bool = false; {SOLVED}"))
            .with_shape(move |context| {
                // TensorFlow's rule says [0], its kernels make a scalar.
                let none = PartialShape::scalar();
                let Some((batch, [rows, columns])) = matrices(context, 0)? else {
                    return unknown(context);
                };
                let least = rows.zip(columns).map(|(rows, columns)| rows.min(columns));
                let s = per_batch(batch, &[least]);
                if !context.bool("compute_uv")? {
                    return Ok(vec![s, none.clone(), none]);
                }
                let u = inner_size(context, [rows, columns], rows)?;
                let v = inner_size(context, [rows, columns], columns)?;
                Ok(vec![s, per_batch(batch, &[rows, u]), per_batch(batch, &[columns, v])])
            })
            .with_work(|context, outputs| cubic(context, outputs, 20.0)),
        op("SelfAdjointEigV2", "input: T", "e: T, v: T", &format!("compute_v: bool = true; {SOLVED}"))
            .with_shape(move |context| {
                let matrix = square(context)?;
                let Some((batch, [n, _])) = matrices(context, 0)? else {
                    return unknown(context);
                };
                let vectors = match context.bool("compute_v")? {
                    true => matrix.into_iter().next().unwrap_or_default(),
                    // TensorFlow's rule says [0], its kernel makes a scalar.
                    false => PartialShape::scalar(),
                };
                Ok(vec![per_batch(batch, &[n]), vectors])
            })
            .with_work(|context, outputs| cubic(context, outputs, 9.0)),
        op("MatrixDeterminant", "input: T", "output: T", "T: {half, float, double, complex64, complex128}")
            .with_shape(|context| Ok(vec![batch(context)?]))
            .with_work(|context, outputs| cubic(context, outputs, 2.0 / 3.0)),
        op("LogMatrixDeterminant", "input: T", "sign: T, log_abs_determinant: T", "T: {half, float, double, complex64, complex128}")
            .with_shape(|context| {
                let batch = batch(context)?;
                Ok(vec![batch.clone(), batch])
            })
            .with_work(|context, outputs| cubic(context, outputs, 2.0 / 3.0)),
        op("Lu", "input: T", "lu: T, p: output_idx_type", &format!("{SOLVED}; output_idx_type: {{int32, int64}} = DT_INT32"))
            .with_shape(move |context| {
                let lu = square(context)?.into_iter().next().unwrap_or_default();
                let Some((batch, [n, _])) = matrices(context, 0)? else {
                    return unknown(context);
                };
                Ok(vec![lu, per_batch(batch, &[n])])
            })
            .with_work(|context, outputs| cubic(context, outputs, 2.0 / 3.0)),
        op("MatrixSolve", "matrix: T, rhs: T", "output: T", &format!("adjoint: bool = false; {SOLVED}"))
            .with_shape(|context| solved(context, false))
            .with_work(|context, outputs| cubic(context, outputs, 2.0)),
        op("MatrixTriangularSolve", "matrix: T, rhs: T", "output: T", "lower: bool = true; adjoint: bool = false; T: {bfloat16, double, float, half, complex64, complex128}")
            .with_shape(|context| solved(context, true))
            .with_work(|context, outputs| cubic(context, outputs, 1.0)),
    ]
}

fn transforms() -> Vec<OpDef> {
    let mut ops = Vec::new();
    for (name, n_axes) in [("FFT", 1), ("FFT2D", 2), ("FFT3D", 3)] {
        for name in [name.to_owned(), format!("I{name}")] {
            ops.push(
                op(
                    &name,
                    "input: Tcomplex",
                    "output: Tcomplex",
                    "Tcomplex: {complex64, complex128} = DT_COMPLEX64",
                )
                .with_shape(move |context| {
                    context.dims_of_rank_at_least(0, n_axes)?;
                    same_as_input(context)
                })
                .with_work(|context, outputs| transform_work(context, outputs, 5.0)),
            );
        }
    }
    let attrs =
        "Treal: {float, double} = DT_FLOAT; Tcomplex: {complex64, complex128} = DT_COMPLEX64";
    for (name, n_axes) in [("RFFT", 1), ("RFFT2D", 2), ("RFFT3D", 3)] {
        ops.push(
            op(
                name,
                "input: Treal, fft_length: int32",
                "output: Tcomplex",
                attrs,
            )
            .with_shape(move |context| real_transform(context, n_axes, true))
            .with_work(|context, outputs| transform_work(context, outputs, 2.5)),
        );
        ops.push(
            op(
                &format!("I{name}"),
                "input: Tcomplex, fft_length: int32",
                "output: Treal",
                attrs,
            )
            .with_shape(move |context| real_transform(context, n_axes, false))
            .with_work(|context, outputs| transform_work(context, outputs, 2.5)),
        );
    }
    ops
}

/// Batch dimensions, rows and columns.
type Matrices<'a> = (&'a [Dim], [Dim; 2]);

/// Returns the dimensions of an input of matrices; `None` if its rank is unknown.
fn matrices<'a>(
    context: &InferenceContext<'a>,
    index: usize,
) -> Result<Option<Matrices<'a>>, ShapeError> {
    let dims = context.dims_of_rank_at_least(index, 2)?;
    Ok(dims.map(|dims| {
        let (batch, matrix) = dims.split_at(dims.len() - 2);
        (batch, [matrix[0], matrix[1]])
    }))
}

fn matrix_as_input(context: &InferenceContext<'_>) -> Shapes {
    matrices(context, 0)?;
    same_as_input(context)
}

/// The only output is square matrices like input 0.
fn square(context: &InferenceContext<'_>) -> Shapes {
    let Some((batch, [rows, columns])) = matrices(context, 0)? else {
        return unknown(context);
    };
    let n = merge_dims(rows, columns, "rows and columns")?;
    Ok(vec![batch.iter().copied().chain([n, n]).collect()])
}

/// Returns the batch dimensions of square matrices.
fn batch(context: &InferenceContext<'_>) -> Result<PartialShape, ShapeError> {
    let Some((batch, [rows, columns])) = matrices(context, 0)? else {
        return Ok(PartialShape::unknown());
    };
    merge_dims(rows, columns, "rows and columns")?;
    Ok(PartialShape::new(batch))
}

/// Returns the number of columns of a factor: all, or as many as the smaller side of the matrix.
fn inner_size(
    context: &InferenceContext<'_>,
    [rows, columns]: [Dim; 2],
    all: Dim,
) -> Result<Dim, ShapeError> {
    if context.bool("full_matrices")? {
        return Ok(all);
    }
    Ok(rows.zip(columns).map(|(rows, columns)| rows.min(columns)))
}

/// Input 0 is square matrices, input 1 right sides of as many rows.
fn solved(context: &InferenceContext<'_>, broadcasts: bool) -> Shapes {
    let (Some((batch, [rows, columns])), Some((other, [n, k]))) =
        (matrices(context, 0)?, matrices(context, 1)?)
    else {
        return unknown(context);
    };
    let inner = merge_dims(rows, columns, "rows and columns")?;
    let n = merge_dims(inner, n, "rows of both inputs")?;
    let (batch, other) = (PartialShape::new(batch), PartialShape::new(other));
    let batch = match broadcasts {
        true => broadcast(&batch, &other)?,
        false => merge(&batch, &other, "batch dimensions")?,
    };
    let batch = batch.dims().unwrap_or_default().iter().copied();
    Ok(vec![batch.chain([n, k]).collect()])
}

/// Returns first and last diagonal if input `index` is known.
fn diagonal_range(
    context: &InferenceContext<'_>,
    index: usize,
) -> Result<Option<[i64; 2]>, ShapeError> {
    let Some(known) = context.known_ints(index) else {
        return Ok(None);
    };
    match known[..] {
        [only] => Ok(Some([only, only])),
        [first, last] if first <= last => Ok(Some([first, last])),
        _ => Err(ShapeError::new(format!(
            "k must be one diagonal, or the first and the last of several; it is {known:?}"
        ))),
    }
}

fn diagonals_of_matrix(context: &InferenceContext<'_>) -> Shapes {
    let (Some((batch, [rows, columns])), Some([first, last])) =
        (matrices(context, 0)?, diagonal_range(context, 1)?)
    else {
        return unknown(context);
    };
    let length = |rows: usize, columns: usize| -> Result<usize, ShapeError> {
        let signed = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let inside = |diagonal: i64| -signed(rows) < diagonal && diagonal < signed(columns);
        let outside = |diagonal: i64| diagonal != 0 && !inside(diagonal);
        if outside(first) || outside(last) {
            return Err(ShapeError::new(format!(
                "a matrix of {rows} x {columns} lacks some of the diagonals from {first} to {last}"
            )));
        }
        let rows = rows
            - usize::try_from(last.min(0).unsigned_abs())
                .unwrap_or(rows)
                .min(rows);
        let columns = columns
            - usize::try_from(first.max(0))
                .unwrap_or(columns)
                .min(columns);
        Ok(rows.min(columns))
    };
    let len = rows
        .zip(columns)
        .map(|(rows, columns)| length(rows, columns));
    let len = len.transpose()?;
    let n = (first != last).then(|| usize::try_from(last - first + 1).ok());
    let shape = batch.iter().copied().chain(n).chain([len]);
    Ok(vec![shape.collect()])
}

fn matrix_of_diagonals(context: &InferenceContext<'_>) -> Shapes {
    let (Some(dims), Some([first, last])) = (
        context.dims_of_rank_at_least(0, 1)?,
        diagonal_range(context, 1)?,
    ) else {
        return unknown(context);
    };
    let n_last = if first == last { 1 } else { 2 };
    if dims.len() < n_last {
        return Err(ShapeError::new(format!(
            "diagonals from {first} to {last} must have rank {n_last} or more; their shape is {}",
            context.shape(0)
        )));
    }
    let (batch, _) = dims.split_at(dims.len() - n_last);
    let known = |index: usize, what: &str| -> Result<Option<Dim>, ShapeError> {
        match context.scalar_int(index) {
            None => Ok(None),
            Some(-1) => Ok(Some(None)),
            Some(given) => size(given, what).map(|size| Some(Some(size))),
        }
    };
    let matrix = match (
        dims[dims.len() - 1],
        known(2, "num_rows")?,
        known(3, "num_cols")?,
    ) {
        (Some(len), Some(rows), Some(columns)) => {
            let wide = |by: i64| {
                usize::try_from(by.unsigned_abs()).map_or(usize::MAX, |by| len.saturating_add(by))
            };
            let least = [wide(last.min(0)), wide(first.max(0))];
            match [rows, columns] {
                [None, None] => [Some(least[0].max(least[1])); 2],
                [rows, columns] => [rows.or(Some(least[0])), columns.or(Some(least[1]))],
            }
        }
        _ => [None, None],
    };
    Ok(vec![batch.iter().copied().chain(matrix).collect()])
}

/// `flops` operations per row, column and smaller side of input 0.
fn cubic(context: &InferenceContext<'_>, outputs: &[Output], flops: f64) -> Work {
    let dims = context.shape(0).dims().unwrap_or_default();
    let last = dims[dims.len().saturating_sub(2)..].iter();
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let smaller = last.flatten().min().map_or(0.0, |&n| n as f64);
    with_flops(
        context,
        outputs,
        flops * smaller * context.input_elements(0),
    )
}

/// `flops` operations per element and doubling of the largest side.
fn transform_work(context: &InferenceContext<'_>, outputs: &[Output], flops: f64) -> Work {
    let n = outputs
        .first()
        .map_or(0.0, |output| elements(&output.shape));
    let n = n.max(context.input_elements(0));
    with_flops(context, outputs, flops * n * n.max(2.0).log2())
}

/// Transforms of real numbers along the last axes: `fft_length` replaces the sizes of the axes of
/// the real side, and the last axis of the complex side has half of it, plus one.
fn real_transform(context: &InferenceContext<'_>, n_axes: usize, is_forward: bool) -> Shapes {
    let lengths = context.shape_of_rank(1, 1)?;
    merge_dims(lengths.dim(0), Some(n_axes), "elements of fft_length")?;
    let Some(dims) = context.dims_of_rank_at_least(0, n_axes)? else {
        return unknown(context);
    };
    let (batch, _) = dims.split_at(dims.len() - n_axes);
    let known = context.ints(1);
    let mut sizes = Vec::new();
    for axis in 0..n_axes {
        let given = known
            .as_ref()
            .and_then(|known| known.values().get(axis).copied().flatten());
        let length = given.map(|given| size(given, "fft_length")).transpose()?;
        let is_halved = is_forward && axis + 1 == n_axes;
        sizes.push(length.map(|length| match length {
            0 => 0,
            length if is_halved => length / 2 + 1,
            length => length,
        }));
    }
    Ok(vec![batch.iter().copied().chain(sizes).collect()])
}
