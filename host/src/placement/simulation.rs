//! What a run of a placement would look like, by the cost model.

use std::io;
use std::io::Write;

use rustc_hash::FxHashMap;
use rustc_hash::FxHashSet;
use serde::Serialize;
use serde_json::json;

use crate::candidates::Candidates;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::placement::Placement;
use crate::placement::estimate::PlanEstimate;
use crate::placement::estimate::PlanSchedule;
use crate::placement::estimate::link_names;
use crate::placement::to_u32;

/// The schedule of one run of the whole graph, by the cost model: what happens when, and what it
/// occupies. Loops are one execution that takes as long as all.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Simulation {
    /// Expected time of a run, in ns: as [`Placement::expected_ns`], with feeds, fetches and the
    /// start of the run.
    pub expected_ns: f64,
    /// When the last node ends, in ns.
    pub end_ns: f64,
    /// Per node, when it starts, in ns.
    pub starts_ns: Vec<f64>,
    /// Per node, when it ends, in ns.
    pub ends_ns: Vec<f64>,
    /// The transfers, in the order in which they are sent.
    pub transfers: Vec<SimulatedTransfer>,
    /// All devices, in the order of the set.
    pub devices: Vec<SimulatedDevice>,
    /// The links between devices. Copies within host memory occupy a thread instead.
    pub links: Vec<SimulatedLink>,
    /// The nodes that determine the end, each of which waits for the one before: for its output, or
    /// for its device.
    pub critical_path: Vec<u32>,
}

/// A transfer of a [`Simulation`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SimulatedTransfer {
    /// The node that computes the tensor.
    pub producer: u32,
    /// The tensor; `None` for a control signal.
    pub tensor: Option<u32>,
    /// The sending device.
    pub source: u32,
    /// The receiving device.
    pub destination: u32,
    /// The known size; 0 if it is unknown.
    pub bytes: u64,
    /// When it starts, in ns.
    pub start_ns: f64,
    /// When the tensor arrives, in ns.
    pub end_ns: f64,
    /// The links that it occupies, as indices into [`Simulation::links`].
    pub links: Vec<u32>,
}

/// The use of a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SimulatedDevice {
    /// Full name.
    pub name: String,
    /// Nodes that take time.
    pub n_executed: u64,
    /// Time in which it executes at least one node, in ns.
    pub busy_ns: f64,
    /// Bytes that it holds before a run: constants and state.
    pub resident_bytes: u64,
    /// Most bytes that it holds at one time.
    pub peak_bytes: u64,
    /// When the bytes that it holds change, in ns, and the bytes from then on.
    pub memory: Vec<(f64, u64)>,
}

/// The use of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SimulatedLink {
    /// Its ends.
    pub name: String,
    /// Transfers that occupy it.
    pub n_transfers: u64,
    /// The sum of their known sizes.
    pub bytes: u64,
    /// Time in which it is occupied, in ns.
    pub busy_ns: f64,
}

impl Placement {
    /// Simulates one run of the whole graph.
    pub fn simulate(&self) -> Simulation {
        let candidates = self.candidates();
        let mut estimate = PlanEstimate::new(candidates, candidates.profile());
        let schedule = estimate.schedule(candidates, self.columns());
        let mut links: Vec<SimulatedLink> = link_names(candidates)
            .into_iter()
            .map(|name| SimulatedLink {
                name,
                n_transfers: 0,
                bytes: 0,
                busy_ns: 0.0,
            })
            .collect();
        let transfers = transfers(candidates, &schedule, &mut links);
        Simulation {
            expected_ns: self.expected_ns(),
            end_ns: schedule.end_ns,
            devices: self.device_use(&schedule, &transfers),
            critical_path: critical_path(candidates, self.devices(), &schedule, &transfers),
            starts_ns: schedule.starts_ns,
            ends_ns: schedule.ends_ns,
            transfers,
            links,
        }
    }

