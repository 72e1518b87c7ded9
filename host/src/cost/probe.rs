//! Kernels that are run outside of sessions, to be timed.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use smallvec::SmallVec;

use crate::device::AccessedTensors;
use crate::device::AllocatorAttributes;
use crate::device::DeviceContext;
use crate::device::DeviceRun;
use crate::device::Help;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelCreationError;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::KernelLookupError;
use crate::device::KernelRegistry;
use crate::device::OutputSlot;
use crate::device::OutputState;
use crate::device::Surroundings;
use crate::device::construct_kernel;
use crate::device::unset_output;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::ops::OpRegistry;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// The node that errors name.
const NODE: &str = "calibration";

/// The least time of one timing, reached by repetition, so that the clock and the wait for the
/// device matter little.
const TIMING: Duration = Duration::from_millis(2);

/// Number of timings per median: few enough to be quick, enough to ignore other load on the
/// machine.
const N_TIMINGS: usize = 5;

/// Converts the median absolute deviation to the standard deviation of a normal distribution.
const DEVIATIONS_PER_MAD: f64 = 1.4826;

/// Why an op cannot be timed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("the device has no kernel for it")]
    NoKernel,
    #[error("its kernel is asynchronous; such kernels are not timed")]
    Asynchronous,
    #[error(transparent)]
    Lookup(#[from] KernelLookupError),
    #[error(transparent)]
    Creation(#[from] KernelCreationError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl From<TensorError> for ProbeError {
    fn from(error: TensorError) -> Self {
        Self::Kernel(error.into())
    }
}

/// The number of repetitions within one timing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calls {
    pub(super) min: usize,
    pub(super) max: usize,
}

/// A kernel, with inputs on its device.
pub(super) struct Probe<'a> {
    device: &'a dyn KernelDevice,
    kernel: Box<dyn Kernel>,
    inputs: Vec<Tensor>,
    /// Inputs that are the same in all runs, as the kernel has prepacked them.
    prepacked: Vec<Option<Tensor>>,
    /// Per output, whether it is in host memory.
    outputs_on_host: Vec<bool>,
}

/// The arguments of an op to be timed.
pub(super) struct Question<'a> {
    pub(super) op: &'static str,
    pub(super) attrs: &'a [(&'static str, AttrValue)],
    /// Inputs with the names of their arguments.
    pub(super) inputs: &'a [(&'static str, &'a Tensor)],
}

impl<'a> Probe<'a> {
    /// Creates the device's kernel for an op with an `f32` output. Inputs are copied to the memory
    /// that the kernel reads them from.
    pub(super) fn new(
        device: &'a dyn KernelDevice,
        kernels: &KernelRegistry,
        question: &Question<'_>,
    ) -> Result<Self, ProbeError> {
        let attrs = question.attrs.iter();
        let attrs = AttrSet::new(attrs.map(|(name, value)| (Arc::from(*name), value.clone())));
        let device_type = &device.attributes().device_type;
        let def = kernels.find(question.op, device_type, &attrs)?;
        let def = def.ok_or(ProbeError::NoKernel)?;
        let inputs = question.inputs.iter();
        let input_dtypes: Vec<DType> = inputs.clone().map(|(_, input)| input.dtype()).collect();
        let input_shapes = inputs.clone().map(|(_, input)| input.shape().into());
        let input_shapes: Vec<PartialShape> = input_shapes.collect();
        let construction = KernelConstruction {
            node: NODE,
            op: question.op,
            attrs: &attrs,
            input_dtypes: &input_dtypes,
            input_shapes: &input_shapes,
            output_dtypes: &[DType::F32],
            device,
        };
        let kernel = construct_kernel(kernels, None, &construction)?;
        if kernel.as_async().is_some() {
            return Err(ProbeError::Asynchronous);
        }
        let inputs = inputs.map(|(name, input)| {
            if def.host_memory_args.iter().any(|arg| arg == name) {
                on_host(device, input)
            } else {
                device.default_context().copy_from_host(input)
            }
        });
        Ok(Self {
            device,
            kernel,
            inputs: inputs.collect::<Result<_, _>>()?,
            prepacked: Vec::new(),
            outputs_on_host: vec![false],
        })
    }

