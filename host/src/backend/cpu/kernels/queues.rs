//! Ops on queues and staging areas.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::elements::joined;
use crate::backend::cpu::kernels::elements::kept_input;
use crate::backend::cpu::kernels::elements::of_rows;
use crate::backend::cpu::kernels::elements::part;
use crate::backend::cpu::kernels::elements::rows;
use crate::backend::cpu::kernels::elements::zeros;
use crate::backend::cpu::kernels::queue::Action;
use crate::backend::cpu::kernels::queue::Declaration;
use crate::backend::cpu::kernels::queue::Order;
use crate::backend::cpu::kernels::queue::Output;
use crate::backend::cpu::kernels::queue::Queue;
use crate::backend::cpu::kernels::queue::Take;
use crate::backend::cpu::kernels::queue::Tuple;
use crate::backend::cpu::kernels::random::seeded_generator;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::value::scalar;
use crate::device::AsyncKernel;
use crate::device::AsyncKernelContext;
use crate::device::ContainerInfo;
use crate::device::Done;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::device::make_resource_handle;
use crate::graph::AttrValue;
use crate::kernels::philox::Philox;
use crate::kernels::philox::Singles;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in [
        "FIFOQueueV2",
        "PaddingFIFOQueueV2",
        "RandomShuffleQueueV2",
        "PriorityQueueV2",
    ] {
        registry.register(def(op).with_factory(queue));
    }
    registry.register(def("QueueEnqueueV2").with_factory(|_| started(enqueue)));
    registry.register(def("QueueEnqueueManyV2").with_factory(|_| started(enqueue_many)));
    registry.register(def("QueueDequeueV2").with_factory(|_| started(dequeue)));
    for (op, may_be_fewer) in [("QueueDequeueManyV2", false), ("QueueDequeueUpToV2", true)] {
        registry
            .register(def(op).with_factory(move |_| {
                started(move |context| dequeue_many(context, may_be_fewer))
            }));
    }
    registry.register(def("QueueCloseV2").with_factory(close));
    registry.register(def("QueueSizeV2").with_factory(|_| {
        kernel(|context| set_count(context, context.resource::<Queue>(0)?.n_elements()))
    }));
    registry.register(def("QueueIsClosedV2").with_factory(|_| {
        kernel(|context| {
            let is_closed = context.resource::<Queue>(0)?.is_closed();
            context.fill_output_bytes(0, DType::Bool, &Shape::scalar(), |bytes| {
                bytes.fill(u8::from(is_closed));
                Ok(())
            })
        })
    }));
    registry.register(def("Stage").with_factory(|node| staged(node, stage)));
    registry.register(def("Unstage").with_factory(|node| staged(node, unstage)));
    registry.register(def("StagePeek").with_factory(|node| staged(node, stage_peek)));
    registry.register(def("StageSize").with_factory(|node| {
        let area = Area::new(node)?;
        kernel(move |context| set_count(context, area.queue(context)?.n_elements()))
    }));
    registry.register(def("StageClear").with_factory(|node| {
        let area = Area::new(node)?;
        kernel(move |context| {
            area.queue(context)?.clear();
            Ok(())
        })
    }));
}

fn set_count(context: &KernelContext<'_>, n: usize) -> Result<(), KernelError> {
    let n = i32::try_from(n).unwrap_or(i32::MAX);
    context.fill_output(0, &Shape::scalar(), |out: &mut [i32]| {
        out.fill(n);
        Ok(())
    })
}

/// What an execution asks of which queue, and how it returns the elements.
type Request = (Arc<Queue>, Action, Output);

/// A kernel that waits for its queue.
struct Started<F>(F);

impl<F> Kernel for Started<F>
where
    F: Fn(&KernelContext<'_>) -> Result<Request, KernelError> + Send + Sync,
{
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        Err(KernelError::invalid(format!(
            "node `{}` waits for a queue, and must be started as an asynchronous kernel",
            context.node()
        )))
    }

    fn as_async(&self) -> Option<&dyn AsyncKernel> {
        Some(self)
    }
}

