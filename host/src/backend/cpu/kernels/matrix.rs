//! Batched matmuls, and einsum.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::matmul::batch_attrs;
use crate::backend::plan::matmul::batch_plan;
use crate::backend::plan::matmul::equation;
use crate::backend::types::COMPLEX;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::MatmulElement;
use crate::kernels::Number;
use crate::kernels::Scratch;
use crate::kernels::Threads;
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
    // Bytes are widened: to 32 bits, or to the type of the other operand.
    let bytes = [DType::I8, DType::U8];
    let of_bytes = bytes.map(|lhs| bytes.map(|rhs| (lhs, rhs, DType::I32)));
    let mixed = bytes.map(|byte| {
        let other = DType::BF16;
        [(byte, other, other), (other, byte, other)]
    });
    for (lhs, rhs, out) in of_bytes.into_iter().chain(mixed).flatten() {
        registry.register(
            def("BatchMatMulV3")
                .with_types("Ta", &[lhs])
                .with_types("Tb", &[rhs])
                .with_types("Tout", &[out])
                .with_factory(move |node| widened_mat_mul(node, out)),
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

fn multiply<T: MatmulElement>(
    context: &KernelContext<'_>,
    transposed: [bool; 2],
    broadcasts: bool,
) -> Result<(), KernelError> {
    let (lhs, rhs) = (context.input(0)?, context.input(1)?);
    let (plan, shape) = batch_plan(lhs.shape(), rhs.shape(), transposed, broadcasts)?;
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

/// TensorFlow `BatchMatMulV3` whose operands are converted to type `dtype` first.
fn widened_mat_mul(node: &KernelConstruction<'_>, dtype: DType) -> Made {
    let (transposed, broadcasts) = batch_attrs(node)?;
    dispatch!(dtype, [BF16: half::bf16, I32: i32], T => kernel(move |context| {
        let (lhs, rhs) = (context.input(0)?, context.input(1)?);
        let (plan, shape) = batch_plan(lhs.shape(), rhs.shape(), transposed, broadcasts)?;
        let threads = Threads::of(context);
        let (l, r) = (widened::<T>(lhs, threads)?, widened::<T>(rhs, threads)?);
        output(context, shape, |out| plan.apply(&l, &r, out, threads))
    }))
}

/// Returns the elements of a tensor as another type that has all of their values.
fn widened<T: Number>(tensor: &Tensor, threads: Threads<'_>) -> Result<Scratch<T>, KernelError> {
    let mut out = threads.scratch::<T>(tensor.shape().n_elements())?;
    dispatch!(tensor.dtype(), [I8: i8, U8: u8, BF16: half::bf16], S => {
        let elements = tensor.as_slice::<S>()?;
        unary::map(elements, &mut out, threads, |x: S| T::from_f64(x.to_f64()));
        Ok::<_, KernelError>(())
    })?;
    Ok(out)
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
