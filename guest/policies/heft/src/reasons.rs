//! Why each node is on its device, for readers of the placement.

use std::fmt::Write;

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::Plan;
use placewright_guest::Reasons;

use crate::scheduler::Decision;

/// Up to this many nodes, each node has a reason with its own times: at about 150 bytes each, 15
/// MB. The host keeps 64 MiB by default. Larger graphs get reasons that nodes share.
pub(crate) const NODES_WITH_TIMES: usize = 100_000;

/// Up to this many nodes times devices: to find the second best device of a node, all its
/// candidates are tried.
const TRIALS_MAX: usize = 10_000_000;

/// Returns whether each node gets a reason with its own times.
pub(crate) fn have_times(n_nodes: usize, n_devices: usize) -> bool {
    n_nodes <= NODES_WITH_TIMES && n_nodes.saturating_mul(n_devices) <= TRIALS_MAX
}

/// Explains a schedule. `decisions` is empty if no node gets a reason with its own times.
pub(crate) fn explain(
    graph: &Graph<'_>,
    devices: &DeviceSet<'_>,
    plan: &Plan<'_>,
    is_free_constant: &[bool],
    decisions: &[Decision],
) {
    let names = short_names(devices);
    let mut reasons = Reasons::new();
    let mut is_done = vec![false; graph.len()];
    for decision in decisions {
        is_done[decision.node as usize] = true;
        if decision.finish < f64::INFINITY {
            plan.explain(&[decision.node], || with_times(decision, &names));
        } else {
            reasons.add(decision.node, "most preferred: no finite cost");
        }
    }
    let mut is_decided = vec![false; graph.counts().groups as usize];
    for node in graph.nodes().filter(|&node| !is_done[node as usize]) {
        let of_group = &mut is_decided[graph.group()[node as usize] as usize];
        let reason = if is_free_constant[node as usize] {
            "constant: placed with its reader"
        } else if let Some(reason) = Reasons::without_choice(graph, node) {
            reason
        } else if decisions.is_empty() && !*of_group {
            "earliest finish"
        } else {
            "follows its colocation group"
        };
        *of_group = true;
        reasons.add(node, reason);
    }
    reasons.explain(plan);
}

fn with_times(decision: &Decision, names: &[String]) -> String {
    let name = |device: u32| &names[device as usize];
    let mut text = if decision.is_group {
        "earliest finish of its group ".to_owned()
    } else {
        "earliest finish ".to_owned()
    };
    text.push_str(&show_ns(decision.finish));
    match decision.second {
        Some((device, finish)) if finish < f64::INFINITY => {
            // Writing to a string does not fail.
            let _ = write!(text, "; second best {} {}", name(device), show_ns(finish));
        }
        _ => {}
    }
    match decision.full {
        Some((device, 1)) => {
            let _ = write!(text, "; no memory on {}", name(device));
        }
        Some((_, n_devices)) => {
            let _ = write!(text, "; no memory on {n_devices} devices");
        }
        None => {}
    }
    text
}

/// Returns names such as `GPU:0`, or full names if the devices belong to several tasks.
fn short_names(devices: &DeviceSet<'_>) -> Vec<String> {
    const MARK: &str = "/device:";
    let names = || devices.attributes().iter().map(|device| &device.name);
    let task = |name: &String| name.find(MARK).map(|end| name[..end].to_owned());
    let first = names().next().and_then(task);
    let is_one_task = first.is_some() && names().all(|name| task(name) == first);
    let short = |name: &String| match name.split_once(MARK) {
        Some((_, device)) if is_one_task => device.to_owned(),
        _ => name.clone(),
    };
    names().map(short).collect()
}

/// Formats a time with about three digits. Does not format floats, which takes 20 KB of code.
fn show_ns(time_ns: f64) -> String {
    let (unit_ns, unit) = match time_ns {
        time if time < 1e3 => (1.0, "ns"),
        time if time < 1e6 => (1e3, "us"),
        time if time < 1e9 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are not negative; what is out of range saturates"
    )]
    let hundredths = (time_ns / unit_ns * 100.0 + 0.5) as u64;
    format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_or_devices_share_reasons() {
        assert!(have_times(NODES_WITH_TIMES, 64));
        assert!(!have_times(NODES_WITH_TIMES + 1, 2));
        assert!(!have_times(NODES_WITH_TIMES, 4_096));
    }

    #[test]
    fn times_have_a_fitting_unit() {
        for (time_ns, shown) in [
            (0.0, "0.00 ns"),
            (999.0, "999.00 ns"),
            (1_234.0, "1.23 us"),
            (1_399_999.0, "1.40 ms"),
            (2.5e9, "2.50 s"),
        ] {
            assert_eq!(show_ns(time_ns), shown);
        }
    }
}
