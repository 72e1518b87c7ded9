//! Arguments of shape, fold and work functions: the node's attributes and what is known of its
//! inputs.

use std::ops::Range;
use std::sync::Arc;

use super::definition::OpDef;
use crate::graph::AttrSet;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::RANK_MAX;
use crate::tensor::Shape;

/// Constants with more elements are not read; shapes, axes and paddings are far smaller.
const INT_ELEMENTS_MAX: usize = 1024;

/// Inputs or attributes contradict the op's rule; the message contains both sides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ShapeError {
    message: String,
}

impl ShapeError {
    /// Returns the error with this message: lower case, with the shapes in question.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

/// A small integer tensor with possibly unknown elements: carries sizes through `Shape`, `Pack` and
/// similar ops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntTensor {
    shape: Shape,
    values: Vec<Option<i64>>,
}

impl IntTensor {
    /// Returns a tensor of this shape; `None` if the shape has another number of elements, or more
    /// than 1024.
    pub fn new(shape: Shape, values: Vec<Option<i64>>) -> Option<Self> {
        let fits = shape.n_elements() == values.len() && values.len() <= INT_ELEMENTS_MAX;
        fits.then_some(Self { shape, values })
    }

    /// Returns a scalar.
    pub fn scalar(value: Option<i64>) -> Self {
        Self {
            shape: Shape::scalar(),
            values: vec![value],
        }
    }

    /// Returns a vector; `None` above 1024 elements.
    pub fn vector(values: Vec<Option<i64>>) -> Option<Self> {
        Self::new(Shape::new(&[values.len()]), values)
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the elements, row-major.
    pub fn values(&self) -> &[Option<i64>] {
        &self.values
    }

    /// Returns the only element.
    pub fn as_scalar(&self) -> Option<i64> {
        match *self.values {
            [value] => value,
            _ => None,
        }
    }

    /// Returns all elements, if all are known.
    pub fn to_ints(&self) -> Option<Vec<i64>> {
        self.values.iter().copied().collect()
    }

    /// Returns the elements of an integer or boolean constant of at most 1024 elements.
    pub fn from_literal(literal: &Literal) -> Option<Self> {
        let n_elements = literal.shape().n_elements();
        let dtype = literal.dtype();
        if n_elements > INT_ELEMENTS_MAX || !(dtype.is_integer() || dtype == DType::Bool) {
            return None;
        }
        let bytes = match literal.data() {
            LiteralData::Dense(bytes) | LiteralData::RepeatLast(bytes) => (**bytes).as_ref(),
            _ => return None,
        };
        let mut values: Vec<_> = bytes
            .chunks_exact(dtype.size_bytes()?)
            .map(|element| int_element(dtype, element))
            .collect();
        let last = values.last().copied().unwrap_or(Some(0));
        values.resize(n_elements, last);
        Self::new(literal.shape().clone(), values)
    }
}

/// Returns one little-endian element; `None` if it exceeds 64 signed bits.
fn int_element(dtype: DType, element: &[u8]) -> Option<i64> {
    let mut wide = [0; 8];
    wide[..element.len()].copy_from_slice(element);
    let bits = u64::from_le_bytes(wide);
    let shift = 64 - 8 * u32::try_from(element.len()).ok()?;
    match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            Some((bits << shift).cast_signed() >> shift)
        }
        _ => i64::try_from(bits).ok(),
    }
}

/// What is known of a value before a run, besides its type and shape.
#[derive(Debug, Clone, Default)]
pub enum Known {
    /// Nothing.
    #[default]
    Nothing,
    /// A constant.
    Literal(Arc<Literal>),
    /// Integer elements, some or all of them known.
    Ints(Arc<IntTensor>),
    /// A handle (resource, or list of tensors) of values of this type and shape.
    Handle(DType, PartialShape),
}

impl From<Option<IntTensor>> for Known {
    fn from(value: Option<IntTensor>) -> Self {
        value.map_or(Self::Nothing, |value| Self::Ints(Arc::new(value)))
    }
}

/// What is known of one data input.
#[derive(Debug, Clone)]
pub struct OpInput {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: PartialShape,
    /// Value.
    pub known: Known,
}

/// A node as seen by its op's functions. Inputs are in slot order, as many as the signature has.
#[derive(Debug)]
pub struct InferenceContext<'a> {
    op: &'a OpDef,
    attrs: &'a AttrSet,
    inputs: &'a [OpInput],
    producer_version: i32,
}

