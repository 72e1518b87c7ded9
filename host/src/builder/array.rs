//! Placeholders, constants, and ops that rearrange tensors.

use std::sync::Arc;

use crate::builder::Scope;
use crate::builder::error::BuildError;
use crate::builder::value::Operand;
use crate::builder::value::Operation;
use crate::builder::value::Scalar;
use crate::builder::value::Value;
use crate::builder::value::ValueType;
use crate::builder::value::dense;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::LiteralError;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The shared bytes of a tensor.
struct TensorBytes(Tensor);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        // The host could read it when the constant was created.
        self.0.as_bytes().unwrap_or_default()
    }
}

impl Scope {
    /// Adds a placeholder called `name`, which runs feed. Unknown dimensions are `None`:
    /// `[None, Some(784)]`.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn placeholder<T: Scalar>(
        &self,
        name: &str,
        shape: impl Into<PartialShape>,
    ) -> Result<Value<T>, BuildError> {
        self.node("Placeholder", "Placeholder")
            .name(name)
            .attr("dtype", T::ELEMENT)
            .attr("shape", shape.into())
            .value()
    }

    /// Adds a constant with these elements, row-major.
    ///
    /// # Errors
    /// [`BuildError::Constant`] if the shape has another number of elements.
    pub fn constant<T: Scalar>(
        &self,
        shape: impl Into<Shape>,
        values: &[T],
    ) -> Result<Value<T>, BuildError> {
        self.constant_of(dense(shape.into(), values))
    }

    /// Adds a constant of shape `[]`.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn scalar<T: Scalar>(&self, value: T) -> Result<Value<T>, BuildError> {
        self.constant_of(dense(Shape::scalar(), &[value]))
    }

    /// Adds a constant from an existing tensor, whose bytes it shares.
    ///
    /// # Errors
    /// [`BuildError::Tensor`] if the host cannot read it, [`BuildError::OutputType`] if its
    /// elements are not of type `T`.
    pub fn tensor<T: ValueType>(&self, tensor: &Tensor) -> Result<Value<T>, BuildError> {
        let data = if let Ok(strings) = tensor.as_strings() {
            LiteralData::Strings(strings.into())
        } else {
            tensor.as_bytes().map_err(|source| BuildError::Tensor {
                node: self.constant_name(),
                source,
            })?;
            LiteralData::Dense(Arc::new(TensorBytes(tensor.clone())))
        };
        self.constant_of(Literal::new(tensor.dtype(), tensor.shape().clone(), data))
    }

    /// Adds a constant from a literal. Elements that repeat, or that a formula computes, take no
    /// memory until a device needs them.
    ///
    /// # Errors
    /// [`BuildError::OutputType`] if its elements are not of type `T`.
    pub fn literal<T: ValueType>(&self, literal: Literal) -> Result<Value<T>, BuildError> {
        self.constant_of(Ok(literal))
    }

    /// Forwards `x`, to give it another name or control dependencies.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn identity<T: ValueType>(&self, x: Value<T>) -> Result<Value<T>, BuildError> {
        self.node("Identity", "Identity").tensor(x).value()
    }

    /// Adds an operation without inputs and outputs, for control dependencies.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn no_op(&self) -> Result<Operation, BuildError> {
        self.node("NoOp", "NoOp").finish()
    }

    /// Reshapes `x`; one dimension may be -1 and takes the remaining elements.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn reshape<T: ValueType>(
        &self,
        x: Value<T>,
        shape: impl Into<Operand<i32>>,
    ) -> Result<Value<T>, BuildError> {
        self.node("Reshape", "Reshape")
            .tensor(x)
            .operand(shape)
            .value()
    }

    /// Reorders the axes of `x`: axis `i` of the result is axis `perm[i]` of `x`.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn transpose<T: ValueType>(
        &self,
        x: Value<T>,
        perm: impl Into<Operand<i32>>,
    ) -> Result<Value<T>, BuildError> {
        self.node("Transpose", "transpose")
            .tensor(x)
            .operand(perm)
            .value()
    }

    /// Concatenates two or more values along an axis.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn concat<T: ValueType>(
        &self,
        values: impl IntoIterator<Item = Value<T>>,
        axis: i32,
    ) -> Result<Value<T>, BuildError> {
        self.node("ConcatV2", "concat")
            .operands(values)
            .operand(axis)
            .value()
    }

    /// Splits `x` along an axis into `n_parts` parts of equal size.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn split<T: ValueType>(
        &self,
        x: Value<T>,
        n_parts: u32,
        axis: i32,
    ) -> Result<Vec<Value<T>>, BuildError> {
        let operation = self
            .node("Split", "split")
            .operand(axis)
            .tensor(x)
            .attr("num_split", i64::from(n_parts))
            .finish()?;
        (0..n_parts)
            .map(|part| self.output(operation, part))
            .collect()
    }

    /// Stacks values of one shape along a new axis (TensorFlow `Pack`).
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn stack<T: ValueType>(
        &self,
        values: impl IntoIterator<Item = Value<T>>,
        axis: i64,
    ) -> Result<Value<T>, BuildError> {
        self.node("Pack", "stack")
            .operands(values)
            .attr("axis", axis)
            .value()
    }

    /// Inserts a new axis of size 1 into `x`.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn expand_dims<T: ValueType>(
        &self,
        x: Value<T>,
        axis: i32,
    ) -> Result<Value<T>, BuildError> {
        self.node("ExpandDims", "ExpandDims")
            .tensor(x)
            .operand(axis)
            .value()
    }

    /// Removes these axes of `x`, which must have size 1; if `axes` is empty, all axes of size 1.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn squeeze<T: ValueType>(&self, x: Value<T>, axes: &[i64]) -> Result<Value<T>, BuildError> {
        self.node("Squeeze", "Squeeze")
            .tensor(x)
            .attr("squeeze_dims", axes)
            .value()
    }

    /// Selects the part of `x` that starts at `begin` and has `size` elements along each axis; -1
    /// extends to the end.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn slice<T: ValueType>(
        &self,
        x: Value<T>,
        begin: impl Into<Operand<i32>>,
        size: impl Into<Operand<i32>>,
    ) -> Result<Value<T>, BuildError> {
        self.node("Slice", "Slice")
            .tensor(x)
            .operand(begin)
            .operand(size)
            .value()
    }

    /// Selects the slices of `x` along an axis that `indices` name (TensorFlow `GatherV2`).
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn gather<T: ValueType>(
        &self,
        x: Value<T>,
        indices: impl Into<Operand<i32>>,
        axis: i32,
    ) -> Result<Value<T>, BuildError> {
        self.node("GatherV2", "GatherV2")
            .tensor(x)
            .operand(indices)
            .operand(axis)
            .value()
    }

    /// Pads `x` with zeros: `paddings` is `[rank, 2]`, the elements before and after along each
    /// axis.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn pad<T: ValueType>(
        &self,
        x: Value<T>,
        paddings: impl Into<Operand<i32>>,
    ) -> Result<Value<T>, BuildError> {
        self.node("Pad", "Pad").tensor(x).operand(paddings).value()
    }

    /// Returns the shape of `x` in a run, a vector. [`Scope::shape`] returns what is known of it
    /// before.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn shape_of(&self, x: Value<impl ValueType>) -> Result<Value<i32>, BuildError> {
        self.node("Shape", "Shape").tensor(x).value()
    }

    fn constant_of<T: ValueType>(
        &self,
        literal: Result<Literal, LiteralError>,
    ) -> Result<Value<T>, BuildError> {
        let literal = literal.map_err(|source| BuildError::Constant {
            node: self.constant_name(),
            source,
        })?;
        if let Some(expected) = T::DTYPE
            && expected != literal.dtype()
        {
            return Err(BuildError::OutputType {
                tensor: format!("{}:0", self.constant_name()),
                op: "Const".to_owned(),
                expected,
                found: literal.dtype(),
            });
        }
        self.node("Const", "Const")
            .attr("dtype", literal.dtype())
            .attr("value", literal)
            .value()
    }

    /// Returns the name of the next constant, before numbering.
    fn constant_name(&self) -> String {
        format!("{}{}", self.prefix, self.name.as_deref().unwrap_or("Const"))
    }
}
