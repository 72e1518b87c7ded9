//! Elementwise arithmetic and matmuls.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::fused::EpilogueOps;
use crate::backend::cpu::kernels::fused::output_with;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::matmul::matmul_attrs;
use crate::backend::plan::matmul::matmul_size;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::COMPLEX;
use crate::backend::types::INTEGERS;
use crate::backend::types::NUMBERS;
use crate::backend::types::REALS;
use crate::backend::types::with_complex;
use crate::device::AllocatorAttributes;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Broadcast;
use crate::kernels::Integer;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::binary;
use crate::kernels::complex;
use crate::kernels::complex::Complex;
use crate::kernels::epilogue;
use crate::kernels::matmul;
use crate::kernels::unary;
use crate::kernels::unary::RealFunction;
use crate::tensor::Complex64;
use crate::tensor::Complex128;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Types for which TensorFlow has kernels of magnitude and sign.
pub(super) const SIGNED: [DType; 8] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
];

/// Types of TensorFlow's `MatMul`.
const MATRICES: [DType; 9] = [
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

/// Real types for which TensorFlow has squared differences.
const REALS_AND_INDICES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    let mut add = |op: &str, types: &[DType], make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(def(op).with_types("T", types).with_factory(make));
    };
    add(
        "Add",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => binary_op(T::plus)),
    );
    add(
        "AddV2",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => binary_op(T::plus)),
    );
    add(
        "Sub",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => binary_op(T::minus)),
    );
    add(
        "Mul",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => binary_op(T::times)),
    );
    add(
        "Maximum",
        &NUMBERS,
        |node| dispatch_number!(type_attr(node, "T")?, T => binary_op(binary::maximum::<T>)),
    );
    add(
        "Minimum",
        &NUMBERS,
        |node| dispatch_number!(type_attr(node, "T")?, T => binary_op(binary::minimum::<T>)),
    );
    add(
        "SquaredDifference",
        &with_complex(&REALS_AND_INDICES),
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => binary_op(binary::squared_difference::<T>)),
    );
    add("RealDiv", &with_complex(&REALS), real_div);
    add("FloorMod", &NUMBERS, floor_mod);
    add("Pow", &with_complex(&SIGNED), power);
    add("Xdivy", &with_complex(&REALS), x_div_y);
    add("Xlogy", &with_complex(&REALS), x_log_y);
    add(
        "Neg",
        &with_complex(&SIGNED),
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => unary_op(T::negated)),
    );
    add(
        "Abs",
        &SIGNED,
        |node| dispatch_number!(type_attr(node, "T")?, T => unary_op(T::magnitude)),
    );
    add(
        "Square",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => unary_op(|x: T| x.times(x))),
    );
    for (op, function) in [
        ("Floor", RealFunction::Floor),
        ("Ceil", RealFunction::Ceil),
        ("Rint", RealFunction::Rint),
        ("Exp", RealFunction::Exp),
        ("Log", RealFunction::Log),
        ("Sqrt", RealFunction::Sqrt),
        ("Rsqrt", RealFunction::Rsqrt),
        ("Reciprocal", RealFunction::Reciprocal),
        ("Sigmoid", RealFunction::Sigmoid),
        ("Tanh", RealFunction::Tanh),
        ("Erf", RealFunction::Erf),
    ] {
        register_function(registry, op, function);
    }
    registry.register(
        def("MatMul")
            .with_types("T", &MATRICES)
            .with_factory(mat_mul),
    );
}

/// Registers a function of real numbers, and of complex ones if TensorFlow has it.
pub(super) fn register_function(
    registry: &mut KernelRegistry,
    op: &'static str,
    function: RealFunction,
) {
    let types = match complex::function(function) {
        Some(_) => with_complex(&REALS),
        None => REALS.to_vec(),
    };
    let def = def(op).with_types("T", &types);
    registry.register(def.with_factory(move |node| real_function(node, function)));
}

