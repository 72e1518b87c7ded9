//! Device names: TensorFlow's parsed names, and ids within one device set.
//!
//! Texts come in, [`DeviceName`]s go out. Knows no device: whether a name exists is [`crate::device::DeviceSet`]'s concern.

mod id;
mod name;
mod parse;
mod relate;

pub use id::DeviceId;
pub use name::{DeviceName, NameError};
pub use relate::MergeMode;
