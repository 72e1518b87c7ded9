//! Computes candidates from a graph and devices.

use std::sync::Arc;

use crate::candidates::allocation::without_too_large;
use crate::candidates::choose::Choice;
use crate::candidates::choose::Chooser;
use crate::candidates::choose::Request;
use crate::candidates::colocate::colocation_groups;
use crate::candidates::colocate::parse_requests;
use crate::candidates::columns::Candidates;
use crate::candidates::columns::NodeColumns;
use crate::candidates::columns::PlacementHint;
use crate::candidates::costs::CostRows;
use crate::candidates::costs::Known;
use crate::candidates::costs::Work;
use crate::candidates::costs::passes_on;
use crate::candidates::devices::check_links;
use crate::candidates::devices::device_columns;
use crate::candidates::edge_kinds::edge_kinds;
use crate::candidates::error::CandidatesError;
use crate::candidates::executions::executions;
use crate::candidates::explain::Explainer;
use crate::candidates::facts::Facts;
use crate::candidates::groups::Groups;
use crate::candidates::groups::Overrides;
use crate::candidates::groups::asks_for_xla;
use crate::candidates::hints::fill_hints;
use crate::candidates::hints::is_generator;
use crate::candidates::host_memory::HostMemory;
use crate::candidates::inspect::Inspector;
use crate::candidates::options::PlacementOptions;
use crate::candidates::origin::Origin;
use crate::candidates::support::Supports;
use crate::candidates::types::TypeTable;
use crate::cost::CostClasses;
use crate::cost::WorkKeys;
use crate::device::DeviceSet;
use crate::device::KernelRegistry;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeClass;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// Enumerates for each node the devices that may run it, most preferred first, and its costs there.
///
/// The rules are TensorFlow's: kernels by device type and priority, requested devices, colocation
/// by `_class` and by reference and resource edges (also through function calls if ops are
/// defined), soft placement, XLA types only on request. One rule is added: a device that cannot
/// allocate a tensor of the node in one piece is not a candidate. Item 0 of a node's set is the
/// device that TensorFlow's placer chooses if no hint applies. Runs once per placement. Takes time
/// per class of nodes, distinct request and group, plus a few table look-ups per node.
///
/// # Errors
/// [`CandidatesError`] for the first node, in node order, that no device may run (generators last),
/// for devices with invalid links, and for a node whose tensors no candidate can allocate.
pub fn enumerate(
    graph: &Arc<Graph>,
    device_set: &Arc<DeviceSet>,
    kernels: &KernelRegistry,
    options: &PlacementOptions,
) -> Result<Candidates, CandidatesError> {
    let asked = Asked::of(graph, device_set, options)?;
    let facts = asked.facts(graph, device_set, kernels, options);
    let (types, pinned) = (&asked.types, asked.pinned.as_deref());
    let mut inspector = Inspector::new(graph, options);
    let (mut supports, mut groups) = colocation_groups(&facts, pinned, options, &mut inspector)?;

    let chooser = Chooser::new(
        device_set,
        options.default_local_device,
        options.allow_soft_placement,
    );
    let mut nodes = match choose_all(&facts, chooser, &mut groups, &mut supports, pinned) {
        Ok(nodes) => nodes,
        Err(node) => {
            let explainer =
                Explainer::new(&facts, options, pinned, &supports, &mut inspector, None);
            let conflict = explainer.ok().and_then(|mut them| them.conflict(node.0));
            let error = facts.no_candidate(node, &mut groups, &supports);
            return Err(error.with_conflict(conflict));
        }
    };
    nodes.pinned = pinned.map_or_else(|| vec![NONE; graph.n_nodes()], <[u32]>::to_vec);
    nodes.follow = fill_hints(
        graph,
        &nodes.pinned,
        &options.device_scope,
        &mut nodes.placement_hints,
    );
    let executions = executions(graph, &options.trip_counts, options.profile.as_deref());
    nodes.executions = executions.of_node;
    nodes.frame = executions.frame;
    nodes.frame_parents = executions.frame_parents;
    nodes.user_priority = user_priorities(graph, options);
    // Devices of equal rates have a column each if a source tells them apart.
    let known: Vec<Vec<Known>> = device_set
        .iter()
        .map(|(_, device)| {
            let sources = (1..=u8::MAX).zip(&options.cost_sources);
            let known = sources.filter_map(|(number, source)| {
                let costs = source.of_device(&**device)?;
                Some((number, costs))
            });
            known.collect()
        })
        .collect();
    let are_alike = |first: DeviceId, second: DeviceId| {
        let (first, second) = (&known[first.index()], &known[second.index()]);
        let mut pairs = first.iter().zip(second);
        let is_same = |(first, second): (&Known, &Known)| Arc::ptr_eq(&first.1, &second.1);
        first.len() == second.len() && pairs.all(is_same)
    };
    let classes = CostClasses::of_alike(device_set, are_alike);
    let (columns, cost_classes) = device_columns(
        device_set,
        &options.cost_model,
        classes,
        options.inter_op_threads,
    );
    check_links(&columns, device_set)?;
    let of_class = |class: usize| {
        let mut classes = columns.cost_class.iter();
        let first = classes.position(|&known| known as usize == class);
        first.map_or_else(Vec::new, |first| known[first].clone())
    };
    let of_classes = (0..cost_classes.len()).map(of_class).collect();
    let is_by_node = options.profile.is_some();
    let mut rows = CostRows::new(
        options.cost_model,
        cost_classes,
        types,
        of_classes,
        is_by_node,
    );
    let mut keys = rows.has_sources().then(|| WorkKeys::of(graph));
    let op_names = graph.op_names().iter();
    let is_passing: Vec<bool> = op_names.map(|op| passes_on(op)).collect();
    nodes.cost_row = graph
        .nodes()
        .zip(graph.flops().iter().zip(graph.traffic_bytes()))
        .map(|(node, (&flops, &traffic_bytes))| {
            let support = supports.of_node(graph, node);
            let supported = &supports.sets[support as usize];
            let work = match () {
                () if graph.is_preloaded(node) => Work::Nothing,
                () if is_passing[graph.op_types()[node.index()] as usize] => Work::Passing,
                () => Work::Kernel(flops, traffic_bytes),
            };
            let known = keys.as_mut().map(|keys| keys.work(node));
            rows.row(work, known.as_ref(), support, supported)
        })
        .collect();
    nodes.costs = rows.costs;
    nodes.cost_samples = rows.samples;
    nodes.cost_sources = rows.sources;
    let names = options.cost_sources.iter().map(|source| source.name());
    nodes.cost_source_names = names.map(str::to_owned).collect();
    let host_memory = HostMemory::of(
        graph,
        types,
        kernels,
        options.op_arguments.as_ref(),
        supports.kernels_of_class,
    );
    nodes.edge_kinds = edge_kinds(graph, &nodes, &host_memory);
    let mut asked_for = vec![
        (
            "allow-soft-placement".to_owned(),
            options.allow_soft_placement.to_string(),
        ),
        ("graph-name".to_owned(), graph.name().to_owned()),
    ];
    // Devices of a cluster file: a topology says how they are linked.
    if columns.topology.is_some() {
        asked_for.push(("stated-rates".to_owned(), "true".to_owned()));
    }
    let found = Candidates::new(
        Arc::clone(graph),
        Arc::clone(device_set),
        nodes,
        columns,
        asked_for,
        Arc::new(host_memory),
    );
    without_too_large(found.with_origin(Origin::enumerated(graph, kernels, options)))
}

