//! Lists of element types, and dispatch over them (TensorFlow `register_types.h`).
//!
//! The macros are in scope in all modules that [`super`] declares after this one.

use crate::device::KernelError;
use crate::tensor::DType;

/// Expands `$body` with `$T` as the Rust type of an element type, or returns an error for any other
/// type.
macro_rules! dispatch {
    ($dtype:expr, [$($variant:ident: $rust:ty),+ $(,)?], $T:ident => $body:expr) => {
        match $dtype {
            $($crate::tensor::DType::$variant => {
                type $T = $rust;
                $body
            })+
            other => Err($crate::backend::types::unsupported(other)),
        }
    };
}

#[cfg(not(test))]
macro_rules! dispatch_integer {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64], $T => $body)
    };
}

#[cfg(not(test))]
macro_rules! dispatch_real {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [F32: f32, F64: f64, F16: half::f16, BF16: half::bf16], $T => $body)
    };
}

#[cfg(not(test))]
macro_rules! dispatch_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16,
            I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64,
        ], $T => $body)
    };
}

/// Dispatches on real and complex numbers.
#[cfg(not(test))]
macro_rules! dispatch_arithmetic {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16,
            I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64,
            Complex64: $crate::tensor::Complex64, Complex128: $crate::tensor::Complex128,
        ], $T => $body)
    };
}

#[cfg(not(test))]
macro_rules! dispatch_complex {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            Complex64: $crate::tensor::Complex64, Complex128: $crate::tensor::Complex128,
        ], $T => $body)
    };
}

/// Dispatches on all element types of fixed size.
#[cfg(not(test))]
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

// Kernels of all types take minutes to build, and the unit tests of this crate compute with few.
// The kernel suite calls all, in the library itself.

#[cfg(test)]
macro_rules! dispatch_integer {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [I32: i32, I64: i64, U8: u8], $T => $body)
    };
}

#[cfg(test)]
macro_rules! dispatch_real {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [F32: f32, F64: f64], $T => $body)
    };
}

#[cfg(test)]
macro_rules! dispatch_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [F32: f32, F64: f64, I32: i32, I64: i64, U8: u8], $T => $body)
    };
}

#[cfg(test)]
macro_rules! dispatch_arithmetic {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F32: f32, F64: f64, I32: i32, I64: i64, U8: u8, Complex64: $crate::tensor::Complex64,
        ], $T => $body)
    };
}

#[cfg(test)]
macro_rules! dispatch_complex {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [Complex64: $crate::tensor::Complex64], $T => $body)
    };
}

#[cfg(test)]
macro_rules! dispatch_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F32: f32, F64: f64, I32: i32, I64: i64, U8: u8,
            Bool: $crate::tensor::Boolean, Complex64: $crate::tensor::Complex64,
        ], $T => $body)
    };
}

/// TensorFlow's real floating-point types.
pub(in crate::backend) const REALS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// TensorFlow's integer types.
pub(in crate::backend) const INTEGERS: [DType; 8] = [
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
pub(in crate::backend) const COMPLEX: [DType; 2] = [DType::Complex64, DType::Complex128];

/// TensorFlow's number types.
pub(in crate::backend) const ARITHMETIC: [DType; 14] = [
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

/// Returns the types with `complex64` and `complex128` added.
pub(in crate::backend) fn with_complex(types: &[DType]) -> Vec<DType> {
    types.iter().chain(&COMPLEX).copied().collect()
}

/// Returns the error for an element type that a kernel does not support.
pub(in crate::backend) fn unsupported(dtype: DType) -> KernelError {
    KernelError::Unimplemented(format!("element type {dtype}"))
}