/// A function of two complex numbers, computed in double precision.
pub(super) fn complex_op<T: Complex>(f: fn(Complex128, Complex128) -> Complex128) -> Made {
    binary_op(move |x: T, y: T| T::narrow(f(x.widen(), y.widen())))
}

/// TensorFlow `RealDiv`.
pub(super) fn real_div(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if COMPLEX.contains(&dtype) {
        dispatch_complex!(dtype, T => complex_op::<T>(complex::quotient))
    } else {
        dispatch_real!(dtype, T => binary_op(T::over))
    }
}

/// TensorFlow `DivNoNan`: 0 if the divisor is 0.
pub(super) fn div_no_nan(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if COMPLEX.contains(&dtype) {
        dispatch_complex!(dtype, T => complex_op::<T>(|x, y| {
            if y == Complex128::ZERO { y } else { complex::quotient(x, y) }
        }))
    } else {
        dispatch_real!(dtype, T => binary_op(|x: T, y: T| {
            if y == T::ZERO { T::ZERO } else { x.over(y) }
        }))
    }
}

/// TensorFlow `Xdivy`: 0 if the dividend is 0.
fn x_div_y(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if COMPLEX.contains(&dtype) {
        dispatch_complex!(dtype, T => complex_op::<T>(|x, y| {
            if x == Complex128::ZERO { Complex128::ZERO } else { complex::quotient(x, y) }
        }))
    } else {
        dispatch_real!(dtype, T => binary_op(|x: T, y: T| {
            if x == T::ZERO { T::ZERO } else { x.over(y) }
        }))
    }
}

/// TensorFlow `Xlogy`: `x * log(y)`, and 0 if `x` is 0.
fn x_log_y(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if COMPLEX.contains(&dtype) {
        dispatch_complex!(dtype, T => complex_op::<T>(|x, y| {
            if x == Complex128::ZERO { Complex128::ZERO } else { x * complex::ln(y) }
        }))
    } else {
        dispatch_real!(dtype, T => binary_op(|x: T, y: T| {
            if x == T::ZERO { T::ZERO } else { x.times(T::from_f64(y.to_f64().ln())) }
        }))
    }
}

/// A function of two numbers, broadcast (TensorFlow `BinaryOp`).
pub(super) fn binary_op<T, F>(f: F) -> Made
where
    T: Element,
    F: Fn(T, T) -> T + Copy + Send + Sync + 'static,
{
    kernel(move |context| broadcast(context, |_, _| Ok(()), f))
}

/// The same with a check of the right operand, which receives the number of results.
pub(super) fn broadcast<T: Element>(
    context: &KernelContext<'_>,
    check: impl FnOnce(&[T], usize) -> Result<(), KernelError>,
    f: impl Fn(T, T) -> T + Sync,
) -> Result<(), KernelError> {
    let (lhs, rhs) = (context.input(0)?, context.input(1)?);
    if lhs.shape() == rhs.shape() {
        // Most calls have equal shapes, and many are small: skip the plan.
        let (l, r) = (lhs.as_slice::<T>()?, rhs.as_slice::<T>()?);
        check(r, l.len())?;
        return context.fill_output(0, lhs.shape(), |out| {
            binary::zip(l, r, out, Threads::of(context), f);
            Ok(())
        });
    }
    let plan = Broadcast::new(lhs.shape(), rhs.shape())?;
    let (l, r) = (lhs.as_slice::<T>()?, rhs.as_slice::<T>()?);
    check(r, plan.shape().n_elements())?;
    context.fill_output(0, plan.shape(), |out| {
        plan.apply(l, r, out, Threads::of(context), f);
        Ok(())
    })
}

/// TensorFlow `FloorMod`.
fn floor_mod(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if INTEGERS.contains(&dtype) {
        dispatch_integer!(dtype, T => kernel(|context| {
            broadcast(context, binary::check_divisors::<T>, <T as Integer>::floored_remainder)
        }))
    } else {
        dispatch_real!(dtype, T => binary_op(<T as Real>::floored_remainder))
    }
}

