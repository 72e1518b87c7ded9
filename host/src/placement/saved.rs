//! Placements saved as JSON, for later use and comparison.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::candidates::Candidates;
use crate::candidates::Proposal;
use crate::graph::NodeId;
use crate::placement::check::Placement;
use crate::placement::check::check;
use crate::placement::digest::Digest;
use crate::placement::identity::IdentityDifference;
use crate::placement::identity::PlacementIdentity;
use crate::placement::violation::Violation;

/// Version of the written format.
const VERSION: u32 = 2;

/// Versions that can be read. Version 1 has no identity.
const VERSIONS: std::ops::RangeInclusive<u64> = 1..=VERSION as u64;

/// A placement by names of nodes and devices. It also records how it was made, for human readers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPlacement {
    /// Version of this format.
    pub version: u32,
    /// Name of the graph.
    pub graph: String,
    /// Policy that made it.
    pub policy: String,
    /// Seed of the policy.
    pub seed: u64,
    /// Relevant options, by name.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Identity of the inputs that it was made from; `None` in files of version 1, which can only
    /// be used unverified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<PlacementIdentity>,
    /// Full name of the device of every node, by node name.
    pub devices: BTreeMap<String, String>,
    /// Start order, if the policy set one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub start_order: BTreeMap<String, i32>,
    /// Compute queues, if the policy set them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queues: BTreeMap<String, u32>,
    /// Names of the constants that each run copies to readers on other devices, if there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streamed: Vec<String>,
}

/// Why a saved placement cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedPlacementError {
    /// The text is not JSON of this format.
    #[error("not a saved placement: {0}")]
    Malformed(String),
    /// The format version is unknown.
    #[error(
        "saved placement has format version {0}, but this program reads versions 1 and 2; save it again"
    )]
    Version(u32),
    /// The file does not place a node of the graph.
    #[error("node `{0}` of the graph is not in the saved placement")]
    MissingNode(String),
    /// The file places a node that the graph does not have.
    #[error("node `{0}` of the saved placement is not in the graph")]
    UnknownNode(String),
    /// The file names a device that does not exist.
    #[error("node `{node}`: device `{device}` does not exist; available devices: {available}")]
    UnknownDevice {
        /// The node.
        node: String,
        /// The device.
        device: String,
        /// The available devices.
        available: String,
    },
    /// It was made from other inputs. It may fit, but a policy could now answer differently.
    #[error("saved placement was made for {0}; {REMEDY}")]
    MadeForOther(IdentityDifference),
    /// It was made for another graph: it has less than half of this graph's nodes.
    #[error(
        "saved placement is of graph `{saved}`, and this graph is `{graph}`: {n_common} of its {n_nodes} nodes are in it; pass the placement of this graph, or leave it out"
    )]
    OtherGraph {
        /// Name of the graph that it was made for.
        saved: String,
        /// Name of this graph.
        graph: String,
        /// Nodes of this graph that it places.
        n_common: usize,
        /// Nodes of this graph.
        n_nodes: usize,
    },
    /// It was saved by an earlier version, without an identity.
    #[error(
        "saved placement has format version 1, which does not record the inputs it was made from; {REMEDY}"
    )]
    Unidentified,
    /// The placement breaks a rule here.
    #[error("saved placement breaks rule `{rule}`: {0}", rule = .0.rule())]
    Violation(Violation),
}

impl From<Violation> for SavedPlacementError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// The remedies for a placement that cannot be verified.
const REMEDY: &str = "save it again here, keep the parts that still fit (`place --keep`, `with_kept_placement`), or use it \
    unverified (`--placement-unverified`, `with_unverified_placement`)";

/// The differences between two saved placements.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct PlacementDiff {
    /// (node, device before, device after), sorted by node name.
    pub moved: Vec<(String, String, String)>,
    /// Nodes that only the first placement has.
    pub only_before: Vec<String>,
    /// Nodes that only the second placement has.
    pub only_after: Vec<String>,
}

impl SavedPlacement {
    /// Converts a placement to names, with the identity of its inputs.
    /// [`Self::with_policy_digest`] adds the policy's part of the identity.
    pub fn new(
        placement: &Placement,
        policy: &str,
        seed: u64,
        options: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let candidates = placement.candidates();
        let graph = placement.graph();
        let named = || graph.nodes().map(|node| graph.node_name(node).to_owned());
        let device_names = placement
            .devices()
            .iter()
            .map(|&device| candidates.device_name(device).to_owned());
        let start_order = placement.start_order().unwrap_or_default();
        let queues = placement.queues().unwrap_or_default();
        Self {
            version: VERSION,
            graph: graph.name().to_owned(),
            policy: policy.to_owned(),
            seed,
            options: options.into_iter().collect(),
            identity: Some(PlacementIdentity::of(candidates)),
            devices: named().zip(device_names).collect(),
            start_order: named().zip(start_order.iter().copied()).collect(),
            queues: named().zip(queues.iter().copied()).collect(),
            streamed: placement
                .streamed()
                .iter()
                .map(|&node| graph.node_name(NodeId(node)).to_owned())
                .collect(),
        }
    }

