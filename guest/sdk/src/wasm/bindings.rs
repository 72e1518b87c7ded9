//! The contract's bindings: one world part per export, because one crate cannot generate two worlds
//! that share an export. All parts use the import types of the first.
//!
//! A module has the same name as the macro that exports its part, so that [`crate::export_policy!`]
//! can refer to both by one name.

/// Imports, and the export `lifecycle`.
#[expect(missing_docs, reason = "documented in the contract")]
pub mod export_lifecycle {
    wit_bindgen::generate!({
        path: "wit/v0.1",
        world: "lifecycle-part",
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_lifecycle",
    });
}

/// The export `whole-graph`.
#[expect(missing_docs, reason = "documented in the contract")]
pub mod export_whole_graph {
    wit_bindgen::generate!({
        path: "wit/v0.1",
        world: "whole-graph-part",
        with: {
            "placewright:policy/types@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::types,
            "placewright:policy/devices@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::devices,
            "placewright:policy/graphs@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::graphs,
            "placewright:policy/planning@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::planning,
            "placewright:policy/log@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::log,
        },
        pub_export_macro: true,
        export_macro_name: "export_whole_graph",
    });
}

/// The export `online`.
#[expect(missing_docs, reason = "documented in the contract")]
pub mod export_online {
    wit_bindgen::generate!({
        path: "wit/v0.1",
        world: "online-part",
        with: {
            "placewright:policy/types@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::types,
            "placewright:policy/devices@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::devices,
            "placewright:policy/graphs@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::graphs,
            "placewright:policy/planning@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::planning,
            "placewright:policy/log@0.1.0": crate::wasm::bindings::export_lifecycle::placewright::policy::log,
        },
        pub_export_macro: true,
        export_macro_name: "export_online",
    });
}
