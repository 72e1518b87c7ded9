//! Errors of checkpoints.

use std::io;
use std::path::PathBuf;

/// What to do about a file that is damaged.
const DAMAGED: &str = "the file is damaged or truncated; copy or write it again";

/// Why a checkpoint, or a tensor of it, cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// There is no index.
    #[error(
        "there is no checkpoint `{}`: {}.index does not exist; the prefix of a checkpoint is the path of its `.index` file without `.index`",
        prefix.display(), prefix.display()
    )]
    NotFound {
        /// The prefix.
        prefix: PathBuf,
    },
    /// The file is a checkpoint of TensorFlow's first format.
    #[error(
        "{}: checkpoints of version 1 (one file without `.index`) are not supported; load it with tf.compat.v1.train.Saver and save it again", path.display()
    )]
    VersionOne {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system, which the message contains.
        r#source: io::Error,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system, which the message contains.
        r#source: io::Error,
    },
    /// The index is not what TensorFlow writes.
    #[error("{}, at byte {offset}: {problem}; {DAMAGED}", path.display())]
    Malformed {
        /// The index.
        path: PathBuf,
        /// Position in it.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// The checkpoint has a property that is not supported.
    #[error("{}: {problem}", path.display())]
    Unsupported {
        /// The index.
        path: PathBuf,
        /// The property, and the remedy.
        problem: String,
    },
    /// The checkpoint has no tensor of this name.
    #[error("checkpoint {} has no tensor `{name}`; it has {}", prefix.display(), list(found))]
    NoSuchTensor {
        /// The prefix.
        prefix: PathBuf,
        /// The name.
        name: String,
        /// The tensors that it has.
        found: Vec<String>,
    },
    /// The bytes of a tensor are missing, or differ from what was written.
    #[error("{}: tensor `{name}`: {problem}; {DAMAGED}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor cannot be read as requested, or cannot be written.
    #[error("checkpoint {}: tensor `{name}`: {problem}", prefix.display())]
    Tensor {
        /// The prefix.
        prefix: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong, and the remedy.
        problem: String,
    },
}

/// Names in a message.
const N_NAMES_MAX: usize = 8;

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown = names.iter().take(N_NAMES_MAX);
    let shown: Vec<String> = shown.map(|name| format!("`{name}`")).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(N_NAMES_MAX) {
        0 => shown,
        n_more => format!("{shown} and {n_more} more"),
    }
}
