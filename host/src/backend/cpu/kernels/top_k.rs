//! The largest elements of rows.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::integers;
use crate::backend::plan::value::scalar;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::top_k;
use crate::tensor::Boolean;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Types of positions, and of their number.
const POSITIONS: [DType; 3] = [DType::I16, DType::I32, DType::I64];

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("TopK").with_types("T", &NUMBERS).with_factory(largest));
    registry.register(
        def("TopKV2")
            .with_types("T", &NUMBERS)
            .with_types("Tk", &POSITIONS)
            .with_types("index_type", &POSITIONS)
            .with_factory(largest),
    );
    for op in ["InTopK", "InTopKV2"] {
        registry.register(def(op).with_types("T", &INDICES).with_factory(in_top_k));
    }
}

/// TensorFlow `TopK` and `TopKV2`. Results are always sorted.
fn largest(node: &KernelConstruction<'_>) -> Made {
    let given = match node.op {
        "TopK" => Some(int_attr(node, "k", None)?),
        _ => None,
    };
    let index_type = node.attrs.dtype("index_type").unwrap_or(DType::I32);
    dispatch_number!(type_attr(node, "T")?, T => {
        dispatch!(index_type, [I16: i16, I32: i32, I64: i64], I => {
            kernel(move |context| top::<T, I>(context, given))
        })
    })
}

fn top<T: Number, I: Number>(
    context: &KernelContext<'_>,
    given: Option<i64>,
) -> Result<(), KernelError> {
    let k = match given {
        Some(k) => k,
        None => scalar(context.input(1)?, "k")?,
    };
    let n =
        usize::try_from(k).map_err(|_| KernelError::invalid(format!("need k >= 0, got {k}")))?;
    let input = context.input(0)?;
    let Some((&n_columns, rows)) = input.shape().dims().split_last() else {
        return Err(KernelError::invalid("input must be >= 1-D, got shape []"));
    };
    if n > n_columns {
        return Err(KernelError::invalid(format!(
            "input must have at least k columns. Had {n_columns}, needed {n}"
        )));
    }
    let shape: Shape = rows.iter().copied().chain([n]).collect();
    let x = input.as_slice::<T>()?;
    let threads = Threads::of(context);
    let mut positions = threads.scratch::<usize>(shape.n_elements())?;
    if !positions.is_empty() {
        let mut order = threads.scratch(n_columns)?;
        for (row, positions) in x.chunks_exact(n_columns).zip(positions.chunks_exact_mut(n)) {
            top_k::top_k(row, n, &mut order);
            positions.copy_from_slice(&order[..n]);
        }
    }
    context.fill_output(0, &shape, |out: &mut [T]| {
        for (index, (slot, &position)) in out.iter_mut().zip(positions.iter()).enumerate() {
            *slot = x[index / n * n_columns + position];
        }
        Ok(())
    })?;
    context.fill_output(1, &shape, |out: &mut [I]| {
        for (slot, &position) in out.iter_mut().zip(positions.iter()) {
            *slot = I::from_i64(i64::try_from(position).unwrap_or(i64::MAX));
        }
        Ok(())
    })
}

/// TensorFlow `InTopK` and `InTopKV2`.
fn in_top_k(node: &KernelConstruction<'_>) -> Made {
    let given = match node.op {
        "InTopK" => Some(int_attr(node, "k", None)?),
        _ => None,
    };
    kernel(move |context| {
        let k = match given {
            Some(k) => k,
            None => scalar(context.input(2)?, "k")?,
        };
        let (predictions, targets) = (context.input(0)?, context.input(1)?);
        let (&[n_rows, n_classes], &[n_targets]) =
            (predictions.shape().dims(), targets.shape().dims())
        else {
            return Err(KernelError::invalid(format!(
                "predictions must be 2-dimensional and targets 1-dimensional, not {} and {}",
                predictions.shape(),
                targets.shape()
            )));
        };
        if n_rows != n_targets {
            return Err(KernelError::invalid(format!(
                "first dimension of predictions {n_rows} must match length of targets {n_targets}"
            )));
        }
        let x = predictions.as_slice::<f32>()?;
        let targets = integers(targets)?;
        output(context, Shape::from([n_rows]), |out: &mut [Boolean]| {
            for (row, (slot, &target)) in out.iter_mut().zip(&targets).enumerate() {
                let row = &x[row * n_classes..][..n_classes];
                *slot = top_k::is_in_top_k(row, target, k).into();
            }
            Ok(())
        })
    })
}
