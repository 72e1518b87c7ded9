//! The inputs of placement, which most files of this module read.

use crate::candidates::options::OpArguments;
use crate::candidates::types::TypeTable;
use crate::device::DeviceSet;
use crate::device::KernelRegistry;
use crate::graph::Graph;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// The inputs of placement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) graph: &'a Graph,
    pub(super) devices: &'a DeviceSet,
    pub(super) kernels: &'a KernelRegistry,
    pub(super) types: &'a TypeTable,
    /// Arguments of ops.
    pub(super) arguments: Option<&'a dyn OpArguments>,
    /// Parsed requests, by requested id.
    pub(super) requests: &'a [DeviceName],
    /// Whether the graph is the body of a function.
    pub(super) is_body: bool,
}

impl<'a> Facts<'a> {
    /// Returns the name of a device.
    pub(super) fn device_name(&self, device: u32) -> &'a DeviceName {
        self.devices
            .get(DeviceId(device))
            .expect("ids come from this set")
            .name()
    }

    /// Returns the full names of all devices, in set order.
    pub(super) fn device_names(&self) -> Vec<String> {
        let devices = self.devices.iter();
        let names = devices.map(|(_, device)| device.attributes().name.clone());
        names.collect()
    }
}
