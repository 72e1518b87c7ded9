//! The options of a session. The order in which they are set does not matter.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::group::SessionGroup;
use super::one_of::OneOf;
use super::placed::Placed;
use super::reuse::Before;
use super::reuse::Reused;
use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
use crate::candidates::Proposal;
use crate::cost::Calibrations;
use crate::device::DeviceManager;
use crate::device::DeviceOptions;
use crate::device::DeviceSet;
use crate::device::DiscoveryOptions;
use crate::device::FactoryRegistry;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::device::WorkerCache;
use crate::execute::ExecutorOptions;
use crate::execute::InterOpPool;
use crate::graph::Graph;
#[cfg(feature = "graphdef")]
use crate::import::ImportOptions;
use crate::names::DeviceId;
use crate::ops::OpRegistry;
use crate::policy::PlacementCache;
use crate::policy::PolicyEngine;
use crate::policy::PolicyRequest;
use crate::registry::Registry;
use crate::trace::Recorder;

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
    pub(super) graph: OneOf<GraphSource>,
    pub(super) registry: Option<Registry>,
    pub(super) ops: Option<Arc<OpRegistry>>,
    #[cfg(feature = "graphdef")]
    pub(super) import_options: ImportOptions,
    pub(super) factories: Option<FactoryRegistry>,
    pub(super) devices: Option<Arc<DeviceSet>>,
    pub(super) device_options: DeviceOptions,
    /// Takes precedence over the device options, as do the next two.
    pub(super) device_count: BTreeMap<String, u32>,
    pub(super) device_filters: Option<Vec<String>>,
    pub(super) intra_op_parallelism_threads: Option<usize>,
    pub(super) device_manager: Option<Arc<DeviceManager>>,
    /// The manager that owns the devices of a session that is built again.
    pub(super) manager_of_devices: Option<Arc<DeviceManager>>,
    pub(super) workers: Option<(Arc<dyn WorkerCache>, DiscoveryOptions)>,
    pub(super) calibrations: Option<Calibrations>,
    pub(super) isolate_session_state: bool,
    pub(super) group: Option<SessionGroup>,
    pub(super) kernels: Option<Arc<KernelRegistry>>,
    pub(super) more_kernels: Vec<KernelDef>,
    pub(super) placement_options: Option<PlacementOptions>,
    pub(super) allow_soft_placement: Option<bool>,
    /// Nodes and devices by name.
    pub(super) pins: Vec<(String, String)>,
    pub(super) log_device_placement: bool,
    pub(super) candidates: Option<Candidates>,
    pub(super) policy: Option<PolicyRequest>,
    pub(super) assignment: OneOf<Assignment>,
    pub(super) policy_engine: Option<PolicyEngine>,
    pub(super) placement_cache: Option<PlacementCache>,
    /// An earlier placement, which the new one keeps as far as possible.
    pub(super) before: Option<Before>,
    pub(super) executor_options: ExecutorOptions,
    /// The state that the new one follows, if an existing session is built again: it keeps its
    /// handle and its cancel token.
    pub(super) previous: Option<Arc<Placed>>,
    /// Nodes that keep the devices that they had before the graph grew, by name.
    pub(super) kept: Vec<(String, DeviceId)>,
    /// Pins of the placement options, by name, until they are converted to ids of the new graph.
    pub(super) moved_pins: Option<Vec<(String, DeviceId)>>,
    /// Assigned devices of the placement options, likewise.
    pub(super) moved_assigned_devices: Vec<(String, String)>,
    /// The GraphDef that the graph of the session came from.
    #[cfg(feature = "graphdef")]
    pub(super) graph_def: Option<bytes::Bytes>,
}

#[derive(Debug, Clone)]
pub(super) enum GraphSource {
    Graph(Arc<Graph>),
    #[cfg(feature = "graphdef")]
    Bytes(bytes::Bytes),
    #[cfg(feature = "graphdef")]
    File(std::path::PathBuf),
}

