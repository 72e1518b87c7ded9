//! Device names: TensorFlow's parsed names, the specifications of its front end, and ids within one device set.
//!
//! Texts come in, [`DeviceName`]s and [`DeviceSpec`]s go out. Knows no device: whether a name exists is [`crate::device::DeviceSet`]'s concern.

mod id;
mod name;
mod parse;
mod relate;
mod spec;

pub use id::DeviceId;
pub use name::{DeviceName, NameError};
pub use relate::MergeMode;
pub use spec::DeviceSpec;
