//! The expected duration of a plan: the schedule of [`placewright_guest::estimate`], with the costs
//! and links of the candidates, as the executor would choose it.
//!
//! The threads of the host execute the nodes of all CPU devices, whatever device they are on. If a
//! plan needs nothing else, the executor takes the faster of two ways: one thread executes
//! everything, and kernels use the other threads; or several threads execute nodes.

use placewright_guest::estimate::Durations;
use placewright_guest::estimate::Estimate;
use placewright_guest::estimate::Resources;
use placewright_guest::estimate::Schedule;
use placewright_guest::estimate::ScheduledTransfer;
use placewright_guest::estimate::Transfer;
use placewright_guest::graph::Rows;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::candidates::Candidates;
use crate::candidates::PlanColumns;
use crate::cost::JOIN_NS;
use crate::cost::SERIAL_DISPATCH_NS;
use crate::cost::SHARED_DISPATCH_NS;
use crate::cost::WORK_PER_THREAD_NS;
use crate::device::LinkRates;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::placement::to_u32;
use crate::trace::RunProfile;

/// By how much several threads must be faster than one to be used.
const SHARED_WEIGHT: f64 = 1.05;

/// The estimate of plans of the same candidates.
#[derive(Debug)]
pub(super) struct PlanEstimate {
    /// Nodes execute on all queues and threads.
    shared: Estimate,
    /// Per device, whether the host's threads execute its nodes.
    is_host: Vec<bool>,
    n_host_threads: u32,
    /// Source x destination, row-major.
    links: Vec<LinkRates>,
    /// Measured times of single transfers, by tensor, source and destination.
    transfers_ns: FxHashMap<(u32, u32, u32), f64>,
    caller: Option<Caller>,
    makespan_ns: Option<f64>,
}

impl PlanEstimate {
    /// Creates an estimate in which transfers that `profile` has measured take that time.
    pub(super) fn new(candidates: &Candidates, profile: Option<&RunProfile>) -> Self {
        let columns = candidates.devices();
        let n_nodes = candidates.graph().n_nodes();
        let is_host: Vec<bool> = candidates
            .device_set()
            .iter()
            .zip(&columns.chip_threads)
            .map(|((_, device), &threads)| threads > 0 && device.attributes().has_one_memory())
            .collect();
        let resources = resources(candidates, &is_host, columns.n_host_threads);
        let shared = Estimate::new(n_nodes, resources);
        Self {
            shared,
            is_host,
            n_host_threads: columns.n_host_threads,
            links: links(candidates),
            transfers_ns: profile
                .into_iter()
                .flat_map(|profile| candidates.measured_transfers(profile))
                .filter(|measured| measured.tensor != NONE)
                .map(|measured| {
                    let (source, destination) = (measured.source, measured.destination);
                    ((measured.tensor, source.0, destination.0), measured.ns)
                })
                .collect(),
            // What a profile calls overhead contains these copies.
            caller: match profile {
                Some(profile) if profile.has_times() => None,
                _ => Caller::of(candidates),
            },
            makespan_ns: None,
        }
    }

    /// Marks the estimate as outdated after the plan has changed.
    pub(super) fn invalidate(&mut self) {
        self.makespan_ns = None;
        self.shared.invalidate();
    }

    /// Marks the estimate as outdated after a node has moved.
    pub(super) fn invalidate_node(&mut self, node: u32) {
        self.makespan_ns = None;
        self.shared.invalidate_node(node);
    }

