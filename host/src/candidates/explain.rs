//! The search for the smallest set of conflicting constraints. It only runs after placement has
//! failed.
//!
//! Constraints are lifted until all that remain are necessary. The groups themselves ([`Groups`])
//! decide whether a set conflicts, so messages follow the rules of placement. Two nodes and the
//! shortest chain between them are tried first: most conflicts have that form, and users can follow
//! it.

mod describe;

use std::collections::VecDeque;
use std::ops::ControlFlow;

use hashbrown::HashMap;
use hashbrown::HashSet;

use crate::candidates::calls::CallInspector;
use crate::candidates::choose::Chooser;
use crate::candidates::conflict::Conflict;
use crate::candidates::error::CandidatesError;
use crate::candidates::facts::Facts;
use crate::candidates::groups::Groups;
use crate::candidates::groups::KeptLimits;
use crate::candidates::groups::Overrides;
use crate::candidates::hints::is_generator;
use crate::candidates::index::to_u32;
use crate::candidates::options::PlacementOptions;
use crate::candidates::support::Supports;
use crate::candidates::tie::Tie;
use crate::candidates::tie::call_members;
use crate::candidates::ties::for_each_tie;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceName;

/// Number of kinds of nodes, by their requests, between which chains are searched; graphs have few.
const N_KINDS_MAX: usize = 48;

/// Conflicts listed for nodes that are tied together. Further ones show up once these are resolved.
const N_CONFLICTS_MAX: usize = 16;

/// Longer chains are not minimised: each tie of a shortest chain is necessary.
const N_TRIED_MAX: usize = 256;

/// Constraints applied before the search gives up, which takes some seconds.
const WORK_MAX: usize = 20_000_000;

/// A constraint that can be lifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Item {
    Assigned(u32),
    Request(u32),
    Kernels(u32),
    /// Index into the ties; never a tie that is implicit.
    Tie(u32),
}

/// All constraints that can limit one node.
fn limits(node: u32) -> [Item; 3] {
    [
        Item::Assigned(node),
        Item::Request(node),
        Item::Kernels(node),
    ]
}

/// The constraints of a graph.
#[derive(Debug)]
pub(super) struct Explainer<'e, 'g> {
    facts: &'e Facts<'g>,
    options: &'e PlacementOptions,
    pinned: Option<&'e [u32]>,
    supports: Supports,
    all_types: u32,
    ties: Vec<Tie<'g>>,
    ties_of_node: HashMap<u32, Vec<u32>>,
    ties_of_group: HashMap<&'g str, Vec<u32>>,
    /// Nodes by the id of their request; made when it is first needed.
    nodes_of_request: Option<HashMap<u32, Vec<u32>>>,
    work: usize,
}

