//! The op table of CPU devices: the registrations (op, types, host-memory arguments) and their
//! kernels.
//!
//! One file per family of ops. A kernel in this module reads attributes, checks shapes, allocates
//! the result and calls [`crate::kernels`]; it does no arithmetic itself.

use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::graph::AttrValue;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Expands `$body` with `$T` as the Rust type of an element type, or returns an error for any other
/// type.
macro_rules! dispatch {
    ($dtype:expr, [$($variant:ident: $rust:ty),+ $(,)?], $T:ident => $body:expr) => {
        match $dtype {
            $($crate::tensor::DType::$variant => {
                type $T = $rust;
                $body
            })+
            other => Err($crate::backend::cpu::kernels::unsupported(other)),
        }
    };
}

macro_rules! dispatch_integer {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64], $T => $body)
    };
}

macro_rules! dispatch_real {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [F32: f32, F64: f64, F16: half::f16, BF16: half::bf16], $T => $body)
    };
}

macro_rules! dispatch_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16,
            I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64,
        ], $T => $body)
    };
}

/// Dispatches on real and complex numbers.
macro_rules! dispatch_arithmetic {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16,
            I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64,
            Complex64: $crate::tensor::Complex64, Complex128: $crate::tensor::Complex128,
        ], $T => $body)
    };
}

macro_rules! dispatch_complex {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            Complex64: $crate::tensor::Complex64, Complex128: $crate::tensor::Complex128,
        ], $T => $body)
    };
}

/// Dispatches on all element types of fixed size.
macro_rules! dispatch_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16,
            I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64,
            Bool: $crate::tensor::Boolean, Complex64: $crate::tensor::Complex64,
            Complex128: $crate::tensor::Complex128,
        ], $T => $body)
    };
}

#[macro_use]
pub(in crate::backend) mod raw;

pub(in crate::backend) mod array;
mod cast;
mod complex;
pub(in crate::backend) mod concat;
pub(in crate::backend) mod conv;
mod elementwise;
pub(in crate::backend) mod fill;
pub(in crate::backend::cpu) mod fused;
pub(in crate::backend) mod gather;
mod image;
mod logic;
pub(in crate::backend) mod math;
pub(in crate::backend) mod matrix;
pub(in crate::backend) mod nn;
pub(in crate::backend) mod norm;
pub(in crate::backend) mod pack;
pub(in crate::backend) mod pad;
pub(in crate::backend) mod reduce;
pub(in crate::backend) mod select;
pub(in crate::backend) mod slice;
pub(in crate::backend) mod state;
mod variable;

/// TensorFlow's real floating-point types.
const REALS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// TensorFlow's integer types.
const INTEGERS: [DType; 8] = [
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

/// TensorFlow's real number types.
pub(in crate::backend) const NUMBERS: [DType; 12] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

/// TensorFlow's complex types.
const COMPLEX: [DType; 2] = [DType::Complex64, DType::Complex128];

/// TensorFlow's number types.
const ARITHMETIC: [DType; 14] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Complex64,
    DType::Complex128,
];

/// Returns the types with `complex64` and `complex128` added.
fn with_complex(types: &[DType]) -> Vec<DType> {
    types.iter().chain(&COMPLEX).copied().collect()
}

/// TensorFlow's types of fixed size.
pub(in crate::backend) const ELEMENTS: [DType; 15] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
    DType::Complex64,
    DType::Complex128,
];

/// Types of shapes and indices.
pub(in crate::backend) const INDICES: [DType; 2] = [DType::I32, DType::I64];

/// Adds all kernels of CPU devices.
pub(super) fn register(registry: &mut KernelRegistry) {
    state::register(registry);
    variable::register(registry);
    array::register(registry);
    math::register(registry);
    elementwise::register(registry);
    logic::register(registry);
    cast::register(registry);
    complex::register(registry);
    reduce::register(registry);
    fill::register(registry);
    fused::register(registry);
    pack::register(registry);
    select::register(registry);
    concat::register(registry);
    conv::register(registry);
    gather::register(registry);
    image::register(registry);
    matrix::register(registry);
    nn::register(registry);
    norm::register(registry);
    pad::register(registry);
    slice::register(registry);
}

/// The result of creating a kernel.
pub(in crate::backend) type Made = Result<Box<dyn Kernel>, KernelError>;

/// Returns a registration for CPU devices.
fn def(op: &str) -> KernelDef {
    KernelDef::new(op, super::DEVICE_TYPE)
}

/// A kernel that consists of one function.
struct Function<F>(F);

impl<F> Kernel for Function<F>
where
    F: Fn(&KernelContext<'_>) -> Result<(), KernelError> + Send + Sync,
{
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        (self.0)(context)
    }
}

