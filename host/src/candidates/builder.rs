//! Candidates without kernels, for services that place their own DAGs.

use std::sync::Arc;

use crate::candidates::columns::Candidates;
use crate::candidates::columns::DeviceColumns;
use crate::candidates::columns::NodeColumns;
use crate::candidates::devices::check_links;
use crate::candidates::devices::device_columns;
use crate::candidates::error::CandidatesError;
use crate::candidates::hints::fill_hints;
use crate::candidates::host_memory::HostMemory;
use crate::candidates::index::to_u32;
use crate::candidates::legal::LegalSets;
use crate::cost::CostClasses;
use crate::cost::CostModel;
use crate::device::DeviceSet;
use crate::device::LinkRates;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// Builds candidates from stated devices and costs per node, instead of kernels.
///
/// By default every node may run on every device, at the cost that the cost model computes from its
/// work. Devices are preferred by the priority of their type, then by name. The cost table has a
/// row per node and a column per device, or per class of devices ([`Self::by_class`]).
///
/// ```
/// use std::sync::Arc;
///
/// use placewright::candidates::{CandidatesBuilder, Proposal};
/// use placewright::device::{DeviceAttributes, DeviceSet, SimpleDevice};
/// use placewright::graph::{AttrSet, GraphAssembler, Input, NodeSpec, Work};
/// use placewright::names::{DeviceId, DeviceName};
/// use placewright::placement::{Evaluator, check};
///
/// let mut assembler = GraphAssembler::new("transcode");
/// let mut step = |name, inputs: &[Input]| {
///     assembler.add_node(&NodeSpec {
///         name,
///         op: "Step",
///         inputs,
///         requested_device: "",
///         attrs: AttrSet::default(),
///         outputs: &[],
///         stateful: false,
///         work: Work::default(),
///     })
/// };
/// let decode = step("decode", &[])?;
/// let scale = step("scale", &[Input::Control(decode)])?;
/// let graph = Arc::new(assembler.finish());
/// let mut devices = DeviceSet::default();
/// for machine in 0..2 {
///     let name = DeviceName::full("fleet", 0, machine, "CPU", 0);
///     devices.add(Arc::new(SimpleDevice::new(DeviceAttributes::new(&name, "CPU", 1 << 30))?));
/// }
/// let devices = Arc::new(devices);
///
/// let (first, second) = (DeviceId(0), DeviceId(1));
/// let candidates = CandidatesBuilder::new(&graph, &devices)
///     .with_cost_ns(decode, first, 2e6)
///     .with_cost_ns(decode, second, f64::INFINITY)
///     .with_cost_ns(scale, first, 9e6)
///     .with_cost_ns(scale, second, 1e6)
///     .build()?;
/// assert_eq!(candidates.of_node(decode), [0]);
///
/// let mut plan = Evaluator::new(&candidates);
/// plan.set_devices(&[0, 0]);
/// let together_ns = plan.makespan_ns();
/// plan.move_nodes(&[scale.0], second.0);
/// assert!(plan.makespan_ns() < together_ns);
/// plan.offer()?;
/// let placement = check(&candidates, plan.into_proposal().unwrap_or_default())?;
/// assert_eq!(placement.device(scale), second);
///
/// let refused = check(&candidates, Proposal { devices: vec![1, 1], ..Proposal::default() });
/// assert_eq!(refused.unwrap_err().rule(), "candidate");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CandidatesBuilder {
    graph: Arc<Graph>,
    device_set: Arc<DeviceSet>,
    devices: DeviceColumns,
    /// Nodes x cost classes.
    costs: Vec<f64>,
    colocated: Vec<(NodeId, NodeId)>,
    pinned: Vec<u32>,
    executions: Vec<f64>,
    priorities: Vec<i32>,
    /// Restrictions to some devices.
    allowed: Vec<Vec<DeviceId>>,
    /// Per node its restriction, from 1, or 0; empty if there are none.
    allowed_of: Vec<usize>,
}

impl CandidatesBuilder {
    /// Creates a builder that allows every node on every device, with the default cost model.
    pub fn new(graph: &Arc<Graph>, device_set: &Arc<DeviceSet>) -> Self {
        let classes = CostClasses::of_alike(device_set, |_, _| false);
        Self::by_class(graph, device_set, classes)
    }