    fn device_use(
        &self,
        schedule: &PlanSchedule,
        transfers: &[SimulatedTransfer],
    ) -> Vec<SimulatedDevice> {
        let summary = self.summary();
        let changes = memory_changes(self, schedule, transfers);
        let mut intervals: Vec<Vec<(f64, f64)>> = vec![Vec::new(); summary.devices.len()];
        for (node, &device) in self.devices().iter().enumerate() {
            let (start_ns, end_ns) = (schedule.starts_ns[node], schedule.ends_ns[node]);
            if end_ns > start_ns {
                intervals[device as usize].push((start_ns, end_ns));
            }
        }
        let devices = summary.devices.into_iter().zip(intervals).zip(changes);
        devices
            .map(|((device, intervals), changes)| {
                let memory = memory_over_time(device.resident_bytes, changes);
                SimulatedDevice {
                    name: device.name,
                    n_executed: intervals.len() as u64,
                    busy_ns: covered_ns(intervals),
                    resident_bytes: device.resident_bytes,
                    peak_bytes: memory.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0),
                    memory,
                }
            })
            .collect()
    }
}

fn transfers(
    candidates: &Candidates,
    schedule: &PlanSchedule,
    links: &mut [SimulatedLink],
) -> Vec<SimulatedTransfer> {
    let sizes = candidates.graph().tensor_bytes();
    let scheduled = schedule.transfers.iter();
    scheduled
        .map(|transfer| {
            let bytes = sizes.get(transfer.tensor as usize).copied().unwrap_or(0);
            let mut taken: Vec<u32> = Vec::new();
            for link in transfer.links {
                // Both ends may name one link.
                if let Some(of_link) = links.get_mut(link as usize)
                    && !taken.contains(&link)
                {
                    taken.push(link);
                    of_link.n_transfers += 1;
                    of_link.bytes = of_link.bytes.saturating_add(bytes);
                    of_link.busy_ns += transfer.busy_ns;
                }
            }
            SimulatedTransfer {
                producer: transfer.producer,
                tensor: (transfer.tensor != NONE).then_some(transfer.tensor),
                source: transfer.source,
                destination: transfer.destination,
                bytes,
                start_ns: transfer.start_ns,
                end_ns: transfer.end_ns,
                links: taken,
            }
        })
        .collect()
}

/// Returns the time that at least one of the intervals covers.
fn covered_ns(mut intervals: Vec<(f64, f64)>) -> f64 {
    intervals.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum_ns, mut until_ns) = (0.0, 0.0_f64);
    for (start_ns, end_ns) in intervals {
        let from_ns = start_ns.max(until_ns);
        if end_ns > from_ns {
            sum_ns += end_ns - from_ns;
            until_ns = end_ns;
        }
    }
    sum_ns
}

/// Bytes that become used (positive) or free, and when.
type Changes = Vec<(f64, i64)>;

/// A tensor is on the device of its producer from the start of that node on, and on another device
/// from the start of its transfer on, until the last reader there ends, or what is sent from there
/// arrives. What no node reads stays until the end.
fn memory_changes(
    placement: &Placement,
    schedule: &PlanSchedule,
    transfers: &[SimulatedTransfer],
) -> Vec<Changes> {
    let graph = placement.graph();
    let devices = placement.devices();
    let mut changes: Vec<Changes> = vec![Vec::new(); placement.device_set().len()];
    // Transfers of one producer follow each other.
    let mut by_producer: Vec<u32> = (0..to_u32(transfers.len())).collect();
    by_producer.sort_by_key(|&index| transfers[index as usize].producer);
    let mut rest = by_producer.as_slice();
    let successors = graph.successors();
    // Per tensor and device: first and last use.
    let mut uses: Vec<(u32, u32, f64, f64)> = Vec::new();
    for node in graph.nodes() {
        let n_own = rest
            .iter()
            .take_while(|&&index| transfers[index as usize].producer == node.0)
            .count();
        let (own, later) = rest.split_at(n_own);
        rest = later;
        if graph.is_preloaded(node) {
            continue;
        }
        uses.clear();
        let device = devices[node.index()];
        let (start_ns, end_ns) = (
            schedule.starts_ns[node.index()],
            schedule.ends_ns[node.index()],
        );
        for tensor in graph.output_range(node) {
            uses.push((to_u32(tensor), device, start_ns, end_ns));
        }
        for position in successors.range(node.index()) {
            let reader = successors.items[position] as usize;
            let tensor = graph.edge_tensors()[graph.successor_edges()[position] as usize];
            if tensor != NONE {
                let read_ns = schedule.ends_ns[reader];
                uses.push((tensor, devices[reader], read_ns, read_ns));
            }
        }
        if successors.row(node.index()).is_empty() {
            for tensor in graph.output_range(node) {
                uses.push((to_u32(tensor), device, start_ns, schedule.end_ns));
            }
        }
        for &index in own {
            let transfer = &transfers[index as usize];
            if let Some(tensor) = transfer.tensor {
                let (start_ns, end_ns) = (transfer.start_ns, transfer.end_ns);
                uses.push((tensor, transfer.source, start_ns, end_ns));
                uses.push((tensor, transfer.destination, start_ns, end_ns));
            }
        }
        uses.sort_unstable_by_key(|&(tensor, device, ..)| (tensor, device));
        for same in uses.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (tensor, device, ..) = same[0];
            let bytes = graph.tensor_bytes()[tensor as usize];
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            let first_ns = same.iter().map(|held| held.2).fold(f64::INFINITY, f64::min);
            let last_ns = same.iter().map(|held| held.3).fold(0.0, f64::max);
            if bytes > 0 && last_ns > first_ns {
                let of_device = &mut changes[device as usize];
                of_device.push((first_ns, bytes));
                of_device.push((last_ns, -bytes));
            }
        }
    }
    changes
}