    /// Returns the expected time of a run, in ns. `measured` replaces the candidates' costs and
    /// executions.
    pub(super) fn makespan_ns(
        &mut self,
        candidates: &Candidates,
        plan: PlanColumns<'_>,
        measured: Option<&[MeasuredWork]>,
    ) -> f64 {
        if let Some(known) = self.makespan_ns {
            return known;
        }
        let (schedule, streamed) = (schedule_of(plan), StreamedReads::of(candidates, plan));
        let durations = |dispatch_ns: u32| PlanDurations {
            candidates,
            measured,
            streamed: &streamed,
            is_host: &self.is_host,
            links: &self.links,
            transfers_ns: &self.transfers_ns,
            dispatch_ns: f64::from(dispatch_ns),
        };
        let (serial, shared) = (durations(SERIAL_DISPATCH_NS), durations(SHARED_DISPATCH_NS));
        let makespan_ns = match serial.by_one_thread_ns(schedule.devices) {
            Some(serial_ns) => {
                let (n_threads, join_ns) = (f64::from(self.n_host_threads), f64::from(JOIN_NS));
                // No schedule is shorter than an equal part of the work for each thread.
                let is_worth_trying = |shared_ns: f64| shared_ns * SHARED_WEIGHT < serial_ns;
                let least_ns = shared.by_one_thread_ns(schedule.devices);
                let least_ns = least_ns.map_or(0.0, |all_ns| all_ns / n_threads + join_ns);
                if serial_ns > 2.0 * join_ns && is_worth_trying(least_ns) {
                    let shared_ns = self.shared.makespan_ns(&shared, schedule) + join_ns;
                    match is_worth_trying(shared_ns) {
                        true => shared_ns,
                        false => serial_ns,
                    }
                } else {
                    serial_ns
                }
            }
            None => {
                let caller = self.caller.as_ref();
                let fed_and_fetched_ns =
                    caller.map_or(0.0, |caller| caller.copies_ns(&shared, schedule.devices));
                self.shared.makespan_ns(&shared, schedule) + fed_and_fetched_ns
            }
        };
        self.makespan_ns = Some(makespan_ns);
        makespan_ns
    }
}

/// The schedule behind a makespan.
#[derive(Debug)]
pub(super) struct PlanSchedule {
    pub(super) starts_ns: Vec<f64>,
    pub(super) ends_ns: Vec<f64>,
    pub(super) transfers: Vec<ScheduledTransfer>,
    /// When the last node ends.
    pub(super) end_ns: f64,
}

impl PlanEstimate {
    /// Returns the schedule of a plan: with one thread of the host, if that is faster.
    pub(super) fn schedule(
        &mut self,
        candidates: &Candidates,
        plan: PlanColumns<'_>,
    ) -> PlanSchedule {
        let makespan_ns = self.makespan_ns(candidates, plan, None);
        let (schedule, streamed) = (schedule_of(plan), StreamedReads::of(candidates, plan));
        let durations = |dispatch_ns: u32| PlanDurations {
            candidates,
            measured: None,
            streamed: &streamed,
            is_host: &self.is_host,
            links: &self.links,
            transfers_ns: &self.transfers_ns,
            dispatch_ns: f64::from(dispatch_ns),
        };
        let serial = durations(SERIAL_DISPATCH_NS);
        let is_serial = serial.by_one_thread_ns(schedule.devices) == Some(makespan_ns);
        let (durations, n_threads) = match is_serial {
            true => (serial, 1),
            false => (durations(SHARED_DISPATCH_NS), self.n_host_threads),
        };
        let resources = resources(candidates, &self.is_host, n_threads);
        let n_nodes = candidates.graph().n_nodes();
        let mut estimate = Estimate::new(n_nodes, resources).with_transfers();
        let end_ns = estimate.makespan_ns(&durations, schedule);
        PlanSchedule {
            starts_ns: estimate.starts_ns().to_vec(),
            ends_ns: estimate.finish_ns().to_vec(),
            transfers: estimate.transfers().to_vec(),
            end_ns,
        }
    }
}

