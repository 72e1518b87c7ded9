//! The identity of a placement: four hashes of the inputs that it was made from.
//!
//! The hashes of graph, devices and options are computed from candidates; the policy's part comes
//! from [`crate::policy`]. If the policy is metered by fuel, two placements with equal identities
//! are equal, even if they come from different processes or machines.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::Deserialize;
use serde::Serialize;

use crate::candidates::Candidates;
use crate::candidates::OpArguments;
use crate::candidates::Origin;
use crate::candidates::PlacementOptions;
use crate::candidates::ops_of;
use crate::device::Device;
use crate::device::DeviceRates;
use crate::device::KernelDef;
use crate::device::LinkRates;
use crate::device::Port;
use crate::device::Topology;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Function;
use crate::graph::FunctionArg;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::TensorId;
use crate::names::DeviceId;
use crate::names::DeviceName;
use crate::ops::ArgDef;
use crate::ops::ArgType;
use crate::placement::digest::Digest;
use crate::placement::digest::DigestWriter;
use crate::tensor::PartialShape;

/// The hashes of the inputs of a placement. They are equal on every machine and in every process
/// for equal contents, independent of the order of attributes, functions, pins and kernels.
///
/// Hashing takes time linear in the graph, so it only happens on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementIdentity {
    /// The policy and its request: its bytes, configuration, seed, limits, whether reasons were
    /// wanted, the graph's name, which policies receive, and this program's version, which fuel
    /// depends on. `None` if the placement is not the answer of the requested policy: a fallback,
    /// an app's own proposal, or a placement with kept parts.
    pub policy: Option<Digest>,
    /// The graph as placement sees it: names, ops, attributes, edges, requests, types, shapes,
    /// work and functions, in node order, and the registered kernels and definitions of its
    /// ops. Values of constants do not count, since other weights of the same shapes are
    /// placed equally. The graph's name does not count either.
    pub graph: Digest,
    /// The devices, in order: names, types, priorities, descriptions, locality, rates, links,
    /// chips, queues, memory, and which of them is the client's. Momentary values that a policy
    /// sees (free memory, load) count as well. Incarnations do not count, since a policy that
    /// is metered by fuel does not see them.
    pub devices: Digest,
    /// The options: soft placement, device scope, pins, assigned devices, default local device,
    /// cost model. If an app has stated the candidates, their sets, groups, pins, costs and
    /// executions instead.
    pub options: Digest,
}

/// The hashes in which a saved placement differs from its current inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentityDifference {
    /// Whether the graphs differ.
    pub graph: bool,
    /// Whether the devices differ.
    pub devices: bool,
    /// Whether the options differ.
    pub options: bool,
}

impl PlacementIdentity {
    /// Computes the identity of candidates, without a policy.
    pub fn of(candidates: &Candidates) -> Self {
        Self {
            policy: None,
            graph: graph_digest(candidates),
            devices: device_digest(candidates),
            options: option_digest(candidates),
        }
    }

    /// Sets the policy's part.
    #[must_use]
    pub fn with_policy(mut self, policy: Option<Digest>) -> Self {
        self.policy = policy;
        self
    }

    /// Returns the differences, if there are any. Policies are not compared, since no policy is
    /// called when a saved placement is used.
    pub fn difference(&self, other: &Self) -> Option<IdentityDifference> {
        let difference = IdentityDifference {
            graph: self.graph != other.graph,
            devices: self.devices != other.devices,
            options: self.options != other.options,
        };
        let is_different = difference.graph || difference.devices || difference.options;
        is_different.then_some(difference)
    }
}

impl fmt::Display for IdentityDifference {
    /// `another graph (..) and other devices (..)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (
                self.graph,
                "another graph (nodes, shapes, requests, or what is registered for its ops)",
            ),
            (
                self.devices,
                "other devices (their number, names, memory or rates, which depend on threads)",
            ),
            (
                self.options,
                "other options (soft placement, device scope, pins, cost model)",
            ),
        ];
        let named: Vec<&str> = all
            .iter()
            .filter_map(|&(differs, name)| differs.then_some(name))
            .collect();
        f.write_str(&named.join(" and "))
    }
}

