//! The memory plan of a whole graph on given devices, before anything is created.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use serde::Serialize;

use super::fits;
use super::sweep::Peak;
use super::sweep::Sweep;
use crate::candidates::Candidates;
use crate::candidates::PlanColumns;
use crate::device::PlainKernels;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::partition::Assignment;
use crate::partition::RunRequest;
use crate::partition::has_one_memory;
use crate::partition::partition;
use crate::partition::rewrite;
use crate::plan::ExecutionPlan;
use crate::plan::Payload;
use crate::plan::Settled;
use crate::plan::StepId;
use crate::plan::StepKind;
use crate::plan::is_constant;
use crate::tensor::Shape;
use crate::tensor::show_bytes;

/// Number of the largest holders that an error about a too small memory names.
const N_HOLDERS_NAMED: usize = 3;

/// The memory that a graph holds on given devices, for a run that feeds every placeholder and
/// fetches every output without readers.
pub(crate) struct Whole<'a> {
    candidates: &'a Candidates,
    devices: &'a [u32],
    plan: Arc<ExecutionPlan>,
    settled: Settled,
    shapes: Vec<Option<Shape>>,
    n_runs: u64,
}

/// The bytes that stay in one memory for all runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// Constants that runs read there.
    pub(crate) constant_bytes: u64,
    /// State of other nodes, such as variables.
    pub(crate) state_bytes: u64,
}

impl Resident {
    pub(crate) fn bytes(self) -> u64 {
        self.constant_bytes.saturating_add(self.state_bytes)
    }
}

/// A memory that is too small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// The memory domain.
    pub(crate) domain: u32,
    pub(crate) capacity_bytes: u64,
    pub(crate) resident: Resident,
    /// Peak bytes of one run.
    pub(crate) run_bytes: u64,
    pub(crate) n_runs: u64,
    /// The node at which the memory is exceeded.
    pub(crate) node: NodeId,
    /// What takes most of it, the largest first.
    pub(crate) holders: Vec<MemoryHolder>,
    /// Per memory domain the bytes that the plan leaves free.
    pub(crate) free_bytes: Vec<u64>,
}

/// What takes a part of a memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryHolder {
    /// What it is.
    pub kind: MemoryHolderKind,
    /// Name of the node; `NODE:SLOT` if it is a tensor.
    pub name: String,
    /// Its bytes, in all runs that may go on at one time.
    pub bytes: u64,
}

/// A kind of [`MemoryHolder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MemoryHolderKind {
    /// A constant that runs read, held once for all runs.
    Constant,
    /// State of a node, such as a variable.
    State,
    /// A tensor that each run makes.
    Tensor,
    /// Memory that the graph states for a node while it executes, besides its tensors; in each run.
    Workspace,
}

impl fmt::Display for MemoryHolder {
    /// `` constant `w` 89.4 MiB ``.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            MemoryHolderKind::Constant => "constant",
            MemoryHolderKind::State => "state of",
            MemoryHolderKind::Tensor => "tensor",
            MemoryHolderKind::Workspace => "workspace of",
        };
        write!(f, "{kind} `{}` {}", self.name, show_bytes(self.bytes))
    }
}

impl Shortage {
    pub(crate) fn needed_bytes(&self) -> u64 {
        let runs = self.run_bytes.saturating_mul(self.n_runs);
        self.resident.bytes().saturating_add(runs)
    }
}

impl<'a> Whole<'a> {
    /// Computes the memory plan. Every device must exist. Returns `None` if the graph has more
    /// steps than a plan can number. `plain_kernels` belongs to the candidates.
    pub(crate) fn new(
        candidates: &'a Candidates,
        columns: PlanColumns<'a>,
        plain_kernels: &PlainKernels,
    ) -> Option<Self> {
        let graph = candidates.graph();
        let has_one_memory = has_one_memory(candidates.device_set());
        let assignment = Assignment::new(candidates, &has_one_memory, columns);
        let plan = Arc::new(partition(&assignment, &RunRequest::whole(graph)).ok()?);
        // Without kernels nothing is executed on this host, so nothing is fused.
        let rewritten = candidates.kernels().and_then(|kernels| {
            let devices = candidates.device_set();
            rewrite(graph, devices, kernels, &plan, plain_kernels, |_, _, _| {}).ok()
        });
        let (plan, fused) = match rewritten {
            Some(rewritten) => (rewritten.plan, rewritten.fused),
            None => (plan, Vec::new()),
        };
        let fused: FxHashSet<StepId> = fused.iter().map(|&(step, _)| step).collect();
        let settled = Settled::of(&plan, graph, |step| fused.contains(&step));
        let values = plan.values().iter();
        let shapes = values.map(|value| graph.tensor_shape(value.tensor).to_shape());
        Some(Self {
            shapes: shapes.collect(),
            n_runs: candidates.n_concurrent_runs(),
            candidates,
            devices: columns.devices,
            plan,
            settled,
        })
    }

