//! Writes the variables of a session as a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use super::Session;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::write_checkpoint;
use crate::error::Error;
use crate::tensor::HostAllocator;
use crate::tensor::Tensor;

impl Session {
    /// Writes a checkpoint with the present values of the variables of a SavedModel, and all other
    /// tensors of the model's checkpoint as they are. It can take the place of the model's
    /// `variables/variables`, and TensorFlow loads it.
    ///
    /// Runs that change variables meanwhile may be visible in some of them and not in others.
    ///
    /// # Errors
    /// [`Error::NothingToSave`] if the session has no variables of a SavedModel;
    /// [`Error::Checkpoint`] if the model's checkpoint cannot be read, or the new one not written;
    /// those of [`Self::run`].
    pub fn save(&self, prefix: impl AsRef<Path>) -> Result<(), Error> {
        let graph = self.graph();
        let Some(stored) = graph.stored() else {
            return Err(Error::NothingToSave);
        };
        if let Some(part) = stored.variables.iter().find(|it| !it.slice.is_empty()) {
            return Err(Error::Checkpoint(CheckpointError::Tensor {
                prefix: prefix.as_ref().to_owned(),
                name: part.name.clone(),
                problem: "a partitioned variable cannot be written; save it with TensorFlow"
                    .to_owned(),
            }));
        }
        let fetches = stored.variables.iter();
        let fetches: Vec<&str> = fetches.map(|it| it.tensor.as_str()).collect();
        let values = self.run(&[], &fetches)?;
        let names = stored.variables.iter().map(|it| it.name.as_str());
        let mut tensors: BTreeMap<&str, Tensor> = names.zip(values).collect();
        let original = Checkpoint::open(&stored.checkpoint)?;
        let memory = HostAllocator::new("a checkpoint", u64::MAX);
        for entry in original.tensors() {
            if !tensors.contains_key(entry.name.as_str()) {
                let value = original.read(&entry.name)?.to_tensor(&memory)?;
                tensors.insert(&entry.name, value);
            }
        }
        let tensors = tensors.iter().map(|(name, tensor)| (*name, tensor));
        Ok(write_checkpoint(prefix, tensors)?)
    }
}
