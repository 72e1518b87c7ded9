//! Choice between two tensors, element by element.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::spread::Spread;
use crate::kernels::spread::common_shape;
use crate::tensor::Shape;

/// The result's shape, and how the three operands are broadcast to it.
pub(in crate::backend) type SelectPlan =
    fn(&Shape, &Shape, &Shape) -> Result<(Shape, Spread<3>), KernelError>;

/// TensorFlow `SelectV2`: NumPy broadcasting.
pub(in crate::backend) fn broadcast(
    condition: &Shape,
    t: &Shape,
    e: &Shape,
) -> Result<(Shape, Spread<3>), KernelError> {
    let shape = common_shape(&[condition, t, e])?;
    let spread = Spread::new(&shape, [condition, t, e])?;
    Ok((shape, spread))
}

/// TensorFlow `Select`: one condition for all elements, for each element, or for each row.
pub(in crate::backend) fn by_rows(
    condition: &Shape,
    t: &Shape,
    e: &Shape,
) -> Result<(Shape, Spread<3>), KernelError> {
    let spread = match condition.dims() {
        [] => {
            hold_same_size(t, e)?;
            Spread::new(t, [condition, t, e])?
        }
        &[n] if t.rank() != 1 => {
            let Some(&n_rows) = t.dims().first() else {
                return Err(KernelError::invalid(format!(
                    "'then' must be at least a vector, but saw shape: {t}, with 'cond' of shape {condition}"
                )));
            };
            if n_rows != n {
                return Err(KernelError::invalid(format!(
                    "number of batches of 'then' must match size of 'cond', but saw: {n_rows} vs. {n} ('then' {t})"
                )));
            }
            hold_same_size(t, e)?;
            let mut rows: SmallVec<[usize; 8]> = SmallVec::from_elem(1, t.rank());
            rows[0] = n;
            Spread::new(t, [&Shape::new(&rows), t, e])?
        }
        _ => {
            if condition != t || condition != e {
                return Err(KernelError::invalid(format!(
                    "inputs must have the same size and shape: 'cond' {condition}, 'then' {t}, 'else' {e}"
                )));
            }
            Spread::new(t, [condition, t, e])?
        }
    };
    Ok((t.clone(), spread))
}

fn hold_same_size(t: &Shape, e: &Shape) -> Result<(), KernelError> {
    if t == e {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "'then' and 'else' must have the same size, but received: {t} vs. {e}"
    )))
}
