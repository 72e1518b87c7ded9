//! Errors of SavedModels.

use std::io;
use std::path::PathBuf;

use crate::checkpoint::CheckpointError;
use crate::import::ImportError;

/// Why a SavedModel cannot be loaded: where it is wrong, what is wrong, and if possible the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedModelError {
    /// `saved_model.pb` is missing or cannot be read.
    #[error("{}: {source}; a SavedModel is a folder with the file saved_model.pb", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system, which the message contains.
        r#source: io::Error,
    },
    /// The bytes are not a SavedModel, or the file is truncated.
    #[error("{}: {problem}; save or copy the model again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// No graph of the model has these tags.
    #[error(
        "{}: no graph has the tags `{}`; there are {}",
        path.display(), tags.join(","), list(found)
    )]
    NoSuchTags {
        /// The folder.
        path: PathBuf,
        /// The requested tags.
        tags: Vec<String>,
        /// The tags of each graph, separated by commas.
        found: Vec<String>,
    },
    /// The graph has no signature of this name.
    #[error("{}: there is no signature `{name}`; there are {}", path.display(), list(found))]
    NoSuchSignature {
        /// The folder.
        path: PathBuf,
        /// The requested name.
        name: String,
        /// The signatures.
        found: Vec<String>,
    },
    /// The graph has no signatures.
    #[error(
        "{}: the model has no signatures, so its inputs and outputs are unknown; save it with `tf.saved_model.save(model, folder, signatures=..)` or, in Keras, `model.export(folder)`",
        path.display()
    )]
    NoSignatures {
        /// The folder.
        path: PathBuf,
    },
    /// A signature cannot be used.
    #[error("{}: signature `{signature}`: {problem}", path.display())]
    Signature {
        /// The folder.
        path: PathBuf,
        /// The signature.
        signature: String,
        /// What is wrong.
        problem: String,
    },
    /// A variable has no value.
    #[error("{}: variable `{variable}`: {problem}", path.display())]
    Variable {
        /// The folder.
        path: PathBuf,
        /// The variable's node.
        variable: String,
        /// What is wrong.
        problem: String,
    },
    /// An asset is not in the model's folder.
    #[error("{}: asset `{asset}`: {problem}", path.display())]
    Asset {
        /// The folder.
        path: PathBuf,
        /// The asset's file name.
        asset: String,
        /// What is wrong.
        problem: String,
    },
    /// The values of the variables cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The graph is wrong, or contains something that is not supported.
    #[error(transparent)]
    Import(Box<ImportError>),
}

impl From<ImportError> for SavedModelError {
    fn from(error: ImportError) -> Self {
        Self::Import(Box::new(error))
    }
}

/// Quotes names.
pub(super) fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
