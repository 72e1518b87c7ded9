//! Stand-in until `placement::Evaluator` is merged.
use std::sync::Arc;
use crate::candidates::Candidates;
use crate::graph::NodeId;
#[derive(Debug)]
pub(super) struct Violation { pub(super) rule: &'static str, pub(super) node: NodeId, text: String }
impl Violation { pub(super) fn rule(&self) -> &'static str { self.rule } pub(super) fn node(&self) -> NodeId { self.node } }
impl std::fmt::Display for Violation { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(&self.text) } }
pub(super) struct Evaluator { candidates: Arc<Candidates>, devices: Vec<u32> }
impl Evaluator {
    pub(super) fn new(candidates: Arc<Candidates>) -> Self { Self { candidates, devices: Vec::new() } }
    pub(super) fn set_devices(&mut self, devices: &[u32]) { self.devices = devices.to_vec(); }
    pub(super) fn move_nodes(&mut self, nodes: &[u32], device: u32) { for &n in nodes { if let Some(d) = self.devices.get_mut(n as usize) { *d = device; } } }
    pub(super) fn devices(&self) -> &[u32] { &self.devices }
    pub(super) fn makespan_ns(&mut self) -> f64 { 1.0 }
    pub(super) fn violation(&mut self) -> Option<Violation> {
        let v = |rule, node, text: &str| Some(Violation { rule, node: NodeId(node), text: text.to_owned() });
        if self.devices.len() != self.candidates.graph().n_nodes() { return v("length", 0, "wrong length"); }
        for (i, d) in self.devices.iter().enumerate() {
            if *d as usize >= self.candidates.n_devices() { return v("device", i as u32, "no such device"); }
            if !self.candidates.of_node(NodeId(i as u32)).contains(d) { return v("candidate", i as u32, "no candidate"); }
        }
        None
    }
    pub(super) fn transfer_bytes(&mut self) -> u64 { 0 }
    pub(super) fn peak_bytes_per_device(&mut self) -> Vec<u64> { vec![0; self.candidates.n_devices()] }
}