    /// Creates the device's kernel for a node whose inputs are placeholders and constants.
    /// Placeholders are fed with small numbers, and constants are prepacked, as in a session.
    pub(super) fn of_node(
        device: &'a dyn KernelDevice,
        kernels: &KernelRegistry,
        graph: &Graph,
        node: NodeId,
    ) -> Result<Self, ProbeError> {
        let (op, attrs) = (graph.op(node), graph.attrs(node));
        let def = kernels.find(op, &device.attributes().device_type, attrs)?;
        let def = def.ok_or(ProbeError::NoKernel)?;
        let dtype = |tensor: TensorId| graph.tensor_dtypes()[tensor.index()];
        let input_dtypes: Vec<DType> = graph.data_inputs(node).map(dtype).collect();
        let shapes = graph.data_inputs(node).map(|it| graph.tensor_shape(it));
        let input_shapes: Vec<PartialShape> = shapes.collect();
        let n_outputs = graph.output_range(node).len();
        let outputs = (0..n_outputs).filter_map(|slot| graph.output(node, slot));
        let output_dtypes: Vec<DType> = outputs.map(dtype).collect();
        let construction = KernelConstruction {
            node: NODE,
            op,
            attrs,
            input_dtypes: &input_dtypes,
            input_shapes: &input_shapes,
            output_dtypes: &output_dtypes,
            device,
        };
        let kernel = construct_kernel(kernels, None, &construction)?;
        if kernel.as_async().is_some() {
            return Err(ProbeError::Asynchronous);
        }
        let ops = OpRegistry::default();
        let signature = ops.get(op);
        let on_host: Vec<&str> = def.host_memory_args.iter().map(|arg| &**arg).collect();
        let host = HostAllocator::new(NODE, u64::MAX);
        let (mut inputs, mut prepacked) = (Vec::new(), Vec::new());
        for (slot, tensor) in graph.data_inputs(node).enumerate() {
            let (producer, _) = graph.producer(tensor);
            let literal = graph.attrs(producer).tensor("value");
            let value = match literal {
                Some(literal) => literal.to_tensor(&host)?,
                None => fed(
                    &host,
                    dtype(tensor),
                    &graph.tensor_shape(tensor),
                    op != "Pow",
                )?,
            };
            let is_host_argument = on_host.iter().any(|arg| {
                let slots = signature.and_then(|op| op.input_range(arg, attrs));
                slots.is_some_and(|slots| slots.contains(&slot))
            });
            let value = match is_host_argument {
                true => self::on_host(device, &value)?,
                false => device.default_context().copy_from_host(&value)?,
            };
            prepacked.push(match literal {
                Some(_) if !is_host_argument => kernel.prepack_input(slot, &value, device)?,
                _ => None,
            });
            inputs.push(value);
        }
        let is_on_host = |slot: usize| {
            on_host.iter().any(|arg| {
                let slots = signature.and_then(|op| op.output_range(arg, attrs));
                slots.is_some_and(|slots| slots.contains(&slot))
            })
        };
        Ok(Self {
            device,
            kernel,
            inputs,
            prepacked,
            outputs_on_host: (0..n_outputs).map(is_on_host).collect(),
        })
    }

    /// Runs the kernel once, up to the point at which a session would continue with the next node.
    /// `place` is an earlier output without readers. As in a session, the new output may reuse its
    /// memory, so that timings do not mostly measure allocation.
    pub(super) fn run(&self, place: Option<Tensor>) -> Result<Tensor, KernelError> {
        self.run_on(&self.inputs, place)
    }

