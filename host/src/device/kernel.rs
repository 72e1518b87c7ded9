//! Kernels: one op on one device type.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use super::async_kernel::AsyncKernel;
use super::context::DeviceContext;
use super::error::DeviceError;
use super::error::KernelError;
use super::interrupts::Interrupts;
use super::resource::ResourceManager;
use super::step::{DeviceStep, StepNumber};
use super::traits::{AllocatorAttributes, KernelDevice};
use crate::graph::AttrSet;
use crate::tensor::{Allocator, Buffer, DType, Element, RANK_MAX, Shape, Tensor, TensorError};

/// What a kernel finds in its outputs while debugging: NaN in some types, far from 0 in all.
const UNWRITTEN: u8 = 0xff;

/// One op on one device type, made once per node and called once per execution, from any thread.
pub trait Kernel: Send + Sync {
    /// Reads `context.input(i)`, sets every output.
    ///
    /// # Errors
    /// [`KernelError`]; the executor adds node, op, device and shapes.
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError>;

    /// The input that output 0 is, under perhaps another shape ([`KernelContext::forward_input`]):
    /// plans then give both one place.
    fn forwarded_input(&self) -> Option<usize> {
        None
    }

    /// Input `index`, which is `constant` in all runs of a plan, in the form that [`Self::compute`]
    /// reads fastest: a tensor on the same device, of any type and shape. Asked once, when the
    /// plan is prepared; comes back as [`KernelContext::prepacked_input`]. `None`: it is read
    /// as it is.
    ///
    /// # Errors
    /// [`KernelError`], if there is not enough memory.
    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        let _ = (index, constant, device);
        Ok(None)
    }

    /// The kernel as one that ends later, if it is one: then it is started with
    /// [`KernelDevice::compute_async`], and [`Self::compute`] is not called.
    fn as_async(&self) -> Option<&dyn AsyncKernel> {
        None
    }
}

/// What a kernel is made from.
#[derive(Debug)]
pub struct KernelConstruction<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Its op.
    pub op: &'a str,
    /// Its attributes, defaults of the op filled in.
    pub attrs: &'a AttrSet,
    /// Element types of the data inputs.
    pub input_dtypes: &'a [DType],
    /// Element types of the outputs.
    pub output_dtypes: &'a [DType],
    /// The device that will run it.
    pub device: &'a dyn KernelDevice,
}

/// Where an output of an execution goes.
#[derive(Debug, Default)]
pub(crate) struct OutputSlot {
    /// A tensor whose place was planned before the run. It is the output if the kernel fills it,
    /// and is there again for the next run in any case.
    pub(crate) planned: Option<Tensor>,
    /// Whether what was planned is the place of an input: only [`KernelContext::forward_input`]
    /// may take it.
    pub(crate) is_forwarded: bool,
    /// A tensor that the kernel brought, or had to get elsewhere: it has another type or shape
    /// than planned.
    pub(crate) own: Option<Box<Tensor>>,
    pub(crate) state: OutputState,
}

/// Which tensor an output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OutputState {
    #[default]
    Unset,
    Planned,
    Own,
}

impl OutputSlot {
    /// The output, once it is set.
    #[inline]
    pub(crate) fn tensor(&self) -> Option<&Tensor> {
        match self.state {
            OutputState::Unset => None,
            OutputState::Planned => self.planned.as_ref(),
            OutputState::Own => self.own.as_deref(),
        }
    }

    #[inline]
    pub(crate) fn set_own(&mut self, tensor: Tensor) {
        self.own = Some(Box::new(tensor));
        self.state = OutputState::Own;
    }

    /// Forgets the output. What was planned stays planned.
    pub(crate) fn clear(&mut self) {
        self.own = None;
        self.state = OutputState::Unset;
    }

    /// The planned tensor, made the output, if it is of this type and shape.
    #[inline]
    fn planned_as(&mut self, dtype: DType, shape: &Shape) -> Option<&mut Tensor> {
        let planned = self.planned.as_mut()?;
        if planned.dtype() != dtype || planned.shape() != shape {
            return None;
        }
        if self.state == OutputState::Own {
            self.own = None;
        }
        self.state = OutputState::Planned;
        Some(planned)
    }
}

/// The tensors that a kernel reads.
enum Inputs<'a> {
    Borrowed(&'a [&'a Tensor]),
    Slice(&'a [Tensor]),
    Owned(Vec<Tensor>),
}

/// Where it puts what it makes.
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
}

/// One execution of a kernel.
pub struct KernelContext<'a> {
    device: &'a dyn KernelDevice,
    inputs: Inputs<'a>,
    /// Per input its prepacked form; may be shorter than the inputs are many.
    prepacked: &'a [Option<Tensor>],
    outputs: RefCell<Outputs<'a>>,
    outputs_on_host: &'a [bool],
    help: Help,
    setting: Setting<'a>,
}

