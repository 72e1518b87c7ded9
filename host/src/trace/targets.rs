//! Targets of the `tracing` spans and events of this crate; subscribers filter by them.

/// Building sessions and cutting plans.
pub const SESSION: &str = "placewright::session";

/// Device types that are ignored, where devices sit, and what their threads run on.
pub const DEVICE: &str = "placewright::device";

/// Loading, asking and checking policies, and the ladder.
pub const POLICY: &str = "placewright::policy";

/// Runs, and plans that are compiled for them.
pub const EXECUTE: &str = "placewright::execute";

/// Single kernels: one span per node and run. Asked for once per run; while nobody hears it at
/// level TRACE, a kernel costs nothing more.
pub const KERNEL: &str = "placewright::kernel";