/// The attribute of nodes that states their priority.
const PRIORITY_ATTR: &str = "_priority";

/// Returns the priority of every node, from its attribute or the options; empty if none has one.
fn user_priorities(graph: &Graph, options: &PlacementOptions) -> Vec<i32> {
    let of_class = |class: &NodeClass| {
        let stated = class.attrs.int(PRIORITY_ATTR)?;
        Some(i32::try_from(stated).unwrap_or(if stated < 0 { i32::MIN } else { i32::MAX }))
    };
    let of_classes: Vec<Option<i32>> = graph.classes().iter().map(of_class).collect();
    if options.priorities.is_empty() && of_classes.iter().all(Option::is_none) {
        return Vec::new();
    }
    let classes = graph.class_ids().iter();
    let stated = classes.map(|&class| of_classes[class as usize].unwrap_or(0));
    let mut priorities: Vec<i32> = stated.collect();
    for (node, priority) in &options.priorities {
        if let Some(stated) = priorities.get_mut(node.index()) {
            *stated = *priority;
        }
    }
    priorities
}

/// The requests and options of a placement, parsed and checked individually.
#[derive(Debug)]
pub(super) struct Asked {
    types: TypeTable,
    /// Parsed requests, by requested id.
    requests: Vec<DeviceName>,
    /// Device per node, [`NONE`] if it is not pinned; `None` without pins.
    pub(super) pinned: Option<Vec<u32>>,
}

