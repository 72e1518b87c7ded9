//! The device types with a kernel for a class of nodes.

use std::cmp::Reverse;

use hashbrown::HashMap;

use crate::candidates::error::CandidatesError;
use crate::candidates::facts::Facts;
use crate::candidates::index::to_u32;
use crate::candidates::types::SupportedTypes;
use crate::candidates::types::TypeTable;
use crate::device::KernelLookupError;
use crate::device::KernelRegistry;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;

/// Marks nodes that a compiler compiles into its own kernels.
pub(super) const COMPILED_ATTR: &str = "_XlaMustCompile";

/// Supported types of every class of a graph, interned.
#[derive(Debug, Clone)]
pub(super) struct Supports {
    /// Per class an index into `sets`.
    pub(super) of_class: Vec<u32>,
    /// Per class a number that it shares with the classes of the same op that have the same
    /// kernels; in order of first use.
    pub(super) kernels_of_class: Vec<u32>,
    pub(super) sets: Vec<SupportedTypes>,
    /// Per entry of `sets` whether a kernel did not accept the node's attributes; relevant for
    /// empty ones.
    pub(super) refused: Vec<bool>,
    /// For classes without a kernel: per requested id the types presumed to have one in another
    /// task.
    pub(super) of_request: Vec<u32>,
    ids: HashMap<(SupportedTypes, bool), u32>,
}

impl Supports {
    /// Looks up each class once, and classes that differ only in attributes that no kernel of their
    /// op constrains together.
    pub(super) fn of(facts: &Facts<'_>) -> Result<Self, CandidatesError> {
        let (graph, types, kernels) = (facts.graph, facts.types, facts.kernels);
        let mut supports = Self {
            of_class: Vec::with_capacity(graph.classes().len()),
            kernels_of_class: Vec::with_capacity(graph.classes().len()),
            sets: Vec::new(),
            refused: Vec::new(),
            of_request: Vec::new(),
            ids: HashMap::new(),
        };
        let mut n_known = 0;
        let mut key = Vec::new();
        let mut ops: Vec<Option<OpMemo<'_>>> = Vec::new();
        ops.resize_with(graph.op_names().len(), || None);
        for (index, class) in graph.classes().iter().enumerate() {
            let op = &*graph.op_names()[class.op as usize];
            let memo = ops[class.op as usize].get_or_insert_with(|| OpMemo::new(op, kernels));
            key.clear();
            key.extend(memo.constrained.iter().map(|attr| class.attrs.get(attr)));
            let (id, number) = match memo.known.get(key.as_slice()) {
                Some(&known) => known,
                None => {
                    let found = lookup(op, &class.attrs, types, kernels).map_err(|source| {
                        CandidatesError::KernelLookup {
                            node: first_of_class(graph, index),
                            source: Box::new(source),
                        }
                    })?;
                    let (found, refused) = match found {
                        (found, refused) if found.is_empty() && runs_anywhere(facts, op) => {
                            let all = (0..to_u32(types.names.len())).map(|number| (number, 0));
                            (all.collect(), refused)
                        }
                        found => found,
                    };
                    let found = (supports.intern(found, refused), n_known);
                    n_known += 1;
                    memo.known.insert(key.clone(), found);
                    found
                }
            };
            supports.of_class.push(id);
            supports.kernels_of_class.push(number);
        }
        Ok(supports)
    }

    /// Returns the supported types of a node, as an index into `sets`.
    pub(super) fn of_node(&self, graph: &Graph, node: NodeId) -> u32 {
        let support = self.of_class[graph.class_ids()[node.index()] as usize];
        if self.sets[support as usize].is_empty() {
            self.of_request[graph.requested_ids()[node.index()] as usize]
        } else {
            support
        }
    }

    /// Allows every type for nodes without a kernel.
    pub(super) fn lift_missing(&mut self, types: &TypeTable) {
        let all = self.elsewhere(None, types);
        for support in self.of_request.iter_mut().filter(|id| **id == NONE) {
            *support = all;
        }
    }

    /// Returns the number of a list of types.
    pub(super) fn intern(&mut self, types: SupportedTypes, refused: bool) -> u32 {
        if let Some(&id) = self.ids.get(&(types.clone(), refused)) {
            return id;
        }
        let id = to_u32(self.sets.len());
        self.sets.push(types.clone());
        self.refused.push(refused);
        self.ids.insert((types, refused), id);
        id
    }

