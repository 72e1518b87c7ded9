//! Choice between two tensors, element by element.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::ELEMENTS;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::output;
use crate::backend::cpu::kernels::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::scratch;
use crate::kernels::spread::Spread;
use crate::kernels::spread::common_shape;
use crate::tensor::Boolean;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The result's shape, and how the three operands are broadcast to it.
pub(in crate::backend) type Plan =
    fn(&Shape, &Shape, &Shape) -> Result<(Shape, Spread<3>), KernelError>;

pub(super) fn register(registry: &mut KernelRegistry) {
    let types = [&ELEMENTS[..], &[DType::String]].concat();
    registry.register(
        def("Select")
            .with_types("T", &types)
            .with_factory(|node| make(node, by_rows)),
    );
    registry.register(
        def("SelectV2")
            .with_types("T", &types)
            .with_factory(|node| make(node, broadcast)),
    );
}

fn make(node: &KernelConstruction<'_>, plan: Plan) -> Made {
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(move |context| strings(context, plan));
    }
    dispatch_element!(dtype, T => kernel(move |context| {
        let (condition, t, e) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let (shape, spread) = plan(condition.shape(), t.shape(), e.shape())?;
        let condition = condition.as_slice::<Boolean>()?;
        let (t, e) = (t.as_slice::<T>()?, e.as_slice::<T>()?);
        output(context, shape, |out: &mut [T]| {
            let threads = Threads::of(context);
            spread.select(condition, t, e, out, threads, Boolean::is_true);
            Ok(())
        })
    }))
}

/// The same for strings: selects positions, then copies their strings.
fn strings(context: &KernelContext<'_>, plan: Plan) -> Result<(), KernelError> {
    let (condition, t, e) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let (shape, spread) = plan(condition.shape(), t.shape(), e.shape())?;
    let condition = condition.as_slice::<Boolean>()?;
    let (t, e) = (t.as_strings()?, e.as_strings()?);
    let threads = Threads::of(context);
    // The positions of the second operand follow those of the first.
    let places = |first: usize, n: usize| -> Result<Scratch<usize>, KernelError> {
        let mut places = threads.scratch::<usize>(n)?;
        (first..)
            .zip(places.iter_mut())
            .for_each(|(place, slot)| *slot = place);
        Ok(places)
    };
    let mut chosen = threads.scratch::<usize>(shape.n_elements())?;
    spread.select(
        condition,
        &places(0, t.len())?,
        &places(t.len(), e.len())?,
        &mut chosen,
        threads.alone(),
        Boolean::is_true,
    );
    let mut strings = scratch::list(chosen.len())?;
    strings.extend(chosen.iter().map(|&place| match t.get(place) {
        Some(text) => text.clone(),
        None => e[place - t.len()].clone(),
    }));
    context.set_output(0, Tensor::from_strings(shape, strings)?)
}

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