fn schedule_of(plan: PlanColumns<'_>) -> Schedule<'_> {
    Schedule {
        devices: plan.devices,
        start_order: plan.start_order,
        queues: plan.queues,
    }
}

/// The reads of streamed constants. A reader waits for its other inputs, and then for the copy:
/// both together are its work.
#[derive(Debug, Default)]
struct StreamedReads {
    /// Reader, constant, and the device that keeps it; ascending.
    reads: Vec<(u32, NodeId, u32)>,
}

impl StreamedReads {
    fn of(candidates: &Candidates, plan: PlanColumns<'_>) -> Self {
        let graph = candidates.graph();
        let mut reads = Vec::new();
        for &constant in plan.streamed {
            // Also behind nodes that pass it on.
            let mut passing = vec![NodeId(constant)];
            while let Some(node) = passing.pop() {
                let positions = graph.successors().range(node.index());
                for position in positions {
                    let edge = graph.successor_edges()[position] as usize;
                    let reader = NodeId(graph.successors().items[position]);
                    if graph.edge_tensors()[edge] == NONE {
                        continue;
                    }
                    match graph.is_preloaded(reader) {
                        true => passing.push(reader),
                        false => {
                            let keeper = plan.devices[constant as usize];
                            reads.push((reader.0, NodeId(constant), keeper));
                        }
                    }
                }
            }
        }
        reads.sort_unstable();
        Self { reads }
    }

    /// Returns what a node on a device reads from other devices: constants, and their devices.
    fn of_reader(&self, node: u32, device: u32) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        let first = self.reads.partition_point(|&(reader, ..)| reader < node);
        let reads = self.reads[first..].iter();
        let reads = reads.take_while(move |&&(reader, ..)| reader == node);
        reads
            .filter(move |&&(_, _, keeper)| keeper != device)
            .map(|&(_, constant, keeper)| (constant, keeper))
    }
}

/// Returns names of the links that transfers occupy, by number.
pub(super) fn link_names(candidates: &Candidates) -> Vec<String> {
    let columns = candidates.devices();
    if columns.is_uncontended {
        return Vec::new();
    }
    let name = |device: u32| candidates.device_name(device);
    let mut names = Vec::new();
    match &columns.topology {
        Some(topology) => names.clone_from(&topology.link_names),
        None => {
            let devices = (0u32..).zip(&columns.is_in_host_memory);
            for (device, _) in devices.filter(|(_, is_in_host_memory)| !**is_in_host_memory) {
                let name = name(device);
                match columns.is_half_duplex[device as usize] {
                    true => names.push(format!("{name} and host")),
                    false => names.extend([format!("{name} to host"), format!("host to {name}")]),
                }
            }
        }
    }
    for &(source, destination, _) in &columns.link_exceptions {
        names.push(format!("{} to {}", name(source.0), name(destination.0)));
    }
    names
}

/// Returns what the nodes and transfers of plans compete for.
fn resources(candidates: &Candidates, is_host: &[bool], n_host_threads: u32) -> Resources {
    let columns = candidates.devices();
    let mut resources = Resources::new(&columns.chips, &columns.queues);
    let devices = (0u32..).take(is_host.len());
    let with_threads = |chip: u32| -> Vec<u32> {
        let places = columns.chips.iter().zip(&columns.chip_threads);
        let places = places.zip(0u32..);
        places
            .filter(|&((&of, &threads), _)| of == chip && threads > 0)
            .map(|(_, device)| device)
            .collect()
    };
    let mut chips: Vec<u32> = columns.chips.clone();
    chips.sort_unstable();
    chips.dedup();
    for chip in chips {
        let on_chip = with_threads(chip);
        if on_chip.is_empty() {
            continue;
        }
        let (host, neighbours): (Vec<u32>, Vec<u32>) = on_chip
            .iter()
            .partition(|&&device| is_host[device as usize]);
        if !host.is_empty() {
            resources = resources.with_host(&host, &neighbours, n_host_threads);
        }
        let threads = |&device: &u32| columns.chip_threads[device as usize];
        // CPU devices with one thread each may compute at one time. The runtimes of the others have
        // threads of their own.
        let of_host = host.iter().map(threads).max();
        let of_host = of_host.map_or(0, |most| most.max(n_host_threads));
        let n_threads = neighbours
            .iter()
            .map(threads)
            .fold(of_host, u32::saturating_add);
        let n_threads = n_threads.min(columns.n_processors).max(1);
        resources = resources.with_chip(&on_chip, f64::from(n_threads));
    }
    if columns.is_uncontended {
        return resources;
    }
    let mut n_links = 0;
    if let Some(topology) = &columns.topology {
        n_links = to_u32(topology.link_names.len());
        for (device, of_device) in devices.zip(&topology.devices) {
            if let Some(bus) = of_device.bus {
                resources = resources.with_link_of(device, bus.link_out, bus.link_in);
            }
            if let Some((network, port)) = of_device.network {
                let (link_out, link_in) = (port.link_out, port.link_in);
                resources = resources.with_network(device, network, link_out, link_in);
            }
            let host = of_device.host;
            let (link_out, link_in) = match topology.hosts[host as usize].network {
                Some(port) => (port.link_out, port.link_in),
                None => (NONE, NONE),
            };
            resources = resources.with_host_of(device, host, link_out, link_in);
        }
    } else {
        // A device outside of host memory has a link each way, or one for both.
        for (device, &is_in_host_memory) in devices.zip(&columns.is_in_host_memory) {
            if !is_in_host_memory {
                let n_ways = 2 - u32::from(columns.is_half_duplex[device as usize]);
                resources = resources.with_link_of(device, n_links, n_links + n_ways - 1);
                n_links += n_ways;
            }
        }
    }
    for &(source, destination, _) in &columns.link_exceptions {
        resources = resources.with_link_between(source.0, destination.0, n_links);
        n_links += 1;
    }
    resources
}

