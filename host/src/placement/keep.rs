//! Re-placement: which nodes of an earlier placement stay, and which a policy places again.
//!
//! From candidates for the current devices and an earlier placement, it computes the same
//! candidates with the groups that stay pinned, which any policy can then place. Devices are
//! matched by name. Only necessary moves happen:
//!
//! - Groups whose device is gone or can no longer run them are free, and so are groups without an
//!   earlier device.
//! - If the nodes of one memory need more than it has now, groups are freed until the rest fits:
//!   the group with the fewest resident bytes that suffices alone, else the group that helps most,
//!   and so on. Ties go to the first group in the graph. Groups that keep state, are pinned, or fit
//!   nowhere else are never freed.
//! - The candidates of a free group are the devices where it fits beside the groups that stay,
//!   without the device whose memory it was freed from.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::Serialize;

use crate::candidates::Candidates;
use crate::candidates::PlacementHint;
use crate::candidates::PlanColumns;
use crate::candidates::Restriction;
use crate::candidates::short_device_name;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::placement::check::Placement;
use crate::placement::memory::Capacity;
use crate::placement::memory::capacity_of_domains;
use crate::placement::saved::SavedPlacement;
use crate::placement::violation::Violation;
use crate::serialize::as_string;
use crate::tensor::show_bytes;

/// Why an earlier placement cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// Nodes that cannot move need more memory than their device has.
    #[error(
        "node `{node}` cannot leave {device} ({why}), but nodes that cannot leave it need {} of memory and plans may use {}; raise the capacity, or place the graph anew without keeping the earlier placement",
        show_bytes(*needed_bytes),
        show_bytes(*capacity_bytes)
    )]
    CannotMove {
        /// The largest node that must stay.
        node: String,
        /// Its device.
        device: String,
        /// Why it must stay.
        why: &'static str,
        /// Resident bytes of the nodes that must stay, plus their largest workspace.
        needed_bytes: u64,
        /// Bytes that plans may use.
        capacity_bytes: u64,
    },
    /// A node has to move and fits nowhere beside the nodes that stay.
    #[error(
        "node `{node}` has to move ({reason}), but its colocation group of {} needs {}, more than is free on the devices that may run it: {devices}; raise a capacity, or place the graph anew without keeping the earlier placement",
        count_nodes(*n_nodes),
        show_bytes(*resident_bytes)
    )]
    NoSpace {
        /// First node of the group.
        node: String,
        /// Why it cannot stay.
        reason: MoveReason,
        /// Number of nodes of the group.
        n_nodes: usize,
        /// Resident bytes of the group.
        resident_bytes: u64,
        /// The devices that may run it, with their free memory.
        devices: String,
    },
}

fn count_nodes(n: usize) -> String {
    match n {
        1 => "1 node".to_owned(),
        n => format!("{n} nodes"),
    }
}

/// Why a node moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MoveReason {
    /// Its device is gone.
    DeviceLost,
    /// Its device can no longer run it: the request, the kernels or its group have changed.
    NotLegal,
    /// Its device has too little memory.
    Memory,
    /// It is pinned to another device.
    Pinned,
    /// Other nodes of its colocation group were on another device.
    Group,
}

impl std::fmt::Display for MoveReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::DeviceLost => "its device is gone",
            Self::NotLegal => "its device can no longer run it",
            Self::Memory => "its device has too little memory",
            Self::Pinned => "it is pinned to another device",
            Self::Group => "its colocation group is on another device",
        })
    }
}

/// The differences between an earlier placement and its replacement.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Replacement {
    /// Nodes that stay on their devices.
    pub n_kept: usize,
    /// Nodes without an earlier device.
    pub n_new: usize,
    /// Nodes that move, in node order.
    pub moved: Vec<MovedNode>,
}

