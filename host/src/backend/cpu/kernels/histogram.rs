//! Counts of values.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::scalar;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Integer;
use crate::kernels::Number;
use crate::kernels::histogram;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types of weights, and of values of histograms, that the ops allow.
const COUNTED: [DType; 4] = [DType::F32, DType::F64, DType::I32, DType::I64];

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Bincount")
            .with_types("T", &COUNTED)
            .with_host_memory("size")
            .with_factory(|node| {
                dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64, I32: i32, I64: i64], T => {
                    kernel(count::<T>)
                })
            }),
    );
    registry.register(
        def("DenseBincount")
            .with_types("T", &COUNTED)
            .with_types("Tidx", &INDICES)
            .with_host_memory("size")
            .with_factory(dense),
    );
    registry.register(
        def("HistogramFixedWidth")
            .with_types("T", &COUNTED)
            .with_types("dtype", &INDICES)
            .with_host_memory("nbins")
            .with_factory(fixed_width),
    );
}

/// Returns the number of bins, a scalar in input `index`.
fn n_bins(context: &KernelContext<'_>, index: usize) -> Result<usize, KernelError> {
    let size = scalar(context.input(index)?, "size")?;
    usize::try_from(size)
        .map_err(|_| KernelError::invalid(format!("size ({size}) must be non-negative")))
}

/// Returns the weights, if there are any: they have the shape of the values.
fn weights<'a, T: Number>(
    values: &Tensor,
    weights: &'a Tensor,
) -> Result<Option<&'a [T]>, KernelError> {
    let elements = weights.as_slice::<T>()?;
    if elements.is_empty() {
        return Ok(None);
    }
    if weights.shape() != values.shape() {
        return Err(KernelError::invalid(format!(
            "weights must have the same shape as the values or be empty, but they are {} and {}",
            weights.shape(),
            values.shape()
        )));
    }
    Ok(Some(elements))
}

fn check_values<I: Copy + Into<i64>>(values: &[I]) -> Result<(), KernelError> {
    match values
        .iter()
        .map(|&value| value.into())
        .find(|&value| value < 0)
    {
        Some(value) => Err(KernelError::invalid(format!(
            "input must be non-negative, found {value}"
        ))),
        None => Ok(()),
    }
}

/// TensorFlow `Bincount`.
fn count<T: Number>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let n = n_bins(context, 1)?;
    let values = input.as_slice::<i32>()?;
    let weights = weights::<T>(input, context.input(2)?)?;
    check_values(values)?;
    output(context, Shape::from([n]), |out| {
        histogram::count(values, weights, false, out);
        Ok(())
    })
}

/// TensorFlow `DenseBincount`: counts of a vector, or of each row of a matrix.
fn dense(node: &KernelConstruction<'_>) -> Made {
    fn counted<I: Integer + Into<i64>, T: Number>(
        context: &KernelContext<'_>,
        is_binary: bool,
    ) -> Result<(), KernelError> {
        let input = context.input(0)?;
        let n = n_bins(context, 1)?;
        let values = input.as_slice::<I>()?;
        let weights = weights::<T>(input, context.input(2)?)?;
        let (shape, n_columns) = match *input.shape().dims() {
            [] => (Shape::from([n]), 1),
            [n_columns] => (Shape::from([n]), n_columns),
            [n_rows, n_columns] => (Shape::from([n_rows, n]), n_columns),
            _ => {
                return Err(KernelError::invalid(format!(
                    "shape must be at most rank 2 but is rank {}",
                    input.shape().rank()
                )));
            }
        };
        check_values(values)?;
        output(context, shape, |out: &mut [T]| {
            if n == 0 {
                return Ok(());
            }
            for (row, bins) in out.chunks_exact_mut(n).enumerate() {
                let columns = row * n_columns..(row + 1) * n_columns;
                let weights = weights.map(|weights| &weights[columns.clone()]);
                histogram::count(&values[columns], weights, is_binary, bins);
            }
            Ok(())
        })
    }
    let is_binary = bool_attr(node, "binary_output", false)?;
    let index = type_attr(node, "Tidx")?;
    dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64, I32: i32, I64: i64], T => {
        dispatch!(index, [I32: i32, I64: i64], I => kernel(move |context| {
            counted::<I, T>(context, is_binary)
        }))
    })
}

/// TensorFlow `HistogramFixedWidth`.
fn fixed_width(node: &KernelConstruction<'_>) -> Made {
    fn counted<T: Number, O: Number>(context: &KernelContext<'_>) -> Result<(), KernelError> {
        let (values, range) = (context.input(0)?, context.input(1)?);
        let &[lowest, highest] = range.as_slice::<T>()? else {
            return Err(KernelError::invalid(format!(
                "value_range should have 2 elements, but it has shape {}",
                range.shape()
            )));
        };
        if lowest.is_not_a_number() || highest.is_not_a_number() || lowest >= highest {
            return Err(KernelError::invalid(format!(
                "value_range should satisfy value_range[0] < value_range[1], but got \
                 '[{lowest:?}, {highest:?}]'"
            )));
        }
        let given = scalar(context.input(2)?, "nbins")?;
        let n = usize::try_from(given).ok().filter(|&n| n > 0);
        let n = n.ok_or_else(|| {
            KernelError::invalid(format!(
                "nbins should be a positive number, but got '{given}'"
            ))
        })?;
        let values = values.as_slice::<T>()?;
        output(context, Shape::from([n]), |out: &mut [O]| {
            out.fill(O::ZERO);
            for &value in values {
                let bin = &mut out[histogram::fixed_width_bin(value, [lowest, highest], n)];
                *bin = bin.plus(O::ONE);
            }
            Ok(())
        })
    }
    let output = node.attrs.dtype("dtype").unwrap_or(DType::I32);
    dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64, I32: i32, I64: i64], T => {
        dispatch!(output, [I32: i32, I64: i64], O => kernel(counted::<T, O>))
    })
}
