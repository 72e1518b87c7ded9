//! What runs of a plan hold in each memory.
//!
//! The check of a placement, the estimate that policies ask for and the executor share one account
//! of memory: which tensors are the same in all runs, and which devices keep them (`settled`); the
//! order in which one thread executes the steps (`order`); what is alive at each step of that order
//! (`sweep`). So a placement that passes the check can be loaded and run. `whole` is the account of
//! a whole graph on certain devices, before anything is made.

mod bytes;
mod order;
mod settled;
mod sweep;
pub(crate) mod whole;

pub(crate) use bytes::show_bytes;
pub(crate) use order::serial_order;
pub(crate) use settled::Settled;
pub(crate) use settled::is_constant;
pub(crate) use sweep::Sweep;
pub use whole::{MemoryHolder, MemoryHolderKind};

use crate::names::DeviceId;

/// Whether a memory has room. A sum that met the largest number stands for more than any memory
/// has.
pub(crate) fn fits(needed_bytes: u64, capacity_bytes: u64) -> bool {
    needed_bytes < u64::MAX && needed_bytes <= capacity_bytes
}

/// What the runs of a plan hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// In the order of devices; a device's own memory before the host's.
    pub memories: Vec<PlannedMemory>,
    /// Tensors that have no size yet, because their shapes depend on what is fed or computed. They
    /// are allocated while the first run goes on; all but those for the caller get places
    /// after it.
    pub n_unplanned: usize,
}

/// One memory of a [`MemoryPlan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedMemory {
    /// The device.
    pub device: DeviceId,
    /// Whether this is host memory of the device's host-memory arguments.
    pub on_host: bool,
    /// Constants that runs read there, in bytes: once, for all runs.
    pub constant_bytes: u64,
    /// Constants in the order in which kernels read them, in bytes: once, for all runs.
    pub packed_bytes: u64,
    /// Peak of the tensors that a run makes for itself, in bytes: for each run at one time. Of a
    /// device whose work may outlast its kernels, what is held in the order of the plan;
    /// tensors go back there as the device gets done with them.
    pub run_bytes: u64,
    /// Tensors that a run makes for the caller, in bytes: until the caller lets them go.
    pub fetched_bytes: u64,
}

impl PlannedMemory {
    /// Nothing in one of a device's memories.
    pub(crate) fn empty(device: DeviceId, on_host: bool) -> Self {
        Self {
            device,
            on_host,
            constant_bytes: 0,
            packed_bytes: 0,
            run_bytes: 0,
            fetched_bytes: 0,
        }
    }

    /// Most bytes that are held while one run goes on.
    pub fn peak_bytes(&self) -> u64 {
        self.constant_bytes
            .saturating_add(self.packed_bytes)
            .saturating_add(self.run_bytes)
            .saturating_add(self.fetched_bytes)
    }
}