/// A node that moves to another device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MovedNode {
    /// The node.
    pub node: NodeId,
    /// Full name of its device before.
    #[serde(serialize_with = "as_string")]
    pub from: Arc<str>,
    /// Its new device.
    pub to: DeviceId,
    /// Why.
    #[serde(serialize_with = "as_string")]
    pub reason: MoveReason,
    /// Whether it keeps state.
    pub is_stateful: bool,
    /// Bytes of variables and tables that have moved with it. `None` if it has none, or if its
    /// state is lost and must be set again: only a session moves state
    /// ([`crate::session::Session::replace_devices`]).
    pub moved_state_bytes: Option<u64>,
}

/// The part of an earlier placement that stays, for the current candidates.
#[derive(Debug, Clone)]
pub struct Kept {
    full: Candidates,
    restricted: Candidates,
    before: Vec<Before>,
    names: Vec<Arc<str>>,
    /// Per group the reason to move; `None` for groups that stay.
    reasons: Vec<Option<MoveReason>>,
}

/// The earlier device of a node.
#[derive(Debug, Clone, Copy)]
enum Before {
    /// This device of the set.
    On(u32),
    /// A device that is gone, as an index into [`Kept::names`].
    Lost(u32),
    /// None.
    New,
}

/// A colocation group and its device.
#[derive(Debug, Clone)]
struct Group {
    first: NodeId,
    n_nodes: usize,
    resident_bytes: u64,
    workspace_bytes: u64,
    is_stateful: bool,
    /// Device that a member is pinned to, or [`NONE`].
    pin: u32,
    /// The device on which it stays; [`NONE`] if it is free.
    device: u32,
    reason: Option<MoveReason>,
}

impl Kept {
    /// Keeps a placement of the same graph, or of one with nodes of the same names.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn of_placement(candidates: &Candidates, before: &Placement) -> Result<Self, KeepError> {
        let (graph, old) = (candidates.graph(), before.graph());
        let mut devices = Devices::new(candidates);
        let of_old: Vec<Before> = (0..before.candidates().n_devices())
            .map(|device| {
                let device = super::to_u32(device);
                devices.find(before.candidates().device_name(device))
            })
            .collect();
        let before = graph
            .nodes()
            .map(|node| {
                let found = if Arc::ptr_eq(graph, old) {
                    Some(node)
                } else {
                    old.find_node(graph.node_name(node))
                };
                found.map_or(Before::New, |old| of_old[before.device(old).index()])
            })
            .collect();
        Self::new(candidates, before, devices.names)
    }

    /// Keeps a saved placement.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn of_saved(candidates: &Candidates, before: &SavedPlacement) -> Result<Self, KeepError> {
        let graph = candidates.graph();
        let mut devices = Devices::new(candidates);
        let before = graph
            .nodes()
            .map(|node| match before.devices.get(graph.node_name(node)) {
                Some(device) => devices.find(device),
                None => Before::New,
            })
            .collect();
        Self::new(candidates, before, devices.names)
    }

    fn new(
        candidates: &Candidates,
        before: Vec<Before>,
        names: Vec<Arc<str>>,
    ) -> Result<Self, KeepError> {
        let mut groups = groups(candidates, &before);
        let mut memories = Memories::new(candidates, &groups);
        for domain in 0..memories.capacity_bytes.len() {
            memories.make_fit(domain, &mut groups)?;
        }
        memories.make_runs_fit(&mut groups);
        let restrictions = groups
            .iter()
            .map(|group| match group {
                group if group.pin != NONE => Ok(Restriction::None),
                group if group.device != NONE => Ok(Restriction::Pinned(group.device)),
                group => memories.space_for(group),
            })
            .collect::<Result<Vec<_>, KeepError>>()?;
        Ok(Self {
            full: candidates.clone(),
            restricted: candidates.restricted(&restrictions),
            before,
            names,
            reasons: groups.into_iter().map(|group| group.reason).collect(),
        })
    }

    /// Returns the candidates for the policy, in which the nodes that stay are pinned.
    pub fn candidates(&self) -> &Candidates {
        &self.restricted
    }

    /// Converts a placement of [`Self::candidates`] into one of all candidates, and reports which
    /// nodes move.
    ///
    /// # Errors
    /// A [`Violation`] if `placement` is not one of [`Self::candidates`].
    pub fn settle(self, placement: Placement) -> Result<(Placement, Replacement), Violation> {
        let placement = placement.checked_against(&self.full)?;
        let nodes = self.full.nodes();
        let mut replacement = Replacement::default();
        for (node, &before) in self.full.graph().nodes().zip(&self.before) {
            let to = placement.device(node);
            let reason = self.reasons[nodes.group[node.index()] as usize];
            let (from, reason) = match before {
                Before::On(device) if device == to.0 => {
                    replacement.n_kept += 1;
                    continue;
                }
                Before::New => {
                    replacement.n_new += 1;
                    continue;
                }
                Before::On(device) => (
                    self.full.device_name(device).into(),
                    reason
                        .filter(|&reason| reason != MoveReason::DeviceLost)
                        .unwrap_or(MoveReason::Group),
                ),
                Before::Lost(name) => (
                    Arc::clone(&self.names[name as usize]),
                    MoveReason::DeviceLost,
                ),
            };
            replacement.moved.push(MovedNode {
                node,
                from,
                to,
                reason,
                is_stateful: nodes.placement_hints[node.index()] & PlacementHint::STATEFUL != 0,
                moved_state_bytes: None,
            });
        }
        Ok((placement, replacement))
    }
}

