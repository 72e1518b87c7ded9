//! Constants of a plan, on each device that reads them.

use std::sync::PoisonError;
use std::time::Instant;

use super::Action;
use super::kernels::{ConstantKey, KernelCache, kernel_device};
use crate::execute::error::ExecuteError;
use crate::plan::Settled;
use crate::plan::{ExecutionPlan, MemorySpace};
use crate::tensor::Tensor;

impl KernelCache {
    /// Returns per value its tensor, if the value is the same in all runs and runs read it.
    pub(super) fn fixed(
        &self,
        plan: &ExecutionPlan,
        settled: &Settled,
    ) -> Result<Vec<Option<Tensor>>, ExecuteError> {
        let mut fixed: Vec<Option<Tensor>> = vec![None; plan.values().len()];
        for step in plan.steps() {
            let output = step.first_output as usize;
            if step.n_outputs == 0 {
                continue;
            }
            let Some(constant) = settled.held_constant(output) else {
                continue;
            };
            let value = &plan.values()[output];
            fixed[output] = Some(self.constant((constant, value.device, value.space))?);
        }
        Ok(fixed)
    }

    /// Returns the tensor of a constant in a memory, created there once. The device of the node
    /// need not hold the constant or have memory for it.
    fn constant(&self, key: ConstantKey) -> Result<Tensor, ExecuteError> {
        let (tensor, device_id, space) = key;
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = copies.get(&key) {
            return Ok(copy.clone());
        }
        let node = self.graph.producer(tensor).0;
        let device = kernel_device(&self.devices, device_id)?;
        let started = Instant::now();
        let made = self.make(node, device, space == MemorySpace::Host)?;
        let Action::Constant(constant) = made else {
            return Err(ExecuteError::ForeignPlan);
        };
        self.report(started, device_id, "make_tensor", Some(&node), || {
            format!("{constant:?}, {} bytes", constant.len_bytes())
        });
        copies.insert(key, Tensor::clone(&constant));
        Ok(*constant)
    }
}
