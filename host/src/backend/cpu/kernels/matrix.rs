//! Batched matmuls, and einsum.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::COMPLEX;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::bad_attr;
use crate::backend::cpu::kernels::bool_attr;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::output;
use crate::backend::cpu::kernels::raw::product;
use crate::backend::cpu::kernels::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::MatmulElement;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::batch::BatchMatmul;
use crate::kernels::batch::Operand;
use crate::kernels::einsum::Equation;
use crate::kernels::unary;
use crate::tensor::Complex64;
use crate::tensor::Complex128;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types of TensorFlow's `BatchMatMul`.
const BATCHES: [DType; 9] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::Complex64,
    DType::Complex128,
];

/// Types of TensorFlow's `Einsum`.
const EQUATIONS: [DType; 8] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
    DType::Complex64,
    DType::Complex128,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in ["BatchMatMul", "BatchMatMulV2"] {
        registry.register(
            def(op)
                .with_types("T", &BATCHES)
                .with_factory(|node| batch_mat_mul(node, type_attr(node, "T")?)),
        );
    }
    // Operands and result have the same type.
    for dtype in BATCHES {
        registry.register(
            def("BatchMatMulV3")
                .with_types("Ta", &[dtype])
                .with_types("Tb", &[dtype])
                .with_types("Tout", &[dtype])
                .with_factory(move |node| batch_mat_mul(node, dtype)),
        );
    }
    registry.register(
        def("Einsum")
            .with_types("T", &EQUATIONS)
            .with_factory(einsum),
    );
}

/// TensorFlow `BatchMatMul` (equal batch dimensions), `BatchMatMulV2` and `BatchMatMulV3` (batch
/// dimensions broadcast): `[.., m, k] x [.., k, n] -> [.., m, n]`. The attributes decide which
/// operands are transposed and conjugated first.
fn batch_mat_mul(node: &KernelConstruction<'_>, dtype: DType) -> Made {
    let (transposed, broadcasts) = batch_attrs(node)?;
    dispatch!(
        dtype,
        [
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I16: i16, I32: i32, I64: i64,
            Complex64: Complex64, Complex128: Complex128,
        ],
        T => kernel(move |context| multiply::<T>(context, transposed, broadcasts))
    )
}

/// Returns which operands are transposed, and whether batches broadcast.
pub(in crate::backend) fn batch_attrs(
    node: &KernelConstruction<'_>,
) -> Result<([bool; 2], bool), KernelError> {
    let transposed = [
        bool_attr(node, "adj_x", false)?,
        bool_attr(node, "adj_y", false)?,
    ];
    Ok((transposed, node.op != "BatchMatMul"))
}

fn multiply<T: MatmulElement>(
    context: &KernelContext<'_>,
    transposed: [bool; 2],
    broadcasts: bool,
) -> Result<(), KernelError> {
    let (lhs, rhs) = (context.input(0)?, context.input(1)?);
    let (plan, shape) = plan(lhs.shape(), rhs.shape(), transposed, broadcasts)?;
    let (l, r) = (lhs.as_slice::<T>()?, rhs.as_slice::<T>()?);
    let threads = Threads::of(context);
    let conjugates = COMPLEX.contains(&T::DTYPE);
    let conjugated = |elements: &[T], is_wanted: bool| -> Result<Option<Scratch<T>>, KernelError> {
        if !(is_wanted && conjugates) {
            return Ok(None);
        }
        let mut copy = threads.scratch::<T>(elements.len())?;
        unary::map(elements, &mut copy, threads, T::conjugate);
        Ok(Some(copy))
    };
    let [l_copy, r_copy] = [conjugated(l, transposed[0])?, conjugated(r, transposed[1])?];
    let (l, r) = (
        l_copy.as_deref().unwrap_or(l),
        r_copy.as_deref().unwrap_or(r),
    );
    output(context, shape, |out| plan.apply(l, r, out, threads))
}

