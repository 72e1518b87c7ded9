//! What no single module can show: one module per subject, one binary, linked once.

mod tidy;