impl Asked {
    /// Parses the requests and checks the options.
    ///
    /// # Errors
    /// [`CandidatesError`]: no devices, a malformed request, a pin or default device that does not
    /// exist.
    pub(super) fn of(
        graph: &Graph,
        devices: &DeviceSet,
        options: &PlacementOptions,
    ) -> Result<Self, CandidatesError> {
        if devices.is_empty() {
            return Err(CandidatesError::NoDevices);
        }
        if let Some(device) = options.default_local_device
            && devices.get(device).is_none()
        {
            return Err(CandidatesError::NoSuchDefaultDevice(device.0));
        }
        Ok(Self {
            types: TypeTable::of(devices),
            requests: parse_requests(graph, &options.device_scope)?,
            pinned: pins(graph, devices, options)?,
        })
    }

    pub(super) fn facts<'a>(
        &'a self,
        graph: &'a Graph,
        devices: &'a DeviceSet,
        kernels: &'a KernelRegistry,
        options: &'a PlacementOptions,
    ) -> Facts<'a> {
        Facts {
            graph,
            devices,
            kernels,
            types: &self.types,
            arguments: options.op_arguments.as_deref(),
            requests: &self.requests,
            is_body: false,
        }
    }
}

/// Returns the device per node, [`NONE`] if it is not pinned; `None` without pins.
fn pins(
    graph: &Graph,
    devices: &DeviceSet,
    options: &PlacementOptions,
) -> Result<Option<Vec<u32>>, CandidatesError> {
    if options.pins.is_empty() && options.assigned_devices.is_empty() {
        return Ok(None);
    }
    let mut pinned = vec![NONE; graph.n_nodes()];
    let mut pins = options.pins.clone();
    for (node, name) in &options.assigned_devices {
        if node.index() >= graph.n_nodes() {
            return Err(CandidatesError::PinNotLegal {
                node: node.to_string(),
                device: name.clone(),
                reason: "the graph has no node of this id".to_owned(),
            });
        }
        pins.push((*node, assigned_device(graph, devices, *node, name)?));
    }
    for (node, device) in pins {
        let not_legal = |reason: &str| CandidatesError::PinNotLegal {
            node: if node.index() < graph.n_nodes() {
                graph.node_name(node).to_owned()
            } else {
                node.to_string()
            },
            device: devices
                .get(device)
                .map_or_else(|| device.to_string(), |device| device.name().to_string()),
            reason: reason.to_owned(),
        };
        if devices.get(device).is_none() {
            return Err(not_legal("the device set has no device of this id"));
        }
        match pinned.get_mut(node.index()) {
            None => return Err(not_legal("the graph has no node of this id")),
            Some(pin) if *pin != NONE && *pin != device.0 => {
                return Err(not_legal("it is pinned to another device already"));
            }
            Some(pin) => *pin = device.0,
        }
    }
    Ok(Some(pinned))
}

/// Finds the device of an assigned full name.
fn assigned_device(
    graph: &Graph,
    devices: &DeviceSet,
    node: NodeId,
    name: &str,
) -> Result<DeviceId, CandidatesError> {
    let wrong = |reason: String| CandidatesError::AssignedDevice {
        node: graph.node_name(node).to_owned(),
        op: graph.op(node).to_owned(),
        reason: reason.into(),
    };
    if let Err(error) = DeviceName::parse_full(name) {
        return Err(wrong(format!("malformed assigned device: {error}")));
    }
    devices.find_by_name(name).ok_or_else(|| {
        let names: Vec<&str> = devices
            .iter()
            .map(|(_, device)| device.attributes().name.as_str())
            .collect();
        wrong(format!(
            "its assigned device `{name}` does not match any device; give the full name of one of [{}]",
            names.join(", ")
        ))
    })
}

/// Results per group, by the number of its state, or per kind of support and request for single
/// nodes.
#[derive(Clone, Copy)]
enum Entry {
    Unknown,
    Impossible,
    Known(Choice),
}

