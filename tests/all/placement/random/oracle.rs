//! A second implementation of the placement rules, as direct as possible: sets of nodes, and every
//! device is tried.
//!
//! 1. A node runs on device types for which its op has a kernel. An op without any kernel whose
//!    node requests another task than that of the default device is assumed to have kernels there:
//!    of the requested type, or of all types. XLA types count only on request, or if its group has
//!    nothing else.
//! 2. A pinned node runs where it is pinned, whatever its request.
//! 3. A reference or resource edge ties producer and consumer. If their groups request
//!    contradicting devices, the request of the consumer's group is void, except for requests of
//!    pins and of generators of references or resources.
//! 4. Nodes that name a group in `_class`, and the node of that name, are tied.
//! 5. A request that is not void is met, also by all nodes that are tied to it.
//!
//! Edges go first, in order of their consumers. With soft placement a request may lose its type and
//! index, and 4 may be dropped.
//!
//! Of the remaining devices of a group, the default one comes first, then those whose kernels have
//! the largest priority (0 for all if members disagree), then those of the largest type priority,
//! then by name.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::case::Case;
use super::case::CaseNode;
use super::case::Gives;
use super::case::Parts;
use super::case::Role;
use super::case::TYPE_PRIORITIES;
use super::case::TYPES;
use super::case::kernel_priority;

const XLA: usize = 3;

/// Tied nodes, and the rest of their requests.
#[derive(Debug, Clone)]
struct Group {
    members: Vec<usize>,
    /// The priority of the kernels per type, if every member has one.
    kernels: Priorities,
    /// The combined request of all members.
    asked: Parts,
    /// The part of the request that no producer makes void.
    firm: Parts,
}

type Priorities = [Option<i32>; TYPES.len()];

/// The groups of a case that can be placed without soft placement.
#[derive(Debug)]
pub(super) struct Rules<'a> {
    case: &'a Case,
    groups: Vec<Group>,
    /// Nodes whose requests are void.
    void: Vec<bool>,
}

impl<'a> Rules<'a> {
    /// Returns the groups, or why some node has no device.
    pub(super) fn of(case: &'a Case) -> Result<Self, String> {
        let mut rules = Self {
            case,
            groups: Vec::new(),
            void: vec![false; case.nodes.len()],
        };
        for (index, node) in case.nodes.iter().enumerate() {
            let group = rules.alone(index, node)?;
            rules.groups.push(group);
        }
        for (consumer, node) in case.nodes.iter().enumerate() {
            for &producer in &node.inputs {
                if case.nodes[producer].gives != Gives::Value {
                    rules.tie_edge(producer, consumer)?;
                }
            }
        }
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        for (index, node) in case.nodes.iter().enumerate() {
            let own = format!("n{index}");
            for name in node.groups.iter().chain([&own]) {
                let first = *first.entry(name.clone()).or_insert(index);
                rules.tie(index, first)?;
            }
        }
        for group in &rules.groups {
            if rules.legal_of(group).is_empty() {
                return Err(format!("{group:?} has no device"));
            }
        }
        Ok(rules)
    }

    /// Returns the devices that may run a node, most preferred first.
    pub(super) fn legal(&self, node: usize) -> Vec<u32> {
        self.legal_of(&self.groups[self.group_of(node)])
    }

    fn alone(&self, index: usize, node: &CaseNode) -> Result<Group, String> {
        let kernels = kernels(self.case, node);
        if kernels == [None; TYPES.len()] {
            return Err(format!("n{index} has no kernel"));
        }
        let is_generator = node.inputs.is_empty() && node.gives != Gives::Value;
        let (asked, firm) = match node.pin {
            Some(pin) if kernels[type_of(&self.case.devices[pin])].is_none() => {
                return Err(format!("n{index} has no kernel where it is pinned"));
            }
            Some(pin) => (
                self.case.devices[pin].clone(),
                self.case.devices[pin].clone(),
            ),
            None if is_generator => (node.request.clone(), node.request.clone()),
            None => (node.request.clone(), Parts::default()),
        };
        Ok(Group {
            members: vec![index],
            kernels,
            asked,
            firm,
        })
    }

    fn group_of(&self, node: usize) -> usize {
        let found = self
            .groups
            .iter()
            .position(|group| group.members.contains(&node));
        found.expect("every node is in a group")
    }

    fn tie_edge(&mut self, producer: usize, consumer: usize) -> Result<(), String> {
        let (source, target) = (self.group_of(producer), self.group_of(consumer));
        let asked = self.groups[source].asked.clone();
        if source != target && both(&asked, &self.groups[target].asked).is_none() {
            let target = &mut self.groups[target];
            for &member in &target.members {
                self.void[member] = true;
            }
            let what = both(&asked, &target.firm);
            target.asked = what.ok_or("what a producer asks for contradicts what is firm")?;
        }
        self.tie(producer, consumer)
    }

