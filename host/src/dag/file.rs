//! The form of task graphs in our own format.

use std::fmt;

use serde::Deserialize;
use serde::Deserializer;
use serde::de;

use super::text::Amount;
use super::text::Name;
use crate::cluster::quantity::Bytes;
use crate::cluster::quantity::Ns;
use crate::cluster::quantity::Unit;

/// A task graph.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct OwnFile<'f> {
    #[serde(default, borrow)]
    pub(super) name: Option<Name<'f>>,
    /// Data that is there from the start.
    #[serde(default, borrow)]
    pub(super) inputs: Vec<InputEntry<'f>>,
    #[serde(borrow)]
    pub(super) tasks: Vec<TaskEntry<'f>>,
}

/// Data that is there from the start.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct InputEntry<'f> {
    #[serde(borrow)]
    pub(super) name: Name<'f>,
    pub(super) bytes: Amount<Bytes>,
    /// Where it is; everywhere by default.
    #[serde(default, borrow)]
    pub(super) device: Option<Name<'f>>,
}

/// A task. It has either work or times.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct TaskEntry<'f> {
    #[serde(borrow)]
    pub(super) name: Name<'f>,
    /// What it does, for reports and policies; `Task` by default.
    #[serde(default, borrow)]
    pub(super) op: Option<Name<'f>>,
    #[serde(default)]
    pub(super) work: Option<WorkEntry>,
    #[serde(default, borrow)]
    pub(super) time: Option<Times<'f>>,
    /// Memory while it executes, besides the data that it reads and writes.
    #[serde(default)]
    pub(super) memory: Amount<Bytes>,
    #[serde(default, borrow)]
    pub(super) reads: Vec<Name<'f>>,
    #[serde(default, borrow)]
    pub(super) writes: Vec<WriteEntry<'f>>,
    /// Tasks that end before it starts.
    #[serde(default, borrow)]
    pub(super) after: Vec<Name<'f>>,
    /// A possibly partial device name.
    #[serde(default, borrow)]
    pub(super) device: Option<Name<'f>>,
    /// Tasks on the same device.
    #[serde(default, borrow)]
    pub(super) colocate_with: Vec<Name<'f>>,
    /// Larger first.
    #[serde(default)]
    pub(super) priority: i32,
}

/// Data that a task writes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct WriteEntry<'f> {
    #[serde(borrow)]
    pub(super) name: Name<'f>,
    pub(super) bytes: Amount<Bytes>,
}

/// The work of a task, which takes a time by the rates of a device.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct WorkEntry {
    #[serde(default)]
    pub(super) flops: Amount<Flops>,
    /// Bytes that it moves from and to the memory of its device.
    #[serde(default)]
    pub(super) bytes: Amount<Bytes>,
}

/// Floating-point operations.
#[derive(Debug)]
pub(super) struct Flops;

impl Unit for Flops {
    const UNITS: &'static [(&'static str, f64)] = &[
        ("FLOP", 1.0),
        ("KFLOP", 1e3),
        ("MFLOP", 1e6),
        ("GFLOP", 1e9),
        ("TFLOP", 1e12),
        ("PFLOP", 1e15),
    ];
    const EXPECTED: &'static str = "work such as \"3.2 GFLOP\"";
}

/// Times of a task by device type.
#[derive(Debug)]
pub(super) struct Times<'f>(pub(super) Vec<(Name<'f>, Amount<Ns>)>);

impl<'de: 'f, 'f> Deserialize<'de> for Times<'f> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Times<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of times by device type, such as {\"CPU\": \"12 ms\"}")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Times<'de>, A::Error> {
                let mut times = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    times.push(entry);
                }
                Ok(Times(times))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}
