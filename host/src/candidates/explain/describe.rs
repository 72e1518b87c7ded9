//! The description of a set of conflicting constraints: in the order of the chain, with
//! suggestions.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::HashSet;

use super::Explainer;
use super::Item;
use crate::candidates::calls::called_name;
use crate::candidates::conflict::Conflict;
use crate::candidates::conflict::Constraint;
use crate::candidates::conflict::Suggestion;
use crate::candidates::facts::Facts;
use crate::candidates::tie::Tie;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// Number of groups in suggestions to leave one; any tie of a long chain would do.
const N_GROUPS_SUGGESTED: usize = 4;

impl Explainer<'_, '_> {
    /// Describes a set of conflicting constraints out of all constraints around, with the nodes
    /// that have the same conflict.
    pub(super) fn describe(
        &mut self,
        culprit: u32,
        set: &[Item],
        all: &[Item],
        alike: &[u32],
    ) -> Conflict {
        let ordered = self.along_the_chain(culprit, set);
        let constraints = ordered.iter();
        let constraints = constraints.map(|&item| self.constraint(item, alike));
        Conflict {
            constraints: constraints.collect(),
            suggestions: self.suggestions(&ordered, all, alike),
        }
    }

    /// Orders a set along its chain: the request of the first node, the constraint that ties it to
    /// the next, and so on.
    fn along_the_chain(&self, culprit: u32, set: &[Item]) -> Vec<Item> {
        let limited: Vec<u32> = set
            .iter()
            .filter(|item| !matches!(item, Item::Tie(_)))
            .map(|&item| self.node_of(item))
            .collect();
        let start = limited.iter().copied().find(|&node| node == culprit);
        let Some(start) = start.or(limited.first().copied()) else {
            return set.to_vec();
        };
        let known: HashSet<Item> = set.iter().copied().collect();
        let mut of_node: HashMap<u32, Vec<(Item, Vec<u32>)>> = HashMap::new();
        for &item in set {
            let span = self.span(item, &known);
            for &node in &span {
                of_node.entry(node).or_default().push((item, span.clone()));
            }
        }
        let mut ordered = Vec::new();
        let mut queue = VecDeque::from([start]);
        let mut seen: HashSet<u32> = HashSet::from([start]);
        let mut added: HashSet<Item> = HashSet::new();
        while let Some(node) = queue.pop_front() {
            let mut here = of_node.remove(&node).unwrap_or_default();
            // The node's requests, then its own group membership, then that of others.
            let is_tie = |item: Item| matches!(item, Item::Tie(_));
            here.sort_by_key(|&(item, _)| (is_tie(item), self.node_of(item) != node));
            for (item, span) in here {
                if added.insert(item) {
                    ordered.push(item);
                    queue.extend(span.into_iter().filter(|&node| seen.insert(node)));
                }
            }
        }
        ordered.extend(set.iter().filter(|item| !added.contains(*item)));
        ordered
    }

    /// Returns the nodes of a constraint, and those that it ties together with others of the set.
    fn span(&self, item: Item, set: &HashSet<Item>) -> Vec<u32> {
        let Item::Tie(tie) = item else {
            return vec![self.node_of(item)];
        };
        let mut span = self.nodes_of_tie(tie);
        if let Tie::Class { group, .. } = &self.ties[tie as usize] {
            let members = self.ties_of_group[group].iter().copied();
            let counts = |tie: &u32| self.is_own(*tie) || set.contains(&Item::Tie(*tie));
            span.extend(
                members
                    .filter(counts)
                    .flat_map(|tie| self.nodes_of_tie(tie)),
            );
        }
        span.sort_unstable();
        span.dedup();
        span
    }