    fn tie(&mut self, a: usize, b: usize) -> Result<(), String> {
        let (a, b) = (self.group_of(a), self.group_of(b));
        if a == b {
            return Ok(());
        }
        let joined = self.groups.remove(a.max(b));
        let group = &mut self.groups[a.min(b)];
        group.members.extend(&joined.members);
        group.kernels = common(&group.kernels, &joined.kernels);
        group.asked = both(&group.asked, &joined.asked)
            .ok_or_else(|| format!("{:?} contradict each other", group.members))?;
        group.firm = both(&group.firm, &joined.firm).expect("the firm part is of what is asked");
        if group.kernels == [None; TYPES.len()] {
            return Err(format!(
                "no type has kernels for all of {:?}",
                group.members
            ));
        }
        Ok(())
    }

    fn legal_of(&self, group: &Group) -> Vec<u32> {
        let asks_for_xla = group.asked.device_type == Some(TYPES[XLA]);
        let mut kernels = group.kernels;
        let xla = kernels[XLA].take();
        if asks_for_xla || kernels == [None; TYPES.len()] {
            kernels[XLA] = xla;
        }
        let mut found = Vec::new();
        for (id, device) in self.case.devices.iter().enumerate() {
            let number = type_of(device);
            let Some(priority) = kernels[number].filter(|_| meets(device, &group.asked)) else {
                continue;
            };
            let is_default = self.case.default_device == Some(id);
            let preference = (is_default, priority, TYPE_PRIORITIES[number]);
            found.push((Reverse(preference), self.case.full_name(id), id));
        }
        found.sort();
        let ids = found.into_iter().map(|(_, _, id)| u32::try_from(id));
        ids.collect::<Result<_, _>>().expect("cases are small")
    }

    /// Returns the choice of TensorFlow's placer: first all nodes except generators, in order, then
    /// those. The first member of a group decides for it. Metadata ops and matching identities
    /// follow the producer of their first input, if it is placed; generators go where all their
    /// consumers are.
    pub(super) fn tensorflows_choice(&self) -> Vec<u32> {
        let nodes = &self.case.nodes;
        let mut placed: Vec<Option<u32>> = vec![None; nodes.len()];
        let mut of_group: Vec<Option<u32>> = vec![None; self.groups.len()];
        let is_generator = |node: &CaseNode| {
            node.inputs.is_empty() && node.gives != Gives::Reference && node.pin.is_none()
        };
        for is_second in [false, true] {
            for (index, node) in nodes.iter().enumerate() {
                if is_generator(node) != is_second {
                    continue;
                }
                let legal = self.legal(index);
                let preferred = match is_second {
                    false if node.role == Role::Metadata || self.is_matching_identity(index) => {
                        placed[node.inputs[0]]
                    }
                    false => None,
                    true => {
                        let waits = |other: &&usize| {
                            let CaseNode {
                                inputs, control, ..
                            } = &nodes[**other];
                            inputs.contains(&index) || control.contains(&index)
                        };
                        let all: Vec<usize> = (0..nodes.len()).collect();
                        let mut devices = all.iter().filter(waits).map(|&other| placed[other]);
                        let first = devices.next().flatten();
                        first.filter(|_| devices.all(|device| device == first))
                    }
                };
                let preferred = preferred
                    .filter(|device| legal.contains(device))
                    .unwrap_or(legal[0]);
                let device = *of_group[self.group_of(index)].get_or_insert(preferred);
                placed[index] = Some(device);
            }
        }
        placed.into_iter().flatten().collect()
    }

    /// Returns whether this is an identity without a request, on the only path between two nodes,
    /// or from a node to the end of the graph, that have equal requests.
    fn is_matching_identity(&self, index: usize) -> bool {
        let nodes = &self.case.nodes;
        let node = &nodes[index];
        if node.role != Role::Identity || !node.control.is_empty() || node.pin.is_some() {
            return false;
        }
        let mut ends = Vec::new();
        for consumer in nodes {
            let n_reads = consumer.inputs.iter().filter(|&&input| input == index);
            // Waiting twice for a node counts once.
            let n_waits = usize::from(consumer.control.contains(&index));
            ends.extend(vec![consumer.request_text(); n_reads.count() + n_waits]);
        }
        if ends.is_empty() {
            ends.push(String::new());
        }
        let start = nodes[node.inputs[0]].request_text();
        node.request_text().is_empty() && ends == [start]
    }
}

/// Returns the first rule that a placement breaks, checked by single constraints rather than by
/// groups.
pub(super) fn broken_rule(case: &Case, devices: &[u32]) -> Option<String> {
    let hard = Rules::of(case).ok();
    let is_tied = tied(case);
    for (index, node) in case.nodes.iter().enumerate() {
        let id = devices[index];
        let device = &case.devices[id as usize];
        if kernels(case, node)[type_of(device)].is_none() {
            return Some(format!("n{index} is on {device} without a kernel"));
        }
        if node.pin.is_some_and(|pin| pin != id as usize) {
            return Some(format!("n{index} is on {device}, not where it is pinned"));
        }
        for &producer in &node.inputs {
            if case.nodes[producer].gives != Gives::Value && devices[producer] != id {
                return Some(format!("n{index} is on {device}, n{producer} is not"));
            }
        }
        if node.pin.is_some() {
            continue;
        }
        // If requests can be met, soft placement meets them all.
        let is_met = match &hard {
            Some(rules) => rules.void[index] || meets(device, &node.request),
            None if is_tied[index] => continue,
            None => meets(device, &softened(case, node)),
        };
        if !is_met {
            return Some(format!("n{index} is on {device}, not as requested"));
        }
    }
    if hard.is_some() {
        for (name, mates) in classes(case) {
            if mates.iter().any(|&mate| devices[mate] != devices[mates[0]]) {
                return Some(format!("{mates:?} of group {name} are apart"));
            }
        }
    }
    None
}

