//! Arithmetic, comparisons, conversions, reductions and matmuls.

use crate::builder::Scope;
use crate::builder::error::BuildError;
use crate::builder::node::OpBuilder;
use crate::builder::value::Float;
use crate::builder::value::Number;
use crate::builder::value::Operand;
use crate::builder::value::Scalar;
use crate::builder::value::Value;
use crate::builder::value::ValueType;

/// Options of [`Scope::matmul_with`]. By default neither matrix is transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MatMul {
    /// Whether the first matrix is `[k, m]`.
    pub transpose_a: bool,
    /// Whether the second matrix is `[n, k]`.
    pub transpose_b: bool,
}

impl MatMul {
    /// Sets the first matrix to `[k, m]`.
    #[must_use]
    pub fn with_transpose_a(mut self) -> Self {
        self.transpose_a = true;
        self
    }

    /// Sets the second matrix to `[n, k]`.
    #[must_use]
    pub fn with_transpose_b(mut self) -> Self {
        self.transpose_b = true;
        self
    }
}

/// The axes of a reduction; negative ones count from the end. Arrays of axes, slices, one axis and
/// tensors convert into it.
#[derive(Debug, Clone)]
pub struct Axes {
    axes: Operand<i32>,
    keep_dims: bool,
}

impl Axes {
    /// Reduces over these axes and removes them from the result.
    pub fn new(axes: impl Into<Operand<i32>>) -> Self {
        Self {
            axes: axes.into(),
            keep_dims: false,
        }
    }

    /// Keeps the axes in the result, with size 1.
    #[must_use]
    pub fn keeping_dims(mut self) -> Self {
        self.keep_dims = true;
        self
    }
}

impl From<i32> for Axes {
    fn from(axis: i32) -> Self {
        Self::new(axis)
    }
}

impl From<&[i32]> for Axes {
    fn from(axes: &[i32]) -> Self {
        Self::new(axes)
    }
}

impl<const N: usize> From<[i32; N]> for Axes {
    fn from(axes: [i32; N]) -> Self {
        Self::new(axes)
    }
}

impl From<Value<i32>> for Axes {
    fn from(axes: Value<i32>) -> Self {
        Self::new(axes)
    }
}

/// Methods `$method(x)` for ops of one argument whose result has its type.
macro_rules! unary {
    ($bound:ident: $($(#[$doc:meta])* $method:ident = $op:literal as $name:literal),* $(,)?) => {
        impl Scope {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`BuildError`], naming the node.
            pub fn $method<T: $bound>(&self, x: Value<T>) -> Result<Value<T>, BuildError> {
                self.node($op, $name).tensor(x).value()
            }
        )*}
    };
}

/// Methods `$method(x, y)` for ops of two arguments of one type, broadcast to each other.
macro_rules! binary {
    ($bound:ident -> $result:ty: $($(#[$doc:meta])* $method:ident = $op:literal as $name:literal),* $(,)?) => {
        impl Scope {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`BuildError`], naming the node.
            pub fn $method<T: $bound>(
                &self,
                x: Value<T>,
                y: impl Into<Operand<T>>,
            ) -> Result<Value<$result>, BuildError> {
                self.node($op, $name).tensor(x).operand(y).value()
            }
        )*}
    };
}

/// Methods `$method(x, axes)` for reductions.
macro_rules! reductions {
    ($($(#[$doc:meta])* $method:ident = $op:literal),* $(,)?) => {
        impl Scope {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`BuildError`], naming the node.
            pub fn $method<T: Number>(
                &self,
                x: Value<T>,
                axes: impl Into<Axes>,
            ) -> Result<Value<T>, BuildError> {
                let axes = axes.into();
                self.node($op, $op)
                    .tensor(x)
                    .operand(axes.axes)
                    .attr("keep_dims", axes.keep_dims)
                    .value()
            }
        )*}
    };
}

binary! { Number -> T:
    /// `x + y`, elementwise (TensorFlow `AddV2`).
    add = "AddV2" as "add",
    /// `x - y`, elementwise.
    sub = "Sub" as "sub",
    /// `x * y`, elementwise.
    mul = "Mul" as "mul",
    /// The greater of `x` and `y`, elementwise.
    maximum = "Maximum" as "Maximum",
    /// The smaller of `x` and `y`, elementwise.
    minimum = "Minimum" as "Minimum",
    /// `x / y` rounded down, elementwise.
    floor_div = "FloorDiv" as "floordiv",
    /// `x` to the power of `y`, elementwise.
    pow = "Pow" as "Pow",
    /// `(x - y)^2`, elementwise.
    squared_difference = "SquaredDifference" as "SquaredDifference",
}

binary! { Float -> T:
    /// `x / y`, elementwise (TensorFlow `RealDiv`).
    div = "RealDiv" as "truediv",
}

binary! { Number -> bool:
    /// `x < y`, elementwise.
    less = "Less" as "Less",
    /// `x <= y`, elementwise.
    less_equal = "LessEqual" as "LessEqual",
    /// `x > y`, elementwise.
    greater = "Greater" as "Greater",
    /// `x >= y`, elementwise.
    greater_equal = "GreaterEqual" as "GreaterEqual",
}