impl<'e, 'g> Explainer<'e, 'g> {
    /// Creates an explainer with all ties of the graph, or the first `n_ties`. Every node has a
    /// kernel, or is presumed to have one.
    ///
    /// # Errors
    /// The error of a call that cannot be inspected.
    pub(super) fn new(
        facts: &'e Facts<'g>,
        options: &'e PlacementOptions,
        pinned: Option<&'e [u32]>,
        supports: &Supports,
        inspector: &mut dyn CallInspector,
        n_ties: Option<usize>,
    ) -> Result<Self, CandidatesError> {
        let mut supports = supports.clone();
        let all = (0..to_u32(facts.types.names.len())).map(|number| (number, 0));
        let all_types = supports.intern(all.collect(), false);
        let mut found = Self {
            facts,
            options,
            pinned,
            supports,
            all_types,
            ties: Vec::new(),
            ties_of_node: HashMap::new(),
            ties_of_group: HashMap::new(),
            nodes_of_request: None,
            work: 0,
        };
        let _ = for_each_tie(facts, inspector, |tie| {
            if n_ties.is_some_and(|n_ties| found.ties.len() >= n_ties) {
                return ControlFlow::Break(());
            }
            found.add(tie);
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn add(&mut self, tie: Tie<'g>) {
        let index = to_u32(self.ties.len());
        if let Tie::Class { group, .. } = tie {
            self.ties_of_group.entry(group).or_default().push(index);
        }
        self.ties.push(tie);
        for node in self.nodes_of_tie(index) {
            self.ties_of_node.entry(node).or_default().push(index);
        }
    }

    /// Finds the conflict that leaves a node, or the nodes colocated with it, without a device.
    pub(super) fn conflict(&mut self, node: u32) -> Option<Conflict> {
        let all = self.items_around(node);
        let set = self.conflict_among(node, &all)?;
        let alike = self.nodes_alike(&set);
        Some(self.describe(node, &set, &all, &alike))
    }

    /// Finds conflicts around these nodes and all nodes at which placement fails. Each is found
    /// without the constraint whose removal resolves an earlier one; their number is limited for
    /// nodes that are tied together.
    pub(super) fn conflicts(&mut self, mut culprits: Vec<u32>) -> Vec<Conflict> {
        let mut found = Vec::new();
        let mut known: HashSet<u32> = HashSet::new();
        let mut lifted: HashSet<Item> = HashSet::new();
        culprits.append(&mut self.culprits());
        for culprit in culprits {
            if known.contains(&culprit) {
                continue;
            }
            let mut items = self.items_around(culprit);
            items.retain(|item| !lifted.contains(item));
            for _ in 0..N_CONFLICTS_MAX {
                let Some(set) = self.conflict_among(culprit, &items) else {
                    break;
                };
                let alike = self.nodes_alike(&set);
                found.push(self.describe(culprit, &set, &items, &alike));
                // The constraint that a user would most likely change: the last request, or else
                // the last of all.
                let is_request = |item: &&Item| matches!(item, Item::Request(_));
                let Some(&last) = set.iter().rfind(is_request).or(set.last()) else {
                    break;
                };
                lifted.insert(last);
                lifted.extend(alike.into_iter().map(Item::Request));
                items.retain(|item| !lifted.contains(item));
            }
            known.extend(self.ways_from(&[culprit]).order);
        }
        found
    }

    /// The nodes that have the same conflict as the one node that a set is about: the same request
    /// and, if its kernels count, the same op and kernels. In node order; empty if the set is about
    /// several nodes, or one that is pinned.
    fn nodes_alike(&mut self, set: &[Item]) -> Vec<u32> {
        let graph = self.facts.graph;
        let Some(&Item::Request(node)) = set.iter().find(|it| matches!(it, Item::Request(_)))
        else {
            return Vec::new();
        };
        let is_alone = set
            .iter()
            .all(|item| [Item::Request(node), Item::Kernels(node)].contains(item));
        if !is_alone || self.pin(node) != NONE {
            return Vec::new();
        }
        let of_request = self.nodes_of_request.get_or_insert_with(|| {
            let mut of_request: HashMap<u32, Vec<u32>> = HashMap::new();
            for node in graph.nodes() {
                let request = graph.requested_ids()[node.index()];
                of_request.entry(request).or_default().push(node.0);
            }
            of_request
        });
        let mut alike = of_request[&graph.requested_ids()[node as usize]].clone();
        let kind = |supports: &Supports, node: u32| {
            let node = NodeId(node);
            (supports.of_node(graph, node), graph.op(node))
        };
        let supports = &self.supports;
        let counts_kernels = set.contains(&Item::Kernels(node));
        let is_same = |other: u32| !counts_kernels || kind(supports, other) == kind(supports, node);
        alike.retain(|&other| self.pin(other) == NONE && is_same(other));
        alike
    }

    /// Nodes that cannot join a group, or are left without a device.
    fn culprits(&mut self) -> Vec<u32> {
        let facts = self.facts;
        let soft = self.options.allow_soft_placement;
        let supports = &mut self.supports;
        let mut culprits = Vec::new();
        let mut groups = Groups::new(facts.graph, facts.types, facts.requests, soft);
        for (node, &device) in facts.graph.nodes().zip(self.pinned.unwrap_or_default()) {
            if device != NONE {
                groups.assign(node.0, facts.device_name(device), supports);
            }
        }
        for tie in &self.ties {
            if let Err(conflict) = groups.join_tie(tie, supports) {
                culprits.push(conflict.first);
            }
        }
        groups.drop_xla(supports);
        let mut chooser = Chooser::new(facts.devices, self.options.default_local_device, soft);
        let mut has_choice: HashMap<u32, bool> = HashMap::new();
        let mut overrides = Overrides::default();
        for node in facts.graph.nodes() {
            let (root, state) = groups.of_node(node.0, supports);
            let has_choice = *has_choice.entry(root).or_insert_with(|| {
                let supported = &supports.sets[state.support as usize];
                chooser
                    .choose(supported, state.request(), facts.types)
                    .is_some()
            });
            let is_pinned = self.pinned.is_some_and(|pins| pins[node.index()] != NONE);
            let is_generator = is_generator(facts.graph, node);
            let is_too_early = overrides.contradicts(root, &state, is_pinned, is_generator);
            if is_too_early || !has_choice && !is_pinned {
                culprits.push(node.0);
            }
        }
        culprits
    }

    /// Collects the constraints of all nodes that a node is tied to, directly or indirectly.
    fn items_around(&self, node: u32) -> Vec<Item> {
        let mut nodes = self.ways_from(&[node]).order;
        nodes.sort_unstable();
        let mut ties: Vec<u32> = nodes
            .iter()
            .filter_map(|node| self.ties_of_node.get(node))
            .flatten()
            .copied()
            .filter(|&tie| !self.is_own(tie))
            .collect();
        ties.sort_unstable();
        ties.dedup();
        let limits = nodes.iter().flat_map(|&node| self.limits_of(node));
        limits.chain(ties.into_iter().map(Item::Tie)).collect()
    }

    /// Whether a tie puts a node into the group of its own name, which is implicit, so that users
    /// cannot change it.
    fn is_own(&self, tie: u32) -> bool {
        matches!(self.ties[tie as usize], Tie::Class { is_own: true, .. })
    }

    fn limits_of(&self, node: u32) -> Vec<Item> {
        let (graph, id) = (self.facts.graph, NodeId(node));
        let mut limits = Vec::new();
        if self.pin(node) != NONE {
            limits.push(Item::Assigned(node));
        }
        if *self.request(node) != DeviceName::default() {
            limits.push(Item::Request(node));
        }
        let support = self.supports.of_node(graph, id);
        if self.supports.sets[support as usize].len() < self.facts.types.names.len() {
            limits.push(Item::Kernels(node));
        }
        limits
    }

    fn pin(&self, node: u32) -> u32 {
        self.pinned.map_or(NONE, |pinned| pinned[node as usize])
    }

    fn request(&self, node: u32) -> &'g DeviceName {
        let id = self.facts.graph.requested_ids()[node as usize];
        &self.facts.requests[id as usize]
    }

    fn nodes_of_tie(&self, tie: u32) -> Vec<u32> {
        match &self.ties[tie as usize] {
            Tie::Edge {
                producer, consumer, ..
            } => vec![*producer, *consumer],
            Tie::Class { node, .. } | Tie::HostOnly { node, .. } => vec![*node],
            Tie::Call { call, found } => call_members(self.facts.graph, *call, found)
                .into_iter()
                .flatten()
                .map(|(node, _)| node)
                .collect(),
        }
    }

    /// Searches breadth first from some nodes along all ties.
    fn ways_from(&self, sources: &[u32]) -> Ways<'g> {
        let mut ways = Ways::default();
        let mut queue: VecDeque<u32> = VecDeque::new();
        for &source in sources {
            ways.visit(source, NONE, &[], &mut queue);
        }
        while let Some(node) = queue.pop_front() {
            for &tie in self.ties_of_node.get(&node).into_iter().flatten() {
                match &self.ties[tie as usize] {
                    Tie::Class { group, .. } => {
                        if ways.groups.insert(group) {
                            for &other in &self.ties_of_group[group] {
                                let member = self.nodes_of_tie(other)[0];
                                ways.visit(member, node, &[tie, other], &mut queue);
                            }
                        }
                    }
                    Tie::Edge {
                        producer, consumer, ..
                    } => {
                        let other = if *producer == node {
                            consumer
                        } else {
                            producer
                        };
                        ways.visit(*other, node, &[tie], &mut queue);
                    }
                    Tie::HostOnly { .. } => {}
                    Tie::Call { call, found } => {
                        for members in call_members(self.facts.graph, *call, found) {
                            if members.iter().any(|&(member, _)| member == node) {
                                for (member, _) in members {
                                    ways.visit(member, node, &[tie], &mut queue);
                                }
                            }
                        }
                    }
                }
            }
        }
        ways
    }

    /// Returns the devices left for the group of `node` under these constraints alone; `None` if
    /// they conflict.
    fn devices_left(&mut self, items: &[Item], soft: bool, node: u32) -> Option<Vec<u32>> {
        self.work = self.work.saturating_add(items.len());
        let facts = self.facts;
        let mut kept = KeptLimits::new(self.all_types);
        let (mut nodes, mut ties, mut assigned) = (vec![node], Vec::new(), HashSet::new());
        for &item in items {
            match item {
                Item::Assigned(node) => {
                    assigned.insert(node);
                    nodes.push(node);
                }
                Item::Request(node) => {
                    kept.requests.insert(node);
                    nodes.push(node);
                }
                Item::Kernels(node) => {
                    kept.kernels.insert(node);
                    nodes.push(node);
                }
                Item::Tie(tie) => {
                    ties.push(tie);
                    if let Tie::Class { group, .. } = &self.ties[tie as usize] {
                        let members = &self.ties_of_group[group];
                        ties.extend(members.iter().find(|&&member| self.is_own(member)));
                    }
                }
            }
        }
        nodes.extend(ties.iter().flat_map(|&tie| self.nodes_of_tie(tie)));
        for sorted in [&mut nodes, &mut ties] {
            sorted.sort_unstable();
            sorted.dedup();
        }
        let supports = &mut self.supports;
        let mut groups = Groups::new(facts.graph, facts.types, facts.requests, soft);
        groups.keep_only(&kept);
        let device_of =
            |pinned: Option<&[u32]>, node: u32| pinned.map_or(NONE, |pins| pins[node as usize]);
        for &node in nodes.iter().filter(|node| assigned.contains(*node)) {
            let device = facts.device_name(device_of(self.pinned, node));
            groups.assign(node, device, supports);
        }
        for &tie in &ties {
            groups.join_tie(&self.ties[tie as usize], supports).ok()?;
        }
        groups.drop_xla(supports);
        let default = self.options.default_local_device;
        let mut chooser = Chooser::new(facts.devices, default, soft);
        let mut left = Vec::new();
        let mut of_root: HashMap<u32, Option<u32>> = HashMap::new();
        let mut overrides = Overrides::default();
        for member in nodes {
            let (root, state) = groups.of_node(member, supports);
            let is_generator = is_generator(facts.graph, NodeId(member));
            if overrides.contradicts(root, &state, assigned.contains(&member), is_generator) {
                return None;
            }
            let supported = &supports.sets[state.support as usize];
            let set = *of_root.entry(root).or_insert_with(|| {
                let choice = chooser.choose(supported, state.request(), facts.types);
                choice.map(|choice| choice.set)
            });
            match set {
                Some(set) if member == node => left = chooser.sets.row(set as usize).to_vec(),
                Some(_) => {}
                // For an assigned node only its own kernel is checked.
                None if assigned.contains(&member) => {
                    let pin = device_of(self.pinned, member);
                    let device_type = facts.types.of_device[pin as usize];
                    let own = supports.of_node(facts.graph, NodeId(member));
                    let has_kernel = !kept.kernels.contains(&member)
                        || supports.sets[own as usize]
                            .iter()
                            .any(|&(number, _)| number == device_type);
                    if !has_kernel {
                        return None;
                    }
                    if member == node {
                        left = vec![pin];
                    }
                }
                None => return None,
            }
        }
        Some(left)
    }

    fn has_conflict(&mut self, items: &[Item]) -> bool {
        let soft = self.options.allow_soft_placement;
        let node = items.first().map(|&item| self.node_of(item));
        node.is_some_and(|node| self.devices_left(items, soft, node).is_none())
    }

    fn node_of(&self, item: Item) -> u32 {
        match item {
            Item::Assigned(node) | Item::Request(node) | Item::Kernels(node) => node,
            Item::Tie(tie) => match &self.ties[tie as usize] {
                Tie::Edge { consumer, .. } => *consumer,
                Tie::Class { node, .. } | Tie::HostOnly { node, .. } => *node,
                Tie::Call { call, .. } => call.0,
            },
        }
    }

    /// Finds a conflict of one node alone, or of two nodes along the shortest chain, or else any;
    /// `None` if there is no conflict.
    fn conflict_among(&mut self, culprit: u32, items: &[Item]) -> Option<Vec<Item>> {
        let known: HashSet<Item> = items.iter().copied().collect();
        let mut kinds: Vec<Vec<u32>> = Vec::new();
        let mut kind_of: HashMap<u32, usize> = HashMap::new();
        let mut numbers: HashMap<(u32, u32, u32, [bool; 3]), usize> = HashMap::new();
        let nodes = items.iter().filter_map(|item| match *item {
            Item::Assigned(node) | Item::Request(node) | Item::Kernels(node) => Some(node),
            Item::Tie(_) => None,
        });
        for node in std::iter::once(culprit).chain(nodes) {
            let kept = limits(node).map(|limit| known.contains(&limit));
            if !kept.contains(&true) || kind_of.contains_key(&node) {
                continue;
            }
            let support = self.supports.of_node(self.facts.graph, NodeId(node));
            let request = self.facts.graph.requested_ids()[node as usize];
            let key = (support, request, self.pin(node), kept);
            let kind = *numbers.entry(key).or_insert_with(|| {
                kinds.push(Vec::new());
                kinds.len() - 1
            });
            kinds[kind].push(node);
            kind_of.insert(node, kind);
        }
        let limits_of = |node: u32| {
            limits(node)
                .into_iter()
                .filter(|limit| known.contains(limit))
        };
        for nodes in &kinds {
            let own: Vec<Item> = limits_of(nodes[0]).collect();
            if self.has_conflict(&own) {
                return self.minimal(own);
            }
        }
        let mut pairs: Vec<Vec<Item>> = Vec::new();
        for (kind, nodes) in kinds.iter().enumerate().take(N_KINDS_MAX) {
            let ways = self.ways_from(nodes);
            let mut reached = HashSet::new();
            for &end in &ways.order {
                let Some(&other) = kind_of.get(&end) else {
                    continue;
                };
                if other <= kind || !reached.insert(other) {
                    continue;
                }
                let (start, ties) = ways.way_to(end);
                let ties = ties.into_iter().map(Item::Tie);
                let ties = ties.filter(|tie| known.contains(tie));
                pairs.push(limits_of(start).chain(ties).chain(limits_of(end)).collect());
            }
        }
        pairs.sort_by_key(Vec::len);
        for pair in pairs {
            if self.has_conflict(&pair) {
                return match pair.len() > N_TRIED_MAX {
                    true => Some(pair),
                    false => self.minimal(pair),
                };
            }
        }
        if self.has_conflict(items) {
            return self.minimal(items.to_vec());
        }
        None
    }

    /// Minimises a conflict by lifting constraints that are not necessary: first in halves, then
    /// one by one until none can be lifted.
    fn minimal(&mut self, mut items: Vec<Item>) -> Option<Vec<Item>> {
        let mut n_lifted = items.len() / 2;
        loop {
            n_lifted = n_lifted.max(1);
            let mut start = 0;
            let mut has_lifted = false;
            while start < items.len() {
                let end = (start + n_lifted).min(items.len());
                let mut others = items[..start].to_vec();
                others.extend_from_slice(&items[end..]);
                if self.has_conflict(&others) {
                    items = others;
                    has_lifted = true;
                } else {
                    start = end;
                }
                if self.work > WORK_MAX {
                    return None;
                }
            }
            // A tie that overrides a request may have hidden that others are not necessary, so
            // single steps continue.
            if n_lifted == 1 && !has_lifted {
                return Some(items);
            }
            n_lifted /= 2;
        }
    }
}

/// Shortest chains from some nodes.
#[derive(Debug, Default)]
struct Ways<'g> {
    /// Node before, [`NONE`] at a start, and the ties between.
    before: HashMap<u32, (u32, Vec<u32>)>,
    /// Nodes reached, nearest first.
    order: Vec<u32>,
    groups: HashSet<&'g str>,
}

impl Ways<'_> {
    fn visit(&mut self, node: u32, before: u32, ties: &[u32], queue: &mut VecDeque<u32>) {
        if let hashbrown::hash_map::Entry::Vacant(entry) = self.before.entry(node) {
            entry.insert((before, ties.to_vec()));
            self.order.push(node);
            queue.push_back(node);
        }
    }

    /// Returns the start of the chain to a node, and its ties.
    fn way_to(&self, end: u32) -> (u32, Vec<u32>) {
        let mut ties = Vec::new();
        let mut node = end;
        while let Some((before, between)) = self.before.get(&node)
            && *before != NONE
        {
            ties.extend(between.iter().rev());
            node = *before;
        }
        ties.reverse();
        (node, ties)
    }
}
