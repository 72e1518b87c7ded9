//! The one cache folder on disk: compiled policies, device programs, calibration, history.
//!
//! Stores bytes under keys, and returns the same bytes or nothing. The cache is never required: a
//! missing, damaged or foreign entry counts as absent. This module does not interpret the bytes.
//!
//! Entries are loaded as machine code, so the folder is used only if nobody else could have written
//! to it: the folder and each entry belong to this user, only this user may write to them, and none
//! of them is a symbolic link. A process of this user could add an entry, but it could as well
//! replace the program itself.

mod entry;
mod folder;

pub use entry::CacheKey;
pub use folder::{CacheFolder, CacheUsage, StoreError};
