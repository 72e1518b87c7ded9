//! The transfers that were measured in earlier runs, by the numbers of the candidates.

use crate::candidates::Candidates;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::names::DeviceId;
use crate::trace::RunProfile;

/// One transfer of the measured runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MeasuredTransfer {
    pub(crate) producer: NodeId,
    /// [`NONE`] for a control dependency.
    pub(crate) tensor: u32,
    pub(crate) source: DeviceId,
    pub(crate) destination: DeviceId,
    pub(crate) ns: f64,
}

impl Candidates {
    /// Returns the transfers of a profile. Nodes and devices that the candidates do not have are
    /// left out.
    pub(crate) fn measured_transfers(
        &self,
        profile: &RunProfile,
    ) -> impl Iterator<Item = MeasuredTransfer> {
        profile.transfers.iter().filter_map(|times| {
            let set = self.device_set();
            let (name, slot) = match times.tensor.strip_prefix('^') {
                Some(name) => (name, None),
                None => {
                    let (name, slot) = times.tensor.rsplit_once(':')?;
                    (name, Some(slot.parse().ok()?))
                }
            };
            let producer = self.graph().find_node(name)?;
            let tensor = match slot {
                None => NONE,
                Some(slot) => {
                    let TensorId(tensor) = self.graph().output(producer, slot)?;
                    tensor
                }
            };
            Some(MeasuredTransfer {
                producer,
                tensor,
                source: set.find_by_name(&times.source)?,
                destination: set.find_by_name(&times.destination)?,
                ns: times.ns,
            })
        })
    }
}
