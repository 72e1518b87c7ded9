//! Device ids.

use std::fmt;

use serde::Serialize;

/// The position of a device in one [`crate::device::DeviceSet`]. Meaningless in another set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
