//! Constants of a plan, on each device that reads them.

use std::sync::PoisonError;
use std::time::Instant;

use super::Action;
use super::kernels::{KernelCache, kernel_device};
use crate::execute::error::ExecuteError;
use crate::graph::TensorId;
use crate::names::DeviceId;
use crate::plan::Settled;
use crate::plan::{ExecutionPlan, MemorySpace, Payload, StepKind};
use crate::tensor::Tensor;

impl KernelCache {
    /// Returns per value its tensor, if the value is the same in all runs and runs read it.
    pub(super) fn fixed(
        &self,
        plan: &ExecutionPlan,
        settled: &Settled,
        actions: &[Option<Action>],
    ) -> Result<Vec<Option<Tensor>>, ExecuteError> {
        let mut fixed: Vec<Option<Tensor>> = vec![None; plan.values().len()];
        for (step, action) in plan.steps().iter().zip(actions) {
            let output = step.first_output as usize;
            if !settled.is_held[step.output_range()].contains(&true) {
                continue;
            }
            fixed[output] = match (step.kind, action) {
                (StepKind::Receive(id), _) => {
                    let transfer = &plan.transfers()[id.index()];
                    let Payload::Tensor(tensor) = transfer.payload else {
                        continue;
                    };
                    let (device, space) = (transfer.destination, transfer.destination_space);
                    Some(self.constant(tensor, device, space)?)
                }
                (_, Some(Action::Constant(tensor))) => Some(Tensor::clone(tensor)),
                _ => continue,
            };
        }
        Ok(fixed)
    }

    /// Returns a copy of a constant in another memory than that of its node, created there once.
    /// The device of the node need not hold the constant or have memory for it.
    fn constant(
        &self,
        tensor: TensorId,
        device_id: DeviceId,
        space: MemorySpace,
    ) -> Result<Tensor, ExecuteError> {
        let key = (tensor, device_id, space);
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
