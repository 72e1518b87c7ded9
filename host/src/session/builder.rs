//! The options of a session, in four groups beside its graph: devices, placement, policy and
//! execution. The order in which they are set does not matter.

mod devices;
mod execution;
mod graph;
mod placement;
mod policy;

use std::sync::Arc;

use self::devices::DeviceSetup;
use self::graph::GraphSetup;
use self::placement::PlacementSetup;
pub(super) use self::policy::Before;
use self::policy::PolicySetup;
use super::group::SessionGroup;
use super::placed::Placed;
use crate::execute::ExecutorOptions;
use crate::registry::Registry;

/// Assembles a [`Session`](super::Session). A graph is required; everything else has a default.
///
/// Methods may be called in any order. A method that is called twice replaces its earlier value,
/// unless it says that it adds one. Two methods that set the same thing, such as
/// [`Self::with_graph`] and `with_graph_def`, are an error of [`Self::build`].
///
/// By default, a session has one CPU device and every OpenCL and CUDA device of the machine.
/// [`Self::with_device_count`] with `"SYCL"` or `"GPU"` and 0 leaves the latter two out.
///
/// The options of device creation ([`Self::with_device_options`], [`Self::with_device_count`],
/// [`Self::with_device_filters`], [`Self::with_intra_op_parallelism_threads`]) have no effect on
/// devices that the app passes itself ([`Self::with_devices`], [`Self::with_device_manager`],
/// [`Self::with_candidates`]).
#[derive(Debug, Clone, Default)]
pub struct SessionBuilder {
    pub(super) graph: GraphSetup,
    pub(super) registry: Option<Registry>,
    pub(super) devices: DeviceSetup,
    pub(super) placement: PlacementSetup,
    pub(super) policy: PolicySetup,
    pub(super) execution: ExecutorOptions,
    pub(super) group: Option<SessionGroup>,
    /// The state that the new one follows, if an existing session is built again: it keeps its
    /// handle and its cancel token.
    pub(super) previous: Option<Arc<Placed>>,
}

impl SessionBuilder {
    /// Sets the known ops, the device factories and the kernels together: an app's extension of
    /// [`Registry::default`]. [`Self::with_ops`] and [`Self::with_factories`] take precedence over
    /// the registry's parts.
    ///
    /// The session then ignores `TF_ENABLED_DEVICE_TYPES`, unless the app calls
    /// [`Registry::with_enabled_types_from_env`].
    #[must_use]
    pub fn with_registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Sets the group of sessions that are reset together with this one.
    #[must_use]
    pub fn with_group(mut self, group: &SessionGroup) -> Self {
        self.group = Some(group.clone());
        self
    }
}