fn graph_digest(candidates: &Candidates) -> Digest {
    let graph = candidates.graph();
    let mut writer = DigestWriter::new("placewright graph 1");
    let names = graph.node_names();
    writer.u32s(names.offsets());
    writer.text(names.text());
    write_classes(&mut writer, graph);
    let requests = Ranks::of(graph.requested_ids(), graph.requested_devices().len());
    writer.u32s(&requests.ranks);
    writer.list(&requests.order, |writer, &id| {
        writer.text(&graph.requested_devices()[id as usize]);
    });
    writer.u32s(&graph.predecessors().offsets);
    writer.u32s(&graph.predecessors().items);
    writer.u32s(graph.edge_tensors());
    writer.bytes(graph.edge_kinds());
    writer.u32s(graph.back_edges());
    writer.list(graph.back_inputs(), |writer, edge| {
        writer.u32s(&[edge.from.0, edge.tensor.0, edge.to.0, edge.input]);
    });
    // The outputs of a node are consecutive, so the nodes determine where each node's outputs
    // begin.
    writer.u32s(graph.tensor_nodes());
    let dtypes = graph.tensor_dtypes().iter().map(|dtype| dtype.number());
    writer.u32s(&dtypes.collect::<Vec<_>>());
    let tensors = (0..super::to_u32(graph.n_tensors())).map(TensorId);
    let is_ref = tensors.map(|tensor| u8::from(graph.tensor_is_ref(tensor)));
    writer.bytes(&is_ref.collect::<Vec<_>>());
    writer.u64s(graph.tensor_bytes());
    let (offsets, sizes) = graph.tensor_dims();
    writer.u32s(offsets);
    writer.i64s(sizes);
    writer.f64s(graph.flops());
    writer.u64s(graph.traffic_bytes());
    writer.u64s(graph.resident_bytes());
    writer.u64s(graph.workspace_bytes());
    let mut functions: Vec<&Function> = graph.functions().iter().collect();
    // Stable: of two of one name the first is the one that is called.
    functions.sort_by(|a, b| a.name.cmp(&b.name));
    writer.list(functions, write_function);
    match candidates.origin() {
        Origin::Enumerated { options, kernels } => {
            writer.flag(true);
            write_kernels(&mut writer, kernels);
            let arguments = options.op_arguments.as_ref();
            writer.option(arguments, |writer, arguments| {
                write_definitions(writer, graph, arguments);
            });
        }
        Origin::Stated => writer.flag(false),
    }
    writer.finish()
}

/// Ids of a table, renumbered in the order of their first use in a column.
#[derive(Debug)]
struct Ranks {
    /// Rank of each entry of the column.
    ranks: Vec<u32>,
    /// The ids, by rank.
    order: Vec<u32>,
}

impl Ranks {
    fn of(column: &[u32], n_ids: usize) -> Self {
        let mut rank_of = vec![NONE; n_ids];
        let mut order = Vec::new();
        let ranks = column.iter().map(|&id| {
            let rank = &mut rank_of[id as usize];
            if *rank == NONE {
                *rank = super::to_u32(order.len());
                order.push(id);
            }
            *rank
        });
        let ranks = ranks.collect();
        Self { ranks, order }
    }
}

/// Writes op and attributes of every node. Classes are compared by content, since the graph itself
/// keeps two equal constants apart.
fn write_classes(writer: &mut DigestWriter, graph: &Graph) {
    let digests: Vec<Digest> = graph
        .classes()
        .iter()
        .map(|class| {
            let mut writer = DigestWriter::new("class");
            writer.text(&graph.op_names()[class.op as usize]);
            writer.flag(class.stateful);
            write_attrs(&mut writer, &class.attrs);
            writer.finish()
        })
        .collect();
    let mut first_alike: HashMap<Digest, u32> = HashMap::new();
    let alike: Vec<u32> = (0u32..)
        .zip(&digests)
        .map(|(class, &digest)| *first_alike.entry(digest).or_insert(class))
        .collect();
    let of_nodes = graph.class_ids().iter();
    let of_nodes: Vec<u32> = of_nodes.map(|&class| alike[class as usize]).collect();
    let classes = Ranks::of(&of_nodes, digests.len());
    writer.u32s(&classes.ranks);
    writer.list(&classes.order, |writer, &class| {
        writer.bytes(digests[class as usize].as_bytes());
    });
}

