//! Diagonals and bands of matrices.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::product;
use crate::backend::plan::value::integers;
use crate::backend::plan::value::scalar;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::diagonal;
use crate::kernels::diagonal::Diagonals;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Types of TensorFlow's `Diag` and `DiagPart`.
const DIAGONALS: [DType; 7] = [
    DType::F16,
    DType::F32,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::Complex64,
    DType::Complex128,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in ["MatrixDiag", "MatrixDiagV2", "MatrixDiagV3"] {
        registry.register(
            def(op)
                .with_types("T", &ELEMENTS)
                .with_factory(|node| made(node, Part::Matrix)),
        );
    }
    for op in ["MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3"] {
        registry.register(
            def(op)
                .with_types("T", &ELEMENTS)
                .with_factory(|node| made(node, Part::Diagonals)),
        );
    }
    for op in ["MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"] {
        registry.register(
            def(op)
                .with_types("T", &ELEMENTS)
                .with_factory(|node| made(node, Part::Replaced)),
        );
    }
    registry.register(
        def("MatrixBandPart")
            .with_types("T", &ELEMENTS)
            .with_types("Tindex", &INDICES)
            .with_factory(|node| dispatch_raw!(type_attr(node, "T")?, W => kernel(band::<W>))),
    );
    registry.register(
        def("Diag")
            .with_types("T", &DIAGONALS)
            .with_factory(|node| dispatch_raw!(type_attr(node, "T")?, W => kernel(diag::<W>))),
    );
    registry.register(
        def("DiagPart")
            .with_types("T", &DIAGONALS)
            .with_factory(|node| dispatch_raw!(type_attr(node, "T")?, W => kernel(diag_part::<W>))),
    );
    registry.register(
        def("Cross")
            .with_types("T", &NUMBERS)
            .with_factory(|node| dispatch_number!(type_attr(node, "T")?, T => kernel(cross::<T>))),
    );
}

/// What an op makes.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A matrix of diagonals.
    Matrix,
    /// The diagonals of a matrix.
    Diagonals,
    /// A matrix with other diagonals.
    Replaced,
}

/// Alignment of diagonals that are shorter than the longest one: above and below the main one.
type AtLeft = [bool; 2];

/// TensorFlow `MatrixDiag`, `MatrixDiagPart`, `MatrixSetDiag`, and their versions 2 (any diagonals)
/// and 3 (with an alignment).
fn made(node: &KernelConstruction<'_>, part: Part) -> Made {
    let is_plain = !node.op.ends_with("V2") && !node.op.ends_with("V3");
    let at_left = match string_attr(node, "align", "LEFT_LEFT")? {
        "LEFT_LEFT" => [true, true],
        "LEFT_RIGHT" => [true, false],
        "RIGHT_LEFT" => [false, true],
        "RIGHT_RIGHT" => [false, false],
        other => {
            return Err(KernelError::invalid(format!(
                "attribute `align` is `{other}`; expected LEFT_LEFT, LEFT_RIGHT, RIGHT_LEFT or \
                 RIGHT_RIGHT"
            )));
        }
    };
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| match part {
        Part::Matrix => matrix::<W>(context, is_plain, at_left),
        Part::Diagonals => diagonals::<W>(context, is_plain, at_left),
        Part::Replaced => replaced::<W>(context, is_plain, at_left),
    }))
}

/// Returns first and last diagonal, from input `index`: one number or two.
fn range(context: &KernelContext<'_>, index: usize) -> Result<[isize; 2], KernelError> {
    let tensor = context.input(index)?;
    let given = integers(tensor)?;
    let narrow = |value: i64| isize::try_from(value).unwrap_or(isize::MAX);
    let [first, last] = match given[..] {
        [only] => [narrow(only); 2],
        [first, last] if tensor.shape().rank() == 1 => [narrow(first), narrow(last)],
        _ => {
            return Err(KernelError::invalid(format!(
                "diag_index must be a scalar or vector of one or two elements, received shape {}",
                tensor.shape()
            )));
        }
    };
    if first > last {
        return Err(KernelError::invalid(format!(
            "lower_diag_index must not be larger than upper_diag_index: {first} > {last}"
        )));
    }
    Ok([first, last])
}

/// Returns the padding value in input `index`.
fn padding<'a, W: RawElements>(
    context: &'a KernelContext<'_>,
    index: usize,
) -> Result<W::Raw<'a>, KernelError> {
    let tensor = context.input(index)?;
    match W::read(tensor)?[..] {
        [value] => Ok(value),
        _ => Err(KernelError::invalid(format!(
            "padding_value must be a scalar, but its shape is {}",
            tensor.shape()
        ))),
    }
}