/// TensorFlow `Pow`.
fn power(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if INTEGERS.contains(&dtype) {
        dispatch_integer!(dtype, T => kernel(|context| {
            broadcast(context, binary::check_exponents::<T>, binary::integer_power::<T>)
        }))
    } else if COMPLEX.contains(&dtype) {
        dispatch_complex!(dtype, T => complex_op::<T>(complex::power))
    } else {
        dispatch_real!(dtype, T => kernel(real_power::<T>))
    }
}

/// A general power takes some 30 times as long as products, by which TensorFlow's optimizer
/// replaces these exponents, too.
fn real_power<T: Real>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let exponent = context.input(1)?;
    let squared = |x: T::Wide| x.times(x);
    match exponent.as_slice::<T>()? {
        [exponent] if exponent.to_f64() == 2.0 => broadcast(
            context,
            |_, _| Ok(()),
            |x: T, _| T::narrow(squared(x.widen())),
        ),
        [exponent] if exponent.to_f64() == 3.0 => broadcast(
            context,
            |_, _| Ok(()),
            |x: T, _| T::narrow(squared(x.widen()).times(x.widen())),
        ),
        _ => broadcast(context, |_, _| Ok(()), T::power),
    }
}

/// A function of one number (TensorFlow `UnaryOp`).
pub(super) fn unary_op<T, F>(f: F) -> Made
where
    T: Element,
    F: Fn(T) -> T + Copy + Send + Sync + 'static,
{
    kernel(move |context| {
        let input = context.input(0)?;
        let x = input.as_slice::<T>()?;
        context.fill_output(0, input.shape(), |out| {
            unary::map(x, out, Threads::of(context), f);
            Ok(())
        })
    })
}