    /// Does the same with a cost table that has a column per class of devices. Nodes cost the same
    /// on all devices of a class. A policy that is asked about many equal devices needs less time
    /// and memory.
    ///
    /// ```
    /// use placewright::candidates::CandidatesBuilder;
    /// use placewright::cost::CostClasses;
    /// # use std::sync::Arc;
    /// # use placewright::candidates::synthetic;
    /// # let (graph, devices) = (synthetic::graph(4, 1), Arc::new(synthetic::devices(2)));
    ///
    /// let classes = CostClasses::of(&devices);
    /// let made = CandidatesBuilder::by_class(&graph, &devices, classes).build()?;
    /// assert_eq!(made.nodes().costs.len(), graph.n_nodes() * made.devices().n_cost_classes as usize);
    /// # Ok::<(), placewright::candidates::CandidatesError>(())
    /// ```
    ///
    /// # Panics
    /// If there is not exactly one class per device, or a device is of a class that does not exist.
    pub fn by_class(graph: &Arc<Graph>, device_set: &Arc<DeviceSet>, classes: CostClasses) -> Self {
        assert_eq!(
            classes.of_device.len(),
            device_set.len(),
            "each device has a class"
        );
        let n_classes = classes.classes.len();
        let mut of_device = classes.of_device.iter();
        assert!(
            of_device.all(|&class| (class as usize) < n_classes),
            "each class exists"
        );
        let model = CostModel::default();
        let (devices, classes) = device_columns(device_set, &model, classes, 0);
        let mut costs = Vec::with_capacity(graph.n_nodes() * n_classes);
        for (&flops, &traffic_bytes) in graph.flops().iter().zip(graph.traffic_bytes()) {
            let of_classes = classes.iter();
            costs.extend(
                of_classes.map(|class| model.execution_ns(flops, traffic_bytes, &class.rates)),
            );
        }
        Self {
            graph: Arc::clone(graph),
            device_set: Arc::clone(device_set),
            devices,
            costs,
            colocated: Vec::new(),
            pinned: vec![NONE; graph.n_nodes()],
            executions: Vec::new(),
            priorities: Vec::new(),
            allowed: Vec::new(),
            allowed_of: Vec::new(),
        }
    }

    /// Sets the cost of one execution of a node on a device, in ns; +inf if it cannot run there. It
    /// is the cost on all devices of the same class ([`Self::by_class`]).
    ///
    /// # Panics
    /// If there is no such node or device.
    #[must_use]
    pub fn with_cost_ns(mut self, node: NodeId, device: DeviceId, cost_ns: f64) -> Self {
        assert!(
            device.index() < self.device_set.len(),
            "the device is one of the set"
        );
        let class = self.devices.cost_class[device.index()] as usize;
        let n_classes = self.n_classes();
        self.costs[node.index() * n_classes + class] = cost_ns;
        self
    }

    /// Sets the costs of a node, in ns: on all devices, or on all classes of [`Self::by_class`].
    ///
    /// # Panics
    /// If there is no such node, or if there is not exactly one cost per device or class.
    #[must_use]
    pub fn with_costs_ns(mut self, node: NodeId, costs_ns: &[f64]) -> Self {
        let n_classes = self.n_classes();
        let start = node.index() * n_classes;
        self.costs[start..start + n_classes].copy_from_slice(costs_ns);
        self
    }

    fn n_classes(&self) -> usize {
        self.devices.n_cost_classes as usize
    }

    /// Restricts nodes to some devices, instead of all. A later restriction of a node replaces the
    /// earlier one.
    ///
    /// # Panics
    /// If a node or device does not exist.
    #[must_use]
    pub fn with_allowed_devices(mut self, nodes: &[NodeId], devices: &[DeviceId]) -> Self {
        let n_devices = self.device_set.len();
        assert!(
            devices.iter().all(|device| device.index() < n_devices),
            "the devices are in the set"
        );
        self.allowed_of.resize(self.graph.n_nodes(), 0);
        self.allowed.push(devices.to_vec());
        for node in nodes {
            self.allowed_of[node.index()] = self.allowed.len();
        }
        self
    }

