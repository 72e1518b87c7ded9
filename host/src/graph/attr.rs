//! Attributes of nodes.

use std::sync::Arc;

use crate::tensor::{DType, Literal, PartialShape};

/// Value of one attribute (TensorFlow `AttrValue`).
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each variant is the kind that its name says")]
#[non_exhaustive]
pub enum AttrValue {
    Bytes(Arc<[u8]>),
    Int(i64),
    Float(f32),
    Bool(bool),
    Type {
        dtype: DType,
        /// Whether it is a reference type (TensorFlow's numbers above 100).
        is_ref: bool,
    },
    Shape(PartialShape),
    Tensor(Arc<Literal>),
    /// A function of the library, with its attributes.
    Function(Arc<str>, AttrSet),
    /// Name of an attribute of the enclosing function.
    Placeholder(Arc<str>),
    List(Arc<[AttrValue]>),
}

impl AttrValue {
    /// Returns the kind, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "string",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Bool(_) => "bool",
            Self::Type { .. } => "type",
            Self::Shape(_) => "shape",
            Self::Tensor(_) => "tensor",
            Self::Function(..) => "func",
            Self::Placeholder(_) => "placeholder",
            Self::List(_) => "list",
        }
    }
}

impl PartialEq for AttrValue {
    /// Constants are equal if they are the same object: comparing megabytes would never pay.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (
                Self::Type {
                    dtype: a,
                    is_ref: x,
                },
                Self::Type {
                    dtype: b,
                    is_ref: y,
                },
            ) => a == b && x == y,
            (Self::Shape(a), Self::Shape(b)) => a == b,
            (Self::Tensor(a), Self::Tensor(b)) => Arc::ptr_eq(a, b),
            (Self::Function(a, x), Self::Function(b, y)) => a == b && x == y,
            (Self::Placeholder(a), Self::Placeholder(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for AttrValue {}

impl std::hash::Hash for AttrValue {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Self::Bytes(value) => value.hash(state),
            Self::Int(value) => value.hash(state),
            Self::Float(value) => value.to_bits().hash(state),
            Self::Bool(value) => value.hash(state),
            Self::Type { dtype, is_ref } => (dtype, is_ref).hash(state),
            Self::Shape(value) => value.hash(state),
            Self::Tensor(value) => Arc::as_ptr(value).hash(state),
            Self::Function(name, attrs) => (name, attrs).hash(state),
            Self::Placeholder(name) => name.hash(state),
            Self::List(values) => values.hash(state),
        }
    }
}

/// Attributes of one node, by name. Cloning shares them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct AttrSet(Arc<[(Arc<str>, AttrValue)]>);

impl AttrSet {
    /// Returns the set of these attributes; of equal names the last one wins.
    pub fn new(attrs: impl IntoIterator<Item = (Arc<str>, AttrValue)>) -> Self {
        let mut sorted: Vec<_> = attrs.into_iter().collect();
        sorted.reverse();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        sorted.dedup_by(|later, first| later.0 == first.0);
        Self(sorted.into())
    }

    /// Returns the attribute of this name.
    pub fn get(&self, name: &str) -> Option<&AttrValue> {
        self.0
            .binary_search_by(|(key, _)| (**key).cmp(name))
            .ok()
            .map(|index| &self.0[index].1)
    }

    /// Returns all attributes, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &AttrValue)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns the number of attributes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a `type` attribute.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        match self.get(name)? {
            AttrValue::Type { dtype, .. } => Some(*dtype),
            _ => None,
        }
    }

    /// Returns an `int` attribute.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.get(name)? {
            AttrValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns a `float` attribute.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.get(name)? {
            AttrValue::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns a `bool` attribute.
    pub fn bool(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            AttrValue::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns a `string` attribute that is UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            AttrValue::Bytes(value) => std::str::from_utf8(value).ok(),
            _ => None,
        }
    }

    /// Returns a `shape` attribute.
    pub fn shape(&self, name: &str) -> Option<&PartialShape> {
        match self.get(name)? {
            AttrValue::Shape(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a `tensor` attribute.
    pub fn tensor(&self, name: &str) -> Option<&Arc<Literal>> {
        match self.get(name)? {
            AttrValue::Tensor(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a list attribute.
    pub fn list(&self, name: &str) -> Option<&[AttrValue]> {
        match self.get(name)? {
            AttrValue::List(values) => Some(values),
            _ => None,
        }
    }

    /// Returns a `list(int)` attribute.
    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.list(name)?
            .iter()
            .map(|value| {
                if let AttrValue::Int(value) = value {
                    Some(*value)
                } else {
                    None
                }
            })
            .collect()
    }

    /// Returns a `list(type)` attribute.
    pub fn dtypes(&self, name: &str) -> Option<Vec<DType>> {
        self.list(name)?
            .iter()
            .map(|value| {
                if let AttrValue::Type { dtype, .. } = value {
                    Some(*dtype)
                } else {
                    None
                }
            })
            .collect()
    }
}
