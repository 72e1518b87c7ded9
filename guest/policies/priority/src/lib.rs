//! `priority`: each op on the device that TensorFlow's placer would choose.
//!
//! Every node takes item 0 of its candidate set, the most preferred legal device. The exceptions
//! are TensorFlow's:
//! - Pinned nodes stay where they are.
//! - Metadata ops (`Shape`, `Size`, `Rank`) and an `Identity` between nodes with equal requests
//!   follow the producer of their input, so that a shape is read where the tensor is.
//! - Generators (ops without data inputs) are placed last, on the device that all their consumers
//!   share.
//! - The first member of a colocation group to be placed decides for the group.

use placewright_guest::Assignment;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::NONE;
use placewright_guest::PlaceError;
use placewright_guest::PlacementHint;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::Reasons;
use placewright_guest::export_policy;

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct Priority;

impl Policy for Priority {
    const NAME: &'static str = "priority";
    const DESCRIPTION: &'static str = "each op on its most preferred device, as TensorFlow's placer does: item 0 of the \
        candidates; metadata ops and identities follow their input, ops without inputs their consumers";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        _devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        plan.offer_devices(&assign(graph, None))?;
        if plan.explain_wanted() {
            // Assigns again after the offer: if the fuel runs out while reasons are collected, the
            // plan remains.
            let mut reasons = Reasons::new();
            assign(graph, Some(&mut reasons));
            reasons.explain(plan);
        }
        Ok(())
    }
}

/// Returns a device for each node, and writes why it is there to `reasons`.
fn assign(graph: &Graph<'_>, mut reasons: Option<&mut Reasons>) -> Vec<u32> {
    let candidates = graph.candidates();
    let candidate_set = graph.candidate_set();
    let (hints, pinned) = (graph.placement_hints(), graph.pinned());
    let follow = graph.follow();
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
        let producer = follow[node as usize];
        let followed = match producer {
            NONE => None,
            producer => Some(assignment.device(producer)).filter(|device| legal.contains(device)),
        };
        if let Some(reasons) = reasons.as_deref_mut() {
            let own =
                || followed.map_or_else(|| preferred(graph, node), |_| "follows its producer");
            reasons.add(node, reason(graph, &assignment, node).unwrap_or_else(own));
        }
        assignment.decide(node, followed.unwrap_or(legal[0]));
    }
    if !generators.is_empty() {
        let successors = graph.successors();
        for node in generators {
            let legal = candidates.row(candidate_set[node as usize]);
            let shared = shared_device(&assignment, successors.row(node))
                .filter(|device| legal.contains(device));
            if let Some(reasons) = reasons.as_deref_mut() {
                let readers = |_| "generator: where all its readers are";
                let own = || shared.map_or_else(|| preferred(graph, node), readers);
                reasons.add(node, reason(graph, &assignment, node).unwrap_or_else(own));
            }
            assignment.decide(node, shared.unwrap_or(legal[0]));
        }
    }
    assignment.devices().to_vec()
}

/// Returns why a node has no choice, if it has none.
fn reason(graph: &Graph<'_>, assignment: &Assignment<'_>, node: u32) -> Option<&'static str> {
    if graph.pinned()[node as usize] != NONE {
        Some("pinned")
    } else if assignment.forced(node) != NONE {
        Some("follows its colocation group")
    } else {
        None
    }
}