    /// Sets the priority of a node, larger first; 0 by default. Policies may ignore it.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn with_priority(mut self, node: NodeId, priority: i32) -> Self {
        self.priorities.resize(self.graph.n_nodes(), 0);
        self.priorities[node.index()] = priority;
        self
    }

    /// Colocates two nodes.
    ///
    /// # Panics
    /// If one of them does not exist.
    #[must_use]
    pub fn with_colocation(mut self, a: NodeId, b: NodeId) -> Self {
        let n_nodes = self.graph.n_nodes();
        assert!(
            a.max(b).index() < n_nodes,
            "both nodes are in the graph, which has {n_nodes}"
        );
        self.colocated.push((a, b));
        self
    }

    /// Fixes a node to a device.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn with_pin(mut self, node: NodeId, device: DeviceId) -> Self {
        self.pinned[node.index()] = device.0;
        self
    }

    /// Sets the expected number of executions of a node in one run, finite and not negative; 1 by
    /// default.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn with_executions(mut self, node: NodeId, executions: f64) -> Self {
        if self.executions.is_empty() {
            self.executions = vec![1.0; self.graph.n_nodes()];
        }
        self.executions[node.index()] = executions;
        self
    }

    /// Sets the cost of transfers from one device to another; +inf if nothing can be transferred.
    ///
    /// # Panics
    /// If one of them does not exist.
    #[must_use]
    pub fn with_link(mut self, src: DeviceId, dst: DeviceId, link: LinkRates) -> Self {
        assert!(
            src.max(dst).index() < self.device_set.len(),
            "both devices are in the set"
        );
        let exceptions = &mut self.devices.link_exceptions;
        match exceptions.binary_search_by_key(&(src, dst), |&(src, dst, _)| (src, dst)) {
            Ok(index) => exceptions[index].2 = link,
            Err(index) => exceptions.insert(index, (src, dst, link)),
        }
        self
    }

    /// Sets the bytes that plans may use on a device.
    ///
    /// # Panics
    /// If there is no such device.
    #[must_use]
    pub fn with_memory_capacity_bytes(mut self, device: DeviceId, bytes: u64) -> Self {
        self.devices.memory_capacity_bytes[device.index()] = bytes;
        self.devices.memory_free_bytes[device.index()] = bytes;
        self
    }

    /// Gives these devices one shared memory, with the smallest capacity that they state.
    ///
    /// # Panics
    /// If one of them does not exist.
    #[must_use]
    pub fn with_shared_memory(mut self, devices: &[DeviceId]) -> Self {
        if let Some(&first) = devices.first() {
            let domain = self.devices.memory_domain[first.index()];
            for device in devices {
                self.devices.memory_domain[device.index()] = domain;
            }
        }
        self
    }

    /// Puts these devices on one chip.
    ///
    /// # Panics
    /// If one of them does not exist.
    #[must_use]
    pub fn with_shared_chip(mut self, devices: &[DeviceId]) -> Self {
        if let Some(&first) = devices.first() {
            let chip = self.devices.chips[first.index()];
            for device in devices {
                self.devices.chips[device.index()] = chip;
            }
        }
        self
    }

    /// Builds the candidates.
    ///
    /// # Errors
    /// [`CandidatesError`] if there are no devices, if a cost, link or number of executions is
    /// negative or not a number, if no device may run a node or colocation group, or if a node is
    /// pinned to a device that may not run it.
    pub fn build(self) -> Result<Candidates, CandidatesError> {
        if self.device_set.is_empty() {
            return Err(CandidatesError::NoDevices);
        }
        self.check_executions()?;
        check_links(&self.devices, &self.device_set)?;
        let group_of = self.groups();
        let mut columns = NodeColumns {
            n_groups: group_of.iter().max().map_or(0, |&last| last + 1),
            edge_kinds: self.graph.edge_kinds().to_vec(),
            placement_hints: vec![0; self.graph.n_nodes()],
            cost_row: (0..to_u32(self.graph.n_nodes())).collect(),
            ..NodeColumns::default()
        };
        columns.follow = fill_hints(
            &self.graph,
            &self.pinned,
            &DeviceName::default(),
            &mut columns.placement_hints,
        );
        let (legal, set_of_group) = self.legal_of_groups(&group_of, columns.n_groups as usize)?;
        let (sets, set_of_group) = legal.into_columns(&set_of_group);
        columns.sets = sets;
        columns.candidate_set = group_of
            .iter()
            .map(|&group| set_of_group[group as usize])
            .collect();
        columns.pinned = self.pinned;
        columns.group = group_of;
        columns.executions = self.executions;
        columns.user_priority = self.priorities;
        columns.costs = self.costs;
        let option = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let options = vec![
            option("graph-name", self.graph.name()),
            option("stated-costs", "true"),
        ];
        let host_memory = Arc::new(HostMemory::of_nodes(&self.graph));
        Ok(Candidates::new(
            self.graph,
            self.device_set,
            columns,
            self.devices,
            options,
            host_memory,
        ))
    }

    fn check_executions(&self) -> Result<(), CandidatesError> {
        for (node, &executions) in self.graph.nodes().zip(&self.executions) {
            if !executions.is_finite() || executions < 0.0 {
                return Err(CandidatesError::BadExecutions {
                    node: self.graph.node_name(node).to_owned(),
                    executions,
                });
            }
        }
        Ok(())
    }

    /// Returns dense groups, numbered by their first members.
    fn groups(&self) -> Vec<u32> {
        let mut parent: Vec<u32> = (0..to_u32(self.graph.n_nodes())).collect();
        let root = |parent: &mut Vec<u32>, mut node: u32| {
            while parent[node as usize] != node {
                parent[node as usize] = parent[parent[node as usize] as usize];
                node = parent[node as usize];
            }
            node
        };
        for &(a, b) in &self.colocated {
            let (a, b) = (root(&mut parent, a.0), root(&mut parent, b.0));
            // The smaller id becomes the root, so that a root comes before its members.
            parent[a.max(b) as usize] = a.min(b);
        }
        let mut group_of = vec![NONE; parent.len()];
        let mut n_groups = 0;
        for node in 0..to_u32(parent.len()) {
            let root = root(&mut parent, node) as usize;
            if group_of[root] == NONE {
                group_of[root] = n_groups;
                n_groups += 1;
            }
            group_of[node as usize] = group_of[root];
        }
        group_of
    }

    /// Returns per group the devices that all members may use, most preferred first; for a pinned
    /// group only its device.
    fn legal_of_groups(
        &self,
        group_of: &[u32],
        n_groups: usize,
    ) -> Result<(LegalSets, Vec<u32>), CandidatesError> {
        let n_classes = self.n_classes();
        let preferred = self.device_set.prioritized_devices().into_iter();
        let mut sets = LegalSets::new(
            preferred.map(|(id, _)| id.0).collect(),
            &self.devices.cost_class,
            self.allowed.len() + 1,
        );
        let mut legal: Vec<Option<u32>> = vec![None; n_groups];
        let mut pins = vec![NONE; n_groups];
        for node in self.graph.nodes() {
            let costs = &self.costs[node.index() * n_classes..][..n_classes];
            let name = || self.graph.node_name(node).to_owned();
            if let Some(&cost_ns) = costs.iter().find(|cost| cost.is_nan() || **cost < 0.0) {
                return Err(CandidatesError::BadCost {
                    node: name(),
                    cost_ns,
                });
            }
            let restriction = self.allowed_of.get(node.index()).copied().unwrap_or(0);
            let allowed = restriction
                .checked_sub(1)
                .map(|index| &*self.allowed[index]);
            let own = sets.of_node(costs, restriction, allowed);
            let group = group_of[node.index()] as usize;
            let common = legal[group].map_or(own, |others| sets.both(others, own));
            legal[group] = Some(common);
            if sets.get(common).is_empty() {
                return Err(match self.allowed.is_empty() {
                    true => CandidatesError::NoDeviceAtAnyCost { node: name() },
                    false => CandidatesError::NoAllowedDevice { node: name() },
                });
            }
            let pin = self.pinned[node.index()];
            if pin != NONE {
                if pins[group] != NONE && pins[group] != pin {
                    return Err(self.bad_pin(node, pin, "its group is pinned to another device"));
                }
                pins[group] = pin;
            }
        }
        let mut legal: Vec<u32> = legal.into_iter().flatten().collect();
        for node in self.graph.nodes() {
            let group = group_of[node.index()] as usize;
            let pin = pins[group];
            if pin != NONE {
                if !sets.get(legal[group]).contains(&pin) {
                    return Err(self.bad_pin(node, pin, "it or its group cannot run there"));
                }
                legal[group] = sets.only(pin);
            }
        }
        Ok((sets, legal))
    }

    fn bad_pin(&self, node: NodeId, device: u32, reason: &str) -> CandidatesError {
        CandidatesError::PinNotLegal {
            node: self.graph.node_name(node).to_owned(),
            device: self
                .device_set
                .get(DeviceId(device))
                .map_or_else(|| device.to_string(), |device| device.name().to_string()),
            reason: reason.to_owned(),
        }
    }
}
