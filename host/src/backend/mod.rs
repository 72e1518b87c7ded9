//! The code that makes devices; one list.
