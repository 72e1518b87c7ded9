//! The shipped policies: one row each.
//!
//! To add one: a crate under `guest/policies`, a line in `host/build/main.rs`, a row here.

use placewright_guest::native::NativePolicy;

use super::error::{PolicyError, PolicyErrorKind};
use super::messages::Messages;

include!(concat!(env!("OUT_DIR"), "/policies.rs"));

/// Creates a native instance.
type MakeNative = fn() -> Box<dyn NativePolicy>;

/// The name and native build of each shipped policy.
static NATIVE: &[(&str, MakeNative)] = &[
    ("auto", policy_auto::native),
    ("cpop", policy_cpop::native),
    ("dmda", policy_dmda::native),
    ("dmdas", policy_dmdas::native),
    ("hbmct", policy_hbmct::native),
    ("heft", policy_heft::native),
    ("layers", policy_layers::native),
    ("lookahead", policy_lookahead::native),
    ("lws", policy_lws::native),
    ("m-etf", policy_m_etf::native),
    ("m-sct", policy_m_sct::native),
    ("m-topo", policy_m_topo::native),
    ("peft", policy_peft::native),
    ("pipeline", policy_pipeline::native),
    ("priority", policy_priority::native),
    ("round-robin", policy_round_robin::native),
    ("search", policy_search::native),
];

/// A policy that is shipped with the host, in both forms: the same source as wasm and as a native
/// build.
#[derive(Debug, Clone, Copy)]
pub struct ShippedPolicy {
    name: &'static str,
    wasm: &'static [u8],
    native: MakeNative,
}

/// Returns whether these are the bytes of a shipped policy, as the program contains them.
pub(super) fn is_shipped(bytes: &[u8]) -> bool {
    SHIPPED_WASM
        .iter()
        .any(|(_, wasm)| std::ptr::eq(*wasm, bytes))
}

impl ShippedPolicy {
    /// Returns all shipped policies, sorted by name.
    pub fn all() -> impl Iterator<Item = Self> {
        NATIVE.iter().filter_map(|(name, _)| Self::find(name).ok())
    }

    /// Returns the shipped policy of this name.
    ///
    /// # Errors
    /// [`PolicyErrorKind::NotFound`], which lists the names.
    pub fn find(name: &str) -> Result<Self, PolicyError> {
        let native = NATIVE.iter().find(|(known, _)| *known == name);
        let wasm = SHIPPED_WASM.iter().find(|(known, _)| *known == name);
        match (native, wasm) {
            (Some(&(name, native)), Some(&(_, wasm))) => Ok(Self { name, wasm, native }),
            _ => Err(Self::not_found(name)),
        }
    }

    /// Returns the name of the policy.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the core module that the sandbox runs.
    pub fn wasm(&self) -> &'static [u8] {
        self.wasm
    }

    /// Creates a native instance, not yet configured.
    pub fn native(&self) -> Box<dyn NativePolicy> {
        (self.native)()
    }

    pub(super) fn not_found(name: &str) -> PolicyError {
        let shipped = NATIVE.iter().map(|(name, _)| (*name).to_owned()).collect();
        let kind = PolicyErrorKind::NotFound { shipped };
        PolicyError::new(name, kind, Messages::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_exists_in_both_forms() {
        let native: Vec<_> = NATIVE.iter().map(|(name, _)| *name).collect();
        let wasm: Vec<_> = SHIPPED_WASM.iter().map(|(name, _)| *name).collect();
        assert_eq!(native, wasm);
        for policy in ShippedPolicy::all() {
            assert_eq!(policy.native().info().name, policy.name());
        }
        let error = ShippedPolicy::find("hefty").unwrap_err();
        assert_eq!(
            error.to_string(),
            "policy `hefty`: there is no shipped policy and no file of this name; the shipped policies are `auto`, `cpop`, `dmda`, `dmdas`, `hbmct`, `heft`, `layers`, `lookahead`, `lws`, `m-etf`, `m-sct`, `m-topo`, `peft`, `pipeline`, `priority`, `round-robin` and `search`"
        );
    }
}