fn write_attrs(writer: &mut DigestWriter, attrs: &AttrSet) {
    // They are sorted by name.
    writer.list(attrs.iter(), |writer, (name, value)| {
        writer.text(name);
        write_value(writer, value);
    });
}

fn write_value(writer: &mut DigestWriter, value: &AttrValue) {
    writer.text(value.kind());
    match value {
        AttrValue::Bytes(bytes) => writer.bytes(bytes),
        AttrValue::Int(value) => writer.u64(value.cast_unsigned()),
        AttrValue::Float(value) => writer.u32(value.to_bits()),
        AttrValue::Bool(value) => writer.flag(*value),
        AttrValue::Type { dtype, is_ref } => {
            writer.u32(dtype.number());
            writer.flag(*is_ref);
        }
        AttrValue::Shape(shape) => write_shape(writer, shape),
        // Placement does not read elements: the shapes of the graph already contain what shape
        // inference derives from them.
        AttrValue::Tensor(literal) => {
            writer.u32(literal.dtype().number());
            write_shape(writer, &literal.shape().into());
        }
        AttrValue::Function(name, attrs) => {
            writer.text(name);
            write_attrs(writer, attrs);
        }
        AttrValue::Placeholder(name) => writer.text(name),
        AttrValue::List(values) => writer.list(&**values, write_value),
    }
}

fn write_shape(writer: &mut DigestWriter, shape: &PartialShape) {
    writer.option(shape.dims(), |writer, dims| {
        writer.list(dims, |writer, dim| {
            writer.option(*dim, |writer, dim| writer.u64(dim as u64));
        });
    });
}

fn write_function(writer: &mut DigestWriter, function: &Function) {
    let write_arg = |writer: &mut DigestWriter, arg: &FunctionArg| {
        writer.text(&arg.name);
        writer.text(&arg.spec);
        writer.flag(arg.is_ref);
    };
    let write_pair = |writer: &mut DigestWriter, pair: &(Arc<str>, Arc<str>)| {
        writer.text(&pair.0);
        writer.text(&pair.1);
    };
    writer.text(&function.name);
    writer.flag(function.stateful);
    writer.list(&function.args, write_arg);
    writer.list(&function.results, write_arg);
    writer.list(&function.returns, write_pair);
    writer.list(&function.control_returns, write_pair);
    write_attrs(writer, &function.attrs);
    writer.list(&function.nodes, |writer, node| {
        writer.text(&node.name);
        writer.text(&node.op);
        writer.text(&node.device);
        writer.list(&node.inputs, |writer, input| writer.text(input));
        write_attrs(writer, &node.attrs);
    });
}

/// Writes kernel registrations, independent of their order.
fn write_kernels(writer: &mut DigestWriter, kernels: &[Arc<KernelDef>]) {
    let mut digests: Vec<Digest> = kernels
        .iter()
        .map(|kernel| {
            let mut writer = DigestWriter::new("kernel");
            writer.text(&kernel.op);
            writer.text(&kernel.device_type);
            writer.text(&kernel.label);
            writer.u32(kernel.priority.cast_unsigned());
            writer.list(&kernel.constraints, |writer, (attr, dtypes)| {
                writer.text(attr);
                writer.list(dtypes, |writer, dtype| writer.u32(dtype.number()));
            });
            writer.list(&kernel.host_memory_args, |writer, arg| writer.text(arg));
            writer.finish()
        })
        .collect();
    digests.sort_unstable();
    writer.list(&digests, |writer, digest| writer.bytes(digest.as_bytes()));
}

