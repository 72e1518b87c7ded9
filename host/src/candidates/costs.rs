//! The cost table: one row per distinct work, one column per cost class.

use crate::candidates::index::to_u32;
use crate::candidates::types::SupportedTypes;
use crate::candidates::types::TypeTable;
use crate::cost::CostClass;
use crate::cost::CostModel;

/// Rows of nodes with equal work, found through a direct-mapped cache. An exact table would cost a
/// cache miss per node; this one sometimes writes a row twice, which has no effect.
pub(super) struct CostRows {
    model: CostModel,
    classes: Vec<CostClass>,
    /// Number of the device type of each class.
    type_of_class: Vec<u32>,
    cache: Vec<Slot>,
    pub(super) costs: Vec<f64>,
}

#[derive(Clone, Copy)]
struct Slot {
    flops_bits: u64,
    traffic_bytes: u64,
    support: u32,
    row: u32,
}

const CACHE_BITS: u32 = 12;

impl CostRows {
    pub(super) fn new(model: CostModel, classes: Vec<CostClass>, types: &TypeTable) -> Self {
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
            support: u32::MAX,
            row: 0,
        };
        Self {
            model,
            classes,
            type_of_class,
            cache: vec![empty; 1 << CACHE_BITS],
            costs: Vec::new(),
        }
    }

    /// Returns the row of this work, for nodes with kernels for these types; other types cost +inf.
    /// `None`: the node does not run, and costs nothing.
    pub(super) fn row(
        &mut self,
        work: Option<(f64, u64)>,
        support: u32,
        supported: &SupportedTypes,
    ) -> u32 {
        // A node that does not run needs a key that no work has.
        let (flops, traffic_bytes) = work.unwrap_or((f64::NAN, u64::MAX));
        let flops_bits = flops.to_bits();
        let mixed = (flops_bits ^ traffic_bytes.rotate_left(24) ^ u64::from(support))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mixed >> (64 - CACHE_BITS)) as usize;
        let slot = self.cache[index];
        if slot.support == support
            && slot.flops_bits == flops_bits
            && slot.traffic_bytes == traffic_bytes
        {
            return slot.row;
        }
        let row = to_u32(self.costs.len() / self.classes.len());
        for (class, &number) in self.classes.iter().zip(&self.type_of_class) {
            let runs = supported.iter().any(|&(known, _)| known == number);
            self.costs.push(match work {
                _ if !runs => f64::INFINITY,
                None => 0.0,
                Some((flops, traffic_bytes)) => {
                    self.model.execution_ns(flops, traffic_bytes, &class.rates)
                }
            });
        }
        self.cache[index] = Slot {
            flops_bits,
            traffic_bytes,
            support,
            row,
        };
        row
    }
}
