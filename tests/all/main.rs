//! What no single module can show, one module per subject.

mod placement;
