//! The context of one execution of a kernel: its inputs, outputs and surroundings.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use super::context::DeviceContext;
use super::error::DeviceError;
use super::error::KernelError;
use super::interrupts::Interrupts;
use super::kernel::Kernel;
use super::output_slot::{OutputSlot, OutputState};
use super::resource::ResourceManager;
use super::run::{DeviceRun, RunNumber};
use super::surroundings::{InnerNode, Surroundings};
use super::traits::{AllocatorAttributes, KernelDevice};
use crate::tensor::{Allocator, Buffer, DType, Element, RANK_MAX, Shape, Tensor, TensorError};

/// The initial bytes of outputs in debug builds: NaN in some types, far from 0 in all.
const UNWRITTEN: u8 = 0xff;

/// The tensors that a kernel reads.
enum Inputs<'a> {
    Borrowed(&'a [&'a Tensor]),
    Slice(&'a [Tensor]),
    Owned(Vec<Tensor>),
}

/// The outputs of an execution.
enum Outputs<'a> {
    Borrowed(&'a mut [OutputSlot]),
    Owned(Vec<OutputSlot>),
}

impl Outputs<'_> {
    #[inline]
    fn slots(&mut self) -> &mut [OutputSlot] {
        match self {
            Self::Borrowed(slots) => slots,
            Self::Owned(slots) => slots,
        }
    }

    /// Returns the bytes of the planned tensor of an output, if it has this type and shape and the
    /// host can write it. The slot then holds it.
    #[inline(never)]
    fn planned_bytes(&mut self, index: usize, dtype: DType, shape: &Shape) -> Option<&mut [u8]> {
        let slot = self.slots().get_mut(index)?;
        if slot.is_forwarded {
            return None;
        }
        slot.planned_as(dtype, shape)?.as_bytes_mut()
    }
}

/// One execution of a kernel.
pub struct KernelContext<'a> {
    device: &'a dyn KernelDevice,
    inputs: Inputs<'a>,
    /// Per input its prepacked form; may have fewer entries than there are inputs.
    prepacked: &'a [Option<Tensor>],
    outputs: RefCell<Outputs<'a>>,
    outputs_on_host: &'a [bool],
    help: Help,
    interrupts: Option<&'a Interrupts>,
    setting: Setting<'a>,
}

/// The environment of an execution.
enum Setting<'a> {
    /// Outside of runs, for the node of this name.
    Alone(&'a str),
    Run(&'a dyn Surroundings),
}

/// Which threads may help inside a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Help {
    /// None: other kernels keep the machine's cores busy.
    None,
    /// The threads of the pool, which are woken if that pays.
    #[default]
    Pool,
    /// The same, and spinning workers also for less work.
    Spinning,
}

impl<'a> KernelContext<'a> {
    /// Creates an execution of node `node` on `device`. `outputs_on_host[i]`: whether output `i` is
    /// a host-memory argument.
    pub fn new(
        device: &'a dyn KernelDevice,
        node: &'a str,
        inputs: Vec<Tensor>,
        outputs_on_host: &'a [bool],
    ) -> Self {
        let outputs = outputs_on_host.iter().map(|_| OutputSlot::default());
        Self {
            device,
            inputs: Inputs::Owned(inputs),
            prepacked: &[],
            outputs: RefCell::new(Outputs::Owned(outputs.collect())),
            outputs_on_host,
            help: Help::default(),
            interrupts: None,
            setting: Setting::Alone(node),
        }
    }

    /// Adds the results of [`Kernel::prepack_input`], in the order of the inputs.
    #[must_use]
    pub fn with_prepacked_inputs(mut self, prepacked: &'a [Option<Tensor>]) -> Self {
        self.prepacked = prepacked;
        self
    }

