//! The pipeline as one value: a graph, its devices, its placement, and runs. The only code that
//! knows all stages in order.
//!
//! [`Session::builder`] takes a graph and options and runs the stages up to the placement.
//! [`Session::run`] partitions the graph for its feeds and fetches, prepares the plan and executes
//! it. A session keeps everything that runs share: recent plans, kernels and constants. A
//! [`Callable`] keeps one prepared plan.

mod build;
mod builder;
mod callable;
mod diagnose;
mod function;
mod given;
#[cfg(feature = "graphdef")]
mod graph_file;
mod group;
mod initialisation;
mod lifecycle;
mod names;
mod one_of;
mod outputs;
mod pins;
mod placed;
mod placement_log;
mod recent;
mod replace;
mod report;
#[cfg(feature = "graphdef")]
mod save;
mod state;

pub use builder::SessionBuilder;
pub use callable::Callable;
pub use callable::TensorInfo;
pub use function::FunctionHandle;
pub use function::InstantiateOptions;
pub use group::SessionGroup;
pub use names::find_node;
pub use names::find_tensor;
pub use outputs::Outputs;
#[cfg(feature = "cli")]
pub(crate) use pins::find_device;
pub use report::PlacedBy;
pub use report::SessionReport;
pub use report::StageTime;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::RwLock;

use smallvec::SmallVec;

use self::placed::Placed;
use crate::device::DeviceSet;
use crate::error::Error;
use crate::execute::MemoryPlan;
use crate::execute::RunOptions;
use crate::graph::Graph;
use crate::optimize::PassReport;
use crate::placement::Placement;
use crate::placement::PlacementIdentity;
use crate::plan::ExecutionPlan;
use crate::tensor::Tensor;
use crate::trace::Recorder;
use crate::trace::RunProfile;
use crate::trace::Trace;

/// A placed graph that can be run. Any number of threads may run it at the same time.
///
/// [`Self::extend`] and [`Self::replace_devices`] may be called while other threads run the graph:
/// a run ends on the graph and the devices that it began with. The accessors return what the
/// session has now; it remains as it is when the session gets another graph or other devices.
/// [`Self::placement`] returns a placement together with its graph and its devices.
///
#[cfg_attr(all(feature = "graphdef", feature = "kernels"), doc = "```")]
#[cfg_attr(not(all(feature = "graphdef", feature = "kernels")), doc = "```text")]
/// use placewright::device::DeviceOptions;
/// use placewright::policy::PolicyRequest;
/// use placewright::policy::ShippedPolicy;
/// use placewright::session::Session;
/// use placewright::tensor::Tensor;
///
/// // y = a + b, as TensorFlow froze it.
/// let bytes = include_bytes!("../../tests/models/tiny_add.pb");
/// // Two CPU devices, and no others, even on machines that have them.
/// let mut devices = DeviceOptions::default();
/// devices.device_count.extend([("CPU".to_owned(), 2), ("SYCL".to_owned(), 0)]);
/// let session = Session::builder()
///     .with_graph_def(&bytes[..])
///     .with_device_options(devices)
///     .with_policy(PolicyRequest::new(ShippedPolicy::find("round-robin")?))
///     .build()?;
/// let summary = session.placement().summary();
/// assert!(summary.devices.iter().all(|device| device.n_nodes > 0));
///
/// let a = Tensor::from_values([3], &[1f32, 2.0, 3.0])?;
/// let b = Tensor::from_values([3], &[10f32, 20.0, 30.0])?;
/// let fetched = session.run(&[("a", a), ("b", b)], &["y:0"])?;
/// assert_eq!(fetched[0].as_slice::<f32>()?, [11.0, 22.0, 33.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    /// Locked only to copy or replace the pointer.
    current: RwLock<Arc<Placed>>,
    /// Locked while a change is made, so that changes follow each other.
    changes: Mutex<()>,
}