/// Finds devices by name.
struct Devices<'a> {
    candidates: &'a Candidates,
    names: Vec<Arc<str>>,
    lost: HashMap<Arc<str>, u32>,
}

impl<'a> Devices<'a> {
    fn new(candidates: &'a Candidates) -> Self {
        Self {
            candidates,
            names: Vec::new(),
            lost: HashMap::new(),
        }
    }

    fn find(&mut self, name: &str) -> Before {
        if let Some(device) = self.candidates.device_set().find_by_name(name) {
            return Before::On(device.0);
        }
        if let Some(&known) = self.lost.get(name) {
            return Before::Lost(known);
        }
        let number = super::to_u32(self.names.len());
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.lost.insert(name, number);
        Before::Lost(number)
    }
}

/// Collects all groups, with the device on which each would stay.
fn groups(candidates: &Candidates, before: &[Before]) -> Vec<Group> {
    let (graph, nodes) = (candidates.graph(), candidates.nodes());
    let empty = Group {
        first: NodeId(NONE),
        n_nodes: 0,
        resident_bytes: 0,
        workspace_bytes: 0,
        is_stateful: false,
        pin: NONE,
        device: NONE,
        reason: None,
    };
    let mut groups = vec![empty; nodes.n_groups as usize];
    for (node, &before) in graph.nodes().zip(before) {
        let index = node.index();
        let group = &mut groups[nodes.group[index] as usize];
        if group.n_nodes == 0 {
            group.first = node;
        }
        group.n_nodes += 1;
        let resident_bytes = graph.resident_bytes()[index];
        group.resident_bytes = group.resident_bytes.saturating_add(resident_bytes);
        group.workspace_bytes = group.workspace_bytes.max(graph.workspace_bytes()[index]);
        if nodes.pinned[index] != NONE {
            group.pin = nodes.pinned[index];
        }
        let is_stateful = nodes.placement_hints[index] & PlacementHint::STATEFUL != 0;
        match before {
            // If members were on different devices, the one with state decides, else the first.
            Before::On(device) if group.device == NONE || (is_stateful && !group.is_stateful) => {
                group.device = device;
                group.is_stateful = is_stateful;
            }
            Before::Lost(_) => group.reason = Some(MoveReason::DeviceLost),
            Before::On(_) | Before::New => {}
        }
    }
    for group in &mut groups {
        if group.pin != NONE {
            if group.device != NONE && group.device != group.pin {
                group.reason = Some(MoveReason::Pinned);
            }
            group.device = group.pin;
        } else if group.device != NONE && !candidates.is_legal(group.first, group.device) {
            group.reason = Some(MoveReason::NotLegal);
            group.device = NONE;
        }
    }
    groups
}