/// What runs copy for their caller: feeds to devices outside of host memory, before their kernels,
/// and fetched tensors back, after them.
#[derive(Debug)]
struct Caller {
    /// A device that computes in host memory.
    host: DeviceId,
    feeds: Vec<NodeId>,
    /// Nodes whose outputs no node reads.
    fetched: Vec<NodeId>,
}

impl Caller {
    /// Returns `None` if all devices compute in host memory, or none does, or if an app executes
    /// the nodes.
    fn of(candidates: &Candidates) -> Option<Self> {
        if candidates.are_stated() {
            return None;
        }
        let is_in_host_memory = &candidates.devices().is_in_host_memory;
        let host = is_in_host_memory.iter().position(|&is_in| is_in)?;
        if is_in_host_memory.iter().all(|&is_in| is_in) {
            return None;
        }
        let graph = candidates.graph();
        let nodes = || graph.nodes();
        Some(Self {
            host: DeviceId(u32::try_from(host).ok()?),
            feeds: nodes().filter(|&node| graph.is_placeholder(node)).collect(),
            fetched: nodes().filter(|&node| is_fetched(graph, node)).collect(),
        })
    }

    fn copies_ns(&self, plan: &PlanDurations<'_>, devices: &[u32]) -> f64 {
        let candidates = plan.candidates;
        let graph = candidates.graph();
        let is_outside = |device: u32| !candidates.devices().is_in_host_memory[device as usize];
        let copy_ns = |tensor: u32, source: DeviceId, destination: DeviceId| {
            let link = plan.link(source.0, destination.0);
            let (latency_ns, busy_ns) = transfer_ns(candidates, tensor, link);
            latency_ns + busy_ns
        };
        let successors = plan.successors();
        let mut sum_ns = 0.0;
        // Tensor and destination.
        let mut copied: SmallVec<[(u32, u32); 8]> = SmallVec::new();
        for node in &self.feeds {
            copied.clear();
            for position in successors.range(node.0) {
                let reader = successors.items[position];
                let edge = graph.successor_edges()[position] as usize;
                let copy = (graph.edge_tensors()[edge], devices[reader as usize]);
                let is_on_host = candidates.nodes().edge_kinds[edge] & EdgeKind::HOST_MEMORY != 0;
                if is_outside(copy.1)
                    && copy.0 != NONE
                    && !is_on_host
                    && plan.executions(reader) > 0.0
                    && !copied.contains(&copy)
                {
                    copied.push(copy);
                    sum_ns += copy_ns(copy.0, self.host, DeviceId(copy.1));
                }
            }
        }
        for &node in &self.fetched {
            let device = devices[node.index()];
            if is_outside(device) && plan.executions(node.0) > 0.0 {
                let first = graph.output_range(node).start;
                let tensor = u32::try_from(first).unwrap_or(NONE);
                sum_ns += copy_ns(tensor, DeviceId(device), self.host);
            }
        }
        sum_ns
    }
}