    /// Intersects two lists. The order depends on which kernels have priorities. `None` without a
    /// common type. `new` is the list of the group that stays, `old` that of the group that joins.
    pub(super) fn intersect(&mut self, new: u32, old: u32, types: &TypeTable) -> Option<u32> {
        if new == old {
            return (!self.sets[new as usize].is_empty()).then_some(new);
        }
        let sorted = |id: u32, other: u32| {
            let other = &self.sets[other as usize];
            let mut common: SupportedTypes = self.sets[id as usize]
                .iter()
                .copied()
                .filter(|(number, _)| other.iter().any(|(known, _)| known == number))
                .collect();
            common.sort_by_key(|&(number, priority)| (Reverse(priority), number));
            common
        };
        let (mut kept, joined) = (sorted(new, old), sorted(old, new));
        if kept.is_empty() {
            return None;
        }
        let has_priorities =
            |types: &SupportedTypes| types.iter().any(|&(_, priority)| priority != 0);
        let sequence =
            |types: &SupportedTypes| types.iter().map(|&(number, _)| number).collect::<Vec<_>>();
        match (has_priorities(&kept), has_priorities(&joined)) {
            (false, true) => kept = joined,
            (true, true) if sequence(&kept) != sequence(&joined) => {
                // The kernels disagree: their priorities cancel out.
                for entry in &mut kept {
                    entry.1 = 0;
                }
                kept.sort_by_key(|&(number, _)| {
                    (Reverse(types.priorities[number as usize]), number)
                });
            }
            _ => {}
        }
        Some(self.intern(kept, false))
    }

    /// Reduces a list to this type.
    pub(super) fn only(&mut self, id: u32, device_type: &str, types: &TypeTable) -> u32 {
        let wanted = types.number(device_type);
        let kept = self.sets[id as usize].iter().copied();
        let kept = kept.filter(|&(number, _)| Some(number) == wanted).collect();
        self.intern(kept, false)
    }

    /// Removes the XLA types, if others remain.
    pub(super) fn without_xla(&mut self, id: u32, types: &TypeTable) -> u32 {
        let set = &self.sets[id as usize];
        let n_xla = set
            .iter()
            .filter(|(number, _)| types.is_xla[*number as usize])
            .count();
        if n_xla == 0 || n_xla == set.len() {
            return id;
        }
        let others = set
            .iter()
            .copied()
            .filter(|(number, _)| !types.is_xla[*number as usize])
            .collect();
        self.intern(others, false)
    }

    /// Returns the types on which a node without a local kernel is presumed to run in another task:
    /// the requested one, or all.
    pub(super) fn elsewhere(&mut self, requested_type: Option<&str>, types: &TypeTable) -> u32 {
        let presumed = match requested_type {
            Some(device_type) => types
                .number(device_type)
                .map(|number| (number, 0))
                .into_iter()
                .collect(),
            None => (0..to_u32(types.names.len()))
                .map(|number| (number, 0))
                .collect(),
        };
        self.intern(presumed, false)
    }

    /// Lists the type names of a list, in its order.
    pub(super) fn names(&self, id: u32, types: &TypeTable) -> String {
        let names: Vec<&str> = self.sets[id as usize]
            .iter()
            .map(|&(number, _)| types.names[number as usize].as_str())
            .collect();
        names.join(" ")
    }
}

/// Results for the classes of one op.
struct OpMemo<'a> {
    /// Attributes that the results depend on: those that some kernel of the op constrains, and
    /// those that matter for every op.
    constrained: Vec<&'a str>,
    /// By the values of these attributes, in order: supported types, and the number of the
    /// kernels.
    known: HashMap<Vec<Option<&'a AttrValue>>, (u32, u32)>,
}

impl<'a> OpMemo<'a> {
    fn new(op: &str, kernels: &'a KernelRegistry) -> Self {
        let mut constrained: Vec<&str> = kernels
            .of_op(op)
            .iter()
            .flat_map(|def| def.constraints.iter().map(|(attr, _)| attr.as_str()))
            .collect();
        constrained.extend(["_kernel", COMPILED_ATTR]);
        constrained.sort_unstable();
        constrained.dedup();
        Self {
            constrained,
            known: HashMap::new(),
        }
    }
}

fn lookup(
    op: &str,
    attrs: &AttrSet,
    types: &TypeTable,
    kernels: &KernelRegistry,
) -> Result<(SupportedTypes, bool), KernelLookupError> {
    let mut found = SupportedTypes::new();
    let mut has_mismatch = false;
    for (number, device_type) in types.names.iter().enumerate() {
        let looked_up = kernels.look_up(op, device_type, attrs)?;
        has_mismatch |= looked_up.has_mismatch;
        if let Some(def) = looked_up.kernel {
            found.push((to_u32(number), def.priority));
        }
    }
    found.sort_by_key(|&(_, priority)| Reverse(priority));
    let refused = found.is_empty() && has_mismatch;
    Ok((found, refused))
}

/// Whether an op runs on any device type: a function, or an undefined op without kernels. (Apps may
/// register kernels for an op without defining it; then those count.)
pub(super) fn runs_anywhere(facts: &Facts<'_>, op: &str) -> bool {
    let arguments = facts.arguments;
    let is_undefined = || arguments.is_some_and(|arguments| !arguments.is_known(op));
    // The ends of a body represent the tensors of the caller.
    let is_end = || facts.is_body && ["_Arg", "_Retval"].contains(&op);
    facts.kernels.of_op(op).is_empty()
        && (facts.graph.find_function(op).is_some() || is_undefined() || is_end())
}

fn first_of_class(graph: &Graph, class: usize) -> String {
    graph
        .class_ids()
        .iter()
        .position(|&id| id as usize == class)
        .map_or_else(String::new, |node| {
            graph.node_name(NodeId(to_u32(node))).to_owned()
        })
}
