//! Signatures: names that callers use for the inputs and outputs of a graph.

use std::path::PathBuf;

use crate::tensor::DType;
use crate::tensor::PartialShape;

/// What a call of a graph takes and returns, by name. Graphs of SavedModels have one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signature {
    /// Its name, such as `serving_default`.
    pub name: String,
    /// The inputs, by name.
    pub inputs: Vec<Argument>,
    /// The outputs, by name.
    pub outputs: Vec<Argument>,
}

/// An input or output of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// The tensor of the graph: `node:slot`.
    pub tensor: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, as far as it is known.
    pub shape: PartialShape,
}

impl Signature {
    /// Makes a signature. Arguments are sorted by name.
    pub fn new(name: impl Into<String>, inputs: Vec<Argument>, outputs: Vec<Argument>) -> Self {
        let sorted = |mut arguments: Vec<Argument>| {
            arguments.sort_by(|left, right| left.name.cmp(&right.name));
            arguments
        };
        Self {
            name: name.into(),
            inputs: sorted(inputs),
            outputs: sorted(outputs),
        }
    }

    /// Returns the input of this name.
    pub fn input(&self, name: &str) -> Option<&Argument> {
        self.inputs.iter().find(|argument| argument.name == name)
    }

    /// Returns the output of this name.
    pub fn output(&self, name: &str) -> Option<&Argument> {
        self.outputs.iter().find(|argument| argument.name == name)
    }
}

impl Argument {
    /// Makes an argument.
    pub fn new(
        name: impl Into<String>,
        tensor: impl Into<String>,
        dtype: DType,
        shape: PartialShape,
    ) -> Self {
        Self {
            name: name.into(),
            tensor: tensor.into(),
            dtype,
            shape,
        }
    }
}

/// The variables of a graph that have come from a checkpoint, and can be written to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// The checkpoint: the path of its files without their suffixes.
    pub checkpoint: PathBuf,
    /// The variables that runs may change.
    pub variables: Vec<StoredVariable>,
}

/// A variable that a checkpoint stores.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredVariable {
    /// Its name in the checkpoint.
    pub name: String,
    /// The part of the tensor in the checkpoint that it is; empty means all of it.
    pub slice: String,
    /// The tensor of the graph that is its value: `node:slot`.
    pub tensor: String,
}

impl Stored {
    /// Makes a list of variables: name in the checkpoint, slice, and tensor.
    #[cfg(feature = "graphdef")]
    pub(crate) fn new(
        checkpoint: PathBuf,
        variables: impl IntoIterator<Item = (String, String, String)>,
    ) -> Self {
        let variables = variables.into_iter();
        Self {
            checkpoint,
            variables: variables
                .map(|(name, slice, tensor)| StoredVariable {
                    name,
                    slice,
                    tensor,
                })
                .collect(),
        }
    }
}
