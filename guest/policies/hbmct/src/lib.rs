//! `hbmct`: the hybrid heuristic with Balanced Minimum Completion Time (Sakellariou, Zhao 2004, "A
//! hybrid heuristic for DAG scheduling on heterogeneous systems").
//!
//! Nodes in order of descending upward rank are cut into sets without edges inside. The sets are
//! scheduled one after the other, after all nodes scheduled before. Within a set, each node first
//! goes where it would finish first if it were the only one. Then nodes move away from the device
//! that finishes last, each to the device that finishes earliest with it, as long as the end of
//! the set comes nearer. So nodes of a set are balanced, where list schedulers decide about one
//! after the other.
//!
//! Beyond the paper: only legal devices are tried, a set has at most 256 nodes, and nodes of
//! colocation groups do not move. A node whose device has no memory left after others of its set
//! took it goes where it finishes first. What [`placewright_guest::schedule`] says of groups,
//! constants, memory and chips holds here.

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::algorithm::descending;
use placewright_guest::export_policy;
use placewright_guest::schedule;
use placewright_guest::schedule::ListSchedule;
use placewright_guest::schedule::TaskGraph;

/// Maximum nodes per set: moving them takes cubic time in the worst case.
const SET_MAX: usize = 256;

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct Hbmct;

impl Policy for Hbmct {
    const NAME: &'static str = "hbmct";
    const DESCRIPTION: &'static str = "Hybrid Balanced Minimum Completion Time (Sakellariou, Zhao 2004): independent nodes of \
        similar rank are balanced over the devices";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        if devices.is_empty() {
            return Err(PlaceError::Declined("there is no device".to_owned()));
        }
        let tasks = TaskGraph::new(graph, devices);
        let mut order = descending(&tasks.upward_ranks());
        order.retain(|&node| tasks.is_task(node));
        let sets = independent_sets(&tasks, &order);
        let offered = schedule::offer(graph, devices, plan, |memory| {
            let mut schedule = ListSchedule::new(&tasks, memory);
            for set in &sets {
                place_set(&tasks, &mut schedule, set);
            }
            schedule.finish()
        })?;
        offered.explain(graph, plan, "balanced with nodes of similar rank");
        Ok(())
    }
}

/// Cuts an order into runs without edges inside.
fn independent_sets<'o>(tasks: &TaskGraph<'_, '_>, order: &'o [u32]) -> Vec<&'o [u32]> {
    let mut sets = Vec::new();
    // Per node: the set that it is in, counted from 1.
    let mut set_of = vec![0_usize; tasks.graph().len()];
    let mut start = 0;
    for (position, &node) in order.iter().enumerate() {
        let current = sets.len() + 1;
        let mut inputs = tasks.inputs(node);
        let depends = inputs.any(|input| set_of[input.producer as usize] == current);
        if depends || position - start == SET_MAX {
            sets.push(&order[start..position]);
            start = position;
        }
        set_of[node as usize] = sets.len() + 1;
    }
    if start < order.len() {
        sets.push(&order[start..]);
    }
    sets
}

/// A node of the current set.
struct Member {
    node: u32,
    /// The devices that it may take.
    legal: Vec<u32>,
    /// Per entry of `legal`: when its inputs are there, and its work.
    ready_ns: Vec<f64>,
    work_ns: Vec<f64>,
    mean_ready_ns: f64,
    /// Index of its device in `legal`.
    at: usize,
}

/// Places the nodes of a set.
fn place_set(tasks: &TaskGraph<'_, '_>, schedule: &mut ListSchedule<'_, '_>, set: &[u32]) {
    let mut members = Vec::with_capacity(set.len());
    for &node in set {
        if !tasks.members(node).is_empty() {
            let choice = schedule.best(node, |choice| choice.finish_ns);
            schedule.place(node, &choice);
            continue;
        }
        members.push(Member::new(tasks, schedule, node));
    }
    balance(tasks, schedule, &mut members);
    // Nodes start in the order in which their inputs are ready, on each device.
    members.sort_by(|a, b| a.ready_ns[a.at].total_cmp(&b.ready_ns[b.at]));
    for member in &members {
        let device = member.legal[member.at];
        let choice = if schedule.legal(member.node).contains(&device) {
            schedule.earliest(member.node, device)
        } else {
            schedule.best(member.node, |choice| choice.finish_ns)
        };
        schedule.place(member.node, &choice);
    }
}