/// Plans the matmuls of operands of these shapes, and returns the result's shape.
pub(in crate::backend) fn plan(
    lhs: &Shape,
    rhs: &Shape,
    transposed: [bool; 2],
    broadcasts: bool,
) -> Result<(BatchMatmul, Shape), KernelError> {
    let ([l_batch @ .., l_rows, l_columns], [r_batch @ .., r_rows, r_columns]) =
        (lhs.dims(), rhs.dims())
    else {
        return Err(KernelError::invalid(format!(
            "In[0] and In[1] ndims must be >= 2: {lhs}, {rhs}"
        )));
    };
    if !broadcasts && l_batch != r_batch {
        return Err(KernelError::invalid(format!(
            "In[0] and In[1] must have the same batch dimensions: {lhs} vs. {rhs}"
        )));
    }
    let side = |rows: usize, columns: usize, transposed: bool| {
        if transposed {
            ([columns, rows], [1, columns])
        } else {
            ([rows, columns], [columns, 1])
        }
    };
    let ([m, k], l_strides) = side(*l_rows, *l_columns, transposed[0]);
    let ([r_inner, n], r_strides) = side(*r_rows, *r_columns, transposed[1]);
    if k != r_inner {
        return Err(KernelError::invalid(format!(
            "matrix size-incompatible: In[0]: {lhs}, In[1]: {rhs}, adj_x: {}, adj_y: {}",
            transposed[0], transposed[1]
        )));
    }
    let rank = l_batch.len().max(r_batch.len());
    let mut plan = BatchMatmul {
        batch: SmallVec::from_elem(1, rank),
        size: [m, k, n],
        lhs: Operand {
            batch: SmallVec::from_elem(0, rank),
            row: l_strides[0],
            column: l_strides[1],
        },
        rhs: Operand {
            batch: SmallVec::from_elem(0, rank),
            row: r_strides[0],
            column: r_strides[1],
        },
    };
    let dim = |dims: &[usize], axis: usize| {
        (axis + dims.len())
            .checked_sub(rank)
            .map_or(1, |own| dims[own])
    };
    let (mut l_span, mut r_span) = (product(&[m, k]), product(&[k, n]));
    for axis in (0..rank).rev() {
        let (l, r) = (dim(l_batch, axis), dim(r_batch, axis));
        plan.batch[axis] = match (l, r) {
            _ if l == r => l,
            (1, _) => r,
            (_, 1) => l,
            _ => {
                return Err(KernelError::invalid(format!(
                    "In[0] and In[1] must have compatible batch dimensions: {lhs} vs. {rhs}"
                )));
            }
        };
        if l != 1 {
            plan.lhs.batch[axis] = l_span;
        }
        if r != 1 {
            plan.rhs.batch[axis] = r_span;
        }
        l_span = l_span.saturating_mul(l);
        r_span = r_span.saturating_mul(r);
    }
    let shape = plan.batch.iter().copied().chain([m, n]).collect();
    Ok((plan, shape))
}

/// TensorFlow `Einsum` with one or two operands.
fn einsum(node: &KernelConstruction<'_>) -> Made {
    let equation = equation(node)?;
    dispatch!(
        type_attr(node, "T")?,
        [
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I32: i32, I64: i64,
            Complex64: Complex64, Complex128: Complex128,
        ],
        T => kernel(move |context| evaluate::<T>(context, &equation))
    )
}

/// Returns the equation of an `Einsum`.
pub(in crate::backend) fn equation(node: &KernelConstruction<'_>) -> Result<Equation, KernelError> {
    let text = node
        .attrs
        .text("equation")
        .ok_or_else(|| bad_attr(node, "equation", "string"))?;
    Equation::parse(text)
}

fn evaluate<T: MatmulElement>(
    context: &KernelContext<'_>,
    equation: &Equation,
) -> Result<(), KernelError> {
    let shapes: SmallVec<[&Shape; 2]> = context.inputs().map(Tensor::shape).collect();
    let plan = equation.plan(&shapes)?;
    let first = context.input(0)?.as_slice::<T>()?;
    let second = if context.n_inputs() > 1 {
        context.input(1)?.as_slice::<T>()?
    } else {
        &[]
    };
    output(context, plan.shape().clone(), |out| {
        plan.apply(first, second, out, Threads::of(context))
    })
}