/// Writes the arguments of ops, from their definitions, or else per class of nodes.
fn write_definitions(writer: &mut DigestWriter, graph: &Graph, arguments: &Arc<dyn OpArguments>) {
    let write_arg = |writer: &mut DigestWriter, arg: &ArgDef| {
        writer.text(&arg.name);
        writer.flag(arg.is_ref);
        writer.option(arg.number_attr.as_ref(), |writer, attr| writer.text(attr));
        match &arg.dtype {
            ArgType::Fixed(dtype) => writer.text(dtype.name()),
            ArgType::Attr(attr) => writer.bytes(&[b"attr ", attr.as_bytes()].concat()),
            ArgType::ListAttr(attr) => writer.bytes(&[b"list ", attr.as_bytes()].concat()),
        }
    };
    writer.list(ops_of(graph), |writer, op| {
        writer.flag(arguments.is_known(op));
        writer.option(arguments.definition(op), |writer, definition| {
            writer.list(definition.inputs(), write_arg);
            writer.list(definition.outputs(), write_arg);
        });
    });
    let mut is_known = vec![false; graph.classes().len()];
    for node in graph.nodes() {
        let is_known = &mut is_known[graph.class_ids()[node.index()] as usize];
        if std::mem::replace(is_known, true) {
            continue;
        }
        let (op, attrs) = (graph.op(node), graph.attrs(node));
        if arguments.definition(op).is_some() {
            continue;
        }
        let n_inputs = graph.data_inputs(node).count();
        let n_outputs = graph.output_range(node).len();
        let inputs = (0..n_inputs).map(|slot| arguments.input(op, attrs, slot));
        let outputs = (0..n_outputs).map(|slot| arguments.output(op, attrs, slot));
        for argument in inputs.chain(outputs) {
            writer.option(argument, |writer, argument| {
                writer.text(argument.name);
                writer.flag(argument.is_ref);
            });
        }
    }
}

fn device_digest(candidates: &Candidates) -> Digest {
    let (set, columns) = (candidates.device_set(), candidates.devices());
    let mut writer = DigestWriter::new("placewright devices 3");
    writer.list(set.iter(), |writer, (id, device)| {
        write_device(writer, &**device, set.rates(id));
        writer.u32(
            set.type_priority(&device.attributes().device_type)
                .cast_unsigned(),
        );
    });
    let client = set.client_device();
    writer.option(client, |writer, client| writer.u32(client.0));
    writer.u32s(&columns.cost_class);
    writer.u32s(&columns.link_domain);
    writer.list(&columns.links, write_link);
    writer.list(&columns.link_exceptions, |writer, (src, dst, link)| {
        writer.u32s(&[src.0, dst.0]);
        write_link(writer, link);
    });
    writer.option(columns.topology.as_ref(), |writer, topology| {
        write_topology(writer, topology);
    });
    writer.flag(columns.is_uncontended);
    writer.u32s(&columns.chips);
    writer.u32s(&columns.chip_threads);
    writer.u32s(&[columns.n_host_threads, columns.n_processors]);
    writer.u32s(&columns.memory_domain);
    writer.u64s(&columns.memory_capacity_bytes);
    writer.u64s(&columns.memory_free_bytes);
    writer.f64s(&columns.load);
    writer.list(&columns.is_calibrated, |writer, &is| writer.flag(is));
    writer.u32s(&columns.queues);
    writer.list(&columns.type_preference, |writer, preference| {
        writer.u32(preference.cast_unsigned());
    });
    writer.finish()
}

/// Writes which links devices share. What transfers cost is written with the link domains.
fn write_topology(writer: &mut DigestWriter, topology: &Topology) {
    let write_port = |writer: &mut DigestWriter, port: Port| {
        writer.u32s(&[port.link_out, port.link_in]);
    };
    writer.list(&topology.hosts, |writer, host| {
        writer.option(host.network, write_port);
    });
    writer.list(&topology.devices, |writer, device| {
        writer.u32(device.host);
        writer.option(device.bus, write_port);
        writer.option(device.network, |writer, (network, port)| {
            writer.u32(network);
            write_port(writer, port);
        });
    });
}

fn write_device(writer: &mut DigestWriter, device: &dyn Device, rates: DeviceRates) {
    let attributes = device.attributes();
    writer.text(&attributes.name);
    writer.text(&attributes.device_type);
    writer.u64(attributes.memory_limit_bytes);
    writer.u32(attributes.locality.bus_id.cast_unsigned());
    writer.u32(attributes.locality.numa_node.cast_unsigned());
    writer.list(&attributes.locality.links, |writer, link| {
        writer.u32(link.device_index.cast_unsigned());
        writer.text(&link.kind);
        writer.u32(link.strength.cast_unsigned());
    });
    writer.text(&attributes.physical_description);
    writer.u64(device.memory_capacity_bytes());
    let DeviceRates {
        flops_per_s,
        memory_bytes_per_s,
        launch_ns,
        is_calibrated,
        queues,
        host_link,
    } = rates;
    writer.f64s(&[flops_per_s, memory_bytes_per_s, launch_ns]);
    writer.flag(is_calibrated);
    writer.u32(queues);
    write_link(writer, &host_link.from_host);
    write_link(writer, &host_link.to_host);
    writer.flag(host_link.is_half_duplex);
}