    /// Creates an execution on borrowed tensors, with outputs whose places may be planned. There
    /// are as many slots as flags.
    #[inline]
    pub(crate) fn on_slots(
        device: &'a dyn KernelDevice,
        inputs: &'a [&'a Tensor],
        prepacked: &'a [Option<Tensor>],
        outputs: &'a mut [OutputSlot],
        outputs_on_host: &'a [bool],
        help: Help,
        interrupts: Option<&'a Interrupts>,
        surroundings: &'a dyn Surroundings,
    ) -> Self {
        Self {
            device,
            inputs: Inputs::Borrowed(inputs),
            prepacked,
            outputs: RefCell::new(Outputs::Borrowed(outputs)),
            outputs_on_host,
            help,
            interrupts,
            setting: Setting::Run(surroundings),
        }
    }

    /// Creates an execution on a slice of tensors.
    pub(crate) fn on_tensors(
        device: &'a dyn KernelDevice,
        inputs: &'a [Tensor],
        prepacked: &'a [Option<Tensor>],
        outputs: &'a mut [OutputSlot],
        outputs_on_host: &'a [bool],
        help: Help,
        surroundings: &'a dyn Surroundings,
    ) -> Self {
        Self {
            device,
            inputs: Inputs::Slice(inputs),
            prepacked,
            outputs: RefCell::new(Outputs::Borrowed(outputs)),
            outputs_on_host,
            help,
            interrupts: None,
            setting: Setting::Run(surroundings),
        }
    }

    /// Returns whether loops inside the kernel may ask [`KernelDevice::intra_op_pool`] for help:
    /// not if other kernels keep the machine's cores busy.
    pub fn may_use_pool(&self) -> bool {
        self.help != Help::None
    }

    /// Returns whether workers of the pool may be spinning, so that shorter loops are worth sharing
    /// ([`IntraOpPool::for_each_spinning`](super::IntraOpPool::for_each_spinning)).
    pub fn has_spinning_workers(&self) -> bool {
        self.help == Help::Spinning
    }

    #[cfg(feature = "kernels")]
    #[inline]
    pub(crate) fn help(&self) -> Help {
        self.help
    }

    /// Returns the device that executes the node.
    #[inline]
    pub fn device(&self) -> &'a dyn KernelDevice {
        self.device
    }

    /// Returns the name of the node.
    pub fn node(&self) -> &'a str {
        match self.setting {
            Setting::Alone(node) => node,
            Setting::Run(surroundings) => surroundings.node(),
        }
    }

    fn surroundings(&self) -> Option<&'a dyn Surroundings> {
        match self.setting {
            Setting::Alone(_) => None,
            Setting::Run(surroundings) => Some(surroundings),
        }
    }

    fn device_run(&self) -> Option<&'a DeviceRun> {
        self.surroundings().and_then(|around| around.device_run())
    }

    /// Returns the context by which the device's memory is accessed: the node's own context, or the
    /// device's default.
    pub fn device_context(&self) -> &'a Arc<dyn DeviceContext> {
        let own = self.surroundings().and_then(|around| around.context());
        own.unwrap_or_else(|| self.device.default_context())
    }

    /// Returns the variables, tables and queues of the device.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a device of another process.
    pub fn resource_manager(&self) -> Result<&'a Arc<ResourceManager>, DeviceError> {
        self.device.resource_manager()
    }

    /// Returns what may end the run before this execution ends, which long loops check; `None`
    /// outside of runs.
    #[inline]
    pub fn interrupts(&self) -> Option<&'a Interrupts> {
        self.interrupts
    }

    /// Returns the number of the run that this execution is part of; `None` outside of runs.
    pub fn run_number(&self) -> Option<RunNumber> {
        self.device_run().map(DeviceRun::number)
    }

    /// Returns the container of [`Self::resource_manager`] whose resources are dropped when the run
    /// ends (TensorFlow `ScopedStepContainer`).
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] outside of runs.
    pub fn run_container(&self) -> Result<&'a str, KernelError> {
        let run = self.device_run();
        run.map(DeviceRun::container)
            .ok_or_else(|| KernelError::invalid("resources of a run can only be created in a run"))
    }

    /// Returns the number of data inputs.
    pub fn n_inputs(&self) -> usize {
        match &self.inputs {
            Inputs::Borrowed(inputs) => inputs.len(),
            Inputs::Slice(inputs) => inputs.len(),
            Inputs::Owned(inputs) => inputs.len(),
        }
    }

    /// Returns data input `index`. A kernel that keeps it beyond the execution must clone it, which
    /// may copy it.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the node has fewer inputs.
    #[inline]
    pub fn input(&self, index: usize) -> Result<&Tensor, KernelError> {
        let input = match &self.inputs {
            Inputs::Borrowed(inputs) => inputs.get(index).copied(),
            Inputs::Slice(inputs) => inputs.get(index),
            Inputs::Owned(inputs) => inputs.get(index),
        };
        input.ok_or_else(|| {
            KernelError::invalid(format!(
                "input {index} does not exist: the node has {}",
                self.n_inputs()
            ))
        })
    }

    /// Returns the result of [`Kernel::prepack_input`] for data input `index`; `None` if the input
    /// is not the same in all runs.
    #[inline]
    pub fn prepacked_input(&self, index: usize) -> Option<&Tensor> {
        self.prepacked.get(index)?.as_ref()
    }

    /// Returns all data inputs, in slot order.
    #[inline]
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        (0..self.n_inputs()).map(|index| match &self.inputs {
            Inputs::Borrowed(inputs) => inputs[index],
            Inputs::Slice(inputs) => &inputs[index],
            Inputs::Owned(inputs) => &inputs[index],
        })
    }

    /// Replaces a data input, for devices that move tensors before they call the kernel.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the node has fewer inputs.
    pub fn replace_input(&mut self, index: usize, tensor: Tensor) -> Result<(), KernelError> {
        self.input(index)?;
        self.record(&tensor);
        self.prepacked = &[]; // One of them was made of what is exchanged.
        match self.inputs {
            Inputs::Borrowed(inputs) => {
                let inputs = inputs.iter().map(|&input| input.clone());
                self.inputs = Inputs::Owned(inputs.collect());
            }
            Inputs::Slice(inputs) => self.inputs = Inputs::Owned(inputs.to_vec()),
            Inputs::Owned(_) => {}
        }
        if let Inputs::Owned(inputs) = &mut self.inputs {
            inputs[index] = tensor;
        }
        Ok(())
    }

    /// Returns the number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.outputs_on_host.len()
    }

    /// Creates output `index`, of this shape and of `T`'s type, and calls `fill` with its elements.
    /// `fill` must write every element; they have arbitrary values before. For kernels whose device
    /// has memory that the host can write.
    ///
    /// # Errors
    /// Those of `fill`; [`KernelError`] if there is not enough memory, or if the node has fewer
    /// outputs.
    ///
    /// # Panics
    /// If `fill` sets an output itself.
    #[inline]
    pub fn fill_output<T: Element>(
        &self,
        index: usize,
        shape: &Shape,
        fill: impl FnOnce(&mut [T]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        self.fill_output_bytes(index, T::DTYPE, shape, |bytes| {
            fill(bytemuck::cast_slice_mut(bytes))
        })
    }

    /// Does the same for any type with elements of fixed size, as bytes; booleans are 0 or 1.
    ///
    /// # Errors
    /// As [`Self::fill_output`].
    ///
    /// # Panics
    /// If `fill` sets an output itself.
    #[inline]
    pub fn fill_output_bytes(
        &self,
        index: usize,
        dtype: DType,
        shape: &Shape,
        fill: impl FnOnce(&mut [u8]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut fill = Some(fill);
        self.fill_bytes(index, dtype, shape, &mut |bytes| {
            fill.take().map_or(Ok(()), |fill| fill(bytes))
        })
    }

    /// [`Self::fill_output_bytes`], compiled once and not for each of two thousand types of `fill`.
    fn fill_bytes(
        &self,
        index: usize,
        dtype: DType,
        shape: &Shape,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut outputs = self.outputs.borrow_mut();
        let mut own = None;
        let bytes = match outputs.planned_bytes(index, dtype, shape) {
            Some(planned) => planned,
            None => own
                .insert(self.new_output(index, dtype, shape)?)
                .as_bytes_mut()
                .ok_or(TensorError::NotOnHost)?,
        };
        if cfg!(debug_assertions) {
            bytes.fill(UNWRITTEN);
        }
        fill(bytes)?;
        if let Some(own) = own {
            outputs.slots()[index].set_own(own);
        }
        Ok(())
    }

    /// Returns a tensor for an output that has no planned one.
    #[inline(never)]
    fn new_output(&self, index: usize, dtype: DType, shape: &Shape) -> Result<Tensor, KernelError> {
        check_rank(shape)?;
        if index >= self.n_outputs() {
            return Err(no_such_output(index, self.n_outputs()));
        }
        self.allocate_output(index, dtype, shape.clone())
    }

    /// Changes output `index`, which is already set, in place; `update` gets its shape and
    /// elements.
    ///
    /// # Errors
    /// Those of `update`; [`KernelError`] if the output is not set, has another type, is shared, or
    /// is not in memory that the host can write.
    ///
    /// # Panics
    /// If `update` sets an output itself.
    pub fn update_output<T: Element>(
        &self,
        index: usize,
        update: impl FnOnce(&Shape, &mut [T]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut outputs = self.outputs.borrow_mut();
        let slots = outputs.slots();
        let n_outputs = slots.len();
        let slot = slots.get_mut(index);
        let slot = slot.ok_or_else(|| no_such_output(index, n_outputs))?;
        let tensor = match slot.state {
            OutputState::Unset | OutputState::Dead => None,
            OutputState::Planned => slot.planned.as_mut(),
            OutputState::Own => slot.own.as_deref_mut(),
        };
        let tensor = tensor.ok_or_else(|| unset_output(index))?;
        let shape = tensor.shape().clone();
        let elements = tensor.as_slice_mut::<T>().ok_or(TensorError::NotOnHost)?;
        update(&shape, elements)
    }

    /// Sets output `output` to input `input`, with another shape of as many elements. The bytes are
    /// shared if possible.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the number of elements differs, or the node has no such
    /// input or output.
    pub fn forward_input(
        &self,
        input: usize,
        output: usize,
        shape: &Shape,
    ) -> Result<(), KernelError> {
        check_rank(shape)?;
        let tensor = self.input(input)?;
        let mut outputs = self.outputs.borrow_mut();
        let slots = outputs.slots();
        let n_outputs = slots.len();
        let slot = slots.get_mut(output);
        let slot = slot.ok_or_else(|| no_such_output(output, n_outputs))?;
        if let Some(buffer) = tensor.buffer()
            && buffer.is_in_arena()
            && shape.n_elements() == tensor.shape().n_elements()
        {
            // The place of an input is taken over only where this is that input: a kernel may say
            // one and hand on another.
            let is_there = slot.is_forwarded
                && slot
                    .planned
                    .as_ref()
                    .and_then(Tensor::buffer)
                    .is_some_and(|planned| planned.is_same_part(buffer));
            if (is_there || !slot.is_forwarded)
                && let Some(planned) = slot.planned_as(tensor.dtype(), shape)
            {
                if !is_there {
                    let bytes = planned.as_bytes_mut().ok_or(TensorError::NotOnHost)?;
                    bytes.copy_from_slice(tensor.as_bytes()?);
                }
                return Ok(());
            }
        }
        slot.set_own(tensor.reshaped(shape.clone())?);
        Ok(())
    }

    /// Allocates a tensor of zeros for output `index`, in the memory of that output; pass it to
    /// [`Self::set_output`]. [`Self::fill_output`] is faster, because it uses the planned place.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn allocate_output(
        &self,
        index: usize,
        dtype: DType,
        shape: Shape,
    ) -> Result<Tensor, KernelError> {
        let on_host = self.outputs_on_host.get(index).copied().unwrap_or(false);
        let allocator = self.device.allocator(AllocatorAttributes {
            on_host,
            gpu_compatible: false,
        });
        let tensor = Tensor::zeros(&*allocator, dtype, shape)?;
        // Also what a kernel that fails never hands over: the device may write it already. What the
        // host writes it must be alone with.
        let is_opaque = |buffer: &Buffer| buffer.as_host_bytes().is_none();
        if tensor.buffer().is_some_and(is_opaque) {
            self.record(&tensor);
        }
        Ok(tensor)
    }

    /// Allocates a zeroed temporary tensor of the device for this run. Memory that kernels of the
    /// run have released is used again.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn allocate_temporary(&self, dtype: DType, shape: Shape) -> Result<Tensor, KernelError> {
        let tensor = match self.device_run() {
            Some(run) => {
                let allocator: &Arc<dyn Allocator> = run.allocator(self.device);
                Tensor::zeros(&**allocator, dtype, shape)?
            }
            None => {
                let allocator = self.device.allocator(AllocatorAttributes::default());
                Tensor::zeros(&*allocator, dtype, shape)?
            }
        };
        self.record(&tensor);
        Ok(tensor)
    }

    fn record(&self, tensor: &Tensor) {
        if let Some(temporaries) = self.surroundings().and_then(|around| around.temporaries()) {
            temporaries.borrow_mut().push(tensor.clone());
        }
    }

    /// Sets output `index`.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the node has fewer outputs.
    pub fn set_output(&self, index: usize, tensor: Tensor) -> Result<(), KernelError> {
        let mut outputs = self.outputs.borrow_mut();
        let slots = outputs.slots();
        let n_outputs = slots.len();
        let slot = slots.get_mut(index);
        slot.ok_or_else(|| no_such_output(index, n_outputs))?
            .set_own(tensor);
        Ok(())
    }

    /// Executes the kernel of an inner node to its end, within this execution: in the same run,
    /// with the same threads and interrupts. Devices that take whole partitions use it for nodes
    /// that they do not compile. `outputs_on_host[i]`: whether output `i` is a host-memory
    /// argument.
    ///
    /// # Errors
    /// The kernel's; [`KernelError::InvalidArgument`] if it has not set all outputs.
    pub fn compute_inner(
        &self,
        node: &str,
        kernel: &dyn Kernel,
        inputs: &[Tensor],
        outputs_on_host: &[bool],
    ) -> Result<Vec<Tensor>, KernelError> {
        let around;
        let setting = match self.setting {
            Setting::Alone(_) => Setting::Alone(node),
            Setting::Run(run) => {
                around = InnerNode { node, run };
                Setting::Run(&around)
            }
        };
        let outputs = outputs_on_host.iter().map(|_| OutputSlot::default());
        let mut inner = KernelContext {
            device: self.device,
            inputs: Inputs::Slice(inputs),
            prepacked: &[],
            outputs: RefCell::new(Outputs::Owned(outputs.collect())),
            outputs_on_host,
            help: self.help,
            interrupts: self.interrupts,
            setting,
        };
        self.device.compute(kernel, &mut inner)?;
        inner.into_outputs()
    }

    /// Returns output `index`, if it is set. Devices call this when a kernel has ended.
    pub fn output(&mut self, index: usize) -> Option<&Tensor> {
        self.outputs.get_mut().slots().get(index)?.tensor()
    }

    /// Returns the outputs of an execution that has ended.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the kernel has not set all of them.
    pub fn into_outputs(self) -> Result<Vec<Tensor>, KernelError> {
        let mut outputs = self.outputs.into_inner();
        let slots = outputs.slots().iter_mut().enumerate();
        slots
            .map(|(index, slot)| {
                let tensor = match slot.state {
                    OutputState::Own => slot.own.take().map(|tensor| *tensor),
                    _ => slot.tensor().cloned(),
                };
                tensor.ok_or_else(|| unset_output(index))
            })
            .collect()
    }
}

/// Checks that a tensor does not have more dimensions than are supported.
#[inline]
fn check_rank(shape: &Shape) -> Result<(), KernelError> {
    if shape.rank() <= RANK_MAX {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "the output would have {} dimensions; at most {RANK_MAX} are supported",
        shape.rank()
    )))
}

#[cold]
fn no_such_output(index: usize, n_outputs: usize) -> KernelError {
    KernelError::invalid(format!("output {index} set, the node has {n_outputs}"))
}

/// Returns the error for an output that a kernel has not set.
#[cold]
pub(crate) fn unset_output(index: usize) -> KernelError {
    KernelError::invalid(format!("the kernel did not set output {index}"))
}

impl fmt::Debug for KernelContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelContext")
            .field("node", &self.node())
            .field("device", &self.device.attributes().name)
            .field("inputs", &self.inputs().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
