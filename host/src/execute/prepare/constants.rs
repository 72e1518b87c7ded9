//! Constants of a plan, on each device that reads them.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::kernels::{ConstantKey, KernelCache, KernelKey, kernel_device};
use super::prepack::FreeMemory;
use super::{Action, Program};
use crate::device::{AllocatorAttributes, Kernel};
use crate::execute::error::ExecuteError;
use crate::plan::{MemorySpace, StepId, StepKind};
use crate::tensor::Tensor;

/// A constant in a memory, and what reads it there.
struct HeldConstant {
    key: ConstantKey,
    values: Vec<usize>,
    readers: Vec<Reader>,
    /// Whether something else than a kernel reads it, too.
    has_other_readers: bool,
    n_bytes: u64,
}

/// An input of a kernel.
pub(super) struct Reader {
    step: StepId,
    pub(super) key: KernelKey,
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) input: usize,
}

impl KernelCache {
    /// Creates the constants that runs read, and has kernels prepack them. A constant is released
    /// if all of its readers have a form of their own. This is done for one constant after the
    /// other, so that most weights of a network never take memory twice.
    pub(super) fn hold_constants(&self, program: &mut Program) -> Result<(), ExecuteError> {
        let mut constants = self.held_constants(program);
        for constant in &mut constants {
            // Plans of memory need types and shapes of all of them.
            let tensor = match self.placeholder(constant.key)? {
                Some(placeholder) => {
                    constant.n_bytes = placeholder.len_bytes() as u64;
                    placeholder
                }
                None => self.constant(constant.key)?,
            };
            for &value in &constant.values {
                program.fixed[value] = Some(tensor.clone());
            }
        }
        let mut later_bytes = FxHashMap::default();
        for constant in constants
            .iter()
            .filter(|constant| !self.is_made(constant.key))
        {
            *later_bytes.entry(constant.key.1).or_insert(0) += constant.n_bytes;
        }
        // The largest first: a constant takes memory twice while it is prepacked, and most memory
        // is in use at the end.
        constants.sort_by_key(|constant| std::cmp::Reverse(constant.n_bytes));
        let mut prepacked: Vec<Vec<Option<Tensor>>> = vec![Vec::new(); program.actions.len()];
        let mut fixed = Vec::with_capacity(constants.len());
        let mut free_memory = FreeMemory::new(program, later_bytes);
        for constant in &constants {
            if !self.is_made(constant.key) {
                free_memory.take(constant.key.1, constant.n_bytes);
            }
            let replaced = self.prepack_constant(constant, &mut free_memory, &mut prepacked)?;
            fixed.push(match replaced {
                true => None,
                false => Some(self.constant(constant.key)?),
            });
        }
        for (constant, tensor) in constants.iter().zip(fixed) {
            for &value in tensor.iter().flat_map(|_| &constant.values) {
                program.fixed[value].clone_from(&tensor);
            }
        }
        let prepacked = prepacked.into_iter().map(Vec::into_boxed_slice);
        program.prepacked = prepacked.collect();
        Ok(())
    }

    /// Has the kernels that read a constant prepack it. Returns whether nothing reads the constant
    /// itself any more; it is no longer kept then.
    fn prepack_constant(
        &self,
        constant: &HeldConstant,
        free_memory: &mut FreeMemory<'_>,
        prepacked: &mut [Vec<Option<Tensor>>],
    ) -> Result<bool, ExecuteError> {
        let replaces = |reader: &Reader| reader.kernel.replaces_prepacked_input(reader.input);
        // Strings have no placeholder.
        let mut is_replaced = !constant.has_other_readers
            && constant.n_bytes > 0
            && !constant.readers.is_empty()
            && constant.readers.iter().all(replaces);
        free_memory.released_bytes = if is_replaced { constant.n_bytes } else { 0 };
        for reader in &constant.readers {
            let Some(tensor) = self.prepacked_input(reader, constant.key, free_memory)? else {
                // It stays, so the others must have room beside it.
                (is_replaced, free_memory.released_bytes) = (false, 0);
                continue;
            };
            let inputs = &mut prepacked[reader.step.index()];
            if inputs.len() <= reader.input {
                inputs.resize(reader.input + 1, None);
            }
            inputs[reader.input] = Some(tensor);
        }
        if is_replaced {
            let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
            copies.remove(&constant.key);
        }
        Ok(is_replaced)
    }

    /// Returns the constants that steps of a run read.
    fn held_constants(&self, program: &Program) -> Vec<HeldConstant> {
        let plan = &program.plan;
        let mut constants: Vec<HeldConstant> = Vec::new();
        let mut index_of: FxHashMap<ConstantKey, usize> = FxHashMap::default();
        // Per value its constant.
        let mut of_value: Vec<Option<usize>> = vec![None; plan.values().len()];
        for step in plan.steps().iter().filter(|step| step.n_outputs > 0) {
            let output = step.first_output as usize;
            let Some(tensor) = program.settled.held_constant(output) else {
                continue;
            };
            let value = &plan.values()[output];
            let key = (tensor, value.device, value.space);
            let index = *index_of.entry(key).or_insert_with(|| {
                constants.push(HeldConstant {
                    key,
                    values: Vec::new(),
                    readers: Vec::new(),
                    has_other_readers: false,
                    n_bytes: 0,
                });
                constants.len() - 1
            });
            constants[index].values.push(output);
            of_value[output] = Some(index);
        }
        for (id, step) in plan.step_ids().map(StepId).zip(plan.steps()) {
            if program.settled.is_settled[id.index()] {
                continue;
            }
            for (input, value) in step.inputs.iter().enumerate() {
                let Some(index) = of_value[value.index()] else {
                    continue;
                };
                match (step.kind, &program.actions[id.index()]) {
                    (StepKind::Execute(node), Some(Action::Kernel(kernel))) => {
                        constants[index].readers.push(Reader {
                            step: id,
                            key: KernelKey::new(node, step.device, program.fused.get(&id)),
                            kernel: Arc::clone(kernel),
                            input,
                        });
                    }
                    _ => constants[index].has_other_readers = true,
                }
            }
        }
        for input in plan.back_inputs() {
            if let Some(index) = of_value[input.value.index()] {
                constants[index].has_other_readers = true;
            }
        }
        constants
    }

    /// Returns a tensor without elements that stands for a constant, if it can.
    fn placeholder(&self, key: ConstantKey) -> Result<Option<Tensor>, ExecuteError> {
        let (tensor, device, space) = key;
        let node = self.graph.producer(tensor).0;
        let Some(literal) = self.graph.attrs(node).tensor("value") else {
            return Ok(None);
        };
        let attributes = AllocatorAttributes {
            on_host: space == MemorySpace::Host,
            ..AllocatorAttributes::default()
        };
        let allocator = kernel_device(&self.devices, device)?.allocator(attributes);
        let shape = literal.shape().clone();
        let placeholder = Tensor::released(literal.dtype(), shape, allocator.memory_id());
        Ok(placeholder)
    }

    fn is_made(&self, key: ConstantKey) -> bool {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.contains_key(&key)
    }

    /// Returns the tensor of a constant in a memory, created there once. The device of the node
    /// need not hold the constant or have memory for it.
    pub(super) fn constant(&self, key: ConstantKey) -> Result<Tensor, ExecuteError> {
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