/// Returns why a node takes item 0 of its candidates.
fn preferred(graph: &Graph<'_>, node: u32) -> &'static str {
    if graph.placement_hints()[node as usize] & PlacementHint::SOFTENED != 0 {
        "most preferred: request softened"
    } else if !graph.requested(node).is_empty() {
        "requested"
    } else if graph.candidates_of(node).len() == 1 {
        "only candidate"
    } else {
        "most preferred device"
    }
}

/// Returns the device of all the nodes if they share one. If a node has no device, returns `None`.
fn shared_device(assignment: &Assignment<'_>, nodes: &[u32]) -> Option<u32> {
    let (&first, rest) = nodes.split_first()?;
    let device = assignment.device(first);
    let is_shared = device != NONE && rest.iter().all(|&node| assignment.device(node) == device);
    is_shared.then_some(device)
}

export_policy!(Priority, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::TestDevices;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::place;

    use super::*;

    const COST: [f64; 2] = [10.0, 10.0];

    /// Device 0 is a CPU; devices 1 and 2 are GPUs and preferred.
    fn devices() -> TestDevices {
        cluster("1xCPU,2xGPU")
    }

    fn placed(devices: &TestDevices, graph: GraphBuilder) -> Vec<u32> {
        place(&mut Priority, &graph.build(), devices)
            .unwrap()
            .devices
    }

    #[test]
    fn nodes_take_their_most_preferred_device() {
        let devices = devices();
        let mut graph = GraphBuilder::new(&devices);
        graph.node("any", &COST);
        let some = graph.node("some", &COST);
        graph.candidates(some, &[2, 0]);
        assert_eq!(placed(&devices, graph), [1, 2]);
    }

    #[test]
    fn pins_decide_for_their_groups() {
        let devices = devices();
        let mut graph = GraphBuilder::new(&devices);
        let first = graph.node("first", &COST);
        let second = graph.node("second", &COST);
        graph.group(&[first, second]);
        graph.pin(second, 2);
        assert_eq!(placed(&devices, graph), [2, 2]);
    }

    #[test]
    fn nodes_follow_producers_that_are_decided_and_legal() {
        let devices = devices();
        let mut graph = GraphBuilder::new(&devices);
        let on_cpu = graph.node("on_cpu", &COST);
        graph.candidates(on_cpu, &[0]);
        let shape = graph.node("shape", &COST);
        graph.edge(on_cpu, shape, 8);
        let gpu_only = graph.node("gpu_only", &COST);
        graph.edge(on_cpu, gpu_only, 8);
        graph.candidates(gpu_only, &[2, 1]);
        let generator = graph.node("generator", &COST);
        graph.candidates(generator, &[0]);
        let of_generator = graph.node("of_generator", &COST);
        graph.edge(generator, of_generator, 8);
        graph.hints(generator, PlacementHint::GENERATOR);
        let identity = graph.node("identity", &COST);
        graph.edge(shape, identity, 8);
        for (node, producer, hint) in [
            (shape, on_cpu, PlacementHint::METADATA),
            (gpu_only, on_cpu, PlacementHint::METADATA),
            (of_generator, generator, PlacementHint::METADATA),
            (identity, shape, PlacementHint::MATCHING_IDENTITY),
        ] {
            graph.hints(node, hint);
            graph.follow(node, producer);
        }
        assert_eq!(placed(&devices, graph), [0, 0, 2, 0, 1, 0]);
    }

    #[test]
    fn generators_go_to_the_device_that_all_consumers_share() {
        let devices = devices();
        let mut graph = GraphBuilder::new(&devices);
        let shared = graph.node("shared", &COST);
        let split = graph.node("split", &COST);
        let illegal = graph.node("illegal", &COST);
        graph.candidates(illegal, &[1, 0]);
        let unused = graph.node("unused", &COST);
        let on_cpu = graph.node("on_cpu", &COST);
        graph.candidates(on_cpu, &[0]);
        let on_gpu = graph.node("on_gpu", &COST);
        graph.candidates(on_gpu, &[2]);
        graph.edge(shared, on_cpu, 8);
        graph.edge(split, on_cpu, 8);
        graph.control_edge(split, on_gpu);
        graph.edge(illegal, on_gpu, 8);
        for node in [shared, split, illegal, unused] {
            graph.hints(node, PlacementHint::GENERATOR);
        }
        assert_eq!(placed(&devices, graph), [0, 1, 1, 1, 0, 2]);
    }

    #[test]
    fn every_node_has_a_reason() {
        let devices = devices();
        let mut graph = GraphBuilder::new(&devices);
        let generator = graph.node("generator", &COST);
        let any = graph.node("any", &COST);
        let only = graph.node("only", &COST);
        let pinned = graph.node("pinned", &COST);
        let colocated = graph.node("colocated", &COST);
        let shape = graph.node("shape", &COST);
        let requested = graph.node("requested", &COST);
        graph.edge(generator, only, 8);
        graph.edge(only, shape, 8);
        graph.candidates(only, &[0]);
        graph.group(&[any, colocated]);
        graph.pin(pinned, 2);
        graph.hints(generator, PlacementHint::GENERATOR);
        graph.hints(shape, PlacementHint::METADATA);
        graph.follow(shape, only);
        graph.request(requested, "/device:GPU:*");
        let offer = place(&mut Priority, &graph.build(), &devices).unwrap();
        for (node, expected) in [
            (generator, "generator: where all its readers are"),
            (any, "most preferred device"),
            (only, "only candidate"),
            (pinned, "pinned"),
            (colocated, "follows its colocation group"),
            (shape, "follows its producer"),
            (requested, "requested"),
        ] {
            assert_eq!(offer.reason_of(node), Some(expected));
        }
    }

    #[test]
    fn the_first_member_decides_whatever_the_hints_of_others() {
        let devices = devices();
        let mut graph = GraphBuilder::new(&devices);
        let generator = graph.node("generator", &COST);
        let consumer = graph.node("consumer", &COST);
        graph.candidates(consumer, &[0]);
        graph.edge(generator, consumer, 8);
        let partner = graph.node("partner", &COST);
        graph.group(&[generator, partner]);
        graph.hints(generator, PlacementHint::GENERATOR);
        // The partner is placed in the first pass, before the generator, which would have taken the
        // CPU.
        assert_eq!(placed(&devices, graph), [1, 0, 1]);
    }
}
