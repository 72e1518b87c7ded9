//! The one cache folder on disk.