impl Member {
    #[expect(clippy::cast_precision_loss, reason = "devices are few")]
    fn new(tasks: &TaskGraph<'_, '_>, schedule: &mut ListSchedule<'_, '_>, node: u32) -> Self {
        let legal = schedule.legal(node).to_vec();
        let ready = legal.iter().map(|&device| schedule.ready_ns(node, device));
        let ready_ns: Vec<f64> = ready.collect();
        let work = legal.iter().map(|&device| tasks.work_ns(node, device));
        let work_ns: Vec<f64> = work.collect();
        let mut at = 0;
        let mut first = f64::INFINITY;
        for (index, &device) in legal.iter().enumerate() {
            let tail = schedule.tail_ns(device);
            let finish = tail.max(ready_ns[index]) + work_ns[index];
            if finish < first {
                (first, at) = (finish, index);
            }
        }
        Self {
            node,
            mean_ready_ns: ready_ns.iter().sum::<f64>() / ready_ns.len() as f64,
            legal,
            ready_ns,
            work_ns,
            at,
        }
    }
}

/// Moves nodes away from the chip that finishes last, as long as it then finishes earlier and the
/// other one not later than it did.
fn balance(tasks: &TaskGraph<'_, '_>, schedule: &ListSchedule<'_, '_>, members: &mut [Member]) {
    // Per chip: the members on it, by the time when their inputs are ready.
    let mut queues: Vec<Vec<usize>> = vec![Vec::new(); tasks.n_chips()];
    for (index, member) in members.iter().enumerate() {
        queues[tasks.chip(member.legal[member.at])].push(index);
    }
    let sort = |queue: &mut Vec<usize>, members: &[Member]| {
        queue.sort_by(|&a, &b| {
            let ready = |index: usize| members[index].ready_ns[members[index].at];
            ready(a).total_cmp(&ready(b)).then(a.cmp(&b))
        });
    };
    // When a chip finishes the members of a queue, without one of them, and with another one.
    let end =
        |tail_ns: f64, queue: &[usize], members: &[Member], without, with: Option<[f64; 2]>| {
            let mut end_ns = tail_ns;
            let mut with = with;
            for &index in queue {
                if Some(index) == without {
                    continue;
                }
                let member = &members[index];
                let ready_ns = member.ready_ns[member.at];
                if let Some([ready, work]) = with
                    && ready < ready_ns
                {
                    end_ns = end_ns.max(ready) + work;
                    with = None;
                }
                end_ns = end_ns.max(ready_ns) + member.work_ns[member.at];
            }
            match with {
                Some([ready, work]) => end_ns.max(ready) + work,
                None => end_ns,
            }
        };
    let mut tail_ns = vec![0.0_f64; tasks.n_chips()];
    for member in members.iter() {
        for &device in &member.legal {
            tail_ns[tasks.chip(device)] = schedule.tail_ns(device);
        }
    }
    for queue in &mut queues {
        sort(queue, members);
    }
    let mut ends: Vec<f64> = (queues.iter().zip(&tail_ns))
        .map(|(queue, &tail)| end(tail, queue, members, None, None))
        .collect();
    // Each move shortens the longest queue, so no set of queues comes back. The bound is for
    // rounding.
    for _ in 0..members.len() * members.len() {
        let with_members = (0..queues.len()).filter(|&chip| !queues[chip].is_empty());
        let last = with_members.reduce(|a, b| if ends[b] > ends[a] { b } else { a });
        let Some(last) = last else { return };
        let mut movable = queues[last].clone();
        movable.sort_by(|&a, &b| {
            members[a]
                .mean_ready_ns
                .total_cmp(&members[b].mean_ready_ns)
        });
        let mut found = None;
        for index in movable {
            let without = end(tail_ns[last], &queues[last], members, Some(index), None);
            if without >= ends[last] {
                continue;
            }
            let member = &members[index];
            let mut best_ns = ends[last];
            for (at, &device) in member.legal.iter().enumerate() {
                let chip = tasks.chip(device);
                if chip == last {
                    continue;
                }
                let with = Some([member.ready_ns[at], member.work_ns[at]]);
                let end_ns = end(tail_ns[chip], &queues[chip], members, None, with);
                if end_ns < best_ns {
                    best_ns = end_ns;
                    found = Some((index, at, chip));
                }
            }
            if found.is_some() {
                break;
            }
        }
        let Some((index, at, chip)) = found else {
            return;
        };
        queues[last].retain(|&other| other != index);
        members[index].at = at;
        queues[chip].push(index);
        sort(&mut queues[chip], members);
        for chip in [last, chip] {
            ends[chip] = end(tail_ns[chip], &queues[chip], members, None, None);
        }
    }
}

export_policy!(Hbmct, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::place;

    use super::*;

    #[test]
    fn independent_nodes_are_balanced() {
        // A minimum completion time, in order of rank, would put `long` on A after `a` and `b`.
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        for (name, costs) in [
            ("a", [10.0, 11.0]),
            ("b", [10.0, 11.0]),
            ("long", [9.0, 40.0]),
        ] {
            graph.node(name, &costs);
        }
        let offer = place(&mut Hbmct, &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices[2], 0);
        assert_eq!(offer.makespan_ns, 19.0_f64.max(11.0));
    }
}