    /// Converts an item, with all nodes that have the same conflict.
    fn constraint(&self, item: Item, alike: &[u32]) -> Constraint {
        let (facts, graph) = (self.facts, self.facts.graph);
        let name = |node: u32| graph.node_name(NodeId(node)).to_owned();
        let names = |node: u32| match alike.is_empty() {
            true => vec![name(node)],
            false => alike.iter().map(|&node| name(node)).collect(),
        };
        let device_name = |id: DeviceId| facts.device_name(id.0).to_string();
        match item {
            Item::Assigned(node) => Constraint::Assigned {
                node: name(node),
                device: device_name(DeviceId(self.pin(node))),
            },
            Item::Request(node) => {
                let request = self.request(node);
                let devices = facts.devices.find_matching(request);
                Constraint::Request {
                    nodes: names(node),
                    request: request.request_text(),
                    available: match devices.is_empty() {
                        true => facts.device_names(),
                        false => Vec::new(),
                    },
                    devices: devices.into_iter().map(device_name).collect(),
                }
            }
            Item::Kernels(node) => {
                let support = self.supports.of_node(graph, NodeId(node));
                let types = &self.supports.sets[support as usize];
                Constraint::Kernels {
                    nodes: names(node),
                    op: graph.op(NodeId(node)).to_owned(),
                    device_types: types
                        .iter()
                        .map(|&(number, _)| facts.types.names[number as usize].clone())
                        .collect(),
                }
            }
            Item::Tie(tie) => match &self.ties[tie as usize] {
                Tie::Edge {
                    producer,
                    consumer,
                    edge,
                } => {
                    let tensor = graph.edge_tensors()[*edge as usize] as usize;
                    let slot = tensor - graph.output_range(NodeId(*producer)).start;
                    let is_ref = graph
                        .output(NodeId(*producer), slot)
                        .is_some_and(|tensor| graph.tensor_is_ref(tensor));
                    Constraint::Edge {
                        tensor: format!("{}:{slot}", graph.node_name(NodeId(*producer))),
                        consumer: name(*consumer),
                        carries: if is_ref {
                            "reference".to_owned()
                        } else {
                            graph.tensor_dtypes()[tensor].name().to_owned()
                        },
                    }
                }
                Tie::Class { node, group, .. } => Constraint::ColocationGroup {
                    node: name(*node),
                    group: (*group).to_owned(),
                },
                Tie::HostOnly { node, list, dtype } => Constraint::HostOnly {
                    node: name(*node),
                    list: name(*list),
                    element_dtype: dtype.name().to_owned(),
                },
                Tie::Call { call, .. } => Constraint::Call {
                    node: graph.node_name(*call).to_owned(),
                    function: called_name(graph, *call).to_owned(),
                },
            },
        }
    }

