//! What both formats say, with numbers instead of names, before it is checked as a whole.

use std::borrow::Cow;

use super::error::TaskGraphError;
use super::text::Name;
use super::text::Shown;
use crate::names::DeviceName;

/// A task graph as a file has it.
#[derive(Debug)]
pub(super) struct Draft<'f> {
    /// The text of the file.
    pub(super) file: &'f str,
    pub(super) name: String,
    pub(super) tasks: Vec<DraftTask<'f>>,
    pub(super) data: Vec<DraftData<'f>>,
    /// The types that times are stated for.
    pub(super) device_types: Vec<String>,
    /// Distinct requests for devices, each with its first place.
    pub(super) requests: Vec<(DeviceName, Name<'f>)>,
}

/// A task. Numbers are those of tasks, data, requests and device types.
#[derive(Debug)]
pub(super) struct DraftTask<'f> {
    pub(super) name: Name<'f>,
    pub(super) op: Cow<'f, str>,
    pub(super) duration: Duration,
    /// Memory besides the data.
    pub(super) memory_bytes: u64,
    pub(super) reads: Vec<u32>,
    pub(super) writes: Vec<u32>,
    pub(super) after: Vec<u32>,
    pub(super) colocated: Vec<u32>,
    pub(super) request: Option<u32>,
    pub(super) priority: i32,
}

/// How long a task takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Duration {
    /// As long as the rates of a device tell.
    Work { flops: f64, traffic_bytes: u64 },
    /// In ns, per device type.
    OfTypes(Box<[(u32, f64)]>),
    /// In ns, on the first CPU device.
    OfReference(f64),
}

/// Data that a task writes, or that is there from the start.
#[derive(Debug)]
pub(super) struct DraftData<'f> {
    pub(super) name: Name<'f>,
    pub(super) bytes: u64,
    pub(super) writer: Option<u32>,
    /// Where it is from the start; everywhere without one.
    pub(super) request: Option<u32>,
}

/// More bytes of one item are refused: sums would lose digits.
pub(super) const BYTES_MAX: u64 = 1 << 53;

/// Longer times are refused: 31 years.
pub(super) const NS_MAX: f64 = 1e18;

/// More operations are refused.
pub(super) const FLOPS_MAX: f64 = 1e30;

/// Returns a number of bytes. `of`: what has it, for messages.
pub(super) fn checked_bytes(file: &str, of: &Name<'_>, bytes: f64) -> Result<u64, TaskGraphError> {
    #[expect(clippy::cast_precision_loss, reason = "it is a power of two")]
    let is_small = bytes <= BYTES_MAX as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked, and amounts are not negative"
    )]
    let number = bytes as u64;
    match is_small && bytes >= 0.0 {
        true => Ok(number),
        false => {
            let problem = format!("{} has {bytes} bytes; the limits are 0 and 2^53", Shown(of));
            Err(of.invalid(file, problem))
        }
    }
}

/// Returns a time. `of`: the task that takes it.
pub(super) fn checked_ns(file: &str, of: &Name<'_>, ns: f64) -> Result<f64, TaskGraphError> {
    match (0.0..=NS_MAX).contains(&ns) {
        true => Ok(ns),
        false => {
            let problem = format!(
                "task {} takes {ns} ns; the limits are 0 and {NS_MAX:e} ns, which are 31 years",
                Shown(of)
            );
            Err(of.invalid(file, problem))
        }
    }
}

/// Returns the number of an entry. Files are too small for more.
pub(super) fn to_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
