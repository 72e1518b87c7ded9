//! Chooses among the candidates that the host lists: a sandboxed policy, compiled once for all
//! cases.

use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;

use placewright::candidates::Candidates;
use placewright::placement;
use placewright::placement::Placement;
use placewright::policy::LoadedPolicy;
use placewright::policy::PlaceOptions;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright::policy::ShippedPolicy;
use placewright::policy::place_natively;

use crate::equal;

/// Maximum fuel of one placement: thousands of times what the largest case needs.
const FUEL: u64 = 10_000_000_000;

/// A policy in the sandbox, and its native build if it has one.
pub(crate) struct Chooser {
    policy: Mutex<LoadedPolicy>,
    twin: Option<ShippedPolicy>,
}

impl Chooser {
    /// The policy that chooses as TensorFlow does.
    pub(crate) fn priority() -> Result<&'static Self, String> {
        static PRIORITY: OnceLock<Result<Chooser, String>> = OnceLock::new();
        let loaded = PRIORITY.get_or_init(|| {
            let shipped = ShippedPolicy::find("priority").map_err(|error| error.to_string())?;
            Self::load(shipped.name(), shipped.wasm(), Some(shipped))
        });
        loaded.as_ref().map_err(Clone::clone)
    }

    /// A guest of the host's tests.
    #[cfg(feature = "graphdef")]
    pub(crate) fn fixture(name: &str) -> Result<Self, String> {
        Self::load(name, placewright_fixtures::wasm(name), None)
    }

    fn load(name: &str, wasm: &[u8], twin: Option<ShippedPolicy>) -> Result<Self, String> {
        let engine = PolicyEngine::new(limits()).map_err(|error| error.to_string())?;
        let loaded = engine.load(name, wasm, &[]);
        Ok(Self {
            policy: Mutex::new(loaded.map_err(|error| error.to_string())?),
            twin,
        })
    }

    /// Returns the checked placement, after comparing it with that of the native build.
    pub(crate) fn place(&self, candidates: &Candidates) -> Result<Placement, String> {
        let options = PlaceOptions::default();
        let sandboxed = self
            .policy
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .place(candidates, &options)
            .map_err(|error| error.to_string())?;
        if let Some(twin) = self.twin {
            let native = place_natively(twin, &[], candidates, &options, &limits());
            let native = native.map_err(|error| error.to_string())?;
            equal("the native build", &native.proposal, &sandboxed.proposal)?;
        }
        placement::check(candidates, sandboxed.proposal).map_err(|error| error.to_string())
    }
}

/// Limits by fuel rather than time, so that a busy machine does not change a plan.
fn limits() -> PolicyLimits {
    PolicyLimits::default().with_fuel(Some(FUEL))
}