/// Where an execution happens.
enum Setting<'a> {
    /// Outside of runs, for the node of this name.
    Alone(&'a str),
    Run(&'a dyn Surroundings),
}

/// What an execution finds around it besides tensors; asked when a kernel wants it.
pub(crate) trait Surroundings {
    /// Name of the node.
    fn node(&self) -> &str;

    /// The run, as far as this device is concerned.
    fn step(&self) -> Option<&DeviceStep>;

    /// The node's context, where it has one of its own.
    fn context(&self) -> Option<&Arc<dyn DeviceContext>>;

    /// What may end the run before the execution ends.
    fn interrupts(&self) -> Option<&Interrupts> {
        None
    }

    /// Takes tensors that come into being in the execution, where the device wants to know them.
    fn temporaries(&self) -> Option<&RefCell<Vec<Tensor>>> {
        None
    }
}

/// Who may help inside a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Help {
    /// Nobody: other kernels keep the machine's cores busy.
    None,
    /// The threads of the pool, which are woken where it pays.
    #[default]
    Pool,
    /// The same, and for less work, the spinning ones among them.
    Spinning,
}

impl<'a> KernelContext<'a> {
    /// An execution of node `node` on `device`. `outputs_on_host[i]` = output `i` is a host-memory
    /// argument.
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
            setting: Setting::Alone(node),
        }
    }

    /// With what [`Kernel::prepack_input`] has made of the inputs, in their order.
    #[must_use]
    pub fn with_prepacked_inputs(mut self, prepacked: &'a [Option<Tensor>]) -> Self {
        self.prepacked = prepacked;
        self
    }

    /// The same on tensors that stand elsewhere, with outputs whose places may be planned. As many
    /// slots as flags.
    #[inline]
    pub(crate) fn on_slots(
        device: &'a dyn KernelDevice,
        inputs: &'a [&'a Tensor],
        prepacked: &'a [Option<Tensor>],
        outputs: &'a mut [OutputSlot],
        outputs_on_host: &'a [bool],
        help: Help,
        surroundings: &'a dyn Surroundings,
    ) -> Self {
        Self {
            device,
            inputs: Inputs::Borrowed(inputs),
            prepacked,
            outputs: RefCell::new(Outputs::Borrowed(outputs)),
            outputs_on_host,
            help,
            setting: Setting::Run(surroundings),
        }
    }

    /// The same on tensors that stand together.
    pub(crate) fn on_tensors(
        device: &'a dyn KernelDevice,
        inputs: &'a [Tensor],
        outputs: &'a mut [OutputSlot],
        outputs_on_host: &'a [bool],
        surroundings: &'a dyn Surroundings,
    ) -> Self {
        Self {
            device,
            inputs: Inputs::Slice(inputs),
            prepacked: &[],
            outputs: RefCell::new(Outputs::Borrowed(outputs)),
            outputs_on_host,
            help: Help::Pool,
            setting: Setting::Run(surroundings),
        }
    }

    /// Whether loops inside the kernel may ask [`KernelDevice::intra_op_pool`] for help: not where
    /// other kernels keep the machine's cores busy.
    pub fn may_use_pool(&self) -> bool {
        self.help != Help::None
    }

    /// Whether threads of the pool may look for loops, so that shorter ones are worth sharing
    /// ([`IntraOpPool::for_each_spinning`](super::IntraOpPool::for_each_spinning)).
    pub fn has_spinning_workers(&self) -> bool {
        self.help == Help::Spinning
    }

    /// The device that runs it.
    pub fn device(&self) -> &'a dyn KernelDevice {
        self.device
    }

    /// Name of the node.
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

    fn step(&self) -> Option<&'a DeviceStep> {
        self.surroundings().and_then(|around| around.step())
    }

    /// How the device's memory is reached: the node's own context, or the device's default.
    pub fn device_context(&self) -> &'a Arc<dyn DeviceContext> {
        let own = self.surroundings().and_then(|around| around.context());
        own.unwrap_or_else(|| self.device.default_context())
    }

    /// Variables, tables and queues of the device.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a device of another process.
    pub fn resource_manager(&self) -> Result<&'a Arc<ResourceManager>, DeviceError> {
        self.device.resource_manager()
    }

    /// What may end the run before this execution ends, for long loops to ask; `None` outside of
    /// runs.
    pub fn interrupts(&self) -> Option<&'a Interrupts> {
        self.surroundings().and_then(|around| around.interrupts())
    }

    /// The run that this execution is part of; `None` outside of runs.
    pub fn step_number(&self) -> Option<StepNumber> {
        self.step().map(DeviceStep::number)
    }

    /// The container of [`Self::resource_manager`] whose resources are dropped when the run ends
    /// (TensorFlow `ScopedStepContainer`).
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] outside of runs.
    pub fn step_container(&self) -> Result<&'a str, KernelError> {
        let step = self.step();
        step.map(DeviceStep::container)
            .ok_or_else(|| KernelError::invalid("resources of a run are made in runs only"))
    }

    /// Number of data inputs.
    pub fn n_inputs(&self) -> usize {
        match &self.inputs {
            Inputs::Borrowed(inputs) => inputs.len(),
            Inputs::Slice(inputs) => inputs.len(),
            Inputs::Owned(inputs) => inputs.len(),
        }
    }

    /// Data input `index`. A kernel that keeps it beyond the execution clones it, which may be a
    /// copy.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the node has fewer.
    #[inline]
    pub fn input(&self, index: usize) -> Result<&Tensor, KernelError> {
        let input = match &self.inputs {
            Inputs::Borrowed(inputs) => inputs.get(index).copied(),
            Inputs::Slice(inputs) => inputs.get(index),
            Inputs::Owned(inputs) => inputs.get(index),
        };
        input.ok_or_else(|| {
            KernelError::invalid(format!(
                "input {index} is missing, the node has {}",
                self.n_inputs()
            ))
        })
    }

    /// What [`Kernel::prepack_input`] made of data input `index`; `None` where the input is not the
    /// same in all runs.
    #[inline]
    pub fn prepacked_input(&self, index: usize) -> Option<&Tensor> {
        self.prepacked.get(index)?.as_ref()
    }

    /// All data inputs, in slot order.
    #[inline]
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        (0..self.n_inputs()).map(|index| match &self.inputs {
            Inputs::Borrowed(inputs) => inputs[index],
            Inputs::Slice(inputs) => &inputs[index],
            Inputs::Owned(inputs) => &inputs[index],
        })
    }

    /// Exchanges a data input (a device that moves tensors before the kernel sees them).
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the node has fewer.
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

    /// Number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.outputs_on_host.len()
    }

    /// Makes output `index`, of this shape and of `T`'s type, and has it filled by `fill`, which
    /// finds whatever was there before and writes every element. For kernels whose device's
    /// memory the host can write.
    ///
    /// # Errors
    /// Those of `fill`; [`KernelError`] if there is not enough memory, and if the node has fewer
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

    /// The same for any type of elements of fixed size, as bytes; booleans are 0 or 1.
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
        check_rank(shape)?;
        let fill = |bytes: &mut [u8]| {
            if cfg!(debug_assertions) {
                bytes.fill(UNWRITTEN);
            }
            fill(bytes)
        };
        let mut outputs = self.outputs.borrow_mut();
        let slots = outputs.slots();
        let n_outputs = slots.len();
        let slot = slots.get_mut(index);
        let slot = slot.ok_or_else(|| no_such_output(index, n_outputs))?;
        if !slot.is_forwarded
            && let Some(planned) = slot.planned_as(dtype, shape)
        {
            return fill(planned.as_bytes_mut().ok_or(TensorError::NotOnHost)?);
        }
        let mut tensor = self.allocate_output(index, dtype, shape.clone())?;
        fill(tensor.as_bytes_mut().ok_or(TensorError::NotOnHost)?)?;
        slot.set_own(tensor);
        Ok(())
    }

    /// Changes output `index`, which is set already, in its place; `update` gets its shape and
    /// elements.
    ///
    /// # Errors
    /// Those of `update`; [`KernelError`] if the output is not set, or of another type, or not this
    /// kernel's alone, or not where the host can write.
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
            OutputState::Unset => None,
            OutputState::Planned => slot.planned.as_mut(),
            OutputState::Own => slot.own.as_deref_mut(),
        };
        let tensor = tensor.ok_or_else(|| unset_output(index))?;
        let shape = tensor.shape().clone();
        let elements = tensor.as_slice_mut::<T>().ok_or(TensorError::NotOnHost)?;
        update(&shape, elements)
    }

    /// Hands on input `input` as output `output`, under another shape with as many elements. The
    /// bytes are shared where they can be.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] for another number of elements, and if the node has no such
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

    /// A tensor of zeroes for output `index`, in the memory where that output belongs; hand it over
    /// with [`Self::set_output`]. [`Self::fill_output`] is faster: it knows where the output
    /// should stand.
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

    /// Scratch memory of the device, zeroed, for this run: what kernels of the run have done with
    /// is used again.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn allocate_temporary(&self, dtype: DType, shape: Shape) -> Result<Tensor, KernelError> {
        let tensor = match self.step() {
            Some(step) => {
                let allocator: &Arc<dyn Allocator> = step.allocator(self.device);
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

    /// Hands over output `index`.
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

    /// Output `index` as far as it is set: what a device looks at when a kernel has ended.
    pub fn output(&mut self, index: usize) -> Option<&Tensor> {
        self.outputs.get_mut().slots().get(index)?.tensor()
    }

    /// The outputs, once the kernel has ended.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the kernel left one unset.
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

/// Holds that a tensor has no more dimensions than it may.
#[inline]
fn check_rank(shape: &Shape) -> Result<(), KernelError> {
    if shape.rank() <= RANK_MAX {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "the output would have {} dimensions, the most is {RANK_MAX}",
        shape.rank()
    )))
}

#[cold]
fn no_such_output(index: usize, n_outputs: usize) -> KernelError {
    KernelError::invalid(format!("output {index} set, the node has {n_outputs}"))
}

/// The error for an output that a kernel did not set.
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
