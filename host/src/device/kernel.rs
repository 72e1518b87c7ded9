//! Kernels: one op on one device type.

use std::cell::RefCell;
use std::fmt;

use super::error::KernelError;
use super::traits::{AllocatorAttributes, KernelDevice};
use crate::graph::AttrSet;
use crate::tensor::{DType, Element, Shape, Tensor, TensorError};

/// What a kernel finds in its outputs while debugging: NaN in some types, far from 0 in all.
const UNWRITTEN: u8 = 0xff;

/// One op on one device type, made once per node and called once per execution, from any thread.
pub trait Kernel: Send + Sync {
    /// Reads `context.input(i)`, sets every output.
    ///
    /// # Errors
    /// [`KernelError`]; the executor adds node, op, device and shapes.
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError>;

    /// The kernel as one that ends later, if it is one. The executor refuses those when it prepares a plan; what drives them
    /// itself calls [`KernelDevice::compute_async`].
    fn as_async(&self) -> Option<&dyn AsyncKernel> {
        None
    }
}

/// Called when an asynchronous kernel has ended, exactly once.
pub type Done = Box<dyn FnOnce(KernelContext<'static>, Result<(), KernelError>) + Send>;

/// A kernel whose thread does not wait for the result (a receive, a queue).
pub trait AsyncKernel: Kernel {
    /// Starts; calls `done` exactly once, possibly from another thread.
    fn compute_async(&self, context: KernelContext<'static>, done: Done);
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

/// One execution of a kernel.
pub struct KernelContext<'a> {
    device: &'a dyn KernelDevice,
    node: &'a str,
    inputs: Vec<Tensor>,
    outputs: RefCell<Vec<Option<Tensor>>>,
    outputs_on_host: &'a [bool],
}

impl<'a> KernelContext<'a> {
    /// An execution of node `node` on `device`. `outputs_on_host[i]` = output `i` is a host-memory argument.
    pub fn new(
        device: &'a dyn KernelDevice,
        node: &'a str,
        inputs: Vec<Tensor>,
        outputs_on_host: &'a [bool],
    ) -> Self {
        let outputs = RefCell::new(vec![None; outputs_on_host.len()]);
        Self {
            device,
            node,
            inputs,
            outputs,
            outputs_on_host,
        }
    }

    /// The device that runs it.
    pub fn device(&self) -> &'a dyn KernelDevice {
        self.device
    }

    /// Name of the node.
    pub fn node(&self) -> &'a str {
        self.node
    }

    /// Number of data inputs.
    pub fn n_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Data input `index`.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the node has fewer.
    pub fn input(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.inputs.get(index).ok_or_else(|| {
            KernelError::invalid(format!(
                "input {index} is missing, the node has {}",
                self.inputs.len()
            ))
        })
    }

    /// All data inputs, in slot order.
    pub fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    /// The same, to exchange (a device that moves tensors before the kernel sees them).
    pub fn inputs_mut(&mut self) -> &mut [Tensor] {
        &mut self.inputs
    }

    /// Number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.outputs_on_host.len()
    }

    /// Makes output `index`, of this shape and of `T`'s type, and has it filled by `fill`, which finds whatever was there
    /// before and writes every element. For kernels whose device's memory the host can write.
    ///
    /// # Errors
    /// Those of `fill`; [`KernelError`] without room, and if the node has fewer outputs.
    ///
    /// # Panics
    /// If `fill` sets an output itself.
    pub fn fill_output<T: Element>(
        &self,
        index: usize,
        shape: Shape,
        fill: impl FnOnce(&mut [T]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut tensor = self.allocate_output(index, T::DTYPE, shape)?;
        let elements = tensor.as_slice_mut().ok_or(TensorError::NotOnHost)?;
        if cfg!(debug_assertions) {
            bytemuck::cast_slice_mut(elements).fill(UNWRITTEN);
        }
        fill(elements)?;
        self.set_output(index, tensor)
    }

    /// Hands on input `input` as output `output`, under another shape with as many elements. The bytes are shared where
    /// they can be.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] for another number of elements, and if the node has no such input or output.
    pub fn forward_input(
        &self,
        input: usize,
        output: usize,
        shape: Shape,
    ) -> Result<(), KernelError> {
        let tensor = self.input(input)?.reshaped(shape)?;
        self.set_output(output, tensor)
    }

    /// A tensor of zeroes for output `index`, in the memory where that output belongs; hand it over with
    /// [`Self::set_output`].
    ///
    /// # Errors
    /// Without room.
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
        Ok(Tensor::zeros(&*allocator, dtype, shape)?)
    }

    /// Scratch memory of the device.
    ///
    /// # Errors
    /// Without room.
    pub fn allocate_temporary(&self, dtype: DType, shape: Shape) -> Result<Tensor, KernelError> {
        Ok(Tensor::zeros(
            &*self.device.allocator(AllocatorAttributes::default()),
            dtype,
            shape,
        )?)
    }

    /// Hands over output `index`.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the node has fewer outputs.
    pub fn set_output(&self, index: usize, tensor: Tensor) -> Result<(), KernelError> {
        let mut outputs = self.outputs.borrow_mut();
        let n_outputs = outputs.len();
        let slot = outputs.get_mut(index).ok_or_else(|| {
            KernelError::invalid(format!("output {index} set, the node has {n_outputs}"))
        })?;
        *slot = Some(tensor);
        Ok(())
    }

    /// The outputs as far as they are set, in slot order: what a device looks at when a kernel has ended.
    pub fn outputs(&mut self) -> &[Option<Tensor>] {
        self.outputs.get_mut()
    }

    /// The outputs, once the kernel has ended.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the kernel left one unset.
    pub fn into_outputs(self) -> Result<Vec<Tensor>, KernelError> {
        self.outputs
            .into_inner()
            .into_iter()
            .enumerate()
            .map(|(index, tensor)| {
                tensor.ok_or_else(|| {
                    KernelError::invalid(format!("the kernel did not set output {index}"))
                })
            })
            .collect()
    }
}

impl fmt::Debug for KernelContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelContext")
            .field("node", &self.node)
            .field("device", &self.device.attributes().name)
            .field("inputs", &self.inputs)
            .finish_non_exhaustive()
    }
}