fn memory_over_time(resident_bytes: u64, mut changes: Changes) -> Vec<(f64, u64)> {
    // At one instant, memory is freed before it is used again.
    changes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut memory = vec![(0.0, resident_bytes)];
    for (at_ns, change) in changes {
        let (last_ns, bytes) = memory[memory.len() - 1];
        let bytes = bytes.saturating_add_signed(change);
        if last_ns == at_ns {
            memory.pop();
        }
        memory.push((at_ns, bytes));
    }
    memory
}

/// Instants that differ by less than this are equal: sums of many times are not exact.
pub(super) fn tolerance_ns(at_ns: f64) -> f64 {
    (at_ns * 1e-12).max(1e-3)
}

/// When what a node computes arrives on another device, the last of it: by node and device.
pub(super) struct Arrivals(FxHashMap<(u32, u32), f64>);

impl Arrivals {
    pub(super) fn new(transfers: &[SimulatedTransfer]) -> Self {
        let mut latest = FxHashMap::default();
        for transfer in transfers {
            let end_ns: &mut f64 = latest
                .entry((transfer.producer, transfer.destination))
                .or_insert(0.0);
            *end_ns = end_ns.max(transfer.end_ns);
        }
        Self(latest)
    }

    /// Returns `None` if nothing is sent, as on the node's own device.
    pub(super) fn latest_ns(&self, producer: u32, device: u32) -> Option<f64> {
        self.0.get(&(producer, device)).copied()
    }
}

fn critical_path(
    candidates: &Candidates,
    devices: &[u32],
    schedule: &PlanSchedule,
    transfers: &[SimulatedTransfer],
) -> Vec<u32> {
    let graph = candidates.graph();
    let nodes = 0..to_u32(devices.len());
    let end_of = |node: u32| schedule.ends_ns[node as usize];
    let executed = nodes.filter(|&node| end_of(node) > schedule.starts_ns[node as usize]);
    let mut by_end: Vec<u32> = executed.collect();
    by_end.sort_unstable_by(|&a, &b| end_of(a).total_cmp(&end_of(b)).then(a.cmp(&b)));
    let arrivals = Arrivals::new(transfers);
    let mut seen = FxHashSet::default();
    let mut path = Vec::new();
    let mut at = by_end.last().copied();
    while let Some(node) = at {
        // Nodes that take next to no time may seem to wait for each other.
        if !seen.insert(node) {
            break;
        }
        path.push(node);
        let device = devices[node as usize];
        let start_ns = schedule.starts_ns[node as usize];
        let tolerance_ns = tolerance_ns(start_ns);
        // The input that arrives last.
        let mut last: Option<(f64, u32)> = None;
        let predecessors = graph.predecessors();
        for &producer in predecessors.row(node as usize) {
            if graph.is_preloaded(NodeId(producer)) {
                continue;
            }
            let arrival_ns = arrivals.latest_ns(producer, device);
            let arrival_ns = arrival_ns.unwrap_or(end_of(producer));
            if last.is_none_or(|(latest_ns, _)| arrival_ns > latest_ns) {
                last = Some((arrival_ns, producer));
            }
        }
        let waits_for_input = last.is_some_and(|(at_ns, _)| at_ns >= start_ns - tolerance_ns);
        let last = last.map(|(_, producer)| producer);
        at = match waits_for_input {
            true => last,
            // A node of the device that ends as this one starts.
            false => {
                let first =
                    by_end.partition_point(|&other| end_of(other) < start_ns - tolerance_ns);
                let mut near = by_end[first..].iter().copied();
                let before = near
                    .by_ref()
                    .take_while(|&other| end_of(other) <= start_ns + tolerance_ns)
                    .find(|&other| devices[other as usize] == device && other != node);
                before.filter(|_| start_ns > 0.0).or(last)
            }
        };
    }
    path.reverse();
    path
}