    /// Sets the policy's part of the identity ([`crate::policy::PolicyReport::identity`]).
    #[must_use]
    pub fn with_policy_digest(mut self, policy: Option<Digest>) -> Self {
        if let Some(identity) = &mut self.identity {
            identity.policy = policy;
        }
        self
    }

    /// Formats it as JSON, with one line per node.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and numbers become JSON")
    }

    /// Parses JSON.
    ///
    /// # Errors
    /// [`SavedPlacementError::Malformed`] or [`SavedPlacementError::Version`].
    pub fn from_json(text: &str) -> Result<Self, SavedPlacementError> {
        let malformed =
            |error: serde_json::Error| SavedPlacementError::Malformed(error.to_string());
        let value: serde_json::Value = serde_json::from_str(text).map_err(malformed)?;
        if let Some(version) = value.get("version").and_then(serde_json::Value::as_u64)
            && !VERSIONS.contains(&version)
        {
            return Err(SavedPlacementError::Version(
                u32::try_from(version).unwrap_or(u32::MAX),
            ));
        }
        serde_json::from_value(value).map_err(malformed)
    }

    /// Checks that it was made for the graph, devices and options of these candidates. Takes time
    /// linear in the graph.
    ///
    /// # Errors
    /// [`SavedPlacementError::OtherGraph`], [`SavedPlacementError::MadeForOther`] or
    /// [`SavedPlacementError::Unidentified`].
    pub fn verify(&self, candidates: &Candidates) -> Result<(), SavedPlacementError> {
        self.check_graph(candidates)?;
        let identity = self.identity.ok_or(SavedPlacementError::Unidentified)?;
        match identity.difference(&PlacementIdentity::of(candidates)) {
            None => Ok(()),
            Some(difference) => Err(SavedPlacementError::MadeForOther(difference)),
        }
    }

    /// Checks that it places at least half of the nodes of the graph.
    fn check_graph(&self, candidates: &Candidates) -> Result<(), SavedPlacementError> {
        let graph = candidates.graph();
        let is_common = |name: &&str| self.devices.contains_key(*name);
        let n_common = graph.node_names().iter().filter(is_common).count();
        if n_common * 2 >= graph.n_nodes() {
            return Ok(());
        }
        Err(SavedPlacementError::OtherGraph {
            saved: self.graph.clone(),
            graph: graph.name().to_owned(),
            n_common,
            n_nodes: graph.n_nodes(),
        })
    }

    /// Converts it into a placement and checks it against a graph and devices, even if it was made
    /// for other ones (see [`Self::verify`]). Devices are found by full name, canonical or legacy.
    ///
    /// # Errors
    /// [`SavedPlacementError`] for the first node, in node order, that does not fit.
    pub fn resolve(&self, candidates: &Candidates) -> Result<Placement, SavedPlacementError> {
        self.check_graph(candidates)?;
        let graph = candidates.graph();
        let mut proposal = Proposal::default();
        let mut start_order = Vec::new();
        let mut queues = Vec::new();
        for node in graph.nodes() {
            let name = graph.node_name(node);
            let missing = || SavedPlacementError::MissingNode(name.to_owned());
            let device = self.devices.get(name).ok_or_else(missing)?;
            let id = candidates
                .device_set()
                .find_by_name(device)
                .ok_or_else(|| SavedPlacementError::UnknownDevice {
                    node: name.to_owned(),
                    device: device.clone(),
                    available: available(candidates),
                })?;
            proposal.devices.push(id.0);
            if !self.start_order.is_empty() {
                start_order.push(*self.start_order.get(name).ok_or_else(missing)?);
            }
            if !self.queues.is_empty() {
                queues.push(*self.queues.get(name).ok_or_else(missing)?);
            }
        }
        if let Some(unknown) = self
            .devices
            .keys()
            .find(|name| graph.find_node(name).is_none())
        {
            return Err(SavedPlacementError::UnknownNode(unknown.clone()));
        }
        proposal.start_order = (!start_order.is_empty()).then_some(start_order);
        proposal.queues = (!queues.is_empty()).then_some(queues);
        for name in &self.streamed {
            let node = graph.find_node(name);
            let node = node.ok_or_else(|| SavedPlacementError::UnknownNode(name.clone()))?;
            proposal.streamed.push(node.0);
        }
        Ok(check(candidates, proposal)?)
    }

    /// Returns the differences from `self` to `after`.
    pub fn diff(&self, after: &Self) -> PlacementDiff {
        let mut diff = PlacementDiff::default();
        for (node, device) in &self.devices {
            match after.devices.get(node) {
                None => diff.only_before.push(node.clone()),
                Some(other) if other != device => {
                    diff.moved
                        .push((node.clone(), device.clone(), other.clone()));
                }
                Some(_) => {}
            }
        }
        diff.only_after = after
            .devices
            .keys()
            .filter(|node| !self.devices.contains_key(*node))
            .cloned()
            .collect();
        diff
    }
}

fn available(candidates: &Candidates) -> String {
    let names: Vec<_> = candidates
        .device_set()
        .iter()
        .map(|(_, device)| device.attributes().name.as_str())
        .collect();
    names.join(", ")
}
