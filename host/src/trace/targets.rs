//! Targets of the `tracing` spans and events of this crate; subscribers filter by them.

/// Building sessions and partitioning graphs.
pub const SESSION: &str = "placewright::session";

/// Device types that are ignored, localities of devices, and the processors of their threads.
pub const DEVICE: &str = "placewright::device";

/// Kernels that are compiled for a device: an event of level INFO before each program. Cached
/// programs are loaded without one.
pub const PROGRAM: &str = "placewright::program";

/// Loading policies, asking them and checking their answers, and the ladder.
pub const POLICY: &str = "placewright::policy";

/// Runs, and plans that are compiled for them.
pub const EXECUTE: &str = "placewright::execute";

/// Single kernels: one span per node and run. Whether a subscriber wants level TRACE is checked
/// once per run; if none does, a kernel costs nothing more.
pub const KERNEL: &str = "placewright::kernel";
