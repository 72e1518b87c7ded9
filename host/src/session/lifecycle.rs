//! What happens to a session between its first run and its end.

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
    /// Goes on with a larger graph (TensorFlow `Session::Extend`): `graph` is the session's graph
    /// with more nodes. Everything is placed again; stateful nodes keep their devices, and what
    /// their kernels and resources remember. Pins ([`PlacementOptions::pins`]) follow their
    /// nodes by name. Where nodes have other numbers than before, [`Self::trace`] leaves out
    /// what was heard until now.
    ///
    /// # Errors
    /// [`Error::NotAnExtension`] naming the first node that is missing or different;
    /// [`Error::CannotExtend`] where somebody else than a policy has placed the graph; what
    /// [`SessionBuilder::build`] may end in. The session remains as it was.
    pub fn extend(&mut self, graph: impl Into<Arc<Graph>>) -> Result<(), Error> {
        let graph = graph.into();
        self.check_extension(&graph)?;
        let builder = self.recipe.clone().with_graph(graph);
        self.rebuild(builder)
    }

    /// The same for a session that was built from a GraphDef: `bytes` is a GraphDef of the nodes to
    /// add, whose inputs may be nodes of the session's graph.
    ///
    /// # Errors
    /// [`Error::CannotExtend`] for a session that was built otherwise, or extended by
    /// [`Self::extend`], and where the two producers mean different things by the shape of a
    /// placeholder; [`Error::Import`], also for a node whose name is there already; as
    /// [`Self::extend`].
    #[cfg(feature = "graphdef")]
    pub fn extend_graph_def(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(old) = self.recipe.graph_def_bytes() else {
            return Err(Error::CannotExtend(
                "its graph did not come as a GraphDef; use `extend` with the larger graph".into(),
            ));
        };
        check_producers(old, bytes)?;
        // Protobuf merges messages that stand one after the other: the nodes of both.
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
        // What was imported is known only now.
        self.check_extension(extended.graph())?;
        extended.trace_after_ns = if self.has_moved_nodes(extended.graph()) {
            Some(started_ns)
        } else {
            self.trace_after_ns
        };
        // What was heard so far belongs to the same session.
        extended
            .report
            .stages
            .splice(0..0, std::mem::take(&mut self.report.stages));
        *self = extended;
        Ok(())
    }

    /// Names of stateful nodes, with the names of their devices.
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

    /// Ends the session: runs that are under way, and all later ones, fail with
    /// [`ExecuteError::Closed`](crate::execute::ExecuteError::Closed). Its devices, and what stands
    /// on them, stay.
    pub fn close(&self) {
        self.member.closed.cancel();
    }

    /// Whether it was closed, or reset.
    pub fn is_closed(&self) -> bool {
        self.member.closed.is_cancelled()
    }

    /// Drops these containers of resources on the session's devices (without any, each device's
    /// default one), and closes the session and all others of its [`super::SessionGroup`]
    /// (TensorFlow `Session::Reset`).
    pub fn reset(&self, containers: &[&str]) {
        match self.recipe.group() {
            Some(group) => {
                group.reset(containers);
            }
            None => self.member.reset(containers),
        }
    }

    /// The session's devices by name; the app's own manager, where it has handed one in and the
    /// session's state is not isolated
    /// from it ([`SessionBuilder::with_isolated_session_state`]).
    pub fn device_manager(&self) -> &Arc<DeviceManager> {
        self.device_manager.get_or_init(|| {
            let given = self.recipe.device_manager();
            given.unwrap_or_else(|| Arc::new(DeviceManager::of_set(self.devices())))
        })
    }
}

/// What a node of a larger graph has changed, if anything.
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

/// Types, and what is known of shapes, in slot order.
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

/// An old producer says `{}` for the shape of a placeholder that may have any, a new one for that
/// of a scalar: read together, the nodes of one would be misread.
#[cfg(feature = "graphdef")]
fn check_producers(old: &Bytes, added: &[u8]) -> Result<(), Error> {
    let old = import::producer_version(old)?;
    let added = import::producer_version(&Bytes::copy_from_slice(added))?;
    // 0: the file does not say, and what was said before holds.
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
    /// Fixes nodes to devices, by name, in the graph that is yet to come.
    fn keep_in_place(&mut self, nodes: Vec<(String, DeviceId)>) {
        self.kept = nodes;
    }

    /// Notes the user's pins by name: the graph that is yet to come may number its nodes
    /// differently.
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

    /// Fixes nodes of `graph` to the devices that [`Self::detach_pins`] has noted.
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