/// Returns the diagonals of matrices of this shape, and the batch dimensions.
fn of_matrices(
    shape: &Shape,
    [first, last]: [isize; 2],
    [upper_at_left, lower_at_left]: AtLeft,
) -> Result<(Diagonals, &[usize]), KernelError> {
    let &[ref batch @ .., rows, columns] = shape.dims() else {
        return Err(KernelError::invalid(format!(
            "input must be at least 2-dim, received shape: {shape}"
        )));
    };
    for (diagonal, which) in [(first, "lower"), (last, "upper")] {
        let inside = -rows.cast_signed() < diagonal && diagonal < columns.cast_signed();
        if !inside && diagonal != 0 {
            return Err(KernelError::invalid(format!(
                "{which}_diag_index is out of bound: {diagonal}. It must be between {} and \
                 {columns}",
                -rows.cast_signed()
            )));
        }
    }
    let diagonals = Diagonals {
        rows,
        columns,
        first,
        last,
        len: Diagonals::longest(rows, columns, first, last),
        upper_at_left,
        lower_at_left,
    };
    Ok((diagonals, batch))
}

/// Returns the shape of the layout of diagonals: one diagonal has no dimension of its own.
fn layout(diagonals: &Diagonals, batch: &[usize]) -> Shape {
    let n = (diagonals.first != diagonals.last).then(|| diagonals.n());
    batch
        .iter()
        .copied()
        .chain(n)
        .chain([diagonals.len])
        .collect()
}

fn diagonals<W: RawElements>(
    context: &KernelContext<'_>,
    is_plain: bool,
    at_left: AtLeft,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (which, fill) = if is_plain {
        ([0, 0], W::Raw::default())
    } else {
        (range(context, 1)?, padding::<W>(context, 2)?)
    };
    let (diagonals, batch) = of_matrices(input.shape(), which, at_left)?;
    let shape = layout(&diagonals, batch);
    let x = W::read(input)?;
    let (whole, part) = (
        product(&[diagonals.rows, diagonals.columns]),
        product(&[diagonals.n(), diagonals.len]),
    );
    W::write(context, 0, input.dtype(), shape, |out| {
        out.fill(fill);
        if out.is_empty() {
            return Ok(());
        }
        for (x, out) in x.chunks_exact(whole).zip(out.chunks_exact_mut(part)) {
            diagonals.for_each(|place, element| out[place] = x[element]);
        }
        Ok(())
    })
}

fn replaced<W: RawElements>(
    context: &KernelContext<'_>,
    is_plain: bool,
    at_left: AtLeft,
) -> Result<(), KernelError> {
    let (input, new) = (context.input(0)?, context.input(1)?);
    let which = if is_plain { [0, 0] } else { range(context, 2)? };
    let (diagonals, batch) = of_matrices(input.shape(), which, at_left)?;
    let expected = layout(&diagonals, batch);
    if *new.shape() != expected {
        return Err(KernelError::invalid(format!(
            "diagonal must have shape {expected} for input of shape {}, but it has {}",
            input.shape(),
            new.shape()
        )));
    }
    let (x, new) = (W::read(input)?, W::read(new)?);
    let (whole, part) = (
        product(&[diagonals.rows, diagonals.columns]),
        product(&[diagonals.n(), diagonals.len]),
    );
    W::write(context, 0, input.dtype(), input.shape().clone(), |out| {
        out.copy_from_slice(&x);
        if out.is_empty() || new.is_empty() {
            return Ok(());
        }
        for (new, out) in new.chunks_exact(part).zip(out.chunks_exact_mut(whole)) {
            diagonals.for_each(|place, element| out[element] = new[place]);
        }
        Ok(())
    })
}

/// Returns the number of rows or columns: the given one, or the smallest possible one for -1.
fn matrix_size(
    context: &KernelContext<'_>,
    index: usize,
    what: &str,
) -> Result<Option<usize>, KernelError> {
    match scalar(context.input(index)?, what)? {
        -1 => Ok(None),
        size => usize::try_from(size).map(Some).map_err(|_| {
            KernelError::invalid(format!("{what} must be -1 or not negative, not {size}"))
        }),
    }
}

