//! Device names: TensorFlow's parsed names, the specifications of its front end, ids within one device set, and keys of transfers.
//!
//! Texts come in, [`DeviceName`]s, [`DeviceSpec`]s and [`RendezvousKey`]s go out. Knows no device: whether a name exists is [`crate::device::DeviceSet`]'s concern.

mod id;
mod name;
mod parse;
mod relate;
mod rendezvous;
mod spec;

pub use id::DeviceId;
pub use name::{DeviceName, NameError};
pub use relate::MergeMode;
pub use rendezvous::FrameIteration;
pub use rendezvous::RendezvousKey;
pub use spec::DeviceSpec;