/// Creates a kernel from `compute`, which must set every output.
fn kernel<F>(compute: F) -> Made
where
    F: Fn(&KernelContext<'_>) -> Result<(), KernelError> + Send + Sync + 'static,
{
    Ok(Box::new(Function(compute)))
}

/// A kernel whose output 0 is its input 0 with the shape that `shape` returns.
struct View<F>(F);

impl<F> Kernel for View<F>
where
    F: Fn(&KernelContext<'_>) -> Result<Shape, KernelError> + Send + Sync,
{
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let shape = (self.0)(context)?;
        context.forward_input(0, 0, &shape)
    }

    fn forwarded_input(&self) -> Option<usize> {
        Some(0)
    }
}

/// Creates a kernel that forwards its input 0 with another shape.
fn view<F>(shape: F) -> Made
where
    F: Fn(&KernelContext<'_>) -> Result<Shape, KernelError> + Send + Sync + 'static,
{
    Ok(Box::new(View(shape)))
}

/// Allocates output 0 with this shape and fills it with `fill`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "for shapes made on the spot; others go to `fill_output`"
)]
fn output<T: Element>(
    context: &KernelContext<'_>,
    shape: Shape,
    fill: impl FnOnce(&mut [T]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    context.fill_output(0, &shape, fill)
}

pub(in crate::backend) fn unsupported(dtype: DType) -> KernelError {
    KernelError::Unimplemented(format!("element type {dtype}"))
}

/// Returns the error for an attribute that is missing or of the wrong kind.
pub(in crate::backend) fn bad_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    expected: &str,
) -> KernelError {
    let found = node.attrs.get(name).map_or("is missing", AttrValue::kind);
    KernelError::invalid(format!(
        "attribute `{name}` of {} should be a {expected}, found: {found}",
        node.op
    ))
}

/// Returns attribute `name`, a type.
pub(in crate::backend) fn type_attr(
    node: &KernelConstruction<'_>,
    name: &str,
) -> Result<DType, KernelError> {
    node.attrs
        .dtype(name)
        .ok_or_else(|| bad_attr(node, name, "type"))
}

/// Returns attribute `name`, a boolean; `default` if it is missing.
pub(in crate::backend) fn bool_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    default: bool,
) -> Result<bool, KernelError> {
    match node.attrs.get(name) {
        None => Ok(default),
        Some(AttrValue::Bool(value)) => Ok(*value),
        Some(_) => Err(bad_attr(node, name, "bool")),
    }
}

/// Returns attribute `name`, a string; `default` if it is missing.
pub(in crate::backend) fn string_attr<'a>(
    node: &KernelConstruction<'a>,
    name: &str,
    default: &'a str,
) -> Result<&'a str, KernelError> {
    match node.attrs.get(name) {
        None => Ok(default),
        Some(_) => node
            .attrs
            .text(name)
            .ok_or_else(|| bad_attr(node, name, "string")),
    }
}

/// Returns attribute `name`, a list of integers; `default` if it is missing.
pub(in crate::backend) fn ints_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    default: &[i64],
) -> Result<Vec<i64>, KernelError> {
    match node.attrs.get(name) {
        None => Ok(default.to_vec()),
        Some(_) => node
            .attrs
            .ints(name)
            .ok_or_else(|| bad_attr(node, name, "list(int)")),
    }
}

/// Returns attribute `name`, an integer; `default` if it is missing.
pub(in crate::backend) fn int_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    default: Option<i64>,
) -> Result<i64, KernelError> {
    match (node.attrs.get(name), default) {
        (None, Some(default)) => Ok(default),
        (Some(AttrValue::Int(value)), _) => Ok(*value),
        _ => Err(bad_attr(node, name, "int")),
    }
}

/// Returns attribute `name`, a float; `default` if it is missing.
pub(in crate::backend) fn float_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    default: f32,
) -> Result<f32, KernelError> {
    match node.attrs.get(name) {
        None => Ok(default),
        Some(AttrValue::Float(value)) => Ok(*value),
        Some(_) => Err(bad_attr(node, name, "float")),
    }
}

/// Returns the elements of a tensor of shapes or indices (`int32` or `int64`).
pub(in crate::backend) fn indices(tensor: &Tensor) -> Result<Vec<i64>, KernelError> {
    let mut indices = scratch::list(tensor.shape().n_elements())?;
    match tensor.dtype() {
        DType::I32 => indices.extend(tensor.as_slice::<i32>()?.iter().map(|&x| i64::from(x))),
        DType::I64 => indices.extend_from_slice(tensor.as_slice::<i64>()?),
        other => return Err(unsupported(other)),
    }
    Ok(indices)
}
