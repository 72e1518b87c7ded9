//! The cost table: one row per distinct work, one column per cost class. Sources of costs
//! ([`crate::cost::CostSource`]) come before the rates of the classes.

use std::sync::Arc;

use crate::candidates::index::to_u32;
use crate::candidates::types::SupportedTypes;
use crate::candidates::types::TypeTable;
use crate::cost::CostClass;
use crate::cost::CostModel;
use crate::cost::KernelCosts;
use crate::cost::NodeWork;
use crate::cost::Prediction;
use crate::graph::is_control_flow;

/// What a node costs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    /// It does not run.
    Nothing,
    /// It only passes tensors on, or orders other nodes ([`passes_on`]).
    Passing,
    /// Floating-point operations, and bytes that it reads and writes.
    Kernel(f64, u64),
}

/// Whether an op has no work of its own on any device.
pub(super) fn passes_on(op: &str) -> bool {
    const IDENTITIES: [&str; 7] = [
        "Identity",
        "IdentityN",
        "PlaceholderWithDefault",
        "StopGradient",
        "PreventGradient",
        "Snapshot",
        "NoOp",
    ];
    is_control_flow(op) || IDENTITIES.contains(&op)
}

/// Time in which the executor passes a tensor on, in ns.
const PASSING_NS: f64 = 30.0;

/// Rows of nodes with equal work, found through a direct-mapped cache. An exact table would cost a
/// cache miss per node; this one sometimes writes a row twice, which has no effect.
pub(super) struct CostRows {
    model: CostModel,
    classes: Vec<CostClass>,
    /// Number of the device type of each class.
    type_of_class: Vec<u32>,
    cache: Vec<Slot>,
    /// Per class what the sources know of its devices, with the number of the source, best first.
    known: Vec<Vec<Known>>,
    /// Whether nodes of equal work may have different costs.
    is_by_node: bool,
    pub(super) costs: Vec<f64>,
    /// Number of measurements behind each cost; empty if there are no sources.
    pub(super) samples: Vec<u32>,
    /// Number of the source of each cost, from 1; 0 for the rates. Empty if there are no sources.
    pub(super) sources: Vec<u8>,
}

/// What a source knows of a device, and the number of the source, from 1.
pub(super) type Known = (u8, Arc<dyn KernelCosts>);

#[derive(Clone, Copy)]
struct Slot {
    flops_bits: u64,
    traffic_bytes: u64,
    /// The key of the work if there are sources, else 0.
    key: u64,
    support: u32,
    row: u32,
}

const CACHE_BITS: u32 = 12;

impl CostRows {
    /// Creates an empty table. `known` has what the sources know of the devices of each class;
    /// `is_by_node`: they may know single nodes.
    pub(super) fn new(
        model: CostModel,
        classes: Vec<CostClass>,
        types: &TypeTable,
        known: Vec<Vec<Known>>,
        is_by_node: bool,
    ) -> Self {
        let type_of_class = classes
            .iter()
            .map(|class| {
                let position = types
                    .names
                    .iter()
                    .position(|name| *name == class.device_type);
                to_u32(position.expect("every class has the type of a device"))
            })
            .collect();
        let empty = Slot {
            flops_bits: 0,
            traffic_bytes: 0,
            key: 0,
            support: u32::MAX,
            row: 0,
        };
        Self {
            model,
            classes,
            type_of_class,
            cache: vec![empty; 1 << CACHE_BITS],
            known,
            is_by_node,
            costs: Vec::new(),
            samples: Vec::new(),
            sources: Vec::new(),
        }
    }

    /// Returns whether a source knows a device, so that [`Self::row`] needs the nodes' work.
    pub(super) fn has_sources(&self) -> bool {
        self.known.iter().any(|known| !known.is_empty())
    }

    /// Returns the row of this work, for nodes with kernels for these types; other types cost +inf.
    /// `node` is for the sources.
    pub(super) fn row(
        &mut self,
        work: Work,
        node: Option<&NodeWork<'_>>,
        support: u32,
        supported: &SupportedTypes,
    ) -> u32 {
        // What is no kernel needs a key that no kernel has.
        let (flops_bits, traffic_bytes) = match work {
            Work::Nothing => (f64::NAN.to_bits(), u64::MAX),
            Work::Passing => (f64::NAN.to_bits(), u64::MAX - 1),
            Work::Kernel(flops, traffic_bytes) => (flops.to_bits(), traffic_bytes),
        };
        let key = node.map_or(0, |node| match self.is_by_node {
            true => node.unique_key(),
            false => node.key().as_u64(),
        });
        let mixed = (flops_bits ^ traffic_bytes.rotate_left(24) ^ u64::from(support) ^ key)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mixed >> (64 - CACHE_BITS)) as usize;
        let slot = self.cache[index];
        if slot.support == support
            && slot.flops_bits == flops_bits
            && slot.traffic_bytes == traffic_bytes
            && slot.key == key
        {
            return slot.row;
        }
        let row = to_u32(self.costs.len() / self.classes.len());
        for (index, (class, &number)) in self.classes.iter().zip(&self.type_of_class).enumerate() {
            let runs = supported.iter().any(|&(known, _)| known == number);
            let predicted = node
                .filter(|_| runs && !matches!(work, Work::Nothing))
                .and_then(|node| predict(&self.known[index], node));
            self.costs.push(match (work, predicted) {
                _ if !runs => f64::INFINITY,
                (_, Some((_, predicted))) => predicted.ns,
                (Work::Nothing, None) => 0.0,
                (Work::Passing, None) => PASSING_NS,
                (Work::Kernel(flops, traffic_bytes), None) => {
                    self.model.execution_ns(flops, traffic_bytes, &class.rates)
                }
            });
            if node.is_some() {
                let (source, samples) =
                    predicted.map_or((0, 0), |(source, predicted)| (source, predicted.samples));
                self.samples.push(samples);
                self.sources.push(source);
            }
        }
        self.cache[index] = Slot {
            flops_bits,
            traffic_bytes,
            key,
            support,
            row,
        };
        row
    }
}

/// Returns what the first source that knows the work says. A source that states no time does not
/// know it.
fn predict(known: &[Known], node: &NodeWork<'_>) -> Option<(u8, Prediction)> {
    known.iter().find_map(|(source, costs)| {
        let predicted = costs.predict(node)?;
        let is_time = predicted.ns >= 0.0 && !predicted.ns.is_nan();
        is_time.then_some((*source, predicted))
    })
}