impl Simulation {
    /// Writes the schedule as a trace for Perfetto and `chrome://tracing`: a process per device,
    /// and one for the links. Nodes that overlap on a device have threads of their own.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_chrome(&self, placement: &Placement, mut writer: impl Write) -> io::Result<()> {
        let graph = placement.graph();
        let mut first = true;
        let mut put = |event: &serde_json::Value| {
            let before: &[u8] = match std::mem::take(&mut first) {
                true => b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n",
                false => b",\n",
            };
            writer.write_all(before)?;
            serde_json::to_writer(&mut writer, event).map_err(io::Error::from)
        };
        let process = |number: usize, name: &str| json!({"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": name}});
        for (number, device) in self.devices.iter().enumerate() {
            put(&process(number, &device.name))?;
        }
        let of_links = self.devices.len();
        put(&process(of_links, "links"))?;
        for (number, link) in self.links.iter().enumerate() {
            put(&json!({
                "ph": "M", "pid": of_links, "tid": number, "name": "thread_name",
                "args": {"name": link.name},
            }))?;
        }
        let slice = |name: &str, pid: usize, tid: usize, start_ns: f64, end_ns: f64| {
            json!({
                "ph": "X", "name": name, "pid": pid, "tid": tid,
                "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3,
            })
        };
        let mut order: Vec<usize> = (0..self.starts_ns.len()).collect();
        order.sort_by(|&a, &b| self.starts_ns[a].total_cmp(&self.starts_ns[b]));
        // Per device and thread, when it is free.
        let mut free_ns: Vec<Vec<f64>> = vec![Vec::new(); self.devices.len()];
        for node in order {
            let (start_ns, end_ns) = (self.starts_ns[node], self.ends_ns[node]);
            if end_ns <= start_ns {
                continue;
            }
            let id = NodeId(to_u32(node));
            let device = placement.device(id).index();
            let threads = &mut free_ns[device];
            let thread = threads
                .iter()
                .position(|&free_ns| free_ns <= start_ns + tolerance_ns(start_ns));
            let thread = thread.unwrap_or_else(|| {
                threads.push(0.0);
                threads.len() - 1
            });
            threads[thread] = end_ns;
            let mut event = slice(graph.node_name(id), device, thread, start_ns, end_ns);
            event["args"] = json!({"op": graph.op(id)});
            put(&event)?;
        }
        for transfer in &self.transfers {
            let name = graph.node_name(NodeId(transfer.producer));
            for &link in &transfer.links {
                let (start_ns, end_ns) = (transfer.start_ns, transfer.end_ns);
                let mut event = slice(name, of_links, link as usize, start_ns, end_ns);
                event["args"] = json!({
                    "bytes": transfer.bytes,
                    "from": self.devices[transfer.source as usize].name,
                    "to": self.devices[transfer.destination as usize].name,
                });
                put(&event)?;
            }
        }
        writer.write_all(b"\n]}\n")
    }

    /// Returns the part of the schedule, 0 to 1, in which a device or link is busy, of its
    /// `busy_ns`.
    pub fn utilization(&self, busy_ns: f64) -> f64 {
        match self.end_ns > 0.0 {
            true => busy_ns / self.end_ns,
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_that_overlap_count_once() {
        assert_eq!(covered_ns(Vec::new()), 0.0);
        assert_eq!(
            covered_ns(vec![(5.0, 7.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]),
            5.0
        );
    }

    #[test]
    fn memory_that_is_freed_is_used_again_at_once() {
        let memory = memory_over_time(10, vec![(0.0, 5), (3.0, 7), (3.0, -5), (4.0, -7)]);
        assert_eq!(memory, [(0.0, 15), (3.0, 17), (4.0, 10)]);
    }
}
