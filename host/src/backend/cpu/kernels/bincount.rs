//! Counts of numbers.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::scalar;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::scratch;
use crate::kernels::sparse::Coordinates;
use crate::tensor::DType;
use crate::tensor::Shape;

/// The types of counts that the ops' definitions allow.
const COUNTS: [DType; 4] = [DType::I32, DType::I64, DType::F32, DType::F64];

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, form) in [
        ("SparseBincount", Form::Sparse),
        ("RaggedBincount", Form::Ragged),
    ] {
        registry.register(
            def(op)
                .with_types("T", &COUNTS)
                .with_types("Tidx", &INDICES)
                .with_factory(move |node| bincount(node, form)),
        );
    }
}

/// How the rows of numbers are given.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// Indices, values and a dense shape.
    Sparse,
    /// The starts of rows, and values.
    Ragged,
}

fn bincount(node: &KernelConstruction<'_>, form: Form) -> Made {
    let is_binary = bool_attr(node, "binary_output", false)?;
    dispatch!(type_attr(node, "T")?, [I32: i32, I64: i64, F32: f32, F64: f64], T => {
        kernel(move |context| counted::<T>(context, form, is_binary))
    })
}

fn counted<T: Arithmetic>(
    context: &KernelContext<'_>,
    form: Form,
    is_binary: bool,
) -> Result<(), KernelError> {
    let first = match form {
        Form::Sparse => 3,
        Form::Ragged => 2,
    };
    let values = indices(context.input(1)?)?;
    let size = context.input(first)?;
    let n_bins = scalar(size, "size")?;
    let n_bins = usize::try_from(n_bins)
        .map_err(|_| KernelError::invalid(format!("size ({n_bins}) must be non-negative")))?;
    let weights = context.input(first + 1)?.as_slice::<T>()?;
    if !weights.is_empty() && weights.len() != values.len() {
        return Err(KernelError::invalid(
            "Input indices and weights must have the same size.",
        ));
    }
    let rows = match form {
        Form::Sparse => sparse_rows(context, values.len())?,
        Form::Ragged => ragged_rows(context, values.len())?,
    };
    let shape = match rows.n {
        None => Shape::new(&[n_bins]),
        Some(n) => Shape::new(&[n, n_bins]),
    };
    context.fill_output(0, &shape, |out: &mut [T]| {
        out.fill(T::ZERO);
        for (index, &value) in values.iter().enumerate() {
            let value = usize::try_from(value)
                .map_err(|_| KernelError::invalid("Input arr must be non-negative!"))?;
            if value >= n_bins {
                continue;
            }
            let count = &mut out[rows.of_value(index) * n_bins + value];
            *count = match (is_binary, weights.get(index)) {
                (true, _) => T::ONE,
                (false, Some(&weight)) => count.plus(weight),
                (false, None) => count.plus(T::ONE),
            };
        }
        Ok(())
    })
}

/// The row of each value.
struct Rows {
    /// The number of rows; `None` if the result is a vector.
    n: Option<usize>,
    rows: smallvec::SmallVec<[usize; 8]>,
}

impl Rows {
    fn of_value(&self, index: usize) -> usize {
        self.rows.get(index).copied().unwrap_or(0)
    }
}

fn sparse_rows(context: &KernelContext<'_>, n_values: usize) -> Result<Rows, KernelError> {
    let (of_values, dims) = (context.input(0)?, indices(context.input(2)?)?);
    let &[n_found, rank] = of_values.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "Shape must be rank 2 but is rank {} for `indices`",
            of_values.shape().rank()
        )));
    };
    if n_found != n_values || rank != dims.len() || rank == 0 {
        return Err(KernelError::invalid(format!(
            "indices of shape {} do not fit {n_values} values and a dense shape of rank {}",
            of_values.shape(),
            dims.len()
        )));
    }
    let mut sizes = scratch::list::<usize>(rank)?;
    for dim in dims {
        sizes.push(usize::try_from(dim).map_err(|_| {
            KernelError::invalid(format!("dense_shape has the negative dimension {dim}"))
        })?);
    }
    let coordinates = Coordinates {
        values: of_values.as_slice()?,
        rank,
    };
    let mut rows = smallvec::SmallVec::new();
    for value in 0..n_values {
        coordinates
            .check_bounds(value, &sizes)
            .map_err(KernelError::InvalidArgument)?;
        if rank > 1 {
            rows.push(usize::try_from(coordinates.row(value)[0]).unwrap_or(0));
        }
    }
    let n = (rank > 1).then_some(sizes[0]);
    Ok(Rows { n, rows })
}

fn ragged_rows(context: &KernelContext<'_>, n_values: usize) -> Result<Rows, KernelError> {
    let splits = indices(context.input(0)?)?;
    let wrong = |message: &str| Err(KernelError::invalid(message.to_owned()));
    if splits.first() != Some(&0) {
        return wrong("Splits must start with 0");
    }
    if splits.last().copied() != i64::try_from(n_values).ok() {
        return wrong("Splits must end with the number of values");
    }
    let mut rows = smallvec::SmallVec::new();
    for (row, pair) in splits.windows(2).enumerate() {
        let Ok(n) = usize::try_from(pair[1] - pair[0]) else {
            return wrong("Splits must not decrease");
        };
        if n > n_values - rows.len().min(n_values) {
            return wrong("Splits must not exceed the number of values");
        }
        rows.extend(std::iter::repeat_n(row, n));
    }
    Ok(Rows {
        n: Some(splits.len() - 1),
        rows,
    })
}
