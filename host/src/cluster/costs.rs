//! The costs of kernels on devices of a cluster.

use std::sync::Arc;

use hashbrown::HashMap;

use super::file::Profile;
use crate::cost::CostModel;
use crate::cost::CostSource;
use crate::cost::KernelCosts;
use crate::cost::NodeWork;
use crate::cost::Prediction;
use crate::device::Device;
use crate::device::DeviceRates;
use crate::tensor::DType;

/// The costs of the devices of a cluster, by their full names.
#[derive(Debug, Default)]
pub(super) struct ClusterCosts {
    pub(super) of_device: HashMap<String, Arc<dyn KernelCosts>>,
}

impl CostSource for ClusterCosts {
    fn name(&self) -> &'static str {
        "cluster"
    }

    fn of_device(&self, device: &dyn Device) -> Option<Arc<dyn KernelCosts>> {
        self.of_device.get(&device.attributes().name).cloned()
    }
}

/// Costs by the rates of a profile, which differ by element type.
#[derive(Debug)]
pub(super) struct ProfileCosts {
    rates: DeviceRates,
    /// Rates that differ from that of `f32`.
    flops_per_s: Vec<(DType, f64)>,
}

impl ProfileCosts {
    /// Returns `None` if the rates of the device tell everything.
    pub(super) fn of(profile: &Profile, rates: DeviceRates, factor: f64) -> Option<Self> {
        let by_type = [
            (DType::F64, profile.f64),
            (DType::F16, profile.f16),
            (DType::BF16, profile.bf16),
            (DType::I8, profile.int8),
            (DType::U8, profile.int8),
        ];
        let stated = by_type.into_iter();
        let stated = stated.filter_map(|(dtype, rate)| Some((dtype, rate?.value * factor)));
        let flops_per_s: Vec<_> = stated.collect();
        (!flops_per_s.is_empty()).then_some(Self { rates, flops_per_s })
    }
}

impl KernelCosts for ProfileCosts {
    fn predict(&self, work: &NodeWork<'_>) -> Option<Prediction> {
        let (dtype, _) = work.inputs().next()?;
        let mut by_type = self.flops_per_s.iter();
        let &(_, flops_per_s) = by_type.find(|(of, _)| *of == dtype)?;
        let rates = DeviceRates {
            flops_per_s,
            ..self.rates
        };
        let ns = CostModel::default().execution_ns(work.flops(), work.traffic_bytes(), &rates);
        Some(Prediction {
            ns,
            spread_ns: 0.0,
            samples: 0,
        })
    }
}