impl<F> AsyncKernel for Started<F>
where
    F: Fn(&KernelContext<'_>) -> Result<Request, KernelError> + Send + Sync,
{
    fn compute_async(&self, mut context: AsyncKernelContext, done: Done) {
        let request = (self.0)(&context.kernel_context());
        match request {
            Ok((queue, action, output)) => queue.start(action, output, context, done),
            Err(error) => done.call(context, Err(error)),
        }
    }
}

fn started<F>(request: F) -> Made
where
    F: Fn(&KernelContext<'_>) -> Result<Request, KernelError> + Send + Sync + 'static,
{
    Ok(Box::new(Started(request)))
}

/// Returns the shapes of an attribute; unknown ones for anything else.
fn shapes_attr(node: &KernelConstruction<'_>) -> Vec<PartialShape> {
    let shapes = node.attrs.list("shapes").unwrap_or_default().iter();
    let shape = |value: &AttrValue| match value {
        AttrValue::Shape(shape) => shape.clone(),
        _ => PartialShape::unknown(),
    };
    shapes.map(shape).collect()
}

/// TensorFlow `FIFOQueueV2`, `PaddingFIFOQueueV2`, `RandomShuffleQueueV2` and `PriorityQueueV2`.
fn queue(node: &KernelConstruction<'_>) -> Made {
    let capacity = int_attr(node, "capacity", Some(-1))?;
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    let order = match node.op {
        "FIFOQueueV2" => Order::Fifo,
        "PaddingFIFOQueueV2" => Order::Padding,
        "PriorityQueueV2" => Order::Priority,
        _ => {
            let kept = int_attr(node, "min_after_dequeue", Some(0))?;
            let n_kept = usize::try_from(kept).map_err(|_| {
                KernelError::invalid(format!("min_after_dequeue {kept} must be >= 0"))
            })?;
            if n_kept >= capacity {
                return Err(KernelError::invalid(format!(
                    "min_after_dequeue {n_kept} must be < capacity {capacity}"
                )));
            }
            Order::Shuffled { n_kept }
        }
    };
    let mut dtypes = node.attrs.dtypes("component_types").unwrap_or_default();
    let mut shapes = shapes_attr(node);
    if order == Order::Priority {
        dtypes.insert(0, DType::I64);
        if !shapes.is_empty() || dtypes.len() == 1 {
            shapes.insert(0, PartialShape::scalar());
        }
    }
    if !shapes.is_empty() && shapes.len() != dtypes.len() {
        return Err(KernelError::invalid(format!(
            "different number of component types ({}) and shapes ({})",
            dtypes.len(),
            shapes.len()
        )));
    }
    if order == Order::Padding && shapes.is_empty() {
        return Err(KernelError::invalid(
            "shapes must be provided if component types are provided: a PaddingFIFOQueue pads to \
             them",
        ));
    }
    let declaration = Declaration {
        order,
        dtypes,
        shapes,
        capacity,
    };
    let generator = seeded_generator(node)?;
    let manager = node.device.resource_manager()?;
    let info = ContainerInfo::resolve(manager, node.node, node.attrs, true)?;
    let device = &node.device.attributes().name;
    let handle = make_resource_handle::<Queue>(device, &info, Vec::new());
    let handle = Tensor::from_handle(handle);
    kernel(move |context| {
        let queue =
            context
                .resource_manager()?
                .lookup_or_create(&info.container, &info.name, || {
                    let generator = Singles::new(generator);
                    Ok::<_, KernelError>(Queue::new(
                        info.name.clone(),
                        declaration.clone(),
                        generator,
                    ))
                })?;
        if queue.declaration != declaration {
            return Err(KernelError::invalid(format!(
                "shared queue '{}' has {:?}, but the node requests {declaration:?}",
                info.name, queue.declaration
            )));
        }
        context.set_output(0, handle.clone())
    })
}

/// Returns the tensors of inputs from `first` on, checked against what the queue holds. `is_batch`:
/// whether their first dimension is the number of elements.
fn components(
    context: &KernelContext<'_>,
    queue: &Queue,
    is_batch: bool,
) -> Result<Tuple, KernelError> {
    let declaration = &queue.declaration;
    let n_given = context.n_inputs().saturating_sub(1);
    if n_given != declaration.dtypes.len() {
        return Err(KernelError::invalid(format!(
            "wrong number of components in tuple. Expected {}, got {n_given}",
            declaration.dtypes.len()
        )));
    }
    let mut tuple = Vec::with_capacity(n_given);
    for (index, &dtype) in declaration.dtypes.iter().enumerate() {
        let tensor = kept_input(context, index + 1)?;
        if tensor.dtype() != dtype {
            return Err(KernelError::invalid(format!(
                "type mismatch in tuple component {index}. Expected {dtype}, got {}",
                tensor.dtype()
            )));
        }
        let shape = match is_batch {
            true => rows(&tensor, "a component of many elements")?.1,
            false => tensor.shape().clone(),
        };
        if let Some(expected) = declaration.shapes.get(index)
            && !expected.matches(&shape)
        {
            return Err(KernelError::invalid(format!(
                "shape mismatch in tuple component {index}. Expected {expected}, got {shape}"
            )));
        }
        tuple.push(tensor);
    }
    Ok(tuple)
}

/// For executions without outputs.
fn nothing(_: &Queue, _: &mut AsyncKernelContext, _: &[Tuple]) -> Result<(), KernelError> {
    Ok(())
}

/// TensorFlow `QueueEnqueueV2`.
fn enqueue(context: &KernelContext<'_>) -> Result<Request, KernelError> {
    let queue = context.resource::<Queue>(0)?;
    let tuple = components(context, &queue, false)?;
    Ok((queue, Action::Add([tuple].into()), nothing))
}

/// TensorFlow `QueueEnqueueManyV2`.
fn enqueue_many(context: &KernelContext<'_>) -> Result<Request, KernelError> {
    let queue = context.resource::<Queue>(0)?;
    let batches = components(context, &queue, true)?;
    let n_elements = |batch: &Tensor| batch.shape().dims().first().copied().unwrap_or(0);
    let n = batches.first().map_or(0, n_elements);
    if let Some(index) = batches.iter().position(|batch| n_elements(batch) != n) {
        return Err(KernelError::invalid(format!(
            "all input tensors must have the same size in the 0th dimension. Component {index} \
             has {}, and should have {n}",
            n_elements(&batches[index])
        )));
    }
    let mut elements = scratch::list(n)?;
    for row in 0..n {
        let tensors = batches.iter().map(|batch| {
            let (_, shape) = rows(batch, "a component of many elements")?;
            part(context, batch, row * shape.n_elements(), &shape)
        });
        elements.push(tensors.collect::<Result<Tuple, _>>()?);
    }
    Ok((queue, Action::Add(elements.into()), nothing))
}

/// Returns a queue whose elements have the types of the node's outputs.
fn queue_of_outputs(context: &KernelContext<'_>) -> Result<Arc<Queue>, KernelError> {
    let queue = context.resource::<Queue>(0)?;
    let n_components = queue.declaration.dtypes.len();
    if n_components != context.n_outputs() {
        return Err(KernelError::invalid(format!(
            "the node has {} outputs, but the elements of queue '{}' have {n_components} \
             components",
            context.n_outputs(),
            queue.name
        )));
    }
    Ok(queue)
}

/// TensorFlow `QueueDequeueV2`.
fn dequeue(context: &KernelContext<'_>) -> Result<Request, KernelError> {
    let take = Take {
        n_wanted: 1,
        may_be_fewer: false,
        taken: Vec::new(),
    };
    Ok((queue_of_outputs(context)?, Action::Take(take), set_one))
}

/// Sets the outputs to the components of an element.
fn set_one(
    _: &Queue,
    context: &mut AsyncKernelContext,
    elements: &[Tuple],
) -> Result<(), KernelError> {
    let context = context.kernel_context();
    for (index, tensor) in elements.iter().flatten().enumerate() {
        context.set_output(index, tensor.clone())?;
    }
    Ok(())
}

/// TensorFlow `QueueDequeueManyV2` and `QueueDequeueUpToV2`.
fn dequeue_many(context: &KernelContext<'_>, may_be_fewer: bool) -> Result<Request, KernelError> {
    let queue = queue_of_outputs(context)?;
    let n = scalar(context.input(1)?, "n")?;
    let n_wanted = usize::try_from(n).map_err(|_| {
        KernelError::invalid(format!(
            "requested {n} < 0 elements of queue '{}'",
            queue.name
        ))
    })?;
    let has_shapes = queue.declaration.shapes.iter().all(|shape| {
        let is_known = |dims: &[Option<usize>]| dims.iter().all(Option::is_some);
        shape.dims().is_some_and(is_known) || queue.declaration.order == Order::Padding
    });
    if queue.declaration.shapes.is_empty() || !has_shapes {
        return Err(KernelError::invalid(format!(
            "the components of queue '{}' must have specified shapes for QueueDequeueMany and \
             QueueDequeueUpTo",
            queue.name
        )));
    }
    let take = Take {
        n_wanted,
        may_be_fewer,
        taken: Vec::new(),
    };
    Ok((queue, Action::Take(take), set_many))
}

/// Sets each output to one component of all elements.
fn set_many(
    queue: &Queue,
    context: &mut AsyncKernelContext,
    elements: &[Tuple],
) -> Result<(), KernelError> {
    let context = &context.kernel_context();
    let declaration = &queue.declaration;
    for (index, (&dtype, shape)) in declaration
        .dtypes
        .iter()
        .zip(&declaration.shapes)
        .enumerate()
    {
        let tensors = || elements.iter().filter_map(|element| element.get(index));
        // Without elements, dimensions that are not known are 0.
        let mut row: SmallVec<[usize; 6]> = shape
            .dims()
            .unwrap_or_default()
            .iter()
            .map(|dim| dim.unwrap_or(0))
            .collect();
        for tensor in tensors() {
            for (largest, &dim) in row.iter_mut().zip(tensor.shape().dims()) {
                *largest = dim.max(*largest);
            }
        }
        let row = Shape::new(&row);
        let mut equal = scratch::list(elements.len())?;
        for tensor in tensors() {
            equal.push(padded(context, tensor.clone(), &row)?);
        }
        joined(
            context,
            index,
            dtype,
            &of_rows(elements.len(), &row),
            &equal,
        )?;
    }
    Ok(())
}

/// Returns a tensor of this shape, which is not smaller, with zeros behind its elements.
fn padded(
    context: &KernelContext<'_>,
    tensor: Tensor,
    shape: &Shape,
) -> Result<Tensor, KernelError> {
    if tensor.shape() == shape {
        return Ok(tensor);
    }
    let dims = tensor.shape().dims();
    let row = dims.last().copied().unwrap_or(1);
    let n_rows = tensor.shape().n_elements().checked_div(row).unwrap_or(0);
    // The position in the result of each row of the tensor.
    let position = |mut index: usize| {
        let (mut position, mut stride) = (0, shape.dims().last().copied().unwrap_or(1));
        let axes = dims.iter().zip(shape.dims()).rev().skip(1);
        for (&dim, &larger) in axes {
            position += index % dim * stride;
            index /= dim;
            stride *= larger;
        }
        position
    };
    let mut result = zeros(context, tensor.dtype(), shape)?;
    let Some(size) = tensor.dtype().size_bytes() else {
        let mut strings = scratch::collected(result.as_strings()?.iter().cloned())?;
        for (index, from) in tensor.as_strings()?.chunks_exact(row.max(1)).enumerate() {
            strings[position(index)..][..row].clone_from_slice(from);
        }
        return Ok(Tensor::from_strings(shape.clone(), strings)?);
    };
    let from = tensor.as_bytes()?;
    let to = result.as_bytes_mut().ok_or(TensorError::NotOnHost)?;
    for index in 0..n_rows {
        let bytes = &from[index * row * size..][..row * size];
        to[position(index) * size..][..row * size].copy_from_slice(bytes);
    }
    Ok(result)
}

/// TensorFlow `QueueCloseV2`.
fn close(node: &KernelConstruction<'_>) -> Made {
    if bool_attr(node, "cancel_pending_enqueues", false)? {
        return kernel(|context| {
            context.resource::<Queue>(0)?.close_and_cancel();
            Ok(())
        });
    }
    started(|context| Ok((context.resource::<Queue>(0)?, Action::Close, nothing)))
}

/// The staging area of a node: nodes of one `shared_name` share it.
#[derive(Debug, Clone)]
struct Area {
    info: ContainerInfo,
    declaration: Declaration,
}

impl Area {
    fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let limit = |name: &str| -> Result<usize, KernelError> {
            let limit = int_attr(node, name, Some(0))?;
            usize::try_from(limit)
                .map_err(|_| KernelError::invalid(format!("{name} is {limit}, which is negative")))
        };
        let bytes_max = limit("memory_limit")?;
        let capacity = match limit("capacity")? {
            0 => usize::MAX,
            capacity => capacity,
        };
        let manager = node.device.resource_manager()?;
        Ok(Self {
            info: ContainerInfo::resolve(manager, node.node, node.attrs, true)?,
            declaration: Declaration {
                order: Order::Staged { bytes_max },
                dtypes: Vec::new(),
                shapes: Vec::new(),
                capacity,
            },
        })
    }

    /// Returns the area; the first node that uses it sets its limits.
    fn queue(&self, context: &KernelContext<'_>) -> Result<Arc<Queue>, KernelError> {
        let (container, name) = (&self.info.container, &self.info.name);
        // Queues and areas are one type, but have no name in common.
        let name = format!("{name}/staging_area");
        context
            .resource_manager()?
            .lookup_or_create(container, &name, || {
                let generator = Singles::new(Philox::from_seeds(0, 0));
                let name = self.info.name.clone();
                Ok(Queue::new(name, self.declaration.clone(), generator))
            })
    }
}

/// Makes the kernel of an op on a staging area.
fn staged(
    node: &KernelConstruction<'_>,
    request: fn(&KernelContext<'_>, Arc<Queue>) -> Result<Request, KernelError>,
) -> Made {
    let area = Area::new(node)?;
    started(move |context| request(context, area.queue(context)?))
}

/// TensorFlow `Stage`.
fn stage(context: &KernelContext<'_>, area: Arc<Queue>) -> Result<Request, KernelError> {
    let tensors = (0..context.n_inputs()).map(|index| kept_input(context, index));
    let tuple: Tuple = tensors.collect::<Result<_, _>>()?;
    let n_bytes: usize = tuple.iter().map(Tensor::len_bytes).sum();
    if let Order::Staged { bytes_max } = area.declaration.order
        && bytes_max > 0
        && n_bytes > bytes_max
    {
        return Err(KernelError::invalid(format!(
            "attempted to insert tensors with combined size of {n_bytes} bytes into staging area \
             '{}' with a memory limit of {bytes_max}",
            area.name
        )));
    }
    Ok((area, Action::Add([tuple].into()), nothing))
}

/// TensorFlow `Unstage`.
fn unstage(_: &KernelContext<'_>, area: Arc<Queue>) -> Result<Request, KernelError> {
    let take = Take {
        n_wanted: 1,
        may_be_fewer: false,
        taken: Vec::new(),
    };
    Ok((area, Action::Take(take), set_staged))
}

/// TensorFlow `StagePeek`.
fn stage_peek(context: &KernelContext<'_>, area: Arc<Queue>) -> Result<Request, KernelError> {
    let index = scalar(context.input(0)?, "index")?;
    let index = usize::try_from(index)
        .map_err(|_| KernelError::invalid(format!("index {index} is negative")))?;
    Ok((area, Action::Peek(index), set_staged))
}

/// Sets the outputs to the tensors of an element, which are as many.
fn set_staged(
    area: &Queue,
    context: &mut AsyncKernelContext,
    elements: &[Tuple],
) -> Result<(), KernelError> {
    let n_outputs = context.kernel_context().n_outputs();
    let n_tensors = elements.iter().flatten().count();
    if n_tensors != n_outputs {
        return Err(KernelError::invalid(format!(
            "mismatch stage/unstage: {n_tensors} vs. {n_outputs} tensors in staging area '{}'",
            area.name
        )));
    }
    set_one(area, context, elements)
}
