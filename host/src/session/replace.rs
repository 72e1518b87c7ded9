//! Replaces the devices of a session.

use std::sync::Arc;

use super::Session;
use super::builder::Before;
use super::pins;
use super::placed::Placed;
use super::state;
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
    /// same devices, and stateful nodes never move away from a device that remains. Variables and
    /// tables of another device move with their nodes, as long as the device can still be read
    /// ([`MovedNode::moved_state_bytes`](crate::placement::MovedNode::moved_state_bytes)); the old
    /// device keeps a copy, and the trace has an event `move_state` for each. All other state is
    /// lost. What the graph itself initialises ([`crate::graph::Graph::init`]: variables of a
    /// SavedModel have the checkpoint's values) is initialised again before the next run, where it
    /// was lost and nowhere else. If devices are renumbered, [`Self::trace`] leaves out earlier
    /// events.
    ///
    /// Other threads may run the session meanwhile: runs that began before this returns may still
    /// use the old devices, and each ends on the devices that it began with. So does every call of
    /// a [`Callable`](super::Callable) that was made before; if the app's manager has removed a
    /// device, such a call fails with
    /// [`ExecuteError::DeviceRemoved`](crate::execute::ExecuteError::DeviceRemoved). What such runs
    /// assign to a variable that moves may be lost. Calls of this and of [`Self::extend`] wait for
    /// each other.
    ///
    /// Priorities of device types come from the new set ([`DeviceSet::with_type_priorities_of`]).
    ///
    /// # Errors
    /// [`Error::CannotReplace`] if the session is closed, if the app has made its candidates, or if
    /// a pin names a device that is gone; [`Error::Candidates`] if a node requests such a
    /// device; [`Error::Keep`] if a node can neither stay nor move; the errors of
    /// [`super::SessionBuilder::build`]. The session remains unchanged.
    pub fn replace_devices(
        &self,
        devices: impl Into<Arc<DeviceSet>>,
    ) -> Result<Replacement, Error> {
        let devices = devices.into();
        let placed = self.change(Error::CannotReplace, |placed| placed.on_devices(devices))?;
        let replacement = placed.report.replacement.clone();
        Ok(replacement.expect("a placement was kept"))
    }
}

impl Placed {
    /// Builds the state that has these devices.
    fn on_devices(self: &Arc<Self>, devices: Arc<DeviceSet>) -> Result<Self, Error> {
        if self.recipe.placement.candidates.is_some() {
            return Err(Error::CannotReplace(
                "the app has made its candidates; build another session".into(),
            ));
        }
        let mut builder = self.recipe.clone();
        builder = builder.with_graph(Arc::clone(self.given_graph()));
        builder.policy.use_policy();
        for (node, device) in &builder.placement.pins {
            pins::find_device(&devices, device).map_err(|problem| {
                let problem = format!("node `{node}` is pinned to `{device}`: {problem}");
                Error::CannotReplace(problem.into())
            })?;
        }
        if let Some(options) = &mut builder.placement.options {
            self.rename_devices(options, &devices)?;
        }
        builder.placement.detach_pins(self.graph());
        let mut replaced = builder
            .with_devices(devices)
            .keeping(Before::Placement(Arc::clone(&self.placement)))
            .following(self)
            .build_placed()?;
        let lost = state::follow(self, &mut replaced);
        replaced.initialisation = self.initialisation_after(&lost);
        // Its graph is the same.
        replaced.recipe.graph.copy_graph_def(&self.recipe.graph);
        Ok(replaced)
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
