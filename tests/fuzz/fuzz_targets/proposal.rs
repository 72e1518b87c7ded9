//! Fuzzes answers of policies: the host returns a violation with its rule, or a placement that can
//! be partitioned.

#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::Proposal;
use placewright::candidates::synthetic;
use placewright::partition::RunRequest;
use placewright::placement;

#[derive(Debug, Arbitrary)]
struct Case {
    n_nodes: u8,
    n_devices: u8,
    seed: u8,
    /// Wrong assignments in an otherwise correct answer: (node, device) pairs.
    changes: Vec<(u8, u32)>,
    /// Number of missing entries.
    n_missing: Option<u8>,
    start_order: Option<Vec<i32>>,
    queues: Option<Vec<u32>>,
    /// Whether orders and queues are truncated or filled to the graph's length.
    fits: bool,
}

fuzz_target!(|case: Case| {
    let n_nodes = usize::from(case.n_nodes % 32) + 1;
    let n_devices = u32::from(case.n_devices % 8) + 1;
    let graph = synthetic::graph(n_nodes as u32, u64::from(case.seed));
    let devices = Arc::new(synthetic::devices(n_devices));
    let candidates = CandidatesBuilder::new(&graph, &devices)
        .build()
        .expect("every device may run every node");
    let mut proposal = Proposal {
        devices: vec![0; n_nodes],
        start_order: case.start_order,
        queues: case.queues,
        ..Proposal::default()
    };
    for (node, device) in case.changes {
        proposal.devices[usize::from(node) % n_nodes] = device;
    }
    if let Some(n) = case.n_missing {
        proposal
            .devices
            .truncate(n_nodes.saturating_sub(usize::from(n)));
    }
    if case.fits {
        proposal
            .start_order
            .iter_mut()
            .for_each(|order| order.resize(n_nodes, 0));
        proposal
            .queues
            .iter_mut()
            .for_each(|queues| queues.resize(n_nodes, 0));
    }
    let is_legal = proposal.devices.len() == n_nodes
        && proposal.devices.iter().all(|&device| device < n_devices)
        && proposal
            .start_order
            .as_ref()
            .is_none_or(|order| order.len() == n_nodes)
        && proposal
            .queues
            .as_ref()
            .is_none_or(|queues| queues.len() == n_nodes && queues.iter().all(|&queue| queue == 0));
    match placement::check(&candidates, proposal.clone()) {
        Err(violation) => {
            assert!(!is_legal, "{violation}");
            assert!(!violation.to_string().is_empty());
        }
        Ok(placement) => {
            assert!(is_legal, "an illegal answer passed: {proposal:?}");
            let request = RunRequest {
                targets: graph.nodes().collect(),
                ..RunRequest::default()
            };
            let plan = placement.partition(&request).expect("a placement can be partitioned");
            assert_eq!(plan.nodes().count(), n_nodes);
            assert_eq!(placement.summary().devices.len(), n_devices as usize);
        }
    }
});
