//! Fetched tensors by name.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use super::callable;
use super::callable::Signature;
use crate::tensor::Tensor;

/// The fetched tensors of one call ([`Callable::call_named`](super::Callable::call_named)), by name
/// and by position: `outputs["y"]`, `outputs[0]`.
///
/// Names are those of [`Callable::fetches`](super::Callable::fetches); `y` and `y:0` are the same
/// tensor, whichever of the two was fetched.
#[derive(Clone)]
pub struct Outputs {
    signature: Arc<Signature>,
    /// In the order of the fetches.
    tensors: Vec<Tensor>,
}

impl Outputs {
    pub(super) fn new(signature: Arc<Signature>, tensors: Vec<Tensor>) -> Self {
        Self { signature, tensors }
    }

    /// Returns the tensor of this name; `None` if it was not fetched.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let position = callable::position(&self.signature.fetches, name)?;
        self.tensors.get(position)
    }

    /// Returns names and tensors, in the order of the fetches.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        let fetches = self.signature.fetches.iter();
        let names = fetches.map(|fetch| fetch.name.as_str());
        names.zip(&self.tensors)
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns whether nothing was fetched.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Returns the tensors, in the order of the fetches.
    pub fn into_vec(self) -> Vec<Tensor> {
        self.tensors
    }
}

impl Index<&str> for Outputs {
    type Output = Tensor;

    /// Returns the tensor of this name.
    ///
    /// # Panics
    /// If it was not fetched. [`Outputs::get`] returns `None` instead.
    fn index(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| {
            let names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
            panic!("`{name}` was not fetched; outputs are {names:?}")
        })
    }
}

impl Index<usize> for Outputs {
    type Output = Tensor;

    /// Returns the tensor of this fetch.
    ///
    /// # Panics
    /// If there are not so many fetches.
    fn index(&self, position: usize) -> &Tensor {
        &self.tensors[position]
    }
}

impl From<Outputs> for Vec<Tensor> {
    fn from(outputs: Outputs) -> Self {
        outputs.tensors
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