fn matrix<W: RawElements>(
    context: &KernelContext<'_>,
    is_plain: bool,
    [upper_at_left, lower_at_left]: AtLeft,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let ([first, last], given, fill) = if is_plain {
        ([0, 0], [None, None], W::Raw::default())
    } else {
        let given = [
            matrix_size(context, 2, "num_rows")?,
            matrix_size(context, 3, "num_cols")?,
        ];
        (range(context, 1)?, given, padding::<W>(context, 4)?)
    };
    let n = (last - first).unsigned_abs() + 1;
    let (batch, len) = match *input.shape().dims() {
        [ref batch @ .., len] if n == 1 => (batch, len),
        [ref batch @ .., rows, len] if rows == n => (batch, len),
        _ => {
            return Err(KernelError::invalid(format!(
                "the shape {} of the diagonals does not match the {n} diagonals from {first} to \
                 {last}",
                input.shape()
            )));
        }
    };
    let least = [
        len.saturating_add(last.min(0).unsigned_abs()),
        len.saturating_add(first.max(0).unsigned_abs()),
    ];
    let [rows, columns] = match given {
        [None, None] => [least[0].max(least[1]); 2],
        [rows, columns] => [rows.unwrap_or(least[0]), columns.unwrap_or(least[1])],
    };
    for (size, least, what) in [(rows, least[0], "rows"), (columns, least[1], "columns")] {
        if size < least {
            return Err(KernelError::invalid(format!(
                "the number of {what} is too small: {size}, at least {least} are needed"
            )));
        }
    }
    if rows != least[0] && columns != least[1] {
        return Err(KernelError::invalid(format!(
            "the number of rows {rows} or columns {columns} is not consistent with the diagonals \
             from {first} to {last} of length {len}"
        )));
    }
    let diagonals = Diagonals {
        rows,
        columns,
        first,
        last,
        len,
        upper_at_left,
        lower_at_left,
    };
    let shape: Shape = batch.iter().copied().chain([rows, columns]).collect();
    let x = W::read(input)?;
    let (whole, part) = (product(&[rows, columns]), product(&[n, len]));
    W::write(context, 0, input.dtype(), shape, |out| {
        out.fill(fill);
        if out.is_empty() || part == 0 {
            return Ok(());
        }
        for (x, out) in x.chunks_exact(part).zip(out.chunks_exact_mut(whole)) {
            diagonals.for_each(|place, element| out[element] = x[place]);
        }
        Ok(())
    })
}

/// TensorFlow `MatrixBandPart`.
fn band<W: RawElements>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let &[ref batch @ .., rows, columns] = input.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "input must be at least 2-dim, received shape: {}",
            input.shape()
        )));
    };
    let width = |index: usize, what: &str, limit: usize, of: &str| {
        let given = scalar(context.input(index)?, what)?;
        let width = usize::try_from(given).ok();
        if width.is_some_and(|width| width > limit) {
            return Err(KernelError::invalid(format!(
                "{what} must be negative or less or equal to number of {of} ({limit}) got: {given}"
            )));
        }
        Ok(width)
    };
    let lower = width(1, "num_lower", rows, "rows")?;
    let upper = width(2, "num_upper", columns, "columns")?;
    let x = W::read(input)?;
    let whole = product(&[rows, columns]);
    let n = product(batch);
    W::write(context, 0, input.dtype(), input.shape().clone(), |out| {
        if out.is_empty() {
            return Ok(());
        }
        for index in 0..n {
            let matrix = index * whole..(index + 1) * whole;
            diagonal::band(
                &x[matrix.clone()],
                columns,
                [lower, upper],
                &mut out[matrix],
            );
        }
        Ok(())
    })
}

/// TensorFlow `Diag`.
fn diag<W: RawElements>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let dims = input.shape().dims();
    let shape: Shape = dims.iter().chain(dims).copied().collect();
    let x = W::read(input)?;
    W::write(context, 0, input.dtype(), shape, |out| {
        out.fill(W::Raw::default());
        for (index, &x) in x.iter().enumerate() {
            out[index * (input.shape().n_elements() + 1)] = x;
        }
        Ok(())
    })
}

/// TensorFlow `DiagPart`.
fn diag_part<W: RawElements>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let dims = input.shape().dims();
    let (front, back) = dims.split_at(dims.len() / 2);
    if front != back || dims.is_empty() {
        return Err(KernelError::invalid(format!(
            "the first half of the dimensions must equal the second, got shape {}",
            input.shape()
        )));
    }
    let shape = Shape::new(front);
    let step = shape.n_elements() + 1;
    let x = W::read(input)?;
    W::write(context, 0, input.dtype(), shape, |out| {
        for (index, slot) in out.iter_mut().enumerate() {
            *slot = x[index * step];
        }
        Ok(())
    })
}

/// TensorFlow `Cross`.
fn cross<T: Number>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (a, b) = (context.input(0)?, context.input(1)?);
    if a.shape() != b.shape() {
        return Err(KernelError::invalid(format!(
            "both inputs must be of same shape: {} vs. {}",
            a.shape(),
            b.shape()
        )));
    }
    if a.shape().dims().last() != Some(&3) {
        return Err(KernelError::invalid(format!(
            "cross-products are only defined for 3-element vectors, not for shape {}",
            a.shape()
        )));
    }
    let (x, y) = (a.as_slice::<T>()?, b.as_slice::<T>()?);
    context.fill_output(0, a.shape(), |out: &mut [T]| {
        let vectors = x.chunks_exact(3).zip(y.chunks_exact(3));
        for (out, (x, y)) in out.chunks_exact_mut(3).zip(vectors) {
            for (axis, slot) in out.iter_mut().enumerate() {
                let (i, j) = ((axis + 1) % 3, (axis + 2) % 3);
                *slot = x[i].times(y[j]).minus(x[j].times(y[i]));
            }
        }
        Ok(())
    })
}
