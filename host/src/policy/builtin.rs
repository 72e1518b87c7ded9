//! The shipped policies: one row each.
//!
//! To add one: a crate under `guest/policies`, a line in `host/build/main.rs`, a row here.

use placewright_guest::native::NativePolicy;

use super::error::{PolicyError, PolicyErrorKind};
use super::messages::Messages;

include!(concat!(env!("OUT_DIR"), "/policies.rs"));

/// Makes a native instance.
type MakeNative = fn() -> Box<dyn NativePolicy>;

/// Name and native twin of each shipped policy.
static NATIVE: &[(&str, MakeNative)] = &[
    ("heft", policy_heft::native),
    ("priority", policy_priority::native),
    ("round-robin", policy_round_robin::native),
];

/// A policy that comes with the host, in both forms: the same source, sandboxed and linked
/// natively.
#[derive(Debug, Clone, Copy)]
pub struct ShippedPolicy {
    name: &'static str,
    wasm: &'static [u8],
    native: MakeNative,
}

impl ShippedPolicy {
    /// All of them, by name.
    pub fn all() -> impl Iterator<Item = Self> {
        NATIVE.iter().filter_map(|(name, _)| Self::find(name).ok())
    }

    /// The one of this name.
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

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The core module that the sandbox runs.
    pub fn wasm(&self) -> &'static [u8] {
        self.wasm
    }

    /// A fresh native instance, not yet configured.
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
    fn every_policy_is_there_in_both_forms() {
        let native: Vec<_> = NATIVE.iter().map(|(name, _)| *name).collect();
        let wasm: Vec<_> = SHIPPED_WASM.iter().map(|(name, _)| *name).collect();
        assert_eq!(native, wasm);
        for policy in ShippedPolicy::all() {
            assert_eq!(policy.native().info().name, policy.name());
        }
        let error = ShippedPolicy::find("hefty").unwrap_err();
        assert_eq!(
            error.to_string(),
            "policy `hefty`: there is no shipped policy and no file of this name; shipped are `heft`, `priority` and `round-robin`"
        );
    }
}
