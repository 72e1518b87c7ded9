//! The object graph that TensorFlow 2 stores in a checkpoint: which tensor is which variable's
//! value.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use prost::Message;

use super::Checkpoint;
use super::CheckpointError;
use crate::tensor::LiteralData;

/// The tensor that holds the object graph.
const OBJECT_GRAPH: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";

/// The attribute of an object that is the value of a variable.
const VALUE: &str = "VARIABLE_VALUE";

#[derive(Clone, PartialEq, prost::Message)]
struct TrackableObjectGraph {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<TrackableObject>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TrackableObject {
    #[prost(message, repeated, tag = "2")]
    attributes: Vec<SerializedTensor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SerializedTensor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    full_name: String,
    #[prost(string, tag = "3")]
    checkpoint_key: String,
}

impl Checkpoint {
    /// Returns the tensors of the variables of each name. Several objects may have one name. Empty
    /// if the checkpoint has no object graph.
    ///
    /// # Errors
    /// [`CheckpointError`] if the object graph is damaged.
    pub(crate) fn variables(&self) -> Result<BTreeMap<String, BTreeSet<String>>, CheckpointError> {
        let mut variables: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        if self.tensor(OBJECT_GRAPH).is_none() {
            return Ok(variables);
        }
        let literal = self.read(OBJECT_GRAPH)?;
        let bytes = match literal.data() {
            LiteralData::Strings(strings) => strings.first().cloned().unwrap_or_default(),
            _ => Default::default(),
        };
        let graph = TrackableObjectGraph::decode(&bytes[..]);
        let graph = graph.map_err(|error| {
            self.tensor_error(OBJECT_GRAPH, format!("it is malformed ({error})"))
        })?;
        for attribute in graph.nodes.into_iter().flat_map(|node| node.attributes) {
            if attribute.name == VALUE {
                let keys = variables.entry(attribute.full_name).or_default();
                keys.insert(attribute.checkpoint_key);
            }
        }
        Ok(variables)
    }
}
