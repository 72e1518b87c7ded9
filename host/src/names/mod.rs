//! Device names: TensorFlow's parsed names, the specifications of its front end, ids within one
//! device set, and keys of transfers; and the arena that names of nodes and devices stand in.
//!
//! Strings come in, [`DeviceName`]s, [`DeviceSpec`]s and [`RendezvousKey`]s go out. Knows no
//! device: whether a name exists is [`crate::device::DeviceSet`]'s concern.

mod arena;
mod id;
mod name;
mod parse;
mod relate;
mod rendezvous;
mod spec;
mod strings;

pub use arena::NameArena;
pub use id::DeviceId;
pub use name::{DeviceName, NameError};
pub use relate::MergeMode;
pub use rendezvous::FrameIteration;
pub use rendezvous::RendezvousKey;
pub use spec::DeviceSpec;
pub use strings::Strings;
