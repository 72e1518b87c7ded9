//! Events: what happened, and when.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::graph::{BodyId, NodeId, TensorId};
use crate::names::DeviceId;
use crate::plan::Payload;

/// Something that took time.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// What took time.
    pub kind: EventKind,
    /// The start, in ns since the recorder was made.
    pub start_ns: u64,
    /// The duration, in ns.
    pub duration_ns: u64,
}

/// What took time.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// A stage of the pipeline: `import`, `discover`, `enumerate`, `place` (with the check),
    /// `partition`, `prepare`.
    Stage {
        /// Its name.
        name: Cow<'static, str>,
    },
    /// A call into a policy.
    PolicyCall {
        /// The name of the policy, as the user wrote it.
        policy: String,
        /// The call: `load` (compiling, or reading from the cache, and configuring) or `place`.
        call: Cow<'static, str>,
        /// How it ended, as text.
        outcome: String,
    },
    /// A call of a device other than executing a node: `make_tensor`, `create_kernel`,
    /// `maybe_rewrite_graph`, `run_allocator` and so on, by the names of its methods.
    Device {
        /// The device.
        device: DeviceId,
        /// The method.
        call: &'static str,
        /// The node of the call, if it has one.
        node: Option<NodeId>,
        /// The result, as text.
        detail: Box<str>,
    },
    /// One run of a plan, first step to last.
    Run {
        /// Number of the run in its executor.
        run: u64,
    },
    /// One iteration of a loop, or with no iteration, the whole loop. Its kernels have events of
    /// their own.
    Loop {
        /// Number of the run.
        run: u64,
        /// The body of the loop.
        body: BodyId,
        /// Number of the iteration, from 0.
        iteration: Option<u64>,
    },
    /// One execution of a node, or of several that one kernel computes.
    Kernel {
        /// Number of the run.
        run: u64,
        /// The node; the last one, if the kernel computes several.
        node: NodeId,
        /// The nodes that the kernel computes, if there are several.
        fused: Option<Arc<FusedNodes>>,
        /// The device.
        device: DeviceId,
        /// Time for which it was ready and did not start, in ns: from the end of the last
        /// operation that it waited for, or the start of the run, to the start of the
        /// event. Not part of the event.
        queue_wait_ns: u64,
        /// Bytes of its outputs.
        output_bytes: u64,
    },
    /// A transfer of a tensor, or of a control dependency, between two devices or two memories of
    /// one device.
    Transfer {
        /// Number of the run.
        run: u64,
        /// The tensor or control dependency.
        payload: Payload,
        /// [`crate::plan::Transfer::edge`].
        edge: u32,
        /// The sending device.
        source: DeviceId,
        /// The receiving device.
        destination: DeviceId,
        /// The way that it took.
        way: TransferWay,
        /// Bytes moved.
        bytes: u64,
        /// Time for which its send was ready and did not start, in ns, before the event.
        queue_wait_ns: u64,
        /// Time of the send, in ns, to the end of its copy if the copy is asynchronous; the event
        /// starts with it.
        send_ns: u64,
        /// Time for which its receive was ready and did not start, in ns: after the send, and part
        /// of the event.
        receive_wait_ns: u64,
    },
    /// A copy of a feed to a device.
    Feed {
        /// Number of the run.
        run: u64,
        /// Index of the feed in the plan.
        feed: u32,
        /// The tensor that is fed.
        tensor: TensorId,
        /// The receiving device.
        destination: DeviceId,
        /// Bytes moved.
        bytes: u64,
    },
    /// A copy of a fetch from a device.
    Fetch {
        /// Number of the run.
        run: u64,
        /// Index of the fetch in the plan.
        fetch: u32,
        /// The tensor that is fetched.
        tensor: TensorId,
        /// The sending device.
        source: DeviceId,
        /// Bytes moved.
        bytes: u64,
    },
}

/// Several nodes that one kernel computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedNodes {
    /// The op of the kernel; empty if the device has prepared the nodes as a cluster.
    pub op: String,
    /// The nodes, in topological order.
    pub nodes: Vec<NodeId>,
}

/// The way of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TransferWay {
    /// Copied from memory that the host can read to the destination. Control dependencies, which
    /// have no bytes, also go this way.
    #[default]
    Host,
    /// Copied to the host by the sending device, and from there to the destination.
    Staged,
    /// Copied by the receiving device from the memory of the sending one. The event shows the time
    /// of starting the copy: the devices order it by themselves.
    Direct,
}

impl TransferWay {
    /// Its name in traces and reports.
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
    /// The end, in ns since the recorder was made.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }
}