/// The use of every memory by the groups that stay.
struct Memories<'a> {
    candidates: &'a Candidates,
    capacity_bytes: Vec<u64>,
    resident_bytes: Vec<u64>,
    workspace_bytes: Vec<u64>,
    /// Use of each memory by all its groups, before any is freed: resident bytes, and the largest
    /// workspace.
    wanted_bytes: Vec<(u64, u64)>,
    /// Per memory its groups.
    groups: Vec<Vec<usize>>,
    /// The memory from which a group was freed.
    left: HashMap<NodeId, u32>,
}

impl<'a> Memories<'a> {
    fn new(candidates: &'a Candidates, groups: &[Group]) -> Self {
        let capacity_bytes = capacity_of_domains(candidates);
        let n_domains = capacity_bytes.len();
        let mut memories = Self {
            candidates,
            capacity_bytes,
            resident_bytes: vec![0; n_domains],
            workspace_bytes: vec![0; n_domains],
            wanted_bytes: vec![(0, 0); n_domains],
            groups: vec![Vec::new(); n_domains],
            left: HashMap::new(),
        };
        for (index, group) in groups.iter().enumerate() {
            if group.device != NONE {
                let domain = memories.domain(group.device);
                memories.groups[domain].push(index);
                let (resident, workspace) = &mut memories.wanted_bytes[domain];
                *resident = resident.saturating_add(group.resident_bytes);
                *workspace = group.workspace_bytes.max(*workspace);
            }
        }
        memories
    }

    fn domain(&self, device: u32) -> usize {
        self.candidates.devices().memory_domain[device as usize] as usize
    }