impl Session {
    /// Returns a builder.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    fn new(placed: Placed) -> Self {
        Self {
            current: RwLock::new(Arc::new(placed)),
            changes: Mutex::new(()),
        }
    }

    /// Returns the current state. Nothing that may panic runs under the lock.
    fn placed(&self) -> Arc<Placed> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the graph.
    pub fn graph(&self) -> Arc<Graph> {
        Arc::clone(self.placed().graph())
    }

    /// Returns the graph as the builder was given it, with calls, branches and loops lowered: the
    /// same as [`Self::graph`] unless passes have changed it
    /// ([`SessionBuilder::with_passes`]). Feeds and fetches are named as in this graph.
    pub fn given_graph(&self) -> Arc<Graph> {
        Arc::clone(self.placed().given_graph())
    }

    /// Returns what each pass of the optimizer has changed
    /// ([`SessionBuilder::with_passes`]).
    pub fn passes(&self) -> Vec<PassReport> {
        let placed = self.placed();
        placed
            .given
            .as_ref()
            .map_or_else(Vec::new, |given| given.passes.clone())
    }

    /// Returns the devices.
    pub fn devices(&self) -> Arc<DeviceSet> {
        Arc::clone(self.placed().devices())
    }

    /// Returns the placement of the graph. It contains the graph and the devices that it was made
    /// for.
    pub fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.placed().placement)
    }

    /// Returns the physical descriptions of devices, a line `NAME -> DESCRIPTION` for each, after a
    /// line `Device mapping:`. CPU devices have no description; if no device has one, the result is
    /// `Device mapping: no known devices.`
    pub fn device_mapping(&self) -> String {
        placement_log::device_mapping(self.placed().devices())
    }

    /// Returns the device of every node, in node order: `NODE: (OP): DEVICE`.
    pub fn placement_lines(&self) -> impl Iterator<Item = String> + use<> {
        placement_log::lines(self.placement())
    }

    /// Returns the identity of the inputs of the placement, which distinguishes it from others. It
    /// contains the policy's part only if the requested policy has placed the whole graph. Each
    /// call computes it anew, in time linear in the graph.
    pub fn placement_identity(&self) -> PlacementIdentity {
        let placed = self.placed();
        let policy = placed.report.policy().and_then(|report| report.identity);
        PlacementIdentity::of(placed.placement.candidates()).with_policy(policy)
    }

    /// Returns how the session was built.
    pub fn report(&self) -> Arc<SessionReport> {
        Arc::clone(&self.placed().report)
    }

    /// Returns the recorded events, with names; empty without a recorder. If [`Self::extend`] or
    /// [`Self::replace_devices`] renumbers nodes or devices, earlier events are left out, since
    /// their names would be wrong; so are all events of runs and callables that continue with the
    /// old numbers. [`Recorder::events`](crate::trace::Recorder::events) returns the events that
    /// were recorded before.
    pub fn trace(&self) -> Trace {
        self.placed().trace()
    }

    /// Feeds tensors, runs the nodes that the fetches need, and returns the fetched tensors in the
    /// order of `fetches`.
    ///
    /// Tensors are named `node` (its output 0) or `node:slot`. Any tensor may be fed; its producer
    /// then runs only if another fetch needs it. One tensor may be fetched twice.
    ///
    /// An app that runs the same feeds and fetches often makes a [`Self::callable`], which resolves
    /// the names once.
    ///
    /// # Errors
    /// [`Error::UnknownNode`] or [`Error::NoSuchOutput`] for a name; [`Error::Partition`] for a
    /// placeholder that is needed and not fed; [`Error::Execute`] for a feed of the wrong type
    /// or shape, a node that cannot be executed on its device, or a kernel that fails. The session
    /// can still be used.
    pub fn run(&self, feeds: &[(&str, Tensor)], fetches: &[&str]) -> Result<Vec<Tensor>, Error> {
        self.run_with(feeds, fetches, &[], &RunOptions::default())
    }

    /// Runs the graph so often, after one run that is not measured, and returns what each node and
    /// transfer took. The runs wait for each kernel, so that those of accelerators are measured,
    /// too. After each of them the graph runs once more, or several times if that is short, without
    /// being recorded: the measured times are fitted to those runs. Other work on the machine
    /// distorts the result.
    /// [`SessionBuilder::with_profile`] places by it, and [`crate::cost::History::learn`] keeps it
    /// for other graphs.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn measure(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
        n_runs: u32,
    ) -> Result<RunProfile, Error> {
        let names: Vec<&str> = feeds.iter().map(|(name, _)| *name).collect();
        let (placed, request) = self.request(&names, fetches, targets)?;
        let prepared = placed.prepare(request)?;
        let tensors: Vec<Tensor> = feeds.iter().map(|(_, tensor)| tensor.clone()).collect();
        let options = RunOptions::default().with_recorder(Recorder::off());
        let run = || self.run_with(feeds, fetches, targets, &options);
        placed.measure(&prepared, &tensors, n_runs, run)
    }

    /// Like [`Self::run`], with options; also runs the nodes `targets`.
    ///
    /// # Errors
    /// As [`Self::run`], and if the run is cancelled or exceeds its time limit.
    pub fn run_with(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>, Error> {
        let names: SmallVec<[&str; 8]> = feeds.iter().map(|&(name, _)| name).collect();
        let (placed, request) = self.request(&names, fetches, targets)?;
        let prepared = placed.prepare(request)?;
        let tensors: Vec<Tensor> = feeds.iter().map(|(_, tensor)| tensor.clone()).collect();
        placed.run(&prepared, tensors, options)
    }

    /// Returns the plan of a run with these feeds, fetches and targets. Executes nothing, and
    /// creates no kernels.
    ///
    /// # Errors
    /// As [`Self::run`], as far as names and placeholders are concerned.
    pub fn plan(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<ExecutionPlan, Error> {
        let (placed, request) = self.request(feeds, fetches, targets)?;
        Ok(placed.placement.partition(&request)?)
    }

    /// Returns the memory plan of runs with these feeds, fetches and targets, for feeds of the
    /// shapes in the graph. Creates their kernels and constants.
    ///
    /// # Errors
    /// As [`Self::run`], as far as names, placeholders, kernels and constants are concerned.
    pub fn memory_plan(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<MemoryPlan, Error> {
        let (placed, request) = self.request(feeds, fetches, targets)?;
        let prepared = placed.prepare(request)?;
        Ok(placed.executor.memory_plan(&prepared))
    }
}
