//! A run of a task graph on paper, with the first candidate of every task.

use placewright::candidates::Candidates;
use placewright::candidates::Proposal;
use placewright::graph::NodeId;
use placewright::placement;

/// Simulates a run, and explains one node, if the plan is legal: every time is a number from 0,
/// nothing ends before it starts, and the last end is the end of the run.
pub fn check(candidates: &Candidates) {
    let nodes = || candidates.graph().nodes();
    let proposal = Proposal {
        devices: nodes()
            .map(|node| candidates.of_node(node)[0])
            .collect(),
        ..Proposal::default()
    };
    let placement = match placement::check(candidates, proposal) {
        Ok(placement) => placement,
        Err(violation) => {
            assert!(!violation.to_string().is_empty());
            return;
        }
    };
    let simulation = placement.simulate();
    assert!(simulation.expected_ns >= 0.0, "{}", simulation.expected_ns);
    let mut last_ns = 0.0_f64;
    for node in nodes() {
        let start_ns = simulation.starts_ns[node.index()];
        let end_ns = simulation.ends_ns[node.index()];
        assert!(0.0 <= start_ns && start_ns <= end_ns, "{start_ns} to {end_ns}");
        last_ns = last_ns.max(end_ns);
    }
    assert_eq!(last_ns, simulation.end_ns);
    for transfer in &simulation.transfers {
        assert!(transfer.start_ns <= transfer.end_ns);
        assert!(transfer.start_ns >= simulation.ends_ns[transfer.producer as usize]);
    }
    for device in &simulation.devices {
        assert!((0.0..=1.0 + 1e-9).contains(&simulation.utilization(device.busy_ns)));
    }
    if let Some(&node) = simulation.critical_path.last() {
        let explanation = placement.explain(NodeId(node));
        assert!(explanation.is_critical && explanation.slack_ns >= 0.0);
    }
}
