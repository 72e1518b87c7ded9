//! Extends, resets and closes sessions.

use std::sync::Arc;

#[cfg(feature = "graphdef")]
use bytes::Bytes;

use super::Session;
use super::builder::SessionBuilder;
use crate::candidates::PlacementOptions;
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
    /// their state. Pins ([`PlacementOptions::pins`]) follow their nodes by name. If nodes are
    /// renumbered, [`Self::trace`] leaves out earlier events.
    ///
    /// # Errors
    /// [`Error::NotAnExtension`], naming the first node that is missing or different;
    /// [`Error::CannotExtend`] if the session is closed, or if the graph was not placed by a
    /// policy; the errors of [`SessionBuilder::build`]. The session remains unchanged.
    pub fn extend(&mut self, graph: impl Into<Arc<Graph>>) -> Result<(), Error> {
        let graph = graph.into();
        self.check_extension(&graph)?;
        let builder = self.recipe.clone().with_graph(graph);
        self.rebuild(builder)
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
    pub fn extend_graph_def(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(old) = self.recipe.graph_def_bytes() else {
            return Err(Error::CannotExtend(
                "its graph did not come as a GraphDef; use `extend` with the larger graph".into(),
            ));
        };
        check_producers(old, bytes)?;
        // Protobuf merges concatenated messages: the result has the nodes of both.
        let both = [&old[..], bytes].concat();
        let builder = self.recipe.clone().with_graph_def(both);
        self.rebuild(builder)
    }

    fn rebuild(&mut self, mut builder: SessionBuilder) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::CannotExtend(
                "it is closed; build another one".into(),
            ));
        }
        if let Some(problem) = self.recipe.is_bound_to_graph() {
            return Err(Error::CannotExtend(problem.into()));
        }
        builder.keep_in_place(self.stateful_nodes());
        builder.detach_pins(self.graph());
        let started_ns = self.recorder.now_ns();
        let mut extended = builder.build()?;
        // An imported graph is known only now.
        self.check_extension(extended.graph())?;
        extended.trace_after_ns = if self.has_moved_nodes(extended.graph()) {
            Some(started_ns)
        } else {
            self.trace_after_ns
        };
        // Earlier stages belong to the same session.
        extended
            .report
            .stages
            .splice(0..0, std::mem::take(&mut self.report.stages));
        *self = extended;
        Ok(())
    }

    /// Returns the names of stateful nodes, with their devices.
    fn stateful_nodes(&self) -> Vec<(String, DeviceId)> {
        let graph = self.graph();
        let nodes = graph.nodes().filter(|&node| graph.class(node).stateful);
        nodes
            .map(|node| {
                let device = self.placement().device(node);
                (graph.node_name(node).to_owned(), device)
            })
            .collect()
    }

    /// Whether a node of the session's graph has another number in `graph`.
    fn has_moved_nodes(&self, graph: &Graph) -> bool {
        let old = self.graph();
        old.nodes()
            .any(|node| graph.find_node(old.node_name(node)) != Some(node))
    }

    fn check_extension(&self, graph: &Graph) -> Result<(), Error> {
        let old = self.graph();
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

    /// Closes the session: current and later runs fail with
    /// [`ExecuteError::Closed`](crate::execute::ExecuteError::Closed). Its devices and their
    /// resources remain.
    pub fn close(&self) {
        self.member.closed.cancel();
    }

    /// Returns whether the session was closed or reset.
    pub fn is_closed(&self) -> bool {
        self.member.closed.is_cancelled()
    }

    /// Drops these resource containers on the session's devices (each device's default container if
    /// the list is empty), and closes the session and all others of its [`super::SessionGroup`]
    /// (TensorFlow `Session::Reset`).
    pub fn reset(&self, containers: &[&str]) {
        match self.recipe.group() {
            Some(group) => {
                group.reset(containers);
            }
            None => self.member.reset(containers),
        }
    }

    /// Returns the manager of the session's devices. It is the app's own manager if the app has
    /// passed one and the session's state is not isolated from it
    /// ([`SessionBuilder::with_isolated_session_state`]).
    pub fn device_manager(&self) -> &Arc<DeviceManager> {
        self.device_manager.get_or_init(|| {
            let given = self.recipe.device_manager();
            given.unwrap_or_else(|| Arc::new(DeviceManager::of_set(self.devices())))
        })
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
    /// Fixes nodes of the next graph to devices, by name.
    fn keep_in_place(&mut self, nodes: Vec<(String, DeviceId)>) {
        self.kept = nodes;
    }

    /// Records the user's pins by name, since the next graph may number its nodes differently.
    fn detach_pins(&mut self, graph: &Graph) {
        let Some(options) = self.placement_options_mut() else {
            return;
        };
        let pins = options.pins.drain(..);
        let pins = pins.map(|(node, device)| (graph.node_name(node).to_owned(), device));
        let pins = pins.collect();
        let assigned = options.assigned_devices.drain(..);
        let assigned = assigned.map(|(node, device)| (graph.node_name(node).to_owned(), device));
        let assigned = assigned.collect();
        self.moved_pins = Some(pins);
        self.moved_assigned_devices = assigned;
    }

    /// Fixes nodes of `graph` to the devices that [`Self::detach_pins`] has recorded.
    pub(super) fn attach_pins(&mut self, graph: &Graph) {
        let pins = self.moved_pins.take().unwrap_or_default();
        let assigned = std::mem::take(&mut self.moved_assigned_devices);
        let Some(options) = self.placement_options_mut() else {
            return;
        };
        for (name, device) in pins {
            options
                .pins
                .extend(graph.find_node(&name).map(|node| (node, device)));
        }
        for (name, device) in assigned {
            options
                .assigned_devices
                .extend(graph.find_node(&name).map(|node| (node, device)));
        }
    }
}

/// Adds pins for nodes that keep their devices.
pub(super) fn pin_kept(options: &mut PlacementOptions, graph: &Graph, kept: &[(String, DeviceId)]) {
    for (name, device) in kept {
        if let Some(node) = graph.find_node(name) {
            options.pins.retain(|&(pinned, _)| pinned != node);
            options
                .assigned_devices
                .retain(|(assigned, _)| *assigned != node);
            options.pins.push((node, *device));
        }
    }
}
