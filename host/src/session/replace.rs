//! Replaces the devices of a session.

use std::sync::Arc;

use super::Session;
use super::pins;
use super::reuse::Before;
use crate::candidates::PlacementOptions;
use crate::device::DeviceSet;
use crate::error::Error;
use crate::names::DeviceId;
use crate::placement::Replacement;

impl Session {
    /// Replaces the devices, after a device was lost or added or its memory has changed. Devices
    /// are matched by name. Only nodes that have to move do so ([`crate::placement::Kept`]);
    /// the session's policy places them, or `priority` if the session has none. Pins and the
    /// default local device follow their devices by name.
    ///
    /// The state of kernels and resources is on the devices. It remains if `devices` contains the
    /// same devices, and stateful nodes never move away from a device that remains. The state of a
    /// lost device is lost; [`crate::placement::MovedNode::is_stateful`] marks the nodes that it
    /// belonged to. If devices are renumbered, [`Self::trace`] leaves out earlier events.
    ///
    /// Priorities of device types come from the new set ([`DeviceSet::with_type_priorities_of`]).
    ///
    /// # Errors
    /// [`Error::CannotReplace`] if the session is closed, if the app has made its candidates, or if
    /// a pin names a device that is gone; [`Error::Candidates`] if a node requests such a
    /// device; [`Error::Keep`] if a node can neither stay nor move; the errors of
    /// [`super::SessionBuilder::build`]. The session remains unchanged.
    pub fn replace_devices(
        &mut self,
        devices: impl Into<Arc<DeviceSet>>,
    ) -> Result<&Replacement, Error> {
        let devices = devices.into();
        if self.is_closed() {
            return Err(Error::CannotReplace(
                "it is closed; build another one".into(),
            ));
        }
        if self.recipe.has_own_candidates() {
            return Err(Error::CannotReplace(
                "the app has made its candidates; build another session".into(),
            ));
        }
        let mut builder = self.recipe.clone().with_graph(Arc::clone(self.graph()));
        builder.use_policy();
        for (node, device) in &builder.pins {
            pins::find_device(&devices, device).map_err(|problem| {
                let problem = format!("node `{node}` is pinned to `{device}`: {problem}");
                Error::CannotReplace(problem.into())
            })?;
        }
        if let Some(options) = builder.placement_options_mut() {
            self.rename_devices(options, &devices)?;
        }
        let has_renumbered = self.devices().iter().any(|(id, device)| {
            let new = devices.get(id);
            new.is_none_or(|new| new.attributes().name != device.attributes().name)
        });
        let started_ns = self.recorder.now_ns();
        let mut replaced = builder
            .with_devices(devices)
            .keeping(Before::Placement(self.placement.clone()))
            .build()?;
        replaced.trace_after_ns = if has_renumbered {
            Some(started_ns)
        } else {
            self.trace_after_ns
        };
        // Earlier stages belong to the same session, and so does the GraphDef of its graph.
        replaced
            .report
            .stages
            .splice(0..0, std::mem::take(&mut self.report.stages));
        replaced.recipe.take_graph_def(&mut self.recipe);
        *self = replaced;
        let replacement = self.report.replacement.as_ref();
        Ok(replacement.expect("a placement was kept"))
    }

    /// Pins hold devices by their numbers, which may be others now.
    fn rename_devices(
        &self,
        options: &mut PlacementOptions,
        devices: &DeviceSet,
    ) -> Result<(), Error> {
        let renamed = |device: DeviceId, what: &dyn Fn() -> String| {
            let name = self.placement.candidates().device_name(device.0);
            devices.find_by_name(name).ok_or_else(|| {
                let problem = format!("{} `{name}`, which is not among the new devices", what());
                Error::CannotReplace(problem.into())
            })
        };
        for (node, device) in &mut options.pins {
            let node = self.placement.graph().node_name(*node);
            *device = renamed(*device, &|| format!("node `{node}` is pinned to"))?;
        }
        if let Some(device) = &mut options.default_local_device {
            *device = renamed(*device, &|| "the default local device is".to_owned())?;
        }
        Ok(())
    }
}