impl<'a> InferenceContext<'a> {
    /// Returns the context of a node of op `op`; attributes are complete and checked.
    /// `producer_version` is the GraphDef's (0 means unknown).
    pub fn new(
        op: &'a OpDef,
        attrs: &'a AttrSet,
        inputs: &'a [OpInput],
        producer_version: i32,
    ) -> Self {
        Self {
            op,
            attrs,
            inputs,
            producer_version,
        }
    }

    /// Returns the op.
    pub fn op(&self) -> &str {
        self.op.name()
    }

    /// Returns the attributes, defaults included.
    pub fn attrs(&self) -> &'a AttrSet {
        self.attrs
    }

    /// Returns the producer version of the GraphDef; a few rules depend on it.
    pub fn producer_version(&self) -> i32 {
        self.producer_version
    }

    /// Returns the number of data inputs.
    pub fn n_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the input slots of an argument; empty if there is no such argument.
    pub fn input_range(&self, arg: &str) -> Range<usize> {
        self.op.input_range(arg, self.attrs).unwrap_or(0..0)
    }

    /// Returns the number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.op.n_outputs(self.attrs).unwrap_or(0)
    }

    /// Returns what is known of an input.
    ///
    /// # Panics
    /// If the signature has fewer inputs.
    pub fn input(&self, index: usize) -> &'a OpInput {
        &self.inputs[index]
    }

    /// Returns the shape of an input.
    ///
    /// # Panics
    /// If the signature has fewer inputs.
    pub fn shape(&self, index: usize) -> &'a PartialShape {
        &self.inputs[index].shape
    }

    /// Returns the element type of an input.
    ///
    /// # Panics
    /// If the signature has fewer inputs.
    pub fn dtype(&self, index: usize) -> DType {
        self.inputs[index].dtype
    }

    /// Returns the shape of an input that must have this rank; its dimensions are unknown if its
    /// rank is unknown.
    ///
    /// # Errors
    /// [`ShapeError`] if it has another rank.
    pub fn shape_of_rank(&self, index: usize, rank: usize) -> Result<PartialShape, ShapeError> {
        let shape = self.shape(index);
        match shape.rank() {
            None => Ok(PartialShape::of_rank(rank)),
            Some(found) if found == rank => Ok(shape.clone()),
            Some(_) => Err(ShapeError::new(format!(
                "input {index} must have rank {rank}; its shape is {shape}"
            ))),
        }
    }

    /// Returns the dimensions of an input that must have at least this rank; `None` if its rank is
    /// unknown.
    ///
    /// # Errors
    /// [`ShapeError`] if it has a smaller rank.
    pub fn dims_of_rank_at_least(
        &self,
        index: usize,
        rank: usize,
    ) -> Result<Option<&'a [Option<usize>]>, ShapeError> {
        match self.shape(index).dims() {
            Some(dims) if dims.len() < rank => Err(ShapeError::new(format!(
                "input {index} must have rank {rank} or more; its shape is {}",
                self.shape(index)
            ))),
            dims => Ok(dims),
        }
    }

    /// Returns the integer elements of an input, as far as they are known.
    pub fn ints(&self, index: usize) -> Option<Arc<IntTensor>> {
        match &self.inputs.get(index)?.known {
            Known::Ints(value) => Some(Arc::clone(value)),
            Known::Literal(literal) => IntTensor::from_literal(literal).map(Arc::new),
            Known::Nothing | Known::Handle(..) => None,
        }
    }

    /// Returns the integer elements of an input, if all are known.
    pub fn known_ints(&self, index: usize) -> Option<Vec<i64>> {
        self.ints(index)?.to_ints()
    }

    /// Returns the only element of an integer input, if it is known.
    pub fn scalar_int(&self, index: usize) -> Option<i64> {
        self.ints(index)?.as_scalar()
    }

    /// Returns the only element of a floating-point input, if it is a constant. Types narrower than
    /// `double` are widened, which is exact.
    pub fn scalar_float(&self, index: usize) -> Option<f64> {
        let Known::Literal(literal) = &self.inputs.get(index)?.known else {
            return None;
        };
        if literal.shape().n_elements() != 1 {
            return None;
        }
        let bytes = match literal.data() {
            LiteralData::Dense(bytes) | LiteralData::RepeatLast(bytes) => (**bytes).as_ref(),
            _ => return None,
        };
        if bytes.is_empty() {
            return literal.dtype().is_floating().then_some(0.0);
        }
        match literal.dtype() {
            DType::F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
            DType::F32 => Some(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            DType::F16 => Some(half::f16::from_le_bytes(bytes.try_into().ok()?).into()),
            DType::BF16 => Some(half::bf16::from_le_bytes(bytes.try_into().ok()?).into()),
            _ => None,
        }
    }

    /// What an input is a handle of.
    pub fn handle(&self, index: usize) -> Option<(DType, &'a PartialShape)> {
        match &self.inputs.get(index)?.known {
            Known::Handle(dtype, shape) => Some((*dtype, shape)),
            _ => None,
        }
    }

    /// Returns the shape that an input contains, as far as its elements are known; -1 is an unknown
    /// dimension, and a scalar -1 an unknown shape.
    ///
    /// # Errors
    /// [`ShapeError`] if other elements are negative, or the input is a matrix.
    pub fn shape_from_input(&self, index: usize) -> Result<PartialShape, ShapeError> {
        if let Some(value) = self.ints(index) {
            if value.shape().rank() == 0 {
                return match value.as_scalar() {
                    None | Some(-1) => Ok(PartialShape::unknown()),
                    Some(other) => Err(ShapeError::new(format!(
                        "input {index} must be a vector of sizes; it is the scalar {other}"
                    ))),
                };
            }
            if value.shape().rank() != 1 {
                return Err(ShapeError::new(format!(
                    "input {index} must be a vector of sizes; its shape is {}",
                    value.shape()
                )));
            }
            return value
                .values()
                .iter()
                .map(|&size| dim_from_value(size, index))
                .collect();
        }
        match self.shape(index).dims() {
            Some([]) | None => Ok(PartialShape::unknown()),
            Some(&[n_dims]) => Ok(n_dims
                .filter(|&n| n <= RANK_MAX)
                .map_or_else(PartialShape::unknown, PartialShape::of_rank)),
            Some(_) => Err(ShapeError::new(format!(
                "input {index} must be a vector of sizes; its shape is {}",
                self.shape(index)
            ))),
        }
    }

    /// Returns the number of elements of an input; 0 if unknown.
    ///
    /// # Panics
    /// If the signature has fewer inputs.
    pub fn input_elements(&self, index: usize) -> f64 {
        elements(self.shape(index))
    }

    /// Returns the bytes of all inputs whose size is known.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().fold(0, |sum, input| {
            sum.saturating_add(input.shape.size_bytes(input.dtype).unwrap_or(0))
        })
    }

    /// Returns work without arithmetic: every input of known size is read once, and every output of
    /// known size is written once.
    pub fn traffic_only(&self, outputs: &[Output]) -> Work {
        Work {
            traffic_bytes: self.input_bytes().saturating_add(output_bytes(outputs)),
            ..Work::default()
        }
    }

    /// Returns an `int` attribute.
    ///
    /// # Errors
    /// [`ShapeError`] if it is missing, which happens with an app's own definition.
    pub fn int(&self, name: &str) -> Result<i64, ShapeError> {
        self.attrs.int(name).ok_or_else(|| missing(name))
    }

    /// Returns a `bool` attribute.
    ///
    /// # Errors
    /// [`ShapeError`] if it is missing.
    pub fn bool(&self, name: &str) -> Result<bool, ShapeError> {
        self.attrs.bool(name).ok_or_else(|| missing(name))
    }

    /// Returns a `string` attribute.
    ///
    /// # Errors
    /// [`ShapeError`] if it is missing, or not UTF-8.
    pub fn text(&self, name: &str) -> Result<&'a str, ShapeError> {
        self.attrs.text(name).ok_or_else(|| missing(name))
    }

    /// Returns a `list(int)` attribute.
    ///
    /// # Errors
    /// [`ShapeError`] if it is missing.
    pub fn int_list(&self, name: &str) -> Result<Vec<i64>, ShapeError> {
        self.attrs.ints(name).ok_or_else(|| missing(name))
    }
}

/// Returns the number of elements of a shape; 0 if unknown.
pub(super) fn elements(shape: &PartialShape) -> f64 {
    let Some(dims) = shape.dims() else { return 0.0 };
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let product = |product: f64, dim: &Option<usize>| product * dim.map_or(0.0, |dim| dim as f64);
    dims.iter().fold(1.0, product)
}

/// Returns the bytes of all outputs whose size is known.
pub(super) fn output_bytes(outputs: &[Output]) -> u64 {
    outputs.iter().fold(0, |sum, output| {
        sum.saturating_add(output.shape.size_bytes(output.dtype).unwrap_or(0))
    })
}

fn dim_from_value(size: Option<i64>, index: usize) -> Result<Option<usize>, ShapeError> {
    match size {
        None | Some(-1) => Ok(None),
        Some(size) => usize::try_from(size).map(Some).map_err(|_| {
            ShapeError::new(format!(
                "input {index} holds {size}, which is not a valid size"
            ))
        }),
    }
}

fn missing(name: &str) -> ShapeError {
    ShapeError::new(format!(
        "attribute `{name}` is missing or of another kind than the shape function expects"
    ))
}
