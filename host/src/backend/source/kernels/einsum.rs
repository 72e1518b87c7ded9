//! Einsum: sums over labelled dimensions, as batched matmuls.

use smallvec::SmallVec;

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::matmul;
use crate::backend::source::call::Axes;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::matmul::Matmuls;
use crate::backend::source::kernels::matmul::Right;
use crate::backend::source::kernels::reduce::Reducer;
use crate::backend::source::kernels::reduce::reduce;
use crate::backend::source::kernels::strided::Strided;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::einsum::Reorder;
use crate::kernels::einsum::Sums;
use crate::kernels::strided::StridedCopy;
use crate::kernels::strided::row_major_strides;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

const TYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64];

pub(super) fn register(table: &mut Table<'_>) {
    let def = table.def("Einsum").with_types("T", &TYPES);
    table.add(def.with_factory(einsum));
}

/// TensorFlow `Einsum` with one or two operands.
fn einsum(node: &KernelConstruction<'_>) -> Made {
    let equation = matmul::equation(node)?;
    let dtype = type_attr(node, "T")?;
    let matmuls = Matmuls::new(node, dtype, false)?;
    let strided = Strided::new(dtype)?;
    let sum = equation
        .has_sums()
        .then(|| Reducer::new(node, "sum", dtype))
        .transpose()?;
    kernel(node, move |call: &Call<'_, '_>| {
        let shapes: SmallVec<[&Shape; 2]> = call.context.inputs().map(Tensor::shape).collect();
        let plan = equation.plan(&shapes)?;
        let out = call.output(dtype, plan.shape())?;
        if out.shape().n_elements() == 0 {
            return call.set_output(0, out);
        }
        let [_, k, _] = plan.matmul.size;
        if k == 0 {
            strided.fill(call, &out, 0.0)?;
            return call.set_output(0, out);
        }
        let in_order = |index: usize, copy: Option<&StridedCopy>| {
            let operand = match (plan.first.get(index), &sum) {
                (Some(sums), Some(sum)) => summed(call, &strided, sum, call.input(index)?, sums)?,
                _ => call.input(index)?.clone(),
            };
            match copy {
                None => Ok(operand),
                Some(copy) => copied(call, &strided, &operand, copy),
            }
        };
        let (first, second) = if plan.is_swapped { (1, 0) } else { (0, 1) };
        let left = in_order(first, plan.lhs.copy.as_ref())?;
        let right = if let Some(side) = &plan.rhs {
            in_order(second, side.copy.as_ref())?
        } else {
            let one = call.output(dtype, &Shape::scalar())?;
            strided.fill(call, &one, 1.0)?;
            one
        };
        let right = Right::Matrices(&right);
        match &plan.reorder {
            None => matmuls.compute(call, &left, right, (&out, None), &plan.matmul)?,
            Some(reorder) => {
                let n = reorder.copy.n_elements();
                let sums = call.output(dtype, &Shape::from([n]))?;
                matmuls.compute(call, &left, right, (&sums, None), &plan.matmul)?;
                put_in_order(call, &strided, &sums, &out, reorder)?;
            }
        }
        call.set_output(0, out)
    })
}

/// Sums an operand over the labels that only it has.
fn summed(
    call: &Call<'_, '_>,
    strided: &Strided,
    reducer: &Reducer,
    input: &Tensor,
    sums: &Sums,
) -> Result<Tensor, KernelError> {
    let Some(sum) = &sums.sum else {
        return Ok(input.clone());
    };
    let diagonal = match &sums.diagonal {
        None => input.clone(),
        Some(copy) => copied(call, strided, input, copy)?,
    };
    let out = call.output(input.dtype(), sum.shape())?;
    index(diagonal.shape().n_elements())?;
    if out.shape().n_elements() > 0 {
        reduce(call, reducer, sum, &diagonal, &out)?;
    }
    Ok(out)
}

/// Copies elements in the order of a strided copy.
fn copied(
    call: &Call<'_, '_>,
    strided: &Strided,
    input: &Tensor,
    copy: &StridedCopy,
) -> Result<Tensor, KernelError> {
    let n = copy.n_elements();
    let out = call.output(input.dtype(), &Shape::from([n]))?;
    strided.copy(call, input, &out, n, &axes(copy)?)?;
    Ok(out)
}

/// Reorders the elements of the result, which are in the order of the matmuls.
fn put_in_order(
    call: &Call<'_, '_>,
    strided: &Strided,
    sums: &Tensor,
    out: &Tensor,
    reorder: &Reorder,
) -> Result<(), KernelError> {
    let Some(labels) = &reorder.inflate else {
        let n = reorder.copy.n_elements();
        return strided.copy(call, sums, out, n, &axes(&reorder.copy)?);
    };
    let ordered = copied(call, strided, sums, &reorder.copy)?;
    strided.fill(call, out, 0.0)?;
    let dims: SmallVec<[usize; 6]> = labels.iter().map(|&(size, _)| size).collect();
    let from = row_major_strides(&dims);
    let axes = labels.iter().zip(from).map(|(&(size, to), from)| {
        let to = isize::try_from(to).unwrap_or(isize::MAX);
        (size, [from, to, 0])
    });
    let n = ordered.shape().n_elements();
    strided.copy(call, &ordered, out, n, &Axes::new(axes, [0; 3])?)
}

/// Returns the axes of a copy into a contiguous result.
fn axes(copy: &StridedCopy) -> Result<Axes, KernelError> {
    let axes: SmallVec<[(usize, isize); 6]> = copy.axes().collect();
    let dims: SmallVec<[usize; 6]> = axes.iter().map(|&(size, _)| size).collect();
    let to = row_major_strides(&dims);
    let axes = axes.iter().zip(to);
    Axes::new(
        axes.map(|(&(size, from), to)| (size, [from, to, 0])),
        [copy.start(), 0, 0],
    )
}