/// A function of a real number, applied to whole slices.
pub(super) fn real_function(node: &KernelConstruction<'_>, function: RealFunction) -> Made {
    let dtype = type_attr(node, "T")?;
    if let Some(function) = complex::function(function)
        && COMPLEX.contains(&dtype)
    {
        return dispatch_complex!(dtype, T => {
            unary_op(move |x: T| T::narrow(function(x.widen())))
        });
    }
    dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
        let input = context.input(0)?;
        let x = input.as_slice::<T>()?;
        context.fill_output(0, input.shape(), |out| {
            unary::apply(function, x, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `MatMul`: `[m, k] x [k, n] -> [m, n]`. The attributes decide which operands are
/// transposed first.
pub(super) fn mat_mul(node: &KernelConstruction<'_>) -> Made {
    mat_mul_with(node, None)
}

/// The same, and the epilogue of a fused node, if the matrices are `float`.
pub(super) fn mat_mul_with(node: &KernelConstruction<'_>, epilogue: Option<EpilogueOps>) -> Made {
    let transpose = matmul_attrs(node)?;
    dispatch!(
        type_attr(node, "T")?,
        [
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I16: i16, I32: i32, I64: i64,
            Complex64: Complex64, Complex128: Complex128,
        ],
        T => if T::DTYPE == DType::F32 {
            Ok(Box::new(FloatMatMul { transpose, epilogue }))
        } else {
            kernel(move |context| matmul_of::<T>(context, transpose))
        }
    )
}

/// A matmul of `float` matrices. A constant right side is prepacked.
struct FloatMatMul {
    transpose: (bool, bool),
    /// That of a fused node.
    epilogue: Option<EpilogueOps>,
}

impl Kernel for FloatMatMul {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let (a, b) = (context.input(0)?, context.input(1)?);
        let [rows, inner, columns] = matmul_size(a.shape(), b.shape(), self.transpose)?;
        let (shape, threads) = (Shape::from([rows, columns]), Threads::of(context));
        match context.prepacked_input(1) {
            Some(panels) if !self.transpose.0 => {
                let lhs = MatrixView::row_major(a.as_slice::<f32>()?, rows, inner)?;
                let panels = panels.as_slice::<f32>()?;
                output_with(context, self.epilogue, &shape, |epilogue, out| {
                    let mut out = MatrixMut::new(out, rows, columns, columns)?;
                    matmul::matmul_prepacked(lhs, panels, epilogue, &mut out, threads)
                })
            }
            _ => {
                let [lhs, rhs] = matrices::<f32>(context, self.transpose)?;
                output_with(context, self.epilogue, &shape, |epilogue, out| {
                    let mut product = MatrixMut::new(&mut *out, rows, columns, columns)?;
                    f32::matmul(lhs, rhs, &mut product, threads)?;
                    if let Some(epilogue) = epilogue {
                        epilogue::apply_all(out, epilogue, threads);
                    }
                    Ok(())
                })
            }
        }
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        let &[rows, columns] = constant.shape().dims() else {
            return Ok(None); // Rejected when the kernel runs, with both shapes.
        };
        if index != 1 || self.transpose.0 {
            return Ok(None);
        }
        let mut rhs = MatrixView::row_major(constant.as_slice::<f32>()?, rows, columns)?;
        if self.transpose.1 {
            rhs = rhs.transposed();
        }
        prepacked(rhs, device).map(Some)
    }

    fn prepacked_form(&self, index: usize) -> Option<&'static str> {
        match (index, self.transpose) {
            (1, (false, true)) => Some("placewright: panels of the transposed matrix"),
            (1, (false, false)) => Some(PANELS),
            _ => None,
        }
    }

    fn replaces_prepacked_input(&self, index: usize) -> bool {
        index == 1
    }
}

/// The form of a matrix after [`prepacked`].
pub(super) const PANELS: &str = "placewright: panels";

/// Prepacks a right-hand matrix into the device's memory.
pub(super) fn prepacked(
    rhs: MatrixView<'_, f32>,
    device: &dyn KernelDevice,
) -> Result<Tensor, KernelError> {
    let len = matmul::prepacked_len(rhs.rows(), rhs.columns());
    prepacked_with(len, device, |panels| {
        matmul::prepack(rhs, panels);
        Ok(())
    })
}

/// Prepacks a constant into `len` elements of the device's memory; `None` exceeds the address
/// space.
pub(super) fn prepacked_with(
    len: Option<usize>,
    device: &dyn KernelDevice,
    prepack: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
) -> Result<Tensor, KernelError> {
    let len = len.ok_or_else(|| KernelError::invalid("the matrix is too large to be prepacked"))?;
    let allocator = device.allocator(AllocatorAttributes::default());
    let mut prepacked = Tensor::persistent_zeros(&*allocator, DType::F32, Shape::from([len]))?;
    prepack(prepacked.as_slice_mut().ok_or(TensorError::NotOnHost)?)?;
    Ok(prepacked)
}

fn matmul_of<T: MatmulElement>(
    context: &KernelContext<'_>,
    transpose: (bool, bool),
) -> Result<(), KernelError> {
    let [lhs, rhs] = matrices::<T>(context, transpose)?;
    let (rows, columns) = (lhs.rows(), rhs.columns());
    output(context, Shape::from([rows, columns]), |out| {
        let mut out = MatrixMut::new(out, rows, columns, columns)?;
        T::matmul(lhs, rhs, &mut out, Threads::of(context))
    })
}

/// Returns both sides, transposed if required, after checking that their inner dimensions agree.
fn matrices<'a, T: MatmulElement>(
    context: &'a KernelContext<'_>,
    transpose: (bool, bool),
) -> Result<[MatrixView<'a, T>; 2], KernelError> {
    let (a, b) = (context.input(0)?, context.input(1)?);
    let [m, k, n] = matmul_size(a.shape(), b.shape(), transpose)?;
    let side = |elements, rows, columns, is_transposed| {
        if is_transposed {
            MatrixView::row_major(elements, columns, rows).map(MatrixView::transposed)
        } else {
            MatrixView::row_major(elements, rows, columns)
        }
    };
    Ok([
        side(a.as_slice::<T>()?, m, k, transpose.0)?,
        side(b.as_slice::<T>()?, k, n, transpose.1)?,
    ])
}
