//! What no single module can show; one module per subject.

#[cfg(feature = "graphdef")]
mod import;
