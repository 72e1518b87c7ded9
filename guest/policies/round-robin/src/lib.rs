//! `round-robin`: the devices take turns.
//!
//! It ignores costs and links, so it is a baseline for policies that use them, and a good test of
//! transfers: neighbours nearly always end up on different devices. Nodes with the same candidates
//! share a turn counter; a colocation group takes one turn. Constants take none: the host creates
//! them on the devices that read them. A device without free memory is skipped. If the tensors of a
//! run do not fit, memory is reserved for them; if that does not help, the devices get stages of
//! nodes in import order instead of turns.

use placewright_guest::Assignment;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::MemoryBudget;
use placewright_guest::NONE;
use placewright_guest::OnlinePolicy;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::ReadyTask;
use placewright_guest::Reasons;
use placewright_guest::debug;
use placewright_guest::export_policy;
use placewright_guest::memory::contiguous_stages;
use placewright_guest::memory::free_constants;
use placewright_guest::memory::place_constants;

/// Attempts to place the graph by turns before the policy falls back to stages.
const MEMORY_ROUNDS: u32 = 4;

/// The policy. Between calls it keeps the online runs in progress.
#[derive(Debug, Default)]
pub struct RoundRobin {
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    id: u32,
    turns: Turns,
}

impl Policy for RoundRobin {
    const NAME: &'static str = "round-robin";
    const DESCRIPTION: &'static str =
        "the legal devices take turns; ignores costs and links, passes over full memories";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        let is_free_constant = free_constants(graph);
        let mut reserved = vec![0; devices.len()];
        let budget = |reserved: &[u64]| MemoryBudget::with_reserved(graph, devices, reserved);
        for _ in 0..MEMORY_ROUNDS {
            let mut memory = budget(&reserved);
            let mut placed = take_turns(graph, &is_free_constant, &mut memory, None);
            place_constants(graph, &is_free_constant, &mut placed);
            match plan.offer_devices(&placed) {
                Ok(()) => {
                    if plan.explain_wanted() {
                        // Collected after the offer: if the fuel runs out meanwhile, the plan
                        // remains.
                        let mut reasons = constant_reasons(&is_free_constant);
                        let mut memory = budget(&reserved);
                        take_turns(graph, &is_free_constant, &mut memory, Some(&mut reasons));
                        reasons.explain(plan);
                    }
                    return Ok(());
                }
                Err(violation) if violation.rule != "memory" => return Err(violation.into()),
                Err(violation) => debug!(plan, "not enough memory: {violation}"),
            }
            memory.set_aside(&mut reserved, plan);
        }
        plan.offer_devices(&contiguous_stages(graph, devices, plan))?;
        if plan.explain_wanted() {
            let mut reasons = constant_reasons(&is_free_constant);
            let others = graph.nodes().zip(&is_free_constant);
            for (node, _) in others.filter(|(_, is_constant)| !**is_constant) {
                let fixed = Reasons::without_choice(graph, node);
                reasons.add(node, fixed.unwrap_or("stage sized to the device's memory"));
            }
            reasons.explain(plan);
        }
        Ok(())
    }
}

fn constant_reasons(is_free_constant: &[bool]) -> Reasons {
    let mut reasons = Reasons::new();
    for (node, _) in (0..).zip(is_free_constant).filter(|(_, is)| **is) {
        reasons.add(node, "constant: placed with its reader");
    }
    reasons
}

/// Returns a device for each node except the free constants, and writes why it is there to
/// `reasons`.
fn take_turns(
    graph: &Graph<'_>,
    is_free_constant: &[bool],
    memory: &mut MemoryBudget,
    mut reasons: Option<&mut Reasons>,
) -> Vec<u32> {
    let (groups, candidate_set) = (graph.group(), graph.candidate_set());
    let mut assignment = Assignment::new(graph);
    let mut turns = Turns::new(graph);
    for node in graph.nodes() {
        if is_free_constant[node as usize] {
            continue;
        }
        let group = groups[node as usize];
        let forced = assignment.forced(node);
        let (device, n_skipped) = if forced == NONE {
            let turn = turns.next(candidate_set[node as usize], |device| {
                memory.fits(group, device)
            });
            memory.take(group, turn.0);
            turn
        } else {
            (forced, 0)
        };
        if let Some(reasons) = reasons.as_deref_mut() {
            let reason = || match (forced, n_skipped) {
                (NONE, 0) => "next in turn",
                (NONE, _) => "next in turn with free memory",
                _ => "follows its colocation group",
            };
            let fixed = Reasons::without_choice(graph, node);
            reasons.add(node, fixed.unwrap_or_else(reason));
        }
        assignment.decide(node, device);
    }
    assignment.devices().to_vec()
}

impl OnlinePolicy for RoundRobin {
    fn begin(
        &mut self,
        run: u32,
        graph: &Graph<'_>,
        _devices: &DeviceSet<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        self.end(run);
        let turns = Turns::new(graph);
        self.runs.push(Run { id: run, turns });
        Ok(())
    }

