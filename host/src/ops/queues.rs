//! Queues and staging areas.

use super::definition::OpDef;
use super::definition::op;
use super::rules::scalars;
use super::rules::unknown;
use super::work::free;

const QUEUE: &str = "capacity: int = -1; container: string = ''; shared_name: string = ''";
const AREA: &str = "capacity: int >= 0 = 0; memory_limit: int >= 0 = 0";
const SHARING: &str = "container: string = ''; shared_name: string = ''";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let types = "component_types: list(type) >= 1";
    let shapes = "shapes: list(shape) >= 0 = []";
    let queue = |name: &str, attrs: String| {
        op(name, "", "handle: resource", &format!("{attrs}; {QUEUE}")).with_shape(scalars)
    };
    let shuffled = "min_after_dequeue: int = 0; seed: int = 0; seed2: int = 0";
    let mut ops = vec![
        queue("FIFOQueueV2", format!("{types}; {shapes}")),
        queue("PaddingFIFOQueueV2", format!("{types}; {shapes}")),
        queue(
            "RandomShuffleQueueV2",
            format!("{types}; {shapes}; {shuffled}"),
        ),
        queue(
            "PriorityQueueV2",
            "component_types: list(type) >= 0 = []; shapes: list(shape) >= 0".to_owned(),
        ),
        op(
            "QueueCloseV2",
            "handle: resource",
            "",
            "cancel_pending_enqueues: bool = false",
        ),
        op("QueueSizeV2", "handle: resource", "size: int32", "").with_shape(scalars),
        op("QueueIsClosedV2", "handle: resource", "is_closed: bool", "").with_shape(scalars),
    ];
    for name in ["QueueEnqueueV2", "QueueEnqueueManyV2"] {
        ops.push(op(
            name,
            "handle: resource, components: Tcomponents",
            "",
            "Tcomponents: list(type) >= 1; timeout_ms: int = -1",
        ));
    }
    for (name, inputs) in [
        ("QueueDequeueV2", "handle: resource"),
        ("QueueDequeueManyV2", "handle: resource, n: int32"),
        ("QueueDequeueUpToV2", "handle: resource, n: int32"),
    ] {
        let attrs = format!("{types}; timeout_ms: int = -1");
        ops.push(op(name, inputs, "components: component_types", &attrs).with_shape(unknown));
    }
    let dtypes = "dtypes: list(type) >= 1";
    let staging = |name: &str, inputs: &str, outputs: &str, dtypes: &str| {
        let attrs = format!("{AREA}; {dtypes}; {SHARING}");
        op(name, inputs, outputs, &attrs).with_shape(unknown)
    };
    ops.extend([
        staging("Stage", "values: dtypes", "", dtypes),
        staging("Unstage", "", "values: dtypes", dtypes),
        staging("StagePeek", "index: int32", "values: dtypes", dtypes),
        staging("StageSize", "", "size: int32", "dtypes: list(type)").with_shape(scalars),
        staging("StageClear", "", "", "dtypes: list(type)"),
    ]);
    let stateful = ops.into_iter().map(OpDef::stateful);
    stateful.map(|op| op.with_work(free)).collect()
}
