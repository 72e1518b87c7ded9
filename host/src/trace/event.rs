//! What happened, and when.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::plan::Payload;

/// Something that took time.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// When it started, in ns since the recorder was made.
    pub start_ns: u64,
    /// How long it took, in ns.
    pub duration_ns: u64,
}

/// What took time.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// A stage of the pipeline: `import`, `discover`, `enumerate`, `place` (with the check), `cut`,
    /// `prepare`.
    Stage {
        /// Its name.
        name: Cow<'static, str>,
    },
    /// A call into a policy.
    PolicyCall {
        /// The policy, by the name that the user gave.
        policy: String,
        /// The call: `load` (compiling, or reading from the cache, and configuring) or `place`.
        call: Cow<'static, str>,
        /// How it ended, in words.
        outcome: String,
    },
    /// What a device was asked for besides executing nodes: `make_tensor`, `create_kernel`,
    /// `maybe_rewrite_graph`, `step_allocator` and so on, by the names of its methods.
    Device {
        /// The device.
        device: DeviceId,
        /// The method.
        call: &'static str,
        /// The node that it was for, if it was for one.
        node: Option<NodeId>,
        /// What came of it, in words.
        detail: Box<str>,
    },
    /// One run of a plan, first step to last.
    Run {
        /// Number of the run in its executor.
        run: u64,
    },
    /// One execution of a node.
    Kernel {
        /// Number of the run.
        run: u64,
        /// The node.
        node: NodeId,
        /// Where.
        device: DeviceId,
        /// How long it could have started before it did, in ns: from the end of the last operation
        /// that it waited for, or the start of the run, to the start of the event. Not
        /// part of the event.
        queue_wait_ns: u64,
        /// Bytes of its outputs.
        output_bytes: u64,
    },
    /// A tensor, or control, on its way between two devices, or two memories of one.
    Transfer {
        /// Number of the run.
        run: u64,
        /// What is carried.
        payload: Payload,
        /// [`crate::plan::Transfer::edge`].
        edge: u32,
        /// The device that sent.
        source: DeviceId,
        /// The device that received.
        destination: DeviceId,
        /// By which way it went.
        way: TransferWay,
        /// Bytes moved.
        bytes: u64,
        /// How long its send could have started before it did, in ns: before the event starts.
        queue_wait_ns: u64,
        /// How long the send took, in ns, to the end of its copy, where that ends later than it
        /// starts; the event starts with it.
        send_ns: u64,
        /// How long its receive could have started before it did, in ns: after the send, and part
        /// of the event.
        receive_wait_ns: u64,
    },
    /// A fed tensor on its way to a device.
    Feed {
        /// Number of the run.
        run: u64,
        /// Which feed of the plan.
        feed: u32,
        /// The device that received.
        destination: DeviceId,
        /// Bytes moved.
        bytes: u64,
    },
    /// A fetched tensor on its way from a device.
    Fetch {
        /// Number of the run.
        run: u64,
        /// Which fetch of the plan.
        fetch: u32,
        /// The device that sent.
        source: DeviceId,
        /// Bytes moved.
        bytes: u64,
    },
}

/// By which way a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TransferWay {
    /// From memory that the host can read, to where it goes; also what control goes, which has no
    /// bytes.
    #[default]
    Host,
    /// Copied to the host by the device that sends, and from there to where it goes.
    Staged,
    /// Copied by the device that receives from the memory of the one that sends. The event shows
    /// how long the copy took to be started: the devices keep its order by themselves.
    Direct,
}

impl TransferWay {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Staged => "staged",
            Self::Direct => "direct",
        }
    }
}

impl fmt::Display for TransferWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Event {
    /// When it ended, in ns since the recorder was made.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }
}
