//! Elements of tensors of type `variant`.

use std::fmt;

use imbl::Vector;

use super::DType;
use super::PartialShape;
use super::Tensor;

/// An element of a tensor of type `variant`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Variant {
    /// A list of tensors.
    List(TensorList),
}

impl Variant {
    /// Returns the bytes of the tensors in it.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::List(list) => list.iter().flatten().map(Tensor::len_bytes).sum(),
        }
    }

    /// Returns the variant with other tensors, for copies to another memory.
    ///
    /// # Errors
    /// Those of `copy`.
    pub fn try_map<E>(&self, copy: impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        match self {
            Self::List(list) => list.try_map(copy).map(Self::List),
        }
    }
}

/// A list of tensors of one element type (TensorFlow `TensorList`), the value of the ops
/// `TensorList..`. Clones share their elements, and a change of a clone copies few of them: a loop
/// that sets one element per iteration takes time in proportion to its iterations.
#[derive(Clone)]
pub struct TensorList {
    dtype: DType,
    element_shape: PartialShape,
    len_max: Option<usize>,
    elements: Vector<Option<Tensor>>,
}

impl TensorList {
    /// Returns an empty list. `len_max`: the number of elements up to which it may grow.
    pub fn new(dtype: DType, element_shape: PartialShape, len_max: Option<usize>) -> Self {
        Self {
            dtype,
            element_shape,
            len_max,
            elements: Vector::new(),
        }
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns what is known of the shapes of all elements.
    pub fn element_shape(&self) -> &PartialShape {
        &self.element_shape
    }

    /// Returns the number of elements up to which it may grow; `None` if there is no limit.
    pub fn len_max(&self) -> Option<usize> {
        self.len_max
    }

    /// Returns the number of elements, including those that are not set.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Returns an element; `None` if it is not set, or does not exist.
    pub fn get(&self, index: usize) -> Option<&Tensor> {
        self.elements.get(index)?.as_ref()
    }

    /// Returns the elements; `None` for those that are not set.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&Tensor>> {
        self.elements.iter().map(Option::as_ref)
    }

    /// Sets an element. Does nothing if it does not exist.
    pub fn set(&mut self, index: usize, element: Tensor) {
        if let Some(slot) = self.elements.get_mut(index) {
            *slot = Some(element);
        }
    }

    /// Appends an element.
    pub fn push(&mut self, element: Option<Tensor>) {
        self.elements.push_back(element);
    }

    /// Removes the last element, and returns it; the outer `None` if there is none.
    pub fn pop(&mut self) -> Option<Option<Tensor>> {
        self.elements.pop_back()
    }

    /// Changes the number of elements. New ones are not set.
    pub fn resize(&mut self, len: usize) {
        if len < self.elements.len() {
            self.elements.truncate(len);
        }
        while self.elements.len() < len {
            self.elements.push_back(None);
        }
    }

    /// Appends the elements of another list.
    pub fn append(&mut self, other: Self) {
        self.elements.append(other.elements);
    }

    /// Returns the list with other tensors, for copies to another memory.
    ///
    /// # Errors
    /// Those of `copy`.
    pub fn try_map<E>(
        &self,
        mut copy: impl FnMut(&Tensor) -> Result<Tensor, E>,
    ) -> Result<Self, E> {
        let mut elements = Vector::new();
        for element in self.iter() {
            elements.push_back(element.map(&mut copy).transpose()?);
        }
        Ok(Self {
            dtype: self.dtype,
            element_shape: self.element_shape.clone(),
            len_max: self.len_max,
            elements,
        })
    }
}

impl fmt::Debug for TensorList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TensorList<{}, {}>[{}]",
            self.dtype,
            self.element_shape,
            self.len()
        )
    }
}