    /// Returns why a group must stay in its memory, if it must.
    fn tie(&self, group: &Group) -> Option<&'static str> {
        let here = self.domain(group.device);
        let legal = self.candidates.of_node(group.first).iter();
        let elsewhere = || {
            let domains = legal.clone().map(|&device| self.domain(device));
            domains.filter(|&domain| domain != here)
        };
        if group.pin != NONE {
            Some("it is pinned there")
        } else if group.is_stateful {
            Some("it keeps state there")
        } else if elsewhere().next().is_none() {
            Some("no other device may run it")
        } else if !elsewhere().any(|domain| self.may_have_space(domain, group)) {
            Some("no other device that may run it has enough free memory")
        } else {
            None
        }
    }

    /// Whether a group may fit into another memory. A memory from which groups are freed may have
    /// space for it in the end.
    fn may_have_space(&self, domain: usize, group: &Group) -> bool {
        let capacity = self.capacity_bytes[domain];
        let (resident, workspace) = self.wanted_bytes[domain];
        let with_group = resident
            .saturating_add(group.resident_bytes)
            .saturating_add(workspace.max(group.workspace_bytes));
        with_group <= capacity || resident.saturating_add(workspace) > capacity
    }

    /// Frees groups of one memory until the rest fits, and records the bytes that the rest uses.
    fn make_fit(&mut self, domain: usize, groups: &mut [Group]) -> Result<(), KeepError> {
        let capacity = self.capacity_bytes[domain];
        let members = std::mem::take(&mut self.groups[domain]);
        let sum = |sum: u64, index: &usize| sum.saturating_add(groups[*index].resident_bytes);
        let mut resident = members.iter().fold(0, sum);
        let workspace_of = |index: &usize| groups[*index].workspace_bytes;
        let mut workspace = members.iter().map(workspace_of).max().unwrap_or(0);
        if resident.saturating_add(workspace) > capacity {
            let (tied, movable): (Vec<usize>, Vec<usize>) = members
                .into_iter()
                .partition(|&index| self.tie(&groups[index]).is_some());
            let tied_workspace = tied.iter().map(workspace_of).max().unwrap_or(0);
            // Groups are numbered by their first nodes.
            let mut by_resident: BTreeSet<(u64, usize)> = movable
                .iter()
                .map(|&index| (groups[index].resident_bytes, index))
                .collect();
            let mut by_workspace: BTreeSet<(u64, usize)> = movable
                .iter()
                .map(|&index| (groups[index].workspace_bytes, index))
                .collect();
            loop {
                let mut largest = by_workspace.iter().rev();
                let top = largest.next().copied();
                let next_workspace = largest.next().map_or(0, |next| next.0).max(tied_workspace);
                workspace = top.map_or(0, |top| top.0).max(tied_workspace);
                let needed = resident.saturating_add(workspace);
                let Some(excess) = needed.checked_sub(capacity).filter(|&excess| excess > 0) else {
                    break;
                };
                let Some((_, top)) = top else {
                    return Err(self.cannot_move(&tied, groups, needed, capacity));
                };
                let relief_of_top = groups[top]
                    .resident_bytes
                    .saturating_add(workspace.saturating_sub(next_workspace));
                let leaving = choose(&by_resident, (relief_of_top, top), groups, excess);
                let group = &mut groups[leaving];
                by_resident.remove(&(group.resident_bytes, leaving));
                by_workspace.remove(&(group.workspace_bytes, leaving));
                resident = resident.saturating_sub(group.resident_bytes);
                self.left.insert(group.first, super::to_u32(domain));
                group.device = NONE;
                group.reason = Some(MoveReason::Memory);
            }
        }
        self.resident_bytes[domain] = resident;
        self.workspace_bytes[domain] = workspace;
        Ok(())
    }

    /// Frees more groups of memories that have space for the groups that stay, but not for the
    /// tensors of their runs: the largest first, and as few as suffice. If freeing all of them does
    /// not suffice, the check reports the shortage.
    fn make_runs_fit(&mut self, groups: &mut [Group]) {
        let capacity = Capacity::of(self.candidates);
        if capacity.is_ample() {
            return;
        }
        let made_bytes = made_bytes(self.candidates, groups.len());
        for domain in 0..self.capacity_bytes.len() {
            let here = |group: &Group| group.device != NONE && self.domain(group.device) == domain;
            let mut movable: Vec<usize> = (0..groups.len())
                .filter(|&index| here(&groups[index]) && self.tie(&groups[index]).is_none())
                .collect();
            let size = |index: usize| {
                groups[index]
                    .resident_bytes
                    .saturating_add(made_bytes[index])
            };
            movable.sort_by_key(|&index| (std::cmp::Reverse(size(index)), index));
            let suffices = |n_freed: usize| {
                let devices = self.devices_without(groups, &movable[..n_freed], domain);
                !capacity.lacks(self.candidates, PlanColumns::of_devices(&devices), domain)
            };
            if movable.is_empty() || suffices(0) {
                continue;
            }
            let (mut too_few, mut enough) = (0, movable.len());
            while enough - too_few > 1 {
                let middle = too_few.midpoint(enough);
                if suffices(middle) {
                    enough = middle;
                } else {
                    too_few = middle;
                }
            }
            for &leaving in &movable[..enough] {
                let group = &mut groups[leaving];
                let resident = &mut self.resident_bytes[domain];
                *resident = resident.saturating_sub(group.resident_bytes);
                self.left.insert(group.first, super::to_u32(domain));
                group.device = NONE;
                group.reason = Some(MoveReason::Memory);
            }
        }
    }

    /// Returns a device per node: that of its group, or its most preferred one, outside of `domain`
    /// if possible.
    fn devices_without(&self, groups: &[Group], freed: &[usize], domain: usize) -> Vec<u32> {
        let mut device_of: Vec<u32> = groups.iter().map(|group| group.device).collect();
        for &index in freed {
            device_of[index] = NONE;
        }
        for (device, group) in device_of.iter_mut().zip(groups) {
            if *device == NONE {
                let legal = self.candidates.of_node(group.first);
                let mut others = legal.iter().filter(|&&other| self.domain(other) != domain);
                *device = *others.next().unwrap_or(&legal[0]);
            }
        }
        let group_of = self.candidates.nodes().group.iter();
        group_of.map(|&group| device_of[group as usize]).collect()
    }

    fn cannot_move(
        &self,
        tied: &[usize],
        groups: &[Group],
        needed_bytes: u64,
        capacity_bytes: u64,
    ) -> KeepError {
        let size = |index: &&usize| {
            let group = &groups[**index];
            (
                group.resident_bytes.max(group.workspace_bytes),
                std::cmp::Reverse(**index),
            )
        };
        let largest = tied
            .iter()
            .max_by_key(size)
            .expect("something needs more than there is");
        let group = &groups[*largest];
        KeepError::CannotMove {
            node: self.candidates.graph().node_name(group.first).to_owned(),
            device: self.candidates.device_name(group.device).to_owned(),
            why: self.tie(group).expect("it is tied"),
            needed_bytes,
            capacity_bytes,
        }
    }

    /// Returns the devices of a free group: those where it fits beside the groups that stay.
    fn space_for(&self, group: &Group) -> Result<Restriction, KeepError> {
        let legal = self.candidates.of_node(group.first);
        let left = self.left.get(&group.first);
        let fits = |device: &u32| {
            let domain = self.domain(*device);
            let workspace = self.workspace_bytes[domain].max(group.workspace_bytes);
            let needed = self.resident_bytes[domain]
                .saturating_add(group.resident_bytes)
                .saturating_add(workspace);
            left.is_none_or(|&left| left as usize != domain)
                && needed <= self.capacity_bytes[domain]
        };
        let with_space: Vec<u32> = legal.iter().copied().filter(fits).collect();
        if with_space.is_empty() {
            let free = legal.iter().map(|&device| {
                let domain = self.domain(device);
                let used = self.resident_bytes[domain].saturating_add(self.workspace_bytes[domain]);
                let free = self.capacity_bytes[domain].saturating_sub(used);
                let name = short_device_name(self.candidates.device_name(device));
                format!("{name} ({} free)", show_bytes(free))
            });
            return Err(KeepError::NoSpace {
                node: self.candidates.graph().node_name(group.first).to_owned(),
                reason: group.reason.unwrap_or(MoveReason::NotLegal),
                n_nodes: group.n_nodes,
                resident_bytes: group.resident_bytes,
                devices: free.collect::<Vec<_>>().join(", "),
            });
        }
        Ok(if with_space.len() == legal.len() {
            Restriction::None
        } else {
            Restriction::Among(with_space)
        })
    }
}

