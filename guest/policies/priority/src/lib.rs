//! `priority`: each op on the device that TensorFlow's placer would take.
//!
//! Every node takes item 0 of its candidate set, the most preferred legal device, with three exceptions, which are
//! TensorFlow's: pinned nodes stay where they are; metadata ops (`Shape`, `Size`, `Rank`) follow the producer of their
//! input, so that a shape is read where the tensor is; generators (ops without data inputs) go last, to the device that
//! all their consumers share. The first member of a colocation group to be decided decides for the group.

use placewright_guest::Assignment;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::NONE;
use placewright_guest::PlaceError;
use placewright_guest::PlacementHint;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::export_policy;

/// The policy; it keeps nothing between calls.
#[derive(Debug, Default)]
pub struct Priority;

impl Policy for Priority {
    const NAME: &'static str = "priority";
    const DESCRIPTION: &'static str = "each op on its most preferred device, as TensorFlow's placer does: item 0 of the \
        candidates; metadata ops follow their input, ops without inputs their consumers";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        _devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        let candidates = graph.candidates();
        let candidate_set = graph.candidate_set();
        let (hints, pinned) = (graph.placement_hints(), graph.pinned());
        let mut assignment = Assignment::new(graph);
        let mut generators = Vec::new();
        for node in graph.nodes() {
            let hint = hints[node as usize];
            let is_pinned = pinned[node as usize] != NONE;
            if hint & PlacementHint::GENERATOR != 0 && !is_pinned {
                generators.push(node);
                continue;
            }
            let legal = candidates.row(candidate_set[node as usize]);
            let mut wish = legal[0];
            if hint & PlacementHint::METADATA != 0 {
                let followed = match graph.follow()[node as usize] {
                    NONE => NONE,
                    producer => assignment.device(producer),
                };
                if legal.contains(&followed) {
                    wish = followed;
                }
            }
            assignment.decide(node, wish);
        }
        if !generators.is_empty() {
            let successors = graph.successors();
            for node in generators {
                let legal = candidates.row(candidate_set[node as usize]);
                let wish = shared_device(&assignment, successors.row(node))
                    .filter(|device| legal.contains(device))
                    .unwrap_or(legal[0]);
                assignment.decide(node, wish);
            }
        }
        plan.offer_devices(assignment.devices())?;
        Ok(())
    }
}

/// The device of all the nodes, if they have one in common; a node without a device has none in common with others.
fn shared_device(assignment: &Assignment<'_>, nodes: &[u32]) -> Option<u32> {
    let (&first, rest) = nodes.split_first()?;
    let device = assignment.device(first);
    let is_shared = device != NONE && rest.iter().all(|&node| assignment.device(node) == device);
    is_shared.then_some(device)
}

export_policy!(Priority);