/// Returns the kernels that a node has, or is assumed to have.
fn kernels(case: &Case, node: &CaseNode) -> Priorities {
    let is_present = |number: usize| case.devices.iter().any(|device| type_of(device) == number);
    let numbers = std::array::from_fn(|number| number);
    let own = numbers.map(|number: usize| {
        let is_there = is_present(number) && node.kernels & 1 << number != 0;
        is_there.then(|| kernel_priority(node.kernels, number))
    });
    let is_elsewhere = case.default_device.is_some_and(|local| {
        let Parts { job, task, .. } = case.devices[local];
        let here = Parts {
            job,
            task,
            ..Parts::default()
        };
        both(&here, &node.request).is_none()
    });
    if own != [None; TYPES.len()] || !is_elsewhere {
        return own;
    }
    numbers.map(|number| {
        let asked = node.request.device_type;
        let is_meant = asked.is_none_or(|asked| asked == TYPES[number]);
        (is_meant && is_present(number)).then_some(0)
    })
}

/// Returns the common kernels. If both have priorities and disagree on the order, there are none.
fn common(a: &Priorities, b: &Priorities) -> Priorities {
    let of = |one: &Priorities, other: &Priorities| -> Priorities {
        std::array::from_fn(|number| one[number].filter(|_| other[number].is_some()))
    };
    let has_any = |priorities: &Priorities| priorities.iter().flatten().any(|&one| one != 0);
    let sequence = |priorities: &Priorities| {
        let mut numbers: Vec<usize> = (0..TYPES.len())
            .filter(|&n| priorities[n].is_some())
            .collect();
        numbers.sort_by_key(|&n| Reverse((priorities[n], TYPE_PRIORITIES[n], Reverse(TYPES[n]))));
        numbers
    };
    let (a, b) = (of(a, b), of(b, a));
    match (has_any(&a), has_any(&b)) {
        (false, true) => b,
        (true, true) if sequence(&a) != sequence(&b) => a.map(|priority| priority.and(Some(0))),
        _ => a,
    }
}

/// Returns the softened request of a single node: all of it, if some device can meet it.
fn softened(case: &Case, node: &CaseNode) -> Parts {
    let alone = Case {
        nodes: vec![CaseNode {
            inputs: Vec::new(),
            control: Vec::new(),
            groups: Vec::new(),
            ..node.clone()
        }],
        ..case.clone()
    };
    match Rules::of(&alone) {
        Ok(_) => node.request.clone(),
        Err(_) => Parts {
            device_type: None,
            index: None,
            ..node.request.clone()
        },
    }
}

/// Returns whether each node is tied to another one.
fn tied(case: &Case) -> Vec<bool> {
    let mut tied = vec![false; case.nodes.len()];
    for (consumer, node) in case.nodes.iter().enumerate() {
        for &producer in &node.inputs {
            if case.nodes[producer].gives != Gives::Value {
                tied[producer] = true;
                tied[consumer] = true;
            }
        }
    }
    for mates in classes(case).values().filter(|mates| mates.len() > 1) {
        for &mate in mates {
            tied[mate] = true;
        }
    }
    tied
}

/// Returns the members of each group in `_class`, ascending.
fn classes(case: &Case) -> BTreeMap<String, Vec<usize>> {
    let mut classes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for node in &case.nodes {
        for group in &node.groups {
            classes.entry(group.clone()).or_default();
        }
    }
    for (index, node) in case.nodes.iter().enumerate() {
        for (name, members) in &mut classes {
            if node.groups.contains(name) || *name == format!("n{index}") {
                members.push(index);
            }
        }
    }
    classes
}

fn type_of(device: &Parts) -> usize {
    let position = TYPES
        .iter()
        .position(|&known| Some(known) == device.device_type);
    position.expect("devices are of these types")
}

/// Combines two requests, unless they contradict each other.
fn both(a: &Parts, b: &Parts) -> Option<Parts> {
    fn part<T: Copy + PartialEq>(a: Option<T>, b: Option<T>) -> Option<Option<T>> {
        match (a, b) {
            (Some(a), Some(b)) if a != b => None,
            _ => Some(a.or(b)),
        }
    }
    Some(Parts {
        job: part(a.job, b.job)?,
        task: part(a.task, b.task)?,
        device_type: part(a.device_type, b.device_type)?,
        index: part(a.index, b.index)?,
    })
}

fn meets(device: &Parts, asked: &Parts) -> bool {
    both(device, asked).as_ref() == Some(device)
}
