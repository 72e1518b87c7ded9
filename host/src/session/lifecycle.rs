//! Extends, resets and closes sessions.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::PoisonError;

#[cfg(feature = "graphdef")]
use bytes::Bytes;

use super::Session;
use super::builder::SessionBuilder;
use super::placed::Placed;
use super::placed::TraceStart;
use crate::device::DeviceManager;
use crate::error::Error;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NodeId;
#[cfg(feature = "graphdef")]
use crate::import;
use crate::names::DeviceId;
#[cfg(feature = "graphdef")]
use crate::ops::PLACEHOLDER_SHAPES_MEAN_WHAT_THEY_SAY;
#[cfg(feature = "graphdef")]
use crate::ops::has_legacy_placeholders;
use crate::tensor::DType;
use crate::tensor::PartialShape;

impl Session {
    /// Replaces the graph by a larger one (TensorFlow `Session::Extend`): `graph` is the session's
    /// graph with more nodes. Everything is placed again, but stateful nodes keep their devices and
    /// their state. Pins follow their nodes by name. If nodes are renumbered, [`Self::trace`]
    /// leaves out earlier events.
    ///
    /// Other threads may run the session meanwhile: runs that began before this returns may still
    /// use the old graph, and each ends on the graph that it began with. So does every call of a
    /// [`Callable`](super::Callable) that was made before. Calls of this and of
    /// [`Self::replace_devices`] wait for each other.
    ///
    /// # Errors
    /// [`Error::NotAnExtension`], naming the first node that is missing or different;
    /// [`Error::CannotExtend`] if the session is closed, or if the graph was not placed by a
    /// policy; the errors of [`SessionBuilder::build`]. The session remains unchanged.
    pub fn extend(&self, graph: impl Into<Arc<Graph>>) -> Result<(), Error> {
        let graph = graph.into();
        self.change(Error::CannotExtend, |placed| {
            let graph = placed.recipe.lowered(graph)?;
            placed.check_extension(&graph)?;
            placed.extended(placed.recipe.clone().with_graph(graph))
        })?;
        Ok(())
    }

    /// Adds nodes to a session that was built from a GraphDef: `bytes` is a GraphDef of the new
    /// nodes, whose inputs may be nodes of the session's graph.
    ///
    /// # Errors
    /// [`Error::CannotExtend`] if the session was not built from a GraphDef or was extended by
    /// [`Self::extend`], or if the producer versions of the two GraphDefs disagree about the shapes
    /// of placeholders; [`Error::Import`], also for a node whose name is in use; the errors of
    /// [`Self::extend`].
    #[cfg(feature = "graphdef")]
    pub fn extend_graph_def(&self, bytes: &[u8]) -> Result<(), Error> {
        self.change(Error::CannotExtend, |placed| {
            let Some(old) = placed.recipe.graph.graph_def.as_ref() else {
                return Err(Error::CannotExtend(
                    "its graph did not come as a GraphDef; use `extend` with the larger graph"
                        .into(),
                ));
            };
            check_producers(old, bytes)?;
            // Protobuf merges concatenated messages: the result has the nodes of both.
            let both = [&old[..], bytes].concat();
            placed.extended(placed.recipe.clone().with_graph_def(both))
        })?;
        Ok(())
    }

    /// Replaces the state by the one that `make` makes of it, and returns the new one. `refuse` is
    /// the error of a change that is impossible.
    ///
    /// Changes follow each other, so each is made of the result of the one before. No lock that
    /// runs take is held while `make` places the graph.
    pub(super) fn change(
        &self,
        refuse: fn(Cow<'static, str>) -> Error,
        make: impl FnOnce(&Arc<Placed>) -> Result<Placed, Error>,
    ) -> Result<Arc<Placed>, Error> {
        // After a panic, of a policy or an app's kernel, the session is still unchanged.
        let _in_turn = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = self.placed();
        let closed = || refuse("it is closed; build another one".into());
        if previous.member.is_closed() {
            return Err(closed());
        }
        let built_ns = previous.recorder.now_ns();
        let mut placed = make(&previous)?;
        if !previous.member.replace_devices(placed.devices()) {
            return Err(closed());
        }
        placed.trace_start = match placed.is_renumbered {
            true => Some(TraceStart {
                built_ns,
                stopped_ns: previous.recorder.stop(),
            }),
            false => previous.trace_start,
        };
        let placed = Arc::new(placed);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // `previous` keeps the old state: it may be dropped only outside the lock, because its
        // kernels may be an app's code.
        *current = Arc::clone(&placed);
        drop(current);
        Ok(placed)
    }

    /// Closes the session: current and later runs and calls fail with
    /// [`ExecuteError::Closed`](crate::execute::ExecuteError::Closed). Its devices and their
    /// resources remain.
    pub fn close(&self) {
        self.placed().member.close();
    }

    /// Returns whether the session was closed or reset.
    pub fn is_closed(&self) -> bool {
        self.placed().member.is_closed()
    }

    /// Drops these resource containers on the session's devices (each device's default container if
    /// the list is empty), and closes the session and all others of its [`super::SessionGroup`]
    /// (TensorFlow `Session::Reset`).
    pub fn reset(&self, containers: &[&str]) {
        let placed = self.placed();
        match &placed.recipe.group {
            Some(group) => {
                group.reset(containers);
            }
            None => placed.member.reset(containers),
        }
    }

    /// Returns the manager of the session's devices. It is the app's own manager if the app has
    /// passed one and the session's state is not isolated from it
    /// ([`SessionBuilder::with_isolated_session_state`]).
    pub fn device_manager(&self) -> Arc<DeviceManager> {
        Arc::clone(self.placed().device_manager())
    }
}

impl Placed {
    /// Builds the state that has the larger graph of a builder.
    fn extended(self: &Arc<Self>, builder: SessionBuilder) -> Result<Self, Error> {
        if let Some(problem) = self.recipe.is_bound_to_graph() {
            return Err(Error::CannotExtend(problem.into()));
        }
        let extended = self.with_larger_graph(builder)?;
        // An imported graph is known only now.
        self.check_extension(extended.given_graph())?;
        Ok(extended)
    }

