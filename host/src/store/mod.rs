//! The one cache folder on disk: compiled policies, device programs, calibration, history.
//!
//! Takes keys and bytes; gives the same bytes back, or nothing. A cache is never needed: an entry
//! that is missing, damaged or not ours is as good as none. Knows nothing of what the bytes mean.
//!
//! What stands here is loaded as machine code, so the folder is used only where nobody else could
//! have written to it: it and each entry belong to this user, only this user may write to them, and
//! none is a symbolic link. Whatever runs as this user could put an entry there, as it could
//! replace the program itself.

mod entry;
mod folder;

pub use entry::CacheKey;
pub use folder::{CacheFolder, CacheUsage, StoreError};