binary! { ValueType -> bool:
    /// `x == y`, elementwise.
    equal = "Equal" as "Equal",
    /// `x != y`, elementwise.
    not_equal = "NotEqual" as "NotEqual",
}

unary! { Number:
    /// `-x`, elementwise.
    neg = "Neg" as "Neg",
    /// `|x|`, elementwise.
    abs = "Abs" as "Abs",
    /// `x * x`, elementwise.
    square = "Square" as "Square",
}

unary! { Float:
    /// `e^x`, elementwise.
    exp = "Exp" as "Exp",
    /// Natural logarithm, elementwise.
    log = "Log" as "Log",
    /// Square root, elementwise.
    sqrt = "Sqrt" as "Sqrt",
    /// `1 / sqrt(x)`, elementwise.
    rsqrt = "Rsqrt" as "Rsqrt",
    /// Hyperbolic tangent, elementwise.
    tanh = "Tanh" as "Tanh",
    /// `1 / (1 + e^-x)`, elementwise.
    sigmoid = "Sigmoid" as "Sigmoid",
    /// Gauss error function, elementwise.
    erf = "Erf" as "Erf",
}

reductions! {
    /// Sum over axes.
    reduce_sum = "Sum",
    /// Arithmetic mean over axes; of integers, rounded towards zero.
    reduce_mean = "Mean",
    /// Greatest element over axes.
    reduce_max = "Max",
    /// Smallest element over axes.
    reduce_min = "Min",
    /// Product over axes.
    reduce_prod = "Prod",
}

impl Scope {
    /// Multiplies matrices, `[m, k] x [k, n] -> [m, n]`.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn matmul<T: Number>(
        &self,
        a: Value<T>,
        b: impl Into<Operand<T>>,
    ) -> Result<Value<T>, BuildError> {
        self.matmul_with(a, b, MatMul::default())
    }

    /// Multiplies matrices that may be transposed.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn matmul_with<T: Number>(
        &self,
        a: Value<T>,
        b: impl Into<Operand<T>>,
        options: MatMul,
    ) -> Result<Value<T>, BuildError> {
        self.node("MatMul", "MatMul")
            .tensor(a)
            .operand(b)
            .attr("transpose_a", options.transpose_a)
            .attr("transpose_b", options.transpose_b)
            .value()
    }

    /// Multiplies batches of matrices, `[.., m, k] x [.., k, n] -> [.., m, n]`; batch dimensions
    /// are broadcast to each other (TensorFlow `BatchMatMulV2`).
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn batch_matmul<T: Number>(
        &self,
        a: Value<T>,
        b: impl Into<Operand<T>>,
    ) -> Result<Value<T>, BuildError> {
        self.node("BatchMatMulV2", "MatMul")
            .tensor(a)
            .operand(b)
            .value()
    }

    /// Converts `x` to another element type.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn cast<T: Scalar>(&self, x: Value<impl ValueType>) -> Result<Value<T>, BuildError> {
        self.node("Cast", "Cast")
            .tensor(x)
            .attr("DstT", T::ELEMENT)
            .value()
    }

    /// Adds tensors of one shape.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn add_n<T: Number>(
        &self,
        values: impl IntoIterator<Item = Value<T>>,
    ) -> Result<Value<T>, BuildError> {
        self.node("AddN", "AddN").operands(values).value()
    }

    /// Returns the index of the greatest element along an axis.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn arg_max<T: Number>(&self, x: Value<T>, axis: i32) -> Result<Value<i64>, BuildError> {
        self.node("ArgMax", "ArgMax")
            .tensor(x)
            .operand(axis)
            .value()
    }

    /// `x` and `y`, elementwise.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn logical_and(
        &self,
        x: Value<bool>,
        y: impl Into<Operand<bool>>,
    ) -> Result<Value<bool>, BuildError> {
        self.node("LogicalAnd", "LogicalAnd")
            .tensor(x)
            .operand(y)
            .value()
    }

    /// `x` or `y`, elementwise.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn logical_or(
        &self,
        x: Value<bool>,
        y: impl Into<Operand<bool>>,
    ) -> Result<Value<bool>, BuildError> {
        self.node("LogicalOr", "LogicalOr")
            .tensor(x)
            .operand(y)
            .value()
    }

    /// Not `x`, elementwise.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn logical_not(&self, x: Value<bool>) -> Result<Value<bool>, BuildError> {
        self.node("LogicalNot", "LogicalNot").tensor(x).value()
    }

    /// Selects `x` where `condition` is true and `y` elsewhere, all broadcast to each other
    /// (TensorFlow `SelectV2`).
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn select<T: ValueType>(
        &self,
        condition: Value<bool>,
        x: Value<T>,
        y: impl Into<Operand<T>>,
    ) -> Result<Value<T>, BuildError> {
        self.node("SelectV2", "SelectV2")
            .tensor(condition)
            .tensor(x)
            .operand(y)
            .value()
    }

    /// Starts an operation whose default name, as in TensorFlow, differs from its op's.
    pub(super) fn node(&self, op: &str, name: &str) -> OpBuilder<'_> {
        OpBuilder::new(self, op, name)
    }
}
