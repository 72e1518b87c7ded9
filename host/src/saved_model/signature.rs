//! Reads signatures.

use super::proto;
use crate::graph::Argument;
use crate::graph::Signature;
use crate::import::dtype_of;
use crate::import::shape_of;
use crate::tensor::PartialShape;

/// Key of the signature, and name of its output, that initialises a model of TensorFlow 2.
pub(super) const INIT_OP: &str = "__saved_model_init_op";

/// The signature that is taken if none is requested.
pub(super) const DEFAULT: &str = "serving_default";

/// Reads a signature; an error continues `signature ..:`.
pub(super) fn read(name: &str, proto: &proto::SignatureDef) -> Result<Signature, String> {
    let arguments = |entries: &[proto::TensorEntry], what: &str| {
        let read = entries.iter().map(|entry| {
            argument(entry).map_err(|problem| format!("{what} `{}` {problem}", entry.key))
        });
        read.collect::<Result<Vec<Argument>, String>>()
    };
    let inputs = arguments(&proto.inputs, "input")?;
    let outputs = arguments(&proto.outputs, "output")?;
    Ok(Signature::new(name, inputs, outputs))
}

fn argument(entry: &proto::TensorEntry) -> Result<Argument, String> {
    let info = entry.value.clone().unwrap_or_default();
    if info.name.is_empty() {
        return Err("is sparse or composite, which is not supported; save a signature that takes and returns dense tensors".to_owned());
    }
    let (dtype, _) = dtype_of(info.dtype).map_err(|error| error.to_string())?;
    let shape = match &info.shape {
        Some(shape) => shape_of(shape).map_err(|error| error.to_string())?,
        None => PartialShape::unknown(),
    };
    Ok(Argument::new(entry.key.clone(), info.name, dtype, shape))
}
