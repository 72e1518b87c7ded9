//! The lines that TensorFlow logs with `log_device_placement`.

use std::sync::Arc;

use crate::device::DeviceManager;
use crate::device::DeviceSet;
use crate::placement::Placement;

/// Lists the devices with a physical description, or says that there are none.
pub(super) fn device_mapping(devices: &DeviceSet) -> String {
    let devices = devices.iter().map(|(_, device)| device.clone());
    let mapping = DeviceManager::new(devices).mapping_text();
    if mapping.is_empty() {
        "Device mapping: no known devices.".to_owned()
    } else {
        format!("Device mapping:\n{}", mapping.trim_end())
    }
}

/// Returns one line per node, in node order.
pub(super) fn lines(placement: Arc<Placement>) -> impl Iterator<Item = String> + use<> {
    let nodes = placement.graph().nodes();
    nodes.map(move |node| {
        let graph = placement.graph();
        format!(
            "{}: ({}): {}",
            graph.node_name(node),
            graph.op(node),
            placement.candidates().device_name(placement.device(node).0)
        )
    })
}
