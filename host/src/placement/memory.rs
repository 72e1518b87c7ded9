//! The memory rule: a placed graph can be loaded and run on its devices.
//!
//! [`crate::memory::whole`] computes the memory that a plan needs, which takes as long as
//! partitioning the graph. Most graphs fill no memory by far, and two bounds show that in less
//! time: one for all plans of a graph, and one per plan.

use crate::candidates::Candidates;
use crate::candidates::PlanColumns;
use crate::device::PlainKernels;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::memory::fits;
use crate::memory::whole::Shortage;
use crate::memory::whole::Whole;
use crate::placement::transfers::for_each_transfer;
use crate::plan::is_constant;

/// The memories of a device set, and whether a plan of the graph can overfill one of them.
#[derive(Debug)]
pub(super) struct Capacity {
    /// Per memory domain.
    bytes: Vec<u64>,
    /// Whether every plan that streams nothing fits.
    is_ample: bool,
    /// Kept between plans of a search.
    plain_kernels: PlainKernels,
}

impl Capacity {
    pub(super) fn of(candidates: &Candidates) -> Self {
        let columns = candidates.devices();
        let bytes = capacity_of_domains(candidates);
        let mut n_devices = vec![0u64; bytes.len()];
        for &domain in &columns.memory_domain {
            n_devices[domain as usize] += 1;
        }
        let most = most_bytes(candidates);
        let is_ample = bytes
            .iter()
            .zip(n_devices)
            .all(|(&capacity, n_devices)| fits(most.saturating_mul(n_devices), capacity));
        Self {
            bytes,
            is_ample,
            plain_kernels: PlainKernels::default(),
        }
    }

    /// Whether every plan that streams nothing fits, so that none needs a check.
    pub(super) fn is_ample(&self) -> bool {
        self.is_ample
    }

    /// Finds the memory that lacks most for a plan whose devices exist, if one is too small.
    pub(super) fn shortage(
        &self,
        candidates: &Candidates,
        plan: PlanColumns<'_>,
    ) -> Option<Shortage> {
        if self.is_certain(candidates, plan) {
            return None;
        }
        let whole = Whole::new(candidates, plan, &self.plain_kernels)?;
        whole.shortage(&self.bytes)
    }

    /// Whether [`Self::shortage`] finds one. Takes less time: it does not describe the shortage.
    pub(super) fn is_short(&self, candidates: &Candidates, plan: PlanColumns<'_>) -> bool {
        if self.is_certain(candidates, plan) {
            return false;
        }
        let whole = Whole::new(candidates, plan, &self.plain_kernels);
        whole.is_some_and(|whole| whole.is_short(&self.bytes))
    }

    /// Returns per device the peak bytes of a plan whose devices exist; `None` if the plan is too
    /// large.
    pub(super) fn peak_bytes_per_device(
        &self,
        candidates: &Candidates,
        plan: PlanColumns<'_>,
    ) -> Option<Vec<u64>> {
        let whole = Whole::new(candidates, plan, &self.plain_kernels)?;
        Some(whole.peak_bytes_per_device())
    }

    /// Whether one memory is too small for a plan whose devices exist.
    pub(super) fn lacks(
        &self,
        candidates: &Candidates,
        plan: PlanColumns<'_>,
        domain: usize,
    ) -> bool {
        let alone = |(index, &bytes): (usize, &u64)| match index == domain {
            true => bytes,
            false => u64::MAX,
        };
        let alone: Vec<u64> = self.bytes.iter().enumerate().map(alone).collect();
        let whole = Whole::new(candidates, plan, &self.plain_kernels);
        whole.is_some_and(|whole| whole.is_short(&alone))
    }

    /// Whether the plan fits even if no tensor of a run is ever freed: everything that is resident
    /// or produced on a device, and a copy of every tensor that its nodes read from other devices.
    fn is_certain(&self, candidates: &Candidates, plan: PlanColumns<'_>) -> bool {
        // Copies of streamed constants, one for each reader, are not counted here.
        if !plan.streamed.is_empty() {
            return false;
        }
        if self.is_ample {
            return true;
        }
        let devices = plan.devices;
        let graph = candidates.graph();
        let domains = &candidates.devices().memory_domain;
        let n_runs = candidates.n_concurrent_runs();
        let mut staying = vec![0u64; self.bytes.len()];
        let mut made = vec![0u64; self.bytes.len()];
        let mut workspace = vec![0u64; self.bytes.len()];
        let stays =
            |node: NodeId| graph.resident_bytes()[node.index()] > 0 && is_constant(graph, node);
        let add = |sums: &mut [u64], device: u32, bytes: u64| {
            let sum = &mut sums[domains[device as usize] as usize];
            *sum = sum.saturating_add(bytes);
        };
        for (node, &device) in graph.nodes().zip(devices) {
            add(&mut staying, device, graph.resident_bytes()[node.index()]);
            let outputs = &graph.tensor_bytes()[graph.output_range(node)];
            // The output of a constant is its resident tensor.
            if !stays(node) {
                let bytes = outputs.iter().copied().fold(0, u64::saturating_add);
                add(&mut made, device, bytes);
            }
            let most = &mut workspace[domains[device as usize] as usize];
            *most = (*most).max(graph.workspace_bytes()[node.index()]);
        }
        for_each_transfer(graph, devices, |transfer| {
            // Also behind nodes that pass a constant on.
            let constant = graph.constant_of(TensorId(transfer.tensor));
            let (sums, bytes) = match constant.filter(|&node| stays(node)) {
                Some(node) => (&mut staying, graph.resident_bytes()[node.index()]),
                None => (&mut made, graph.tensor_bytes()[transfer.tensor as usize]),
            };
            add(sums, transfer.destination, bytes);
        });
        let sums = staying.iter().zip(&made).zip(&workspace).zip(&self.bytes);
        sums.into_iter()
            .all(|(((&staying, &made), &workspace), &capacity)| {
                let one_run = made.saturating_add(workspace);
                fits(
                    staying.saturating_add(one_run.saturating_mul(n_runs)),
                    capacity,
                )
            })
    }
}

/// Returns the most bytes that any plan can hold on one device.
fn most_bytes(candidates: &Candidates) -> u64 {
    let graph = candidates.graph();
    let sum = |bytes: &[u64]| bytes.iter().copied().fold(0, u64::saturating_add);
    let workspace = graph.workspace_bytes().iter().copied().max().unwrap_or(0);
    let one_run = sum(graph.tensor_bytes()).saturating_add(workspace);
    let runs = one_run.saturating_mul(candidates.n_concurrent_runs());
    sum(graph.resident_bytes()).saturating_add(runs)
}

/// Returns the capacity of every memory domain: the smallest that its devices state.
pub(super) fn capacity_of_domains(candidates: &Candidates) -> Vec<u64> {
    let columns = candidates.devices();
    let mut capacity = vec![u64::MAX; n_domains(candidates)];
    for (&domain, &bytes) in columns
        .memory_domain
        .iter()
        .zip(&columns.memory_capacity_bytes)
    {
        let smallest = &mut capacity[domain as usize];
        *smallest = (*smallest).min(bytes);
    }
    capacity
}

fn n_domains(candidates: &Candidates) -> usize {
    let domains = &candidates.devices().memory_domain;
    domains
        .iter()
        .map(|&domain| domain as usize + 1)
        .max()
        .unwrap_or(0)
}
