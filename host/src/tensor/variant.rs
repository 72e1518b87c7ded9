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
    /// A ragged tensor.
    Ragged(RaggedTensor),
}

impl Variant {
    /// Returns the bytes of the tensors in it.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::List(list) => list.len_bytes(),
            Self::Ragged(ragged) => ragged.tensors().map(Tensor::len_bytes).sum(),
        }
    }

    /// Returns how deep lists are nested in it: 1 for a list of numbers.
    pub fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth(),
            Self::Ragged(ragged) => 1 + depth_of(&ragged.values),
        }
    }

    /// Returns the variant with other tensors, for copies to another memory.
    ///
    /// # Errors
    /// Those of `copy`.
    pub fn try_map<E>(
        &self,
        mut copy: impl FnMut(&Tensor) -> Result<Tensor, E>,
    ) -> Result<Self, E> {
        match self {
            Self::List(list) => list.try_map(copy).map(Self::List),
            Self::Ragged(ragged) => Ok(Self::Ragged(RaggedTensor {
                splits: ragged
                    .splits
                    .iter()
                    .map(&mut copy)
                    .collect::<Result<_, E>>()?,
                values: copy(&ragged.values)?,
            })),
        }
    }
}

/// A tensor whose rows have different lengths (TensorFlow `RaggedTensorVariant`).
#[derive(Debug, Clone)]
pub struct RaggedTensor {
    /// Per ragged axis, the outermost first, where each row starts in the next axis, and where the
    /// last one ends.
    pub splits: Vec<Tensor>,
    /// The rows of the innermost ragged axis, one behind the other.
    pub values: Tensor,
}

impl RaggedTensor {
    /// Returns the tensors that it consists of.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.splits.iter().chain(std::iter::once(&self.values))
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
    /// Bytes of all elements. Counted as they change: the executor asks after each operation, and a
    /// loop that adds one element per iteration would visit all of them each time.
    len_bytes: usize,
    /// At least the depth of each list that is an element, or was one.
    depth_of_elements: usize,
}

impl TensorList {
    /// Returns an empty list. `len_max`: the number of elements up to which it may grow.
    pub fn new(dtype: DType, element_shape: PartialShape, len_max: Option<usize>) -> Self {
        Self {
            dtype,
            element_shape,
            len_max,
            elements: Vector::new(),
            len_bytes: 0,
            depth_of_elements: 0,
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

    /// Returns the bytes of the elements.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns how deep lists are nested in it: 1 for a list of numbers. It may count lists that
    /// were removed.
    pub fn depth(&self) -> usize {
        1 + self.depth_of_elements
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
        if index >= self.elements.len() {
            return;
        }
        let added = (element.len_bytes(), depth_of(&element));
        let replaced = self.elements.set(index, Some(element));
        self.count(added);
        self.uncount(replaced.as_ref());
    }

    /// Appends an element.
    pub fn push(&mut self, element: Option<Tensor>) {
        if let Some(element) = &element {
            self.count((element.len_bytes(), depth_of(element)));
        }
        self.elements.push_back(element);
    }

    /// Removes the last element, and returns it; the outer `None` if there is none.
    pub fn pop(&mut self) -> Option<Option<Tensor>> {
        let last = self.elements.pop_back()?;
        self.uncount(last.as_ref());
        Some(last)
    }

    /// Changes the number of elements. New ones are not set.
    pub fn resize(&mut self, len: usize) {
        if len < self.elements.len() {
            let removed = self.elements.split_off(len);
            for element in &removed {
                self.uncount(element.as_ref());
            }
        }
        while self.elements.len() < len {
            self.elements.push_back(None);
        }
    }

    /// Appends the elements of another list.
    pub fn append(&mut self, other: Self) {
        self.count((other.len_bytes, other.depth_of_elements));
        self.elements.append(other.elements);
    }

    /// Records an element with these bytes and this depth.
    fn count(&mut self, (bytes, depth): (usize, usize)) {
        // An element that is shared counts as often as it is there, so the sum may be larger than
        // the address space.
        self.len_bytes = self.len_bytes.saturating_add(bytes);
        self.depth_of_elements = self.depth_of_elements.max(depth);
    }

    fn uncount(&mut self, element: Option<&Tensor>) {
        let bytes = element.map_or(0, Tensor::len_bytes);
        self.len_bytes = self.len_bytes.saturating_sub(bytes);
    }

    /// Returns the list with other tensors, for copies to another memory.
    ///
    /// # Errors
    /// Those of `copy`.
    pub fn try_map<E>(
        &self,
        mut copy: impl FnMut(&Tensor) -> Result<Tensor, E>,
    ) -> Result<Self, E> {
        let mut list = Self::new(self.dtype, self.element_shape.clone(), self.len_max);
        for element in self.iter() {
            list.push(element.map(&mut copy).transpose()?);
        }
        Ok(list)
    }
}

/// Returns the depth of the lists in a tensor; 0 if it has none.
fn depth_of(tensor: &Tensor) -> usize {
    let variants = tensor.as_variants().unwrap_or_default();
    variants.iter().map(Variant::depth).max().unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Shape;

    fn floats(n: usize) -> Tensor {
        Tensor::from_values([n], &vec![1.0f32; n]).unwrap()
    }

    #[test]
    fn bytes_follow_every_change() {
        let mut list = TensorList::new(DType::F32, PartialShape::unknown(), None);
        list.push(Some(floats(1)));
        list.push(None);
        list.push(Some(floats(2)));
        assert_eq!(list.len_bytes(), 12);
        list.set(1, floats(4));
        list.set(0, floats(3));
        list.set(9, floats(100));
        assert_eq!((list.len(), list.len_bytes()), (3, 36));
        let before = list.clone();
        list.append(before.clone());
        assert_eq!((list.len(), list.len_bytes()), (6, 72));
        list.resize(4);
        assert_eq!(list.len_bytes(), 48);
        list.resize(7);
        assert!(list.pop().unwrap().is_none());
        list.resize(4);
        assert_eq!(list.pop().unwrap().unwrap().len_bytes(), 12);
        assert_eq!((list.len(), list.len_bytes()), (3, 36));
        // A clone is a value of its own.
        assert_eq!((before.len(), before.len_bytes()), (3, 36));
        let doubled = list.try_map(|_| Ok::<_, ()>(floats(6))).unwrap();
        assert_eq!(doubled.len_bytes(), 72);
        list.resize(0);
        assert!(list.is_empty() && list.pop().is_none() && list.len_bytes() == 0);
    }

    #[test]
    fn depth_counts_lists_in_lists() {
        let mut list = TensorList::new(DType::F32, PartialShape::unknown(), None);
        list.push(Some(floats(1)));
        for depth in 1..5 {
            assert_eq!(list.depth(), depth);
            let scalar = Tensor::from_variants(Shape::scalar(), vec![Variant::List(list)]).unwrap();
            assert_eq!(scalar.len_bytes(), 4);
            list = TensorList::new(DType::Variant, PartialShape::unknown(), None);
            list.push(Some(scalar));
        }
        let mut other = TensorList::new(DType::Variant, PartialShape::unknown(), None);
        other.append(list);
        assert_eq!(other.depth(), 5);
    }
}
