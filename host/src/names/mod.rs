//! Device names: TensorFlow's parsed names, and ids within one device set.

mod id;
mod name;

pub use id::DeviceId;
pub use name::{DeviceName, MergeMode, NameError};
