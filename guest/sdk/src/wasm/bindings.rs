//! The contract's bindings: one world part per export, because one crate cannot generate two worlds
//! that share an export. All parts use the import types of the first.
//!
//! A module has the same name as the macro that exports its part, so that [`crate::export_policy!`]
//! can refer to both by one name. `cargo run -p placewright-bindgen` generates the included files
//! from `wit/`; included, so that rustfmt leaves them as they are.
#![allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    elided_lifetimes_in_paths,
    trivial_numeric_casts,
    clippy::allow_attributes_without_reason,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "generated; the contract documents it"
)]

/// Imports, and the export `lifecycle`.
pub mod export_lifecycle {
    include!("bindings/export_lifecycle.rs");
}

/// The export `whole-graph`.
pub mod export_whole_graph {
    include!("bindings/export_whole_graph.rs");
}

/// The export `online`.
pub mod export_online {
    include!("bindings/export_online.rs");
}
