//! Handles of tensors and operations, and the element types that they carry.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use crate::graph::NodeId;
use crate::tensor::Complex64;
use crate::tensor::Complex128;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::LiteralError;
use crate::tensor::Shape;

mod sealed {
    pub trait Sealed {}
}

/// The type parameter of a [`Value`]: a Rust type, if the element type is known at compile time, or
/// [`Dynamic`].
pub trait ValueType: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// The element type; `None` if it is known only when the graph is built.
    const DTYPE: Option<DType>;
}

/// A Rust type of constants and placeholders.
pub trait Scalar: ValueType {
    /// The element type of tensors of `Self`.
    const ELEMENT: DType;

    /// Converts elements to bytes, little-endian.
    fn to_bytes(values: &[Self]) -> Vec<u8>;
}

/// Types with arithmetic: TensorFlow's `numbertype`. [`Dynamic`] is checked when the graph is
/// built.
pub trait Number: ValueType {}

/// Types of real numbers with a fraction: f16, bf16, f32 and f64. [`Dynamic`] is checked when the
/// graph is built.
pub trait Float: Number {}

/// The element type is known only when the graph is built: for ops without a method, and for types
/// without a Rust scalar (string, resource, variant).
#[derive(Debug, Clone, Copy)]
pub enum Dynamic {}

impl sealed::Sealed for Dynamic {}
impl ValueType for Dynamic {
    const DTYPE: Option<DType> = None;
}
impl Number for Dynamic {}
impl Float for Dynamic {}

macro_rules! scalars {
    ($($rust:ty => $dtype:ident: $values:ident => $bytes:expr),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl ValueType for $rust {
            const DTYPE: Option<DType> = Some(DType::$dtype);
        }
        impl Scalar for $rust {
            const ELEMENT: DType = DType::$dtype;

            fn to_bytes($values: &[Self]) -> Vec<u8> {
                $bytes
            }
        }
        impl From<Value<$rust>> for Operand<Dynamic> {
            fn from(value: Value<$rust>) -> Self {
                value.erase().into()
            }
        }
    )*};
}

macro_rules! plain_scalars {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        scalars! { $($rust => $dtype: values => bytemuck::cast_slice(values).to_vec()),* }
    };
}

plain_scalars! {
    f32 => F32, f64 => F64, half::f16 => F16, half::bf16 => BF16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    Complex64 => Complex64, Complex128 => Complex128,
}

scalars! {
    bool => Bool: values => values.iter().map(|&value| u8::from(value)).collect(),
}

macro_rules! mark {
    ($mark:ident: $($rust:ty),*) => {$( impl $mark for $rust {} )*};
}

mark!(Number: f32, f64, half::f16, half::bf16, i8, i16, i32, i64, u8, u16, u32, u64, Complex64, Complex128);
mark!(Float: f32, f64, half::f16, half::bf16);

/// The graph that a handle belongs to: a builder's, or that of a body inside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BuilderId(u32);

impl BuilderId {
    /// Returns an identity that no other graph of this process has.
    pub(super) fn new() -> Self {
        // Only identities: builders share no other state through it.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A tensor of a graph under construction: one output of one operation. `T` is its element type, so
/// that incompatible arguments do not compile. A handle can be copied, and is valid only for the
/// builder that created it.
#[derive(Debug, Clone, Copy)]
pub struct Value<T: ValueType = Dynamic> {
    pub(super) operation: Operation,
    pub(super) slot: u32,
    marker: PhantomData<T>,
}

impl<T: ValueType> Value<T> {
    pub(super) fn new(operation: Operation, slot: u32) -> Self {
        Self {
            operation,
            slot,
            marker: PhantomData,
        }
    }

    /// Returns the operation that produces it.
    pub fn operation(self) -> Operation {
        self.operation
    }

    /// Returns the index of the operation's output.
    pub fn slot(self) -> u32 {
        self.slot
    }

    /// Returns the same tensor with another type, which the caller has checked.
    pub(super) fn retyped<U: ValueType>(self) -> Value<U> {
        Value::new(self.operation, self.slot)
    }

    /// Removes the type, for lists of mixed types and for generic code that calls
    /// [`super::Scope::op`]. [`super::Scope::typed`] restores it.
    pub fn erase(self) -> Value {
        Value::new(self.operation, self.slot)
    }
}

/// A node of a graph under construction. A handle can be copied, and is valid only for the builder
/// that created it.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub(super) builder: BuilderId,
    pub(super) node: NodeId,
}

impl<T: ValueType> From<Value<T>> for Operation {
    /// Returns the operation that produces the value.
    fn from(value: Value<T>) -> Self {
        value.operation
    }
}

/// An argument: a [`Value`], or a scalar, array, slice or vector, for which a constant is added.
///
/// Scalars become constants of shape `[]`, the others vectors.
#[derive(Debug, Clone)]
pub struct Operand<T: ValueType = Dynamic>(pub(super) Source, PhantomData<T>);

impl<T: ValueType> Operand<T> {
    /// Removes the type.
    pub(super) fn erase(self) -> Operand {
        Operand(self.0, PhantomData)
    }
}

/// Source of an input.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Value(Value),
    Constant(Result<Literal, LiteralError>),
}

impl<T: ValueType> From<Value<T>> for Operand<T> {
    fn from(value: Value<T>) -> Self {
        Self(Source::Value(value.erase()), PhantomData)
    }
}

impl<T: Scalar> From<T> for Operand<T> {
    fn from(value: T) -> Self {
        let literal = dense(Shape::scalar(), &[value]);
        Self(Source::Constant(literal), PhantomData)
    }
}

impl<T: Scalar> From<&[T]> for Operand<T> {
    fn from(values: &[T]) -> Self {
        let literal = dense([values.len()].into(), values);
        Self(Source::Constant(literal), PhantomData)
    }
}

impl<T: Scalar, const N: usize> From<[T; N]> for Operand<T> {
    fn from(values: [T; N]) -> Self {
        values.as_slice().into()
    }
}

impl<T: Scalar> From<Vec<T>> for Operand<T> {
    fn from(values: Vec<T>) -> Self {
        values.as_slice().into()
    }
}

/// Returns a literal with these elements, row-major.
pub(super) fn dense<T: Scalar>(shape: Shape, values: &[T]) -> Result<Literal, LiteralError> {
    let bytes = T::to_bytes(values);
    Literal::new(T::ELEMENT, shape, LiteralData::Dense(Arc::new(bytes)))
}