    /// Runs the kernel on other inputs of the same types and shapes.
    pub(super) fn run_on(
        &self,
        inputs: &[Tensor],
        place: Option<Tensor>,
    ) -> Result<Tensor, KernelError> {
        let records = self.device.records_accessed_tensors();
        let around = Alone {
            temporaries: records.then(RefCell::default),
        };
        let output = self.execute(&*self.kernel, inputs, place, &around)?;
        let output = match output.state {
            OutputState::Unset | OutputState::Dead => None,
            OutputState::Planned => output.planned,
            OutputState::Own => output.own.map(|own| *own),
        };
        let output = output.ok_or_else(|| unset_output(0))?;
        if let Some(temporaries) = around.temporaries {
            let mut accessed = temporaries.into_inner();
            accessed.extend(inputs.iter().cloned());
            accessed.push(output.clone());
            let context = self.device.default_context();
            self.device
                .consume_accessed_tensors(&**context, AccessedTensors(accessed));
        }
        Ok(output)
    }

    /// Returns what [`Self::run`] takes besides the kernel, in ns: the executor prepares a call in
    /// another way. 0 for devices whose work continues after a call, since it hides that.
    pub(super) fn call_ns(&self, calls: Calls, budget: Duration) -> Result<f64, KernelError> {
        if self.device.records_accessed_tensors() {
            return Ok(0.0);
        }
        let around = Alone { temporaries: None };
        let mut place = Some(self.run(None)?);
        median_ns(self.device, calls, budget, || {
            place = self
                .execute(&Nothing, &self.inputs, place.take(), &around)?
                .planned;
            Ok(())
        })
    }

    /// Calls a kernel, and returns its first output.
    fn execute(
        &self,
        kernel: &dyn Kernel,
        inputs: &[Tensor],
        place: Option<Tensor>,
        around: &Alone,
    ) -> Result<OutputSlot, KernelError> {
        // A device that records its work may still be using the memory; sessions allocate new
        // memory for such devices each time. Memory with other owners, such as a kernel that
        // forwards its input, must not be written.
        let place = place.filter(|_| around.temporaries.is_none());
        let place = place.and_then(|mut place| place.as_bytes_mut().is_some().then_some(place));
        let mut outputs: SmallVec<[OutputSlot; 1]> = SmallVec::new();
        outputs.push(OutputSlot {
            planned: place,
            ..OutputSlot::default()
        });
        outputs.resize_with(self.outputs_on_host.len(), OutputSlot::default);
        // Runs use spinning workers where that pays.
        if let Some(pool) = self.device.intra_op_pool() {
            pool.start_spinning(|| |_| true);
        }
        let mut context = KernelContext::on_tensors(
            self.device,
            inputs,
            &self.prepacked,
            &mut outputs,
            &self.outputs_on_host,
            Help::Spinning,
            around,
        );
        self.device.compute(kernel, &mut context)?;
        drop(context);
        Ok(outputs.swap_remove(0))
    }

    /// The inputs, in the memory that the kernel reads them from.
    pub(super) fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }
}

/// Timings of one kind of call, in ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    pub(super) ns: f64,
    /// Standard deviation, without single slow timings.
    pub(super) spread_ns: f64,
    /// What the timings took, without the first call.
    pub(super) took: Duration,
}

/// Returns the median time of one `call`, in ns, including all work that it starts on the device.
pub(super) fn median_ns(
    device: &dyn KernelDevice,
    calls: Calls,
    budget: Duration,
    call: impl FnMut() -> Result<(), KernelError>,
) -> Result<f64, KernelError> {
    Ok(timed(device, calls, budget, call)?.ns)
}