fn write_link(writer: &mut DigestWriter, link: &LinkRates) {
    writer.f64s(&[link.latency_ns, link.ns_per_byte]);
}

fn option_digest(candidates: &Candidates) -> Digest {
    let mut writer = DigestWriter::new("placewright options 1");
    match candidates.origin() {
        Origin::Enumerated { options, .. } => {
            writer.text("enumerated");
            write_options(&mut writer, candidates, options);
        }
        Origin::Stated => {
            writer.text("stated");
            write_stated(&mut writer, candidates);
        }
    }
    writer.finish()
}

fn write_options(writer: &mut DigestWriter, candidates: &Candidates, options: &PlacementOptions) {
    // Op arguments belong to the hash of the graph.
    let PlacementOptions {
        device_scope,
        allow_soft_placement,
        pins,
        assigned_devices,
        default_local_device,
        cost_model,
        op_arguments: _,
        n_concurrent_runs,
        cost_sources: _,
        profile,
        trip_counts,
        priorities,
        // Part of the digest of the devices.
        inter_op_threads: _,
    } = options;
    let (graph, devices) = (candidates.graph(), candidates.device_set());
    let device_name = |device: DeviceId| candidates.device_name(device.0);
    let DeviceName {
        job,
        replica,
        task,
        device_type,
        index,
    } = device_scope;
    for text in [job, device_type] {
        writer.option(text.as_ref(), |writer, text| writer.text(text));
    }
    for number in [replica, task, index] {
        writer.option(*number, DigestWriter::u32);
    }
    writer.flag(*allow_soft_placement);
    // A device may be fixed by id or by name, in any order, perhaps twice: that is one pin.
    let by_name = assigned_devices.iter().map(|(node, name)| {
        let found = devices.find_by_name(name);
        (graph.node_name(*node), found.map_or(&**name, device_name))
    });
    let by_id = pins
        .iter()
        .map(|&(node, device)| (graph.node_name(node), device_name(device)));
    let mut fixed: Vec<(&str, &str)> = by_id.chain(by_name).collect();
    fixed.sort_unstable();
    fixed.dedup();
    writer.list(fixed, |writer, (node, device)| {
        writer.text(node);
        writer.text(device);
    });
    let default = default_local_device.map(device_name);
    writer.option(default, DigestWriter::text);
    writer.f64s(&[cost_model.compute_efficiency, cost_model.memory_efficiency]);
    writer.u64((*n_concurrent_runs).max(1) as u64);
    // What they say is in the columns.
    let nodes = candidates.nodes();
    if !nodes.cost_samples.is_empty() {
        writer.u32s(&nodes.cost_row);
        writer.f64s(&nodes.costs);
        writer.u32s(&nodes.cost_samples);
    }
    if profile.is_some() || !trip_counts.is_empty() {
        writer.f64s(&nodes.executions);
    }
    if let Some(profile) = profile {
        writer.bytes(&profile.to_json());
    }
    if !priorities.is_empty() {
        writer.list(&nodes.user_priority, |writer, priority| {
            writer.u32(priority.cast_unsigned());
        });
    }
}

fn write_stated(writer: &mut DigestWriter, candidates: &Candidates) {
    let nodes = candidates.nodes();
    writer.u32s(&nodes.candidate_set);
    writer.u32s(&nodes.sets.offsets);
    writer.u32s(&nodes.sets.items);
    writer.u32s(&nodes.group);
    writer.u32s(&nodes.pinned);
    writer.f64s(&nodes.executions);
    writer.list(&nodes.user_priority, |writer, priority| {
        writer.u32(priority.cast_unsigned());
    });
    writer.u32s(&nodes.frame);
    writer.u32s(&nodes.cost_row);
    writer.f64s(&nodes.costs);
    writer.u32s(&nodes.cost_samples);
}
