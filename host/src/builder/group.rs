//! Groups of values: the arguments and results of bodies and functions.

use crate::builder::error::BuildError;
use crate::builder::value::Scalar;
use crate::builder::value::Value;
use crate::builder::value::ValueType;
use crate::tensor::DType;

mod sealed {
    use super::DType;
    use super::Value;

    /// The methods are private: values of wrong types would fail far from their cause.
    pub trait Group: Sized {
        /// Returns the values, in order.
        fn values(&self) -> Vec<Value>;

        /// Returns the element types as far as they are known at compile time; `None` if the group
        /// has any number of values.
        fn types() -> Option<Vec<Option<DType>>>;

        /// Returns the group of these values; `None` if their number is wrong. The caller has
        /// checked the types.
        fn from_values(values: &[Value]) -> Option<Self>;
    }
}

pub(super) use self::sealed::Group;

/// A group of values that a body or function takes or returns: a [`Value`], a tuple of 1 to 8
/// values, an array of values of one type, or a `Vec<Value>` whose length and types are known only
/// when the graph is built.
pub trait Values: Group {}

/// A group whose element types are known at compile time: without [`super::Dynamic`], not a `Vec`.
/// [`super::Scope::function`] declares the arguments of a function by it.
pub trait TypedValues: Values {}

impl<G: Group> Values for G {}

/// Returns values, whose types have been checked, as a group.
///
/// # Errors
/// [`BuildError::ResultCount`], which callers with checked numbers do not see.
pub(super) fn regroup<G: Group>(values: &[Value], node: &str) -> Result<G, BuildError> {
    G::from_values(values).ok_or_else(|| BuildError::ResultCount {
        node: node.to_owned(),
        op: "group".to_owned(),
        body: "the body".to_owned(),
        expected: G::types().map_or_else(String::new, |types| types.len().to_string()),
        found: values.len(),
    })
}

impl<T: ValueType> Group for Value<T> {
    fn values(&self) -> Vec<Value> {
        vec![self.erase()]
    }

    fn types() -> Option<Vec<Option<DType>>> {
        Some(vec![T::DTYPE])
    }

    fn from_values(values: &[Value]) -> Option<Self> {
        match *values {
            [value] => Some(value.retyped()),
            _ => None,
        }
    }
}

impl<T: Scalar> TypedValues for Value<T> {}

impl<T: ValueType, const N: usize> Group for [Value<T>; N] {
    fn values(&self) -> Vec<Value> {
        self.iter().map(|value| value.erase()).collect()
    }

    fn types() -> Option<Vec<Option<DType>>> {
        Some(vec![T::DTYPE; N])
    }

    fn from_values(values: &[Value]) -> Option<Self> {
        let values: Vec<Value<T>> = values.iter().map(|value| value.retyped()).collect();
        values.try_into().ok()
    }
}

impl<T: Scalar, const N: usize> TypedValues for [Value<T>; N] {}

impl Group for Vec<Value> {
    fn values(&self) -> Vec<Value> {
        self.clone()
    }

    fn types() -> Option<Vec<Option<DType>>> {
        None
    }

    fn from_values(values: &[Value]) -> Option<Self> {
        Some(values.to_vec())
    }
}

macro_rules! tuples {
    ($(($($t:ident $value:ident),+),)+) => {$(
        impl<$($t: ValueType),+> Group for ($(Value<$t>,)+) {
            fn values(&self) -> Vec<Value> {
                let ($($value,)+) = self;
                vec![$($value.erase()),+]
            }

            fn types() -> Option<Vec<Option<DType>>> {
                Some(vec![$($t::DTYPE),+])
            }

            fn from_values(values: &[Value]) -> Option<Self> {
                let &[$($value),+] = values else { return None };
                Some(($($value.retyped(),)+))
            }
        }

        impl<$($t: Scalar),+> TypedValues for ($(Value<$t>,)+) {}
    )+};
}

tuples! {
    (A a),
    (A a, B b),
    (A a, B b, C c),
    (A a, B b, C c, D d),
    (A a, B b, C c, D d, E e),
    (A a, B b, C c, D d, E e, F f),
    (A a, B b, C c, D d, E e, F f, G g),
    (A a, B b, C c, D d, E e, F f, G g, H h),
}