    /// Returns per device the peak bytes.
    pub(crate) fn peak_bytes_per_device(&self) -> Vec<u64> {
        let n_devices = u32::try_from(self.candidates.n_devices()).unwrap_or(NONE);
        let memory_of_device: Vec<u32> = (0..n_devices).collect();
        let resident = self.resident(&memory_of_device);
        let peaks = self.sweep(&memory_of_device).peaks();
        let sums = resident.iter().zip(&peaks).map(|(resident, peak)| {
            let runs = peak.bytes.saturating_mul(self.n_runs);
            resident.bytes().saturating_add(runs)
        });
        sums.collect()
    }

    /// Returns whether a memory is too small. `capacity_bytes`: per memory domain.
    pub(crate) fn is_short(&self, capacity_bytes: &[u64]) -> bool {
        let domains = &self.candidates.devices().memory_domain;
        let resident = self.resident(domains);
        let peaks = self.sweep(domains).peaks();
        let memories = resident.iter().zip(&peaks).zip(capacity_bytes);
        memories.into_iter().any(|((resident, peak), &capacity)| {
            let runs = peak.bytes.saturating_mul(self.n_runs);
            !fits(resident.bytes().saturating_add(runs), capacity)
        })
    }

    /// Returns the memory with the largest shortage, if one is too small. `capacity_bytes`: per
    /// memory domain.
    pub(crate) fn shortage(&self, capacity_bytes: &[u64]) -> Option<Shortage> {
        let domains = &self.candidates.devices().memory_domain;
        let resident = self.resident(domains);
        let sweep = self.sweep(domains);
        let peaks = sweep.peaks();
        let needed = |domain: usize| {
            let runs = peaks[domain].bytes.saturating_mul(self.n_runs);
            resident[domain].bytes().saturating_add(runs)
        };
        let lack = |domain: usize| match fits(needed(domain), capacity_bytes[domain]) {
            true => 0,
            false => needed(domain).saturating_sub(capacity_bytes[domain]).max(1),
        };
        let free = |domain: usize| capacity_bytes[domain].saturating_sub(needed(domain));
        let lacking = (0..peaks.len()).filter(|&domain| lack(domain) > 0);
        let domain = lacking.max_by_key(|&domain| (lack(domain), Reverse(domain)))?;
        Some(Shortage {
            domain: u32::try_from(domain).unwrap_or(NONE),
            capacity_bytes: capacity_bytes[domain],
            resident: resident[domain],
            run_bytes: peaks[domain].bytes,
            n_runs: self.n_runs,
            node: self.first_node_beyond(domain, capacity_bytes[domain], &sweep),
            holders: self.holders(domain, &sweep, peaks[domain]),
            free_bytes: (0..peaks.len()).map(free).collect(),
        })
    }