    fn pick(&mut self, task: &ReadyTask) -> Option<u32> {
        let run = self.runs.iter_mut().find(|run| run.id == task.run)?;
        run.turns.checked_next(task.candidate_set)
    }

    fn end(&mut self, run: u32) {
        self.runs.retain(|other| other.id != run);
    }
}

/// The next device in turn, per candidate set.
#[derive(Debug)]
struct Turns {
    offsets: Vec<u32>,
    devices: Vec<u32>,
    next: Vec<u32>,
}

impl Turns {
    fn new(graph: &Graph<'_>) -> Self {
        let candidates = graph.candidates();
        Self {
            offsets: candidates.offsets.to_vec(),
            devices: candidates.items.to_vec(),
            next: vec![0; candidates.len()],
        }
    }

    /// Returns the next device of a set that is `usable`, and the number of devices that were
    /// skipped. If none is usable, returns the device whose turn it is: the host then reports what
    /// is wrong with the plan.
    fn next(&mut self, set: u32, usable: impl Fn(u32) -> bool) -> (u32, usize) {
        let (start, end) = (self.offsets[set as usize], self.offsets[set as usize + 1]);
        let devices = &self.devices[start as usize..end as usize];
        let turn = self.next[set as usize] as usize;
        let (passed, earlier) = (&devices[turn..], &devices[..turn]);
        let skipped = passed
            .iter()
            .chain(earlier)
            .position(|&device| usable(device))
            .unwrap_or(0);
        let taken = (turn + skipped) % devices.len();
        self.next[set as usize] = u32::try_from((taken + 1) % devices.len()).unwrap_or(0);
        (devices[taken], skipped)
    }

    /// Returns the next device of a set, or `None` if there is no such set.
    fn checked_next(&mut self, set: u32) -> Option<u32> {
        let next = self.next.get_mut(set as usize)?;
        let (start, end) = (self.offsets[set as usize], self.offsets[set as usize + 1]);
        let device = *self.devices.get((start + *next) as usize)?;
        *next += 1;
        if start + *next == end {
            *next = 0;
        }
        Some(device)
    }
}

export_policy!(RoundRobin, online, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::log::Log;
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::place;

    use super::*;

    #[test]
    fn devices_take_turns_and_groups_take_one() {
        let devices = cluster("3xCPU");
        let mut graph = GraphBuilder::new(&devices);
        let nodes: Vec<u32> = (0..6).map(|_| graph.node("", &[1.0])).collect();
        graph.group(&[nodes[1], nodes[3]]);
        graph.pin(nodes[4], 0);
        let offer = place(&mut RoundRobin::default(), &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [0, 1, 2, 1, 0, 0]);
        let reasons: Vec<_> = offer
            .reasons
            .iter()
            .map(|(nodes, why)| (&nodes[..], &why[..]))
            .collect();
        assert_eq!(
            reasons,
            [
                (&[0, 1, 2, 5][..], "next in turn"),
                (&[3][..], "follows its colocation group"),
                (&[4][..], "pinned"),
            ]
        );
    }

    #[test]
    fn full_memories_are_skipped() {
        let devices = cluster("2xCPU").with_memory(0, 100);
        let mut graph = GraphBuilder::new(&devices);
        for _ in 0..4 {
            let node = graph.node("", &[1.0]);
            graph.resident_bytes(node, 80);
        }
        let offer = place(&mut RoundRobin::default(), &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [0, 1, 1, 1]);
        let reasons: Vec<_> = offer
            .reasons
            .iter()
            .map(|(nodes, why)| (&nodes[..], &why[..]))
            .collect();
        assert_eq!(
            reasons,
            [
                (&[0, 1][..], "next in turn"),
                (&[2, 3][..], "next in turn with free memory")
            ]
        );
    }

    #[test]
    fn online_runs_have_turns_of_their_own() {
        let devices = cluster("1xCPU,1xGPU");
        let mut graph = GraphBuilder::new(&devices);
        let node = graph.node("only", &[1.0, 1.0]);
        graph.candidates(node, &[1, 0]);
        let graph = graph.build();
        let log = Log::silent();
        let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
        let mut policy = RoundRobin::default();
        policy.begin(1, &graph, &devices, 0).unwrap();
        policy.begin(2, &graph, &devices, 0).unwrap();
        let task = |run| ReadyTask {
            run,
            node,
            cost_row: 0,
            candidate_set: graph.candidate_set()[node as usize],
            input_bytes: 0,
            home: NONE,
            now_ns: 0.0,
        };
        assert_eq!(policy.pick(&task(1)), Some(1));
        let mut answers = Vec::new();
        policy.pick_batch(&[task(1), task(2), task(1)], &mut answers);
        assert_eq!(answers, [0, 1, 1]);
        policy.end(1);
        assert_eq!(policy.pick(&task(1)), None, "the run is over");
    }
}
