//! A device's streams as apps see them, and the assignment of nodes to streams.

use std::any::Any;
use std::sync::Arc;
use std::sync::Weak;

use rustc_hash::FxHashMap;
use rustc_hash::FxHashSet;
use tracing::warn;

use super::group::Group;
use super::lane::Lane;
use super::open_gpu::device_error;
use crate::device::DeviceError;
use crate::device::EventManager;
use crate::device::Stream;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::trace::targets;

/// Assigns a stream to each node that is not in stream 0: the stream of an input, unless another
/// reader of that input already continues in it, otherwise the next one round-robin (TensorFlow 1.0
/// `gpu_stream_util::AssignStreams`). `nodes` are in an order in which they can be executed.
pub(super) fn assign_streams(
    graph: &Graph,
    nodes: &[NodeId],
    n_streams: usize,
) -> FxHashMap<NodeId, usize> {
    let mut streams: FxHashMap<NodeId, usize> = FxHashMap::default();
    if n_streams < 2 {
        return streams;
    }
    let mut is_continued: FxHashSet<NodeId> = FxHashSet::default();
    let mut next = 0;
    for &node in nodes {
        let mut makers = graph
            .data_inputs(node)
            .map(|tensor| graph.producer(tensor).0);
        let inherited =
            makers.find(|maker| streams.contains_key(maker) && !is_continued.contains(maker));
        let stream = match inherited {
            Some(maker) => {
                is_continued.insert(maker);
                streams[&maker]
            }
            None => {
                next = (next + 1) % n_streams;
                (next + n_streams - 1) % n_streams
            }
        };
        streams.insert(node, stream);
    }
    streams.retain(|_, stream| *stream > 0);
    streams
}

/// A stream as apps see it.
#[derive(Debug)]
pub(super) struct LaneStream {
    device: String,
    lane: Arc<Lane>,
}

impl LaneStream {
    pub(super) fn new(device: &str, lane: &Arc<Lane>) -> Self {
        Self {
            device: device.to_owned(),
            lane: Arc::clone(lane),
        }
    }
}

impl Stream for LaneStream {
    fn synchronize(&self) -> Result<(), DeviceError> {
        self.lane
            .wait_for_all()
            .map_err(|error| device_error(&self.device, None, "waiting for a stream", &error))
    }
}

/// Calls back when streams have reached a point.
#[derive(Debug)]
pub(super) struct LaneEvents(Weak<Group>);

impl LaneEvents {
    pub(super) fn new(group: &Arc<Group>) -> Self {
        Self(Arc::downgrade(group))
    }
}

impl EventManager for LaneEvents {
    fn then_execute(
        &self,
        stream: &Arc<dyn Stream>,
        callback: Box<dyn FnOnce() + Send>,
    ) -> Result<(), DeviceError> {
        let any: &dyn Any = &**stream;
        let lane = any.downcast_ref::<LaneStream>().map(|own| &own.lane);
        let (Some(lane), Some(group)) = (lane, self.0.upgrade()) else {
            return Err(DeviceError::InvalidArgument(format!(
                "{stream:?} is not a stream of this device"
            )));
        };
        let when_done = Box::new(move |ended: Result<(), super::driver::DriverError>| {
            if let Err(error) = ended {
                warn!(target: targets::DEVICE, %error, "a callback behind a stream's work is not called");
                return;
            }
            callback();
        });
        group.watcher.then(lane, lane.given(), when_done);
        Ok(())
    }
}