impl Entry {
    fn of(choice: Option<Choice>) -> Self {
        choice.map_or(Self::Impossible, Self::Known)
    }
}

/// Chooses candidate set and group of every node, and whether its request was softened. Fails with
/// the first node without a candidate, generators last.
fn choose_all(
    facts: &Facts<'_>,
    mut chooser: Chooser<'_>,
    groups: &mut Groups<'_>,
    supports: &mut Supports,
    pinned: Option<&[u32]>,
) -> Result<NodeColumns, NodeId> {
    let graph = facts.graph;
    let n_nodes = graph.n_nodes();
    let n_requests = facts.requests.len();
    // A graph has few kinds of support (at most one per combination of device types and
    // priorities), so the table stays small.
    let mut singles = vec![Entry::Unknown; supports.sets.len() * n_requests];
    let mut columns = NodeColumns {
        candidate_set: Vec::with_capacity(n_nodes),
        group: Vec::with_capacity(n_nodes),
        placement_hints: vec![0; n_nodes],
        ..NodeColumns::default()
    };
    let all_alone = groups.is_trivial();
    let mut of_state = vec![Entry::Unknown; groups.n_states()];
    // Numbers of groups, by root.
    let mut group_of = vec![NONE; if all_alone { 0 } else { n_nodes }];
    let mut overrides = Overrides::default();
    let mut failed_generator = None;
    for node in graph.nodes() {
        let request = graph.requested_ids()[node.index()];
        let root = if all_alone {
            node.0
        } else {
            groups.root(node.0)
        };
        let entry = if let Some((number, state)) = groups.numbered_state(root) {
            let group = &mut group_of[root as usize];
            if *group == NONE {
                *group = columns.n_groups;
                columns.n_groups += 1;
            }
            columns.group.push(*group);
            // Without pins no node is assigned.
            if let Some(pinned) = pinned {
                let is_assigned = pinned[node.index()] != NONE;
                if overrides.contradicts(root, state, is_assigned, is_generator(graph, node)) {
                    return Err(node);
                }
            }
            let entry = &mut of_state[number as usize];
            if matches!(entry, Entry::Unknown) {
                let supported = &supports.sets[state.support as usize];
                *entry = Entry::of(chooser.choose(supported, state.request(), facts.types));
            }
            *entry
        } else {
            columns.group.push(columns.n_groups);
            columns.n_groups += 1;
            let support = supports.of_node(graph, node);
            let entry = &mut singles[support as usize * n_requests + request as usize];
            if matches!(entry, Entry::Unknown) {
                let requested = &facts.requests[request as usize];
                *entry = choose_single(facts, &mut chooser, supports, support, requested);
            }
            *entry
        };
        let choice = match entry {
            Entry::Known(choice) => Some(choice),
            Entry::Impossible | Entry::Unknown => None,
        };
        let pin = pinned.map_or(NONE, |pinned| pinned[node.index()]);
        match choice {
            Some(choice) => {
                columns.candidate_set.push(choice.set);
                if choice.softened && facts.requests[request as usize].has_details() {
                    columns.placement_hints[node.index()] |= PlacementHint::SOFTENED;
                }
            }
            // Assigned nodes are not checked again: the first member that is not yet placed reports
            // the error.
            None if pin != NONE => {
                columns.candidate_set.push(chooser.intern(vec![pin]));
            }
            // Generators are placed last, so another node's error comes first.
            None if is_generator(graph, node) => {
                columns.candidate_set.push(NONE);
                failed_generator.get_or_insert(node);
            }
            None => return Err(node),
        }
    }
    if let Some(node) = failed_generator {
        return Err(node);
    }
    columns.sets = chooser.sets;
    Ok(columns)
}

fn choose_single(
    facts: &Facts<'_>,
    chooser: &mut Chooser<'_>,
    supports: &mut Supports,
    support: u32,
    requested: &DeviceName,
) -> Entry {
    let support = if asks_for_xla(requested) {
        support
    } else {
        supports.without_xla(support, facts.types)
    };
    let none = DeviceName::default();
    let request = Request {
        requested,
        assigned: &none,
        // A request on a generator of resources is softened later than others, but in the end both
        // are dropped.
        resource: &none,
    };
    Entry::of(chooser.choose(&supports.sets[support as usize], request, facts.types))
}
