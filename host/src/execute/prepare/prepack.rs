//! Prepacks constant inputs: kernels copy them into the order in which they read them.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use super::kernels::{KernelCache, KernelKey, kernel_device};
use super::{Action, Program};
use crate::device::{AllocatorAttributes, Kernel, KernelDevice, KernelError, panic_message};
use crate::execute::error::ExecuteError;
use crate::memory::MemoryPlan;
use crate::names::DeviceId;
use crate::plan::{StepId, StepKind};
use crate::tensor::{Tensor, TensorError};

/// The free memory of devices besides what the runs of a program need. The memory plan is computed
/// on first use.
struct FreeMemory<'a> {
    program: &'a Program,
    plan: OnceCell<MemoryPlan>,
}

impl<'a> FreeMemory<'a> {
    fn new(program: &'a Program) -> Self {
        Self {
            program,
            plan: OnceCell::new(),
        }
    }

    /// Checks whether a device has enough memory for its runs besides what it holds now.
    fn suffices(&self, id: DeviceId, device: &dyn KernelDevice) -> bool {
        let plan = self
            .plan
            .get_or_init(|| MemoryPlan::new(self.program, true));
        let capacity = device.memory_capacity_bytes();
        let allocator = device.allocator(AllocatorAttributes::default());
        let free = capacity.saturating_sub(allocator.stats().in_use_bytes);
        let mut memories = plan.memories.iter();
        let memory = memories.find(|memory| memory.device == id && !memory.on_host);
        let one_run = memory.map_or(0, |memory| {
            memory.run_bytes.saturating_add(memory.fetched_bytes)
        });
        let needed = one_run.saturating_mul(self.program.n_runs);
        // Unplanned tensors may need as much memory as there is, so half of the memory stays free
        // for them.
        needed <= free && (plan.n_unplanned == 0 || free >= capacity / 2)
    }
}

impl KernelCache {
    /// Lets kernels prepack those of their inputs that are the same in all runs, as long as the
    /// memory that runs need stays free.
    pub(super) fn prepack(
        &self,
        program: &Program,
    ) -> Result<Vec<Box<[Option<Tensor>]>>, ExecuteError> {
        let free_memory = FreeMemory::new(program);
        let steps = program.plan.steps().iter();
        let ids = program.plan.step_ids().map(StepId);
        let prepacked_inputs = ids
            .zip(steps)
            .zip(&program.actions)
            .map(|((id, step), action)| {
                let (StepKind::Execute(node), Some(Action::Kernel(kernel))) = (step.kind, action)
                else {
                    return Ok(Box::default());
                };
                let key = KernelKey::new(node, step.device, program.fused.get(&id));
                let mut prepacked_inputs: Vec<Option<Tensor>> = Vec::new();
                for (index, value) in step.inputs.iter().enumerate() {
                    if let Some(constant) = &program.fixed[value.index()]
                        && let Some(prepacked_tensor) =
                            self.prepacked_input(&key, &**kernel, index, constant, &free_memory)?
                    {
                        prepacked_inputs.resize(index, None);
                        prepacked_inputs.push(Some(prepacked_tensor));
                    }
                }
                Ok(prepacked_inputs.into_boxed_slice())
            });
        prepacked_inputs.collect()
    }

    fn prepacked_input(
        &self,
        key: &KernelKey,
        kernel: &dyn Kernel,
        index: usize,
        constant: &Tensor,
        free_memory: &FreeMemory<'_>,
    ) -> Result<Option<Tensor>, ExecuteError> {
        let mut prepacked = self
            .prepacked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (key.clone(), index);
        if let Some(prepacked_tensor) = prepacked.get(&key) {
            return Ok(prepacked_tensor.clone());
        }
        let (node, device_id) = (key.0.node, key.0.device);
        let device = kernel_device(&self.devices, device_id)?;
        let prepacked_tensor = catch_unwind(AssertUnwindSafe(|| {
            kernel.prepack_input(index, constant, device)
        }))
        .unwrap_or_else(|panic| {
            Err(KernelError::invalid(format!(
                "the kernel panicked while it prepacked input {index}: {}",
                panic_message(&*panic)
            )))
        });
        let prepacked_tensor = match prepacked_tensor {
            // Kernels also read inputs that are not prepacked, only more slowly.
            Err(KernelError::Tensor(TensorError::OutOfMemory(_))) => None,
            Err(source) => {
                return Err(ExecuteError::Prepare {
                    site: self.site(node, device),
                    source: Box::new(source),
                });
            }
            Ok(prepacked_tensor) => {
                prepacked_tensor.filter(|_| free_memory.suffices(device_id, device))
            }
        };
        prepacked.insert(key, prepacked_tensor.clone());
        Ok(prepacked_tensor)
    }
}
