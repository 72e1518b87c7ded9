//! Prepacks constant inputs: kernels copy them into the order in which they read them.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use rustc_hash::FxHashMap;

use super::Program;
use super::constants::Reader;
use super::kernels::{ConstantKey, KernelCache, PrepackedKey, kernel_device};
use crate::device::{AllocatorAttributes, KernelDevice, KernelError, panic_message};
use crate::execute::error::ExecuteError;
use crate::memory::MemoryPlan;
use crate::names::DeviceId;
use crate::tensor::{Tensor, TensorError};

/// The free memory of devices besides what the runs of a program need, and constants that are not
/// created yet. The memory plan is computed on first use.
pub(super) struct FreeMemory<'a> {
    program: &'a Program,
    plan: OnceCell<MemoryPlan>,
    /// Bytes of constants that will be created, per device.
    later_bytes: FxHashMap<DeviceId, u64>,
    /// Bytes of the constant that is prepacked now, if it will be released then.
    pub(super) released_bytes: u64,
}

impl<'a> FreeMemory<'a> {
    pub(super) fn new(program: &'a Program, later_bytes: FxHashMap<DeviceId, u64>) -> Self {
        Self {
            program,
            plan: OnceCell::new(),
            later_bytes,
            released_bytes: 0,
        }
    }

    /// Notes that a constant is created now.
    pub(super) fn take(&mut self, device: DeviceId, n_bytes: u64) {
        if let Some(bytes) = self.later_bytes.get_mut(&device) {
            *bytes = bytes.saturating_sub(n_bytes);
        }
    }

    /// Checks whether a device has enough memory for its runs besides what it will hold.
    fn suffices(&self, id: DeviceId, device: &dyn KernelDevice) -> bool {
        let plan = self
            .plan
            .get_or_init(|| MemoryPlan::new(self.program, true));
        let capacity = device.memory_capacity_bytes();
        let allocator = device.allocator(AllocatorAttributes::default());
        let later_bytes = self.later_bytes.get(&id).copied().unwrap_or(0);
        let in_use_bytes = allocator.stats().in_use_bytes;
        let in_use_bytes = in_use_bytes.saturating_sub(self.released_bytes);
        let free = capacity.saturating_sub(in_use_bytes.saturating_add(later_bytes));
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
    /// Returns a constant as a kernel that reads it wants it, as long as the memory that runs need
    /// stays free; `None` if the kernel reads it as it is.
    pub(super) fn prepacked_input(
        &self,
        reader: &Reader,
        constant: ConstantKey,
        free_memory: &FreeMemory<'_>,
    ) -> Result<Option<Tensor>, ExecuteError> {
        let mut prepacked = self
            .prepacked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (kernel, index) = (&reader.kernel, reader.input);
        let key = match kernel.prepacked_form(index) {
            Some(form) => PrepackedKey::Form(constant, form),
            None => PrepackedKey::Input(reader.key.clone(), index),
        };
        if let Some(prepacked_tensor) = prepacked.get(&key) {
            return Ok(prepacked_tensor.clone());
        }
        let (node, device_id) = (reader.key.node, reader.key.device);
        let device = kernel_device(&self.devices, device_id)?;
        let constant = self.constant(constant)?;
        let prepacked_tensor = catch_unwind(AssertUnwindSafe(|| {
            kernel.prepack_input(index, &constant, device)
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
