//! What a set of constraints that clash says to a user: in the order of the chain, with what mends
//! it.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::HashSet;

use super::Explainer;
use super::Item;
use crate::candidates::inspect::called_name;
use crate::candidates::refusal::Constraint;
use crate::candidates::refusal::Refusal;
use crate::candidates::refusal::Suggestion;
use crate::candidates::report::Facts;
use crate::candidates::ties::Tie;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// Groups that it is suggested to leave; any tie of a long way would do.
const N_GROUPS_SUGGESTED: usize = 4;

impl Explainer<'_, '_> {
    pub(super) fn describe(&mut self, culprit: u32, set: &[Item], all: &[Item]) -> Refusal {
        let ordered = self.along_the_chain(culprit, set);
        Refusal {
            constraints: ordered.iter().map(|&item| self.constraint(item)).collect(),
            suggestions: self.suggestions(&ordered, all),
        }
    }

    /// From limit to limit: what the first node asks for, what ties it to the next, and so on.
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
        let mut told: HashSet<Item> = HashSet::new();
        while let Some(node) = queue.pop_front() {
            let mut here = of_node.remove(&node).unwrap_or_default();
            // What the node asks for, then its own place in a group, then those of others.
            let is_tie = |item: Item| matches!(item, Item::Tie(_));
            here.sort_by_key(|&(item, _)| (is_tie(item), self.node_of(item) != node));
            for (item, span) in here {
                if told.insert(item) {
                    ordered.push(item);
                    queue.extend(span.into_iter().filter(|&node| seen.insert(node)));
                }
            }
        }
        ordered.extend(set.iter().filter(|item| !told.contains(*item)));
        ordered
    }

    /// The nodes that a constraint of the set is about, or ties together by the others of the set.
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

    fn constraint(&self, item: Item) -> Constraint {
        let (facts, graph) = (self.facts, self.facts.graph);
        let name = |node: u32| graph.node_name(NodeId(node)).to_owned();
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
                    node: name(node),
                    request: request.request_text(),
                    devices: devices.into_iter().map(device_name).collect(),
                }
            }
            Item::Kernels(node) => {
                let support = self.supports.of_node(graph, NodeId(node));
                let types = &self.supports.sets[support as usize];
                Constraint::Kernels {
                    node: name(node),
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

    /// Each has been tried: on all constraints around, or, where others of them clash too, on this
    /// clash.
    fn suggestions(&mut self, set: &[Item], all: &[Item]) -> Vec<Suggestion> {
        let facts = self.facts;
        let soft = self.options.allow_soft_placement;
        let name = |node: u32| facts.graph.node_name(NodeId(node)).to_owned();
        let (mut requests, mut groups, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
        for &item in set {
            let node = self.node_of(item);
            let without = |items: &[Item]| -> Vec<Item> {
                items.iter().copied().filter(|&it| it != item).collect()
            };
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
            let left = self
                .devices_left(&without(all), soft, node)
                .or_else(|| self.devices_left(&without(set), soft, node))
                .unwrap_or_default();
            match item {
                Item::Request(_) => {
                    let request = self.request(node);
                    requests.extend(nearest(facts, request, &left).map(|device| {
                        Suggestion::Request {
                            node: name(node),
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
}

/// The device with the most parts in common, job first, then the smallest difference of indices.
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

/// The parts of a device's name that a request has; with an index, what it is an index of.
fn as_complete_as(request: &DeviceName, device: &DeviceName) -> DeviceName {
    DeviceName {
        job: device.job.clone().filter(|_| request.job.is_some()),
        replica: device.replica.filter(|_| request.replica.is_some()),
        task: device.task.filter(|_| request.task.is_some()),
        device_type: device.device_type.clone(),
        index: device.index.filter(|_| request.index.is_some()),
    }
}