    /// Suggests changes. Each was tried on all constraints around, or on this conflict alone if
    /// there are other conflicts.
    fn suggestions(&mut self, set: &[Item], all: &[Item], alike: &[u32]) -> Vec<Suggestion> {
        let facts = self.facts;
        let soft = self.options.allow_soft_placement;
        let name = |node: u32| facts.graph.node_name(NodeId(node)).to_owned();
        let (mut requests, mut groups, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
        for &item in set {
            let node = self.node_of(item);
            if let Item::Tie(tie) = item {
                if let Tie::Class { group, .. } = &self.ties[tie as usize]
                    && groups.len() < N_GROUPS_SUGGESTED
                {
                    groups.push(Suggestion::LeaveGroup {
                        node: name(node),
                        group: (*group).to_owned(),
                    });
                }
                continue;
            }
            if matches!(item, Item::Request(_)) && !alike.is_empty() {
                requests = self.requests_instead(set, all, alike);
                continue;
            }
            let left = self.devices_without(item, set, all);
            match item {
                Item::Request(_) => {
                    let request = self.request(node);
                    requests.extend(nearest(facts, request, &left).map(|device| {
                        Suggestion::Request {
                            nodes: vec![name(node)],
                            request: as_complete_as(request, device).request_text(),
                        }
                    }));
                }
                Item::Assigned(_) => {
                    let pinned = facts.device_name(self.pin(node));
                    requests.extend(nearest(facts, pinned, &left).map(|device| {
                        Suggestion::Assign {
                            node: name(node),
                            device: device.to_string(),
                        }
                    }));
                }
                Item::Kernels(_) => kernels.extend(left.first().map(|&device| {
                    let number = facts.types.of_device[device as usize];
                    Suggestion::Kernel {
                        op: facts.graph.op(NodeId(node)).to_owned(),
                        device_type: facts.types.names[number as usize].clone(),
                    }
                })),
                Item::Tie(_) => {}
            }
        }
        let mut suggestions = requests;
        let culprit = set.first().map(|&item| self.node_of(item));
        let helps = |culprit| !soft && self.devices_left(set, true, culprit).is_some();
        if culprit.is_some_and(helps) {
            suggestions.push(Suggestion::SoftPlacement);
        }
        suggestions.append(&mut groups);
        suggestions.append(&mut kernels);
        suggestions.dedup();
        suggestions
    }

    /// Returns the devices left for the node of an item if that item is lifted.
    fn devices_without(&mut self, item: Item, set: &[Item], all: &[Item]) -> Vec<u32> {
        let soft = self.options.allow_soft_placement;
        let node = self.node_of(item);
        let without = |items: &[Item]| -> Vec<Item> {
            items.iter().copied().filter(|&it| it != item).collect()
        };
        self.devices_left(&without(all), soft, node)
            .or_else(|| self.devices_left(&without(set), soft, node))
            .unwrap_or_default()
    }

    /// Suggests other requests for nodes with the same request. Each was tried on the first node of
    /// those with the same kernels.
    fn requests_instead(&mut self, set: &[Item], all: &[Item], alike: &[u32]) -> Vec<Suggestion> {
        let (facts, graph) = (self.facts, self.facts.graph);
        let counts_kernels = set.iter().any(|it| matches!(it, Item::Kernels(_)));
        let mut request_of_support: HashMap<u32, Option<String>> = HashMap::new();
        let mut found: Vec<(String, Vec<String>)> = Vec::new();
        for &node in alike {
            let support = self.supports.of_node(graph, NodeId(node));
            let request = match request_of_support.get(&support) {
                Some(known) => known.clone(),
                None => {
                    let request = Item::Request(node);
                    let around = match set.contains(&request) {
                        true => all.to_vec(),
                        false => self.items_around(node),
                    };
                    let mut own = vec![request];
                    own.extend(counts_kernels.then_some(Item::Kernels(node)));
                    let left = self.devices_without(request, &own, &around);
                    let request = self.request(node);
                    let nearest = nearest(facts, request, &left);
                    let nearest = nearest.map(|it| as_complete_as(request, it).request_text());
                    request_of_support.insert(support, nearest.clone());
                    nearest
                }
            };
            let Some(request) = request else { continue };
            let name = graph.node_name(NodeId(node)).to_owned();
            match found.iter_mut().find(|(known, _)| *known == request) {
                Some((_, nodes)) => nodes.push(name),
                None => found.push((request, vec![name])),
            }
        }
        let found = found.into_iter();
        let found = found.map(|(request, nodes)| Suggestion::Request { nodes, request });
        found.collect()
    }
}

/// Returns the device with the most parts in common, job first, then the closest index.
fn nearest<'g>(facts: &Facts<'g>, wanted: &DeviceName, devices: &[u32]) -> Option<&'g DeviceName> {
    let distance = |name: &DeviceName| {
        let differs = [
            wanted.job.is_some() && wanted.job != name.job,
            wanted.replica.is_some() && wanted.replica != name.replica,
            wanted.task.is_some() && wanted.task != name.task,
            wanted.device_type.is_some() && wanted.device_type != name.device_type,
        ];
        let index = name.index.unwrap_or(0);
        let away = wanted.index.map_or(0, |wanted| wanted.abs_diff(index));
        (differs, away)
    };
    let names = devices.iter().map(|&device| facts.device_name(device));
    names.min_by_key(|name| distance(name))
}

/// Reduces a device's name to the parts that a request has, and the type.
fn as_complete_as(request: &DeviceName, device: &DeviceName) -> DeviceName {
    DeviceName {
        job: device.job.clone().filter(|_| request.job.is_some()),
        replica: device.replica.filter(|_| request.replica.is_some()),
        task: device.task.filter(|_| request.task.is_some()),
        device_type: device.device_type.clone(),
        index: device.index.filter(|_| request.index.is_some()),
    }
}