/// Returns per group the bytes of the tensors that its nodes produce in a run.
fn made_bytes(candidates: &Candidates, n_groups: usize) -> Vec<u64> {
    let graph = candidates.graph();
    let mut made_bytes = vec![0u64; n_groups];
    for (node, &group) in graph.nodes().zip(&candidates.nodes().group) {
        let outputs = &graph.tensor_bytes()[graph.output_range(node)];
        let sum = &mut made_bytes[group as usize];
        *sum = outputs.iter().copied().fold(*sum, u64::saturating_add);
    }
    made_bytes
}

/// Chooses the next group to free: the one with the fewest resident bytes that suffices alone, else
/// the one that frees most; the first of equal ones. `top` is the group with the largest workspace
/// and the bytes that freeing it gains: only it gains more than its resident bytes.
fn choose(
    by_resident: &BTreeSet<(u64, usize)>,
    top: (u64, usize),
    groups: &[Group],
    excess: u64,
) -> usize {
    let first_from = |bytes: u64| by_resident.range((bytes, 0)..).next().copied();
    let (relief, index) = top;
    let top_suffices = (relief >= excess).then_some((groups[index].resident_bytes, index));
    let sufficing = first_from(excess).into_iter().chain(top_suffices).min();
    if let Some((_, index)) = sufficing {
        return index;
    }
    let most = by_resident.last().map_or(0, |largest| largest.0);
    match first_from(most) {
        Some((bytes, first)) if bytes >= relief => first,
        _ => index,
    }
}
