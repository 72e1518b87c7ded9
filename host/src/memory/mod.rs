//! The memory that runs of a plan hold, per memory space.
//!
//! The check of a placement, the memory estimate for policies and the executor share one memory
//! plan: which tensors are the same in all runs and on which devices they are kept
//! ([`crate::plan`]), the order in which one thread executes the steps (`order`), and which tensors
//! are live at each step of that order (`sweep`). So a placement that passes the check can be
//! loaded and run. `whole` is the memory plan of a whole graph on given devices, before kernels and
//! constants are created.

mod order;
mod sweep;
pub(crate) mod whole;

pub(crate) use order::{LoopSteps, serial_order};
pub(crate) use sweep::Sweep;
pub use whole::{MemoryHolder, MemoryHolderKind};

use serde::Serialize;

use crate::names::DeviceId;

/// Checks whether a memory is large enough. A sum that saturated exceeds any memory.
pub(crate) fn fits(needed_bytes: u64, capacity_bytes: u64) -> bool {
    needed_bytes < u64::MAX && needed_bytes <= capacity_bytes
}

/// What the runs of a plan hold. Scratch memory of kernels is not included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// In the order of devices; a device's own memory precedes its host memory.
    pub memories: Vec<PlannedMemory>,
    /// Number of tensors of unknown size, because their shapes depend on fed or computed values.
    /// They are allocated during the first run; after it, all of them except the fetched ones get
    /// places in arenas.
    pub n_unplanned: usize,
}

/// One memory of a [`MemoryPlan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlannedMemory {
    /// The device.
    pub device: DeviceId,
    /// Whether this is host memory, for host-memory arguments of the device's kernels.
    pub on_host: bool,
    /// Bytes of constants that runs read there: once, for all runs.
    pub constant_bytes: u64,
    /// Bytes of prepacked constants: once, for all runs.
    pub prepacked_bytes: u64,
    /// Peak bytes of the tensors that a run produces for itself: per concurrent run. If the
    /// device's work may outlast its kernels, this is the peak in the order of the plan; the
    /// device releases tensors as it finishes with them.
    pub run_bytes: u64,
    /// Bytes of the tensors that a run returns to the caller, until the caller drops them.
    pub fetched_bytes: u64,
}

impl PlannedMemory {
    /// Creates an empty memory plan of one of a device's memories.
    pub(crate) fn empty(device: DeviceId, on_host: bool) -> Self {
        Self {
            device,
            on_host,
            constant_bytes: 0,
            prepacked_bytes: 0,
            run_bytes: 0,
            fetched_bytes: 0,
        }
    }

    /// Returns the peak bytes during one run.
    pub fn peak_bytes(&self) -> u64 {
        self.constant_bytes
            .saturating_add(self.prepacked_bytes)
            .saturating_add(self.run_bytes)
            .saturating_add(self.fetched_bytes)
    }
}