    fn sweep(&self, memory_of_device: &[u32]) -> Sweep<'_> {
        let graph = self.candidates.graph();
        let mut sweep = Sweep::new(
            &self.plan,
            graph,
            &self.settled,
            &self.shapes,
            memory_of_device,
        );
        for (step, is_settled) in self.plan.steps().iter().zip(&self.settled.is_settled) {
            if let StepKind::Execute(node) = step.kind
                && !is_settled
                && is_constant(graph, node)
            {
                step.output_range().for_each(|value| sweep.leave_out(value));
            }
        }
        sweep
    }

    fn resident(&self, memory_of_device: &[u32]) -> Vec<Resident> {
        let n_memories = memory_of_device.iter().map(|&memory| memory as usize + 1);
        let mut resident = vec![Resident::default(); n_memories.max().unwrap_or(0)];
        for (_, device, bytes, is_state) in self.residents() {
            let memory = &mut resident[memory_of_device[device as usize] as usize];
            let sum = match is_state {
                true => &mut memory.state_bytes,
                false => &mut memory.constant_bytes,
            };
            *sum = sum.saturating_add(bytes);
        }
        resident
    }

    /// Returns what stays in memory: node, device, bytes, and whether it is state rather than a
    /// constant.
    fn residents(&self) -> impl Iterator<Item = (NodeId, u32, u64, bool)> + '_ {
        let graph = self.candidates.graph();
        let bytes = |node: NodeId| graph.resident_bytes()[node.index()];
        // Several values of a memory may be one constant.
        let mut counted = FxHashSet::default();
        let values = self.plan.values().iter().enumerate();
        let constants = values.filter_map(move |(index, value)| {
            let constant = self.settled.held_constant(index)?;
            let is_first = counted.insert((constant, value.device, value.space));
            let node = graph.producer(constant).0;
            is_first.then(|| (node, value.device.0, bytes(node), false))
        });
        // A constant that depends on something stays on the device that outputs it.
        let steps = self.plan.steps().iter().zip(&self.settled.is_settled);
        let waiting = steps.filter_map(move |(step, is_settled)| match step.kind {
            StepKind::Execute(node) if !is_settled && is_constant(graph, node) => {
                Some((node, step.device.0, bytes(node), false))
            }
            _ => None,
        });
        let state = graph.nodes().zip(self.devices);
        let state = state.filter(move |&(node, _)| bytes(node) > 0 && !is_constant(graph, node));
        let state = state.map(move |(node, &device)| (node, device, bytes(node), true));
        constants.chain(waiting).chain(state)
    }

    /// Returns the node at which a memory is exceeded: one that stays, or else the first one of a
    /// run.
    fn first_node_beyond(&self, domain: usize, capacity_bytes: u64, sweep: &Sweep<'_>) -> NodeId {
        let domains = &self.candidates.devices().memory_domain;
        let mut staying: Vec<(NodeId, u64)> = self
            .residents()
            .filter(|&(_, device, ..)| domains[device as usize] as usize == domain)
            .map(|(node, _, bytes, _)| (node, bytes))
            .collect();
        staying.sort_unstable();
        let mut sum = 0u64;
        for (node, bytes) in staying {
            sum = sum.saturating_add(bytes);
            if !super::fits(sum, capacity_bytes) {
                return node;
            }
        }
        let of_one_run = (capacity_bytes - sum) / self.n_runs;
        let step = sweep.first_beyond(domain, of_one_run);
        step.map_or(NodeId(0), |step| self.node_of(step))
    }

    fn node_of(&self, step: StepId) -> NodeId {
        let graph = self.candidates.graph();
        let step = self.plan.step(step);
        match step.kind {
            StepKind::Execute(node) => node,
            StepKind::Send(transfer) | StepKind::Receive(transfer) => {
                match self.plan.transfers()[transfer.index()].payload {
                    Payload::Tensor(tensor) => graph.producer(tensor).0,
                    Payload::Control(node) => node,
                }
            }
            StepKind::Feed(feed) => graph.producer(self.plan.feeds()[feed as usize].tensor).0,
            StepKind::Fetch(fetch) => {
                let tensor = self.plan.fetches()[fetch as usize].tensor();
                graph.producer(tensor).0
            }
        }
    }

    fn holders(&self, domain: usize, sweep: &Sweep<'_>, peak: Peak) -> Vec<MemoryHolder> {
        let graph = self.candidates.graph();
        let domains = &self.candidates.devices().memory_domain;
        let staying = self
            .residents()
            .filter(|&(_, device, ..)| domains[device as usize] as usize == domain)
            .map(|(node, _, bytes, is_state)| MemoryHolder {
                kind: match is_state {
                    true => MemoryHolderKind::State,
                    false => MemoryHolderKind::Constant,
                },
                name: graph.node_name(node).to_owned(),
                bytes,
            });
        let mut holders: Vec<MemoryHolder> = staying.collect();
        if let Some(step) = peak.step {
            let alive = sweep.alive(domain, step).into_iter();
            holders.extend(alive.map(|(value, bytes)| MemoryHolder {
                kind: MemoryHolderKind::Tensor,
                name: graph.tensor_name(self.plan.values()[value].tensor),
                bytes: bytes.saturating_mul(self.n_runs),
            }));
            let device = self.plan.step(step).device;
            if let StepKind::Execute(node) = self.plan.step(step).kind
                && domains[device.index()] as usize == domain
            {
                let bytes = graph.workspace_bytes()[node.index()];
                holders.push(MemoryHolder {
                    kind: MemoryHolderKind::Workspace,
                    name: graph.node_name(node).to_owned(),
                    bytes: bytes.saturating_mul(self.n_runs),
                });
            }
        }
        holders.retain(|holder| holder.bytes > 0);
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        holders.truncate(N_HOLDERS_NAMED);
        holders
    }
}
