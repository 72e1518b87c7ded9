//! Reads a graph file, up to the size limit of imports.

use std::path::PathBuf;

use crate::error::Error;
use crate::files;
use crate::files::TooLarge;
use crate::import::ImportError;

/// Reads the bytes of a GraphDef.
///
/// # Errors
/// [`Error::Read`]; [`ImportError::TooLarge`] if the file exceeds the limit.
pub(super) fn read(path: PathBuf, size_bytes_max: u64) -> Result<Vec<u8>, Error> {
    files::read(&path, size_bytes_max, "").map_err(|source| match TooLarge::of(&source) {
        Some(large) => Error::Import(ImportError::TooLarge {
            size_bytes: large.found,
            limit_bytes: size_bytes_max,
        }),
        None => Error::Read { path, source },
    })
}