/// Whether runs are expected to fetch a node's outputs: no node reads them. The next iteration of a
/// loop reads what `NextIteration` passes on.
pub(super) fn is_fetched(graph: &Graph, node: NodeId) -> bool {
    let is_unread = graph.successors().row(node.index()).is_empty();
    let passes_on = || matches!(graph.op(node), "NextIteration" | "RefNextIteration");
    is_unread && !graph.output_range(node).is_empty() && !passes_on()
}

/// The executions of a node in one run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MeasuredWork {
    /// Time of one execution.
    pub(crate) ns: f64,
    pub(crate) executions: f64,
}

/// The durations of a plan.
struct PlanDurations<'a> {
    candidates: &'a Candidates,
    measured: Option<&'a [MeasuredWork]>,
    streamed: &'a StreamedReads,
    is_host: &'a [bool],
    links: &'a [LinkRates],
    transfers_ns: &'a FxHashMap<(u32, u32, u32), f64>,
    /// Per execution on a device of the host.
    dispatch_ns: f64,
}

impl PlanDurations<'_> {
    /// Returns the time of all nodes and copies, one after the other; `None` if a device that is
    /// not the host's executes a node.
    fn by_one_thread_ns(&self, devices: &[u32]) -> Option<f64> {
        if !self.is_host.contains(&true) {
            return None;
        }
        let successors = self.successors();
        let mut sum_ns = 0.0;
        // Tensor, destination, and the time of the copy.
        let mut copies: Vec<(u32, u32, f64)> = Vec::new();
        for (node, &device) in (0u32..).zip(devices) {
            let work_ns = self.work_ns(node, device);
            if work_ns > 0.0 && !self.is_host[device as usize] {
                return None;
            }
            sum_ns += work_ns;
            for position in successors.range(node) {
                let destination = devices[successors.items[position] as usize];
                if destination != device {
                    let transfer = self.transfer(position, device, destination);
                    let copy_ns = transfer.latency_ns + transfer.busy_ns;
                    copies.push((transfer.tensor, destination, copy_ns));
                }
            }
            if !copies.is_empty() {
                copies
                    .sort_unstable_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(b.2.total_cmp(&a.2)));
                copies.dedup_by_key(|&mut (tensor, destination, _)| (tensor, destination));
                sum_ns += copies.iter().map(|&(.., copy_ns)| copy_ns).sum::<f64>();
                copies.clear();
            }
        }
        Some(sum_ns)
    }

    fn kernels_ns(&self, node: u32, device: u32) -> f64 {
        match self.measured.map(|measured| measured[node as usize]) {
            Some(measured) => measured.executions * measured.ns,
            None => self.candidates.work_ns(NodeId(node), DeviceId(device)),
        }
    }

    fn link(&self, source: u32, destination: u32) -> LinkRates {
        let index = source as usize * self.is_host.len() + destination as usize;
        match self.links.get(index) {
            Some(&link) => link,
            None => self
                .candidates
                .link(DeviceId(source), DeviceId(destination)),
        }
    }

    /// Returns the time of the copies of streamed constants that a node waits for. They are made
    /// once, also before a loop, and mostly not for a branch that is not taken.
    fn streaming_ns(&self, node: u32, device: u32) -> f64 {
        if self.streamed.reads.is_empty() {
            return 0.0;
        }
        let graph = self.candidates.graph();
        let copies = self.streamed.of_reader(node, device);
        let copies = copies.map(|(constant, keeper)| {
            let first = graph.output_range(constant).start;
            let tensor = u32::try_from(first).unwrap_or(NONE);
            let link = self.link(keeper, device);
            let (latency_ns, busy_ns) = transfer_ns(self.candidates, tensor, link);
            latency_ns + busy_ns
        });
        self.executions(node).min(1.0) * copies.sum::<f64>()
    }

    fn executions(&self, node: u32) -> f64 {
        if let Some(measured) = self.measured {
            return measured[node as usize].executions;
        }
        let executions = &self.candidates.nodes().executions;
        executions.get(node as usize).copied().unwrap_or(1.0)
    }
}

