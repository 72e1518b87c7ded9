//! Conversions of Rust values to attributes.

use std::sync::Arc;

use super::attr::AttrValue;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::PartialShape;
use crate::tensor::Shape;

impl From<i64> for AttrValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<i32> for AttrValue {
    fn from(value: i32) -> Self {
        Self::Int(value.into())
    }
}

impl From<f32> for AttrValue {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<bool> for AttrValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for AttrValue {
    /// A `string`.
    fn from(value: &str) -> Self {
        Self::Bytes(value.as_bytes().into())
    }
}

impl From<String> for AttrValue {
    /// A `string`.
    fn from(value: String) -> Self {
        Self::Bytes(value.into_bytes().into())
    }
}

impl From<DType> for AttrValue {
    /// A `type`, not a reference.
    fn from(dtype: DType) -> Self {
        Self::Type {
            dtype,
            is_ref: false,
        }
    }
}

impl From<PartialShape> for AttrValue {
    fn from(shape: PartialShape) -> Self {
        Self::Shape(shape)
    }
}

impl From<Shape> for AttrValue {
    fn from(shape: Shape) -> Self {
        Self::Shape(shape.into())
    }
}

impl From<Literal> for AttrValue {
    /// A `tensor`.
    fn from(value: Literal) -> Self {
        Self::Tensor(Arc::new(value))
    }
}

impl<T: Into<Self>> From<Vec<T>> for AttrValue {
    /// A list.
    fn from(values: Vec<T>) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Self>, const N: usize> From<[T; N]> for AttrValue {
    /// A list.
    fn from(values: [T; N]) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Self> + Clone> From<&[T]> for AttrValue {
    /// A list.
    fn from(values: &[T]) -> Self {
        Self::List(values.iter().cloned().map(Into::into).collect())
    }
}