/// A complete assignment of devices, in place of a policy's.
#[derive(Debug, Clone)]
pub(super) enum Assignment {
    Saved(Reused),
    Proposal(Proposal),
}

impl SessionBuilder {
    /// Sets the graph, built with [`crate::builder::GraphBuilder`], assembled with
    /// [`crate::graph::GraphAssembler`], or imported before.
    #[must_use]
    pub fn with_graph(mut self, graph: impl Into<Arc<Graph>>) -> Self {
        self.graph
            .set("with_graph", GraphSource::Graph(graph.into()));
        self
    }

    /// Sets the graph, as the bytes of a GraphDef.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_graph_def(mut self, bytes: impl Into<bytes::Bytes>) -> Self {
        self.graph
            .set("with_graph_def", GraphSource::Bytes(bytes.into()));
        self
    }

    /// Sets the graph, as a file that holds a GraphDef.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_graph_def_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.graph
            .set("with_graph_def_file", GraphSource::File(path.into()));
        self
    }

    /// Sets how a GraphDef is read.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_import_options(mut self, options: ImportOptions) -> Self {
        self.import_options = options;
        self
    }

    /// Sets the known ops, instead of those of [`Self::with_registry`] or [`OpRegistry::default`].
    #[must_use]
    pub fn with_ops(mut self, ops: impl Into<Arc<OpRegistry>>) -> Self {
        self.ops = Some(ops.into());
        self
    }

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

    /// Sets the factories that make devices and bring their kernels, instead of those of
    /// [`Self::with_registry`]. The default is [`crate::backend::default_factories`], without the
    /// types that `TF_ENABLED_DEVICE_TYPES` disables. Other factories ignore the variable, unless
    /// the app calls [`FactoryRegistry::with_enabled_types_from_env`].
    #[must_use]
    pub fn with_factories(mut self, factories: FactoryRegistry) -> Self {
        self.factories = Some(factories);
        self
    }

    /// Sets the options of device creation. The environment supplies those that are not set
    /// ([`DeviceOptions::completed_from_env`]).
    #[must_use]
    pub fn with_device_options(mut self, options: DeviceOptions) -> Self {
        self.device_options = options;
        self
    }

    /// Sets the number of devices of one type, such as `CPU`; other types keep theirs
    /// ([`DeviceOptions::device_count`]). The number takes precedence over
    /// [`Self::with_device_options`].
    #[must_use]
    pub fn with_device_count(mut self, device_type: impl Into<String>, count: u32) -> Self {
        self.device_count.insert(device_type.into(), count);
        self
    }

    /// Sets which devices may be used ([`DeviceOptions::device_filters`]). They take precedence
    /// over [`Self::with_device_options`].
    #[must_use]
    pub fn with_device_filters<S: Into<String>>(
        mut self,
        filters: impl IntoIterator<Item = S>,
    ) -> Self {
        self.device_filters = Some(filters.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the threads for loops inside one kernel, per pool of the devices; 0 means one per core
    /// ([`DeviceOptions::intra_op_parallelism_threads`]). The number takes precedence over
    /// [`Self::with_device_options`].
    #[must_use]
    pub fn with_intra_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.intra_op_parallelism_threads = Some(n_threads);
        self
    }

    /// Sets the devices, instead of those that factories make. Other sessions may share them. The
    /// kernels still come from the factories and [`Self::with_kernels`]. Combining it with
    /// [`Self::with_device_manager`] is an error of [`Self::build`].
    #[must_use]
    pub fn with_devices(mut self, devices: impl Into<Arc<DeviceSet>>) -> Self {
        self.devices = Some(devices.into());
        self
    }

    /// Sets the devices to those that this manager has now, instead of those that factories make.
    /// If the manager later removes a device, the next run that uses it fails with
    /// [`ExecuteError::DeviceRemoved`](crate::execute::ExecuteError::DeviceRemoved). Combining it
    /// with [`Self::with_devices`] is an error of [`Self::build`].
    #[must_use]
    pub fn with_device_manager(mut self, manager: impl Into<Arc<DeviceManager>>) -> Self {
        self.device_manager = Some(manager.into());
        self
    }

    /// Adds the devices of other processes. Their ids come first. Graphs can be placed on them, but
    /// a run that uses one fails today. The environment supplies the options that are not set
    /// ([`DiscoveryOptions::completed_from_env`]).
    #[must_use]
    pub fn with_workers(mut self, cache: Arc<dyn WorkerCache>, options: DiscoveryOptions) -> Self {
        self.workers = Some((cache, options));
        self
    }

    /// Sets whether the session has its own variables, tables and stateful kernels on devices that
    /// it shares with other sessions (TensorFlow `isolate_session_state`); false by default.
    #[must_use]
    pub fn with_isolated_session_state(mut self, is_isolated: bool) -> Self {
        self.isolate_session_state = is_isolated;
        self
    }

    /// Sets the group of sessions that are reset together with this one.
    #[must_use]
    pub fn with_group(mut self, group: &SessionGroup) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// Sets the kernels, instead of those that come with the factories.
    #[must_use]
    pub fn with_kernel_registry(mut self, kernels: KernelRegistry) -> Self {
        self.kernels = Some(Arc::new(kernels));
        self
    }

    /// Adds the app's own kernels to the others.
    #[must_use]
    pub fn with_kernels(mut self, kernels: impl IntoIterator<Item = KernelDef>) -> Self {
        self.more_kernels.extend(kernels);
        self
    }

    /// Sets device scope, soft placement, pins, assigned devices, cost model and the number of
    /// concurrent runs. If [`Self::with_concurrent_runs`] sets that number as well, the larger one
    /// applies.
    #[must_use]
    pub fn with_placement_options(mut self, options: PlacementOptions) -> Self {
        self.placement_options = Some(options);
        self
    }

    /// Sets whether a node may be placed elsewhere if the device that it requests cannot run it
    /// ([`PlacementOptions::allow_soft_placement`], over which this takes precedence); false by
    /// default.
    #[must_use]
    pub fn with_soft_placement(mut self, allow: bool) -> Self {
        self.allow_soft_placement = Some(allow);
        self
    }

    /// Adds a pin: the node of this name runs on the device of this name, whatever the node
    /// requests. The device name may be full (`/job:localhost/replica:0/task:0/device:CPU:1`) or
    /// partial (`/device:CPU:1`, `CPU:1`), but must match exactly one device. Pins are resolved
    /// when the session is built, and again when it gets a larger graph or other devices.
    ///
    /// [`Self::build`] fails with [`Error::Pin`](crate::Error::Pin) if the graph has no such node,
    /// or if the name does not match exactly one device; and with
    /// [`CandidatesError::PinNotLegal`](crate::candidates::CandidatesError::PinNotLegal) if the
    /// device cannot run the node, or if the node is pinned to another device as well.
    /// [`PlacementOptions::with_pin`] takes ids instead of names.
    #[must_use]
    pub fn with_pin(mut self, node: impl Into<String>, device: impl Into<String>) -> Self {
        self.pins.push((node.into(), device.into()));
        self
    }

    /// Sets whether [`Self::build`] logs the devices and the device of every node, as `tracing`
    /// events of level INFO and target `placewright::session`; false by default.
    /// [`Session::device_mapping`](super::Session::device_mapping) and
    /// [`Session::placement_lines`](super::Session::placement_lines) return the same lines.
    #[must_use]
    pub fn with_log_device_placement(mut self, is_wanted: bool) -> Self {
        self.log_device_placement = is_wanted;
        self
    }

    /// Sets candidates that the app built with [`crate::candidates::CandidatesBuilder`]. They
    /// contain the graph and the devices, and no kernel is asked which device can run what.
    /// Another graph, other devices or placement options in addition are an error of
    /// [`Self::build`].
    #[must_use]
    pub fn with_candidates(mut self, candidates: Candidates) -> Self {
        self.candidates = Some(candidates);
        self
    }

    /// Sets the policy that places the graph, instead of `priority`. If the policy fails, other
    /// policies place the graph ([`crate::policy::place_with_ladder`]), unless the request is
    /// strict. [`SessionReport::policy`](super::SessionReport::policy) names the policy that
    /// answered, and those that failed.
    ///
    /// If [`Self::with_saved_placement`], [`Self::with_unverified_placement`] or
    /// [`Self::with_proposal`] places the graph, the policy is asked only when
    /// [`Session::replace_devices`](super::Session::replace_devices) places it again.
    #[must_use]
    pub fn with_policy(mut self, request: PolicyRequest) -> Self {
        self.policy = Some(request);
        self
    }

    /// Sets the sandbox that runs the policy, with its limits and its cache; sessions may share
    /// one. By default, a policy has the limits [`crate::policy::PolicyLimits::default`] and is
    /// compiled anew for each session; [`PolicyEngine::with_cache`] keeps compiled policies.
    #[must_use]
    pub fn with_policy_engine(mut self, engine: PolicyEngine) -> Self {
        self.policy_engine = Some(engine);
        self
    }

    /// Sets the app's own assignment, instead of a policy's. It is checked like a policy's.
    #[must_use]
    pub fn with_proposal(mut self, proposal: Proposal) -> Self {
        self.assignment
            .set("with_proposal", Assignment::Proposal(proposal));
        self
    }

    /// Sets how many ops of one run may execute at the same time; 0 means one per core
    /// ([`ExecutorOptions::inter_op_parallelism_threads`]).
    #[must_use]
    pub fn with_inter_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.executor_options.inter_op_parallelism_threads = n_threads;
        self
    }

    /// Sets the threads that execute runs, shared with other sessions, instead of the session's
    /// own ([`ExecutorOptions::inter_op_pool`]).
    #[must_use]
    pub fn with_inter_op_pool(mut self, pool: InterOpPool) -> Self {
        self.executor_options.inter_op_pool = Some(pool);
        self
    }

    /// Sets whether the session has its own threads in spite of [`Self::with_inter_op_pool`]
    /// ([`ExecutorOptions::use_per_session_threads`]); false by default.
    #[must_use]
    pub fn with_per_session_threads(mut self, is_wanted: bool) -> Self {
        self.executor_options.use_per_session_threads = is_wanted;
        self
    }

    /// Sets the pools that runs choose from with
    /// [`crate::execute::RunOptions::inter_op_thread_pool`]
    /// ([`ExecutorOptions::session_inter_op_pools`]).
    #[must_use]
    pub fn with_session_inter_op_pools(
        mut self,
        pools: impl IntoIterator<Item = InterOpPool>,
    ) -> Self {
        self.executor_options.session_inter_op_pools = pools.into_iter().collect();
        self
    }

    /// Sets for how many simultaneous runs of the whole graph a placement must have memory; 1 by
    /// default. If [`PlacementOptions::n_concurrent_runs`] is larger, it applies instead.
    #[must_use]
    pub fn with_concurrent_runs(mut self, n_runs: usize) -> Self {
        self.executor_options.n_concurrent_runs = n_runs;
        self
    }

    /// Sets whether idle threads may spin between the kernels of a run and between runs
    /// ([`ExecutorOptions::allow_spinning`]); true by default.
    #[must_use]
    pub fn with_spinning(mut self, is_allowed: bool) -> Self {
        self.executor_options.allow_spinning = is_allowed;
        self
    }

    /// Sets the recorder of stages, policy calls, kernels and transfers.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.executor_options.recorder = recorder;
        self
    }
}
