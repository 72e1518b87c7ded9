//! Device names: TensorFlow's parsed names, the device specifications of its Python front end, ids
//! within one device set and keys of transfers. Also the arena that stores the names of nodes and
//! devices.
//!
//! Parses strings to [`DeviceName`]s, [`DeviceSpec`]s and [`RendezvousKey`]s. This module does not
//! depend on devices; [`crate::device::DeviceSet`] decides whether a name exists.

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