impl Durations for PlanDurations<'_> {
    fn successors(&self) -> Rows<'_> {
        let successors = self.candidates.graph().successors();
        Rows {
            offsets: &successors.offsets,
            items: &successors.items,
        }
    }

    fn n_predecessors(&self, node: u32) -> usize {
        let predecessors = self.candidates.graph().predecessors();
        predecessors.range(node as usize).len()
    }

    fn work_ns(&self, node: u32, device: u32) -> f64 {
        let kernels_ns = self.kernels_ns(node, device);
        let dispatch_ns = match self.is_host[device as usize] && kernels_ns > 0.0 {
            true => self.executions(node) * self.dispatch_ns,
            false => 0.0,
        };
        kernels_ns + dispatch_ns + self.streaming_ns(node, device)
    }

    fn n_threads(&self, node: u32, device: u32) -> f64 {
        let threads = self.candidates.devices().chip_threads[device as usize];
        if threads < 2 {
            return 1.0;
        }
        // Of one execution.
        let kernel_ns = self.kernels_ns(node, device) / self.executions(node).max(1.0);
        (kernel_ns / WORK_PER_THREAD_NS).clamp(1.0, f64::from(threads))
    }

    fn is_free(&self, position: usize) -> bool {
        let graph = self.candidates.graph();
        let edge = graph.successor_edges()[position] as usize;
        graph.edge_kinds()[edge] & EdgeKind::PRELOADED != 0
            || self.executions(graph.predecessors().items[edge]) == 0.0
    }

    fn transfer(&self, position: usize, source: u32, destination: u32) -> Transfer {
        let graph = self.candidates.graph();
        let edge = graph.successor_edges()[position] as usize;
        let tensor = graph.edge_tensors()[edge];
        let times = self.executions(graph.predecessors().items[edge]);
        let mut transfer = Transfer {
            tensor,
            latency_ns: 0.0,
            busy_ns: 0.0,
        };
        if graph.edge_kinds()[edge] & EdgeKind::PRELOADED != 0 || times == 0.0 {
            return transfer;
        }
        let link = self.link(source, destination);
        let (mut latency_ns, mut busy_ns) = transfer_ns(self.candidates, tensor, link);
        if !self.transfers_ns.is_empty()
            && let Some(&measured_ns) = self.transfers_ns.get(&(tensor, source, destination))
        {
            busy_ns = busy_ns.min(measured_ns);
            latency_ns = measured_ns - busy_ns;
        }
        (transfer.latency_ns, transfer.busy_ns) = (times * latency_ns, times * busy_ns);
        transfer
    }
}

/// More links than this are not listed, but looked up.
const LINKS_MAX: usize = 1 << 12;

/// Returns the links between all pairs of devices; empty if there are too many.
fn links(candidates: &Candidates) -> Vec<LinkRates> {
    let n_devices = u32::try_from(candidates.n_devices()).unwrap_or(u32::MAX);
    if u64::from(n_devices) * u64::from(n_devices) > LINKS_MAX as u64 {
        return Vec::new();
    }
    let devices = || (0..n_devices).map(DeviceId);
    let pairs =
        devices().flat_map(|source| devices().map(move |destination| (source, destination)));
    pairs
        .map(|(source, destination)| candidates.link(source, destination))
        .collect()
}

/// Returns the cost of an edge over a link: latency, and the time on the link. A control edge costs
/// the latency of the link.
fn transfer_ns(candidates: &Candidates, tensor: u32, link: LinkRates) -> (f64, f64) {
    let bytes = match tensor {
        NONE => 0,
        tensor => candidates.graph().tensor_bytes()[tensor as usize],
    };
    // 0 bytes times a rate of +inf would be NaN.
    if bytes == 0 {
        return (link.latency_ns, 0.0);
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of bytes needs 53 bits at most"
    )]
    let bytes = bytes as f64;
    (link.latency_ns, bytes * link.ns_per_byte)
}