    /// Builds the state that has the graph of a builder, which has all nodes of this one that have
    /// effects. They stay where they are, with their state.
    pub(super) fn with_larger_graph(
        self: &Arc<Self>,
        mut builder: SessionBuilder,
    ) -> Result<Self, Error> {
        builder.placement.kept = self.stateful_nodes();
        builder.placement.detach_pins(self.graph());
        let mut extended = builder.following(self).build_placed()?;
        extended.initialisation = Arc::clone(&self.initialisation);
        Ok(extended)
    }

    /// Returns the names of stateful nodes, with their devices.
    fn stateful_nodes(&self) -> Vec<(String, DeviceId)> {
        let graph = self.graph();
        let nodes = graph.nodes().filter(|&node| graph.class(node).stateful);
        nodes
            .map(|node| {
                let device = self.placement.device(node);
                (graph.node_name(node).to_owned(), device)
            })
            .collect()
    }

    fn check_extension(&self, graph: &Graph) -> Result<(), Error> {
        let old = self.given_graph();
        for node in old.nodes() {
            let name = old.node_name(node);
            let problem = match graph.find_node(name) {
                None => "is missing",
                Some(found) => match difference(old, node, graph, found) {
                    Some(problem) => problem,
                    None => continue,
                },
            };
            return Err(Error::NotAnExtension {
                node: name.to_owned(),
                problem,
            });
        }
        Ok(())
    }
}

/// Returns the difference of a node in the larger graph, if there is one.
fn difference(old: &Graph, node: NodeId, new: &Graph, found: NodeId) -> Option<&'static str> {
    if old.op(node) != new.op(found) {
        return Some("has another op");
    }
    if old.attrs(node) != new.attrs(found) {
        return Some("has other attributes");
    }
    if old.requested(node) != new.requested(found) {
        return Some("requests another device");
    }
    if inputs(old, node) != inputs(new, found) {
        return Some("has other inputs");
    }
    (!outputs(old, node).eq(outputs(new, found))).then_some("has outputs of other types or shapes")
}

/// Returns types and known shapes of the outputs, in slot order.
fn outputs(graph: &Graph, node: NodeId) -> impl Iterator<Item = (DType, bool, PartialShape)> + '_ {
    let outputs = (0..).map_while(move |slot| graph.output(node, slot));
    outputs.map(|output| {
        (
            graph.tensor_dtypes()[output.index()],
            graph.tensor_is_ref(output),
            graph.tensor_shape(output),
        )
    })
}

/// Checks that the producers of two GraphDefs agree about the shape `{}` of a placeholder. It means
/// any shape in old GraphDefs and a scalar in newer ones; merged, one of them would be misread.
#[cfg(feature = "graphdef")]
fn check_producers(old: &Bytes, added: &[u8]) -> Result<(), Error> {
    let old = import::producer_version(old)?;
    let added = import::producer_version(&Bytes::copy_from_slice(added))?;
    // 0 means that the GraphDef has no version; then the earlier version holds.
    if added == 0 || has_legacy_placeholders(old) == has_legacy_placeholders(added) {
        return Ok(());
    }
    Err(Error::CannotExtend(
        format!(
            "its GraphDef is of producer version {old}, the extension of {added}, and `shape {{}}` of a placeholder means any \
             shape before version {PLACEHOLDER_SHAPES_MEAN_WHAT_THEY_SAY} and a scalar since; write both with one version"
        )
        .into(),
    ))
}

/// Data inputs in slot order, then control inputs by name.
fn inputs(graph: &Graph, node: NodeId) -> (Vec<String>, Vec<&str>) {
    let data = graph.all_data_inputs(node).into_iter();
    let data = data.map(|tensor| graph.tensor_name(tensor)).collect();
    let edges = graph.predecessors().range(node.index());
    let is_control = |&edge: &usize| graph.edge_kinds()[edge] & EdgeKind::CONTROL != 0;
    let controls = edges.filter(is_control);
    let mut controls: Vec<&str> = controls
        .map(|edge| graph.node_name(NodeId(graph.predecessors().items[edge])))
        .collect();
    controls.sort_unstable();
    (data, controls)
}

impl SessionBuilder {
    /// Builds the state of a session after this one.
    pub(super) fn following(mut self, previous: &Arc<Placed>) -> Self {
        self.previous = Some(Arc::clone(previous));
        self
    }
}