/// Times one `call`, including all work that it starts on the device. One call comes first, so that
/// compilation and allocation at the first call do not count, neither in the timings nor in
/// `budget`. Stops after about that time, but not before the first timing.
pub(super) fn timed(
    device: &dyn KernelDevice,
    calls: Calls,
    budget: Duration,
    mut call: impl FnMut() -> Result<(), KernelError>,
) -> Result<Timed, KernelError> {
    let mut time = |n_calls: usize| -> Result<Duration, KernelError> {
        device.sync()?;
        let started = Instant::now();
        for _ in 0..n_calls {
            call()?;
        }
        device.sync()?;
        Ok(started.elapsed())
    };
    time(1)?;
    let started = Instant::now();
    let one = time(1)?.max(Duration::from_nanos(1));
    let wanted = TIMING.as_nanos() / one.as_nanos() + 1;
    let n_calls = usize::try_from(wanted).unwrap_or(usize::MAX);
    let n_calls = n_calls.min(calls.max).max(calls.min).max(1);
    let mut timings = Vec::with_capacity(N_TIMINGS);
    while timings.is_empty() || (timings.len() < N_TIMINGS && started.elapsed() < budget) {
        timings.push(nanoseconds(time(n_calls)?) / to_f64(n_calls));
    }
    // A clock that does not advance would make rates infinite.
    let ns = median(timings.clone()).max(0.1);
    Ok(Timed {
        ns,
        spread_ns: deviation(&timings, ns),
        took: started.elapsed(),
    })
}

/// The standard deviation from a median, estimated without single distant values.
pub(super) fn deviation(values: &[f64], median_of_values: f64) -> f64 {
    let deviations = values.iter().map(|value| (value - median_of_values).abs());
    DEVIATIONS_PER_MAD * median(deviations.collect())
}

/// The median; 0 if there are no values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^53")]
pub(super) fn to_f64(n: usize) -> f64 {
    n as f64
}

pub(super) fn nanoseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

/// A copy in the host memory from which this device's kernels read arguments.
fn on_host(device: &dyn KernelDevice, tensor: &Tensor) -> Result<Tensor, KernelError> {
    let allocator = device.allocator(AllocatorAttributes {
        on_host: true,
        gpu_compatible: false,
    });
    let mut copy = Tensor::zeros(&*allocator, tensor.dtype(), tensor.shape().clone())?;
    copy.as_bytes_mut()
        .ok_or(TensorError::NotOnHost)?
        .copy_from_slice(tensor.as_bytes()?);
    Ok(copy)
}

/// Returns a tensor of irregular numbers from -2 to 2, or from 0.5 to 2 unless `is_signed`: powers
/// of negative ones are not numbers. Some kernels have branches, which a processor foresees for
/// regular numbers and not for those of a network.
fn fed(
    host: &HostAllocator,
    dtype: DType,
    shape: &PartialShape,
    is_signed: bool,
) -> Result<Tensor, ProbeError> {
    let dims = shape.dims().unwrap_or_default();
    let dims: Vec<usize> = dims.iter().map(|dim| dim.unwrap_or(1)).collect();
    let mut tensor = Tensor::zeros(host, dtype, Shape::from(&*dims))?;
    if let Some(values) = tensor.as_slice_mut::<f32>() {
        for (index, value) in (0u32..).zip(values) {
            let bits =
                index.wrapping_mul(0x9e37_79b9) ^ index.wrapping_mul(0x85eb_ca6b).rotate_left(13);
            let mixed = bits.wrapping_mul(0xc2b2_ae35) >> 16;
            let part = f32::from(u16::try_from(mixed).unwrap_or(0)) / 65_536.0;
            *value = if is_signed {
                4.0 * part - 2.0
            } else {
                0.5 + 1.5 * part
            };
        }
    }
    Ok(tensor)
}

/// A kernel that does nothing.
struct Nothing;

impl Kernel for Nothing {
    fn compute(&self, _: &mut KernelContext<'_>) -> Result<(), KernelError> {
        Ok(())
    }
}

/// An execution outside of runs.
struct Alone {
    temporaries: Option<RefCell<Vec<Tensor>>>,
}

impl Surroundings for Alone {
    fn node(&self) -> &str {
        NODE
    }

    fn device_run(&self) -> Option<&DeviceRun> {
        None
    }

    fn context(&self) -> Option<&Arc<dyn DeviceContext>> {
        None
    }

    fn temporaries(&self) -> Option<&RefCell<Vec<Tensor>>> {
        self.temporaries.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(vec![2.0, 1.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
