//! Arrays and stacks of tensors, which loops of TensorFlow 1 fill and read (`tensor_array_ops.cc`,
//! `stack_ops.cc`). They are resources that end with the run.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::elements::LEN_MAX;
use crate::backend::cpu::kernels::elements::checked_len;
use crate::backend::cpu::kernels::elements::concatenated;
use crate::backend::cpu::kernels::elements::element_types;
use crate::backend::cpu::kernels::elements::joined;
use crate::backend::cpu::kernels::elements::kept_input;
use crate::backend::cpu::kernels::elements::of_rows;
use crate::backend::cpu::kernels::elements::part;
use crate::backend::cpu::kernels::elements::pieces;
use crate::backend::cpu::kernels::elements::rows;
use crate::backend::cpu::kernels::elements::vector;
use crate::backend::cpu::kernels::elements::zeros;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::scalar;
use crate::device::ContainerInfo;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::device::Resource;
use crate::device::make_resource_handle;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    let types = element_types();
    let of = |op: &str, attr: &str| -> KernelDef { def(op).with_types(attr, &types) };
    registry.register(of("TensorArrayV3", "dtype").with_factory(array));
    registry.register(of("TensorArrayWriteV3", "T").with_factory(|_| kernel(write)));
    registry.register(of("TensorArrayReadV3", "dtype").with_factory(read));
    registry.register(of("TensorArrayGatherV3", "dtype").with_factory(gather));
    registry.register(of("TensorArrayScatterV3", "T").with_factory(|_| kernel(scatter)));
    registry.register(of("TensorArrayConcatV3", "dtype").with_factory(concat));
    registry.register(of("TensorArraySplitV3", "T").with_factory(|_| kernel(split)));
    registry.register(def("TensorArraySizeV3").with_factory(|_| kernel(size)));
    registry.register(def("TensorArrayCloseV3").with_factory(|_| kernel(close)));
    registry.register(of("StackV2", "elem_type").with_factory(stack));
    registry.register(of("StackPushV2", "T").with_factory(|_| kernel(push)));
    registry.register(of("StackPopV2", "elem_type").with_factory(pop));
    registry.register(def("StackCloseV2").with_factory(|_| kernel(close_stack)));
}

/// Returns a name that no other resource of the run has.
fn unique_name(kind: &str) -> String {
    // Only identities: runs share no other state through it.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("_{kind}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Adds a resource to the run, and returns its handle.
fn created<R: Resource>(
    context: &KernelContext<'_>,
    kind: &str,
    resource: R,
) -> Result<Tensor, KernelError> {
    let info = ContainerInfo {
        container: context.run_container()?.to_owned(),
        name: unique_name(kind),
        is_private_to_kernel: false,
    };
    let manager = context.resource_manager()?;
    manager.create(&info.container, &info.name, Arc::new(resource))?;
    let device = &context.device().attributes().name;
    Ok(Tensor::from_handle(make_resource_handle::<R>(
        device,
        &info,
        Vec::new(),
    )))
}

/// An array of tensors. Each element is written once.
#[derive(Debug)]
struct TensorArray {
    dtype: DType,
    may_grow: bool,
    clears_after_read: bool,
    has_equal_shapes: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    element_shape: PartialShape,
    elements: Vec<Element>,
    is_closed: bool,
}

#[derive(Debug, Clone, Default)]
struct Element {
    tensor: Option<Tensor>,
    is_written: bool,
    is_read: bool,
    is_cleared: bool,
}

impl Resource for TensorArray {
    fn describe(&self) -> String {
        let state = self.lock();
        format!(
            "array of {} tensors of {}, {}",
            state.elements.len(),
            self.dtype,
            state.element_shape
        )
    }

    fn memory_bytes(&self) -> u64 {
        let state = self.lock();
        let tensors = state
            .elements
            .iter()
            .filter_map(|element| element.tensor.as_ref());
        tensors.map(|tensor| tensor.len_bytes() as u64).sum()
    }
}

impl TensorArray {
    /// Ignores poisoning: each change is complete when the lock is released.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of an array that is not closed.
    fn open(&self) -> Result<MutexGuard<'_, State>, KernelError> {
        let state = self.lock();
        if state.is_closed {
            return Err(KernelError::invalid("the array has been closed"));
        }
        Ok(state)
    }

    fn check_type(&self, dtype: DType) -> Result<(), KernelError> {
        if self.dtype == dtype {
            return Ok(());
        }
        Err(KernelError::invalid(format!(
            "the array has elements of type {}, the op is for {dtype}",
            self.dtype
        )))
    }

    /// Makes room for an element that is written.
    fn reserve(&self, state: &mut State, index: i64) -> Result<usize, KernelError> {
        let len = state.elements.len();
        let position = usize::try_from(index).ok();
        if let Some(position) = position.filter(|&position| position < len) {
            return Ok(position);
        }
        if index < 0 || !self.may_grow {
            let fixed = if self.may_grow {
                ""
            } else {
                ", which cannot grow"
            };
            return Err(KernelError::invalid(format!(
                "trying to write element {index} of an array of size {len}{fixed}"
            )));
        }
        let len = checked_len(index.saturating_add(1), "the size of the array")?;
        state.grow(len)?;
        Ok(len - 1)
    }

    fn write(&self, state: &mut State, index: i64, tensor: Tensor) -> Result<(), KernelError> {
        self.check_type(tensor.dtype())?;
        let position = self.reserve(state, index)?;
        let shape = tensor.shape();
        if !state.element_shape.matches(shape) {
            return Err(KernelError::invalid(format!(
                "element {index} has shape {shape}, but the elements of the array have shape {}",
                state.element_shape
            )));
        }
        if self.has_equal_shapes && state.element_shape.to_shape().is_none() {
            state.element_shape = PartialShape::from(shape);
        }
        let element = &mut state.elements[position];
        if element.is_read {
            return Err(KernelError::invalid(format!(
                "element {index} of the array cannot be written: it was read before"
            )));
        }
        if element.is_written {
            return Err(KernelError::invalid(format!(
                "element {index} of the array cannot be written twice"
            )));
        }
        element.is_written = true;
        element.tensor = Some(tensor);
        Ok(())
    }

    fn read(
        &self,
        context: &KernelContext<'_>,
        state: &mut State,
        index: i64,
    ) -> Result<Tensor, KernelError> {
        let len = state.elements.len();
        let position = usize::try_from(index)
            .ok()
            .filter(|&position| position < len);
        let position = position.ok_or_else(|| {
            KernelError::invalid(format!(
                "trying to read element {index} of an array of size {len}"
            ))
        })?;
        let element = &mut state.elements[position];
        if element.is_cleared {
            return Err(KernelError::invalid(format!(
                "element {index} of the array cannot be read twice: it was cleared after the first \
                 read; the attribute `clear_after_read` of the array may be false"
            )));
        }
        let tensor = match element.tensor.clone() {
            Some(tensor) => tensor,
            None => {
                let shape = state.element_shape.to_shape().ok_or_else(|| {
                    KernelError::invalid(format!(
                        "element {index} of the array was not written, and its shape is only known \
                         as {}",
                        state.element_shape
                    ))
                })?;
                zeros(context, self.dtype, &shape)?
            }
        };
        element.is_read = true;
        if self.clears_after_read {
            element.tensor = None;
            element.is_cleared = true;
        }
        Ok(tensor)
    }

    /// Reads several elements.
    fn read_all(
        &self,
        context: &KernelContext<'_>,
        state: &mut State,
        positions: impl ExactSizeIterator<Item = i64>,
    ) -> Result<Vec<Tensor>, KernelError> {
        let mut elements = scratch::list(positions.len())?;
        for index in positions {
            elements.push(self.read(context, state, index)?);
        }
        Ok(elements)
    }
}

impl State {
    /// Adds elements that are not written, up to this number. Makes room for as many again, so that
    /// a loop that adds one element per iteration does not move all of them each time.
    fn grow(&mut self, len: usize) -> Result<(), KernelError> {
        let missing = len.saturating_sub(self.elements.len());
        if self.elements.try_reserve(missing).is_err() {
            let bytes = len.saturating_mul(size_of::<Element>());
            return Err(scratch::out_of_memory(bytes));
        }
        self.elements
            .extend(std::iter::repeat_n(Element::default(), missing));
        Ok(())
    }
}

/// TensorFlow `TensorArrayV3`: each execution makes another array.
fn array(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    let may_grow = bool_attr(node, "dynamic_size", false)?;
    let clears_after_read = bool_attr(node, "clear_after_read", true)?;
    let has_equal_shapes = bool_attr(node, "identical_element_shapes", false)?;
    let element_shape = node
        .attrs
        .shape("element_shape")
        .cloned()
        .unwrap_or_default();
    kernel(move |context| {
        let len = checked_len(
            scalar(context.input(0)?, "the size of the array")?,
            "the size",
        )?;
        let mut state = State {
            element_shape: element_shape.clone(),
            elements: Vec::new(),
            is_closed: false,
        };
        state.grow(len)?;
        let array = TensorArray {
            dtype,
            may_grow,
            clears_after_read,
            has_equal_shapes,
            state: Mutex::new(state),
        };
        context.set_output(0, created(context, "array", array)?)?;
        flow(context, 1)
    })
}

/// Sets an output that only orders reads and writes.
fn flow(context: &KernelContext<'_>, output: usize) -> Result<(), KernelError> {
    context.fill_output(output, &Shape::scalar(), |out: &mut [f32]| {
        out.fill(0.0);
        Ok(())
    })
}

fn array_of(context: &KernelContext<'_>) -> Result<Arc<TensorArray>, KernelError> {
    context.resource::<TensorArray>(0)
}

/// TensorFlow `TensorArrayWriteV3`.
fn write(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let array = array_of(context)?;
    let index = scalar(context.input(1)?, "the index")?;
    let tensor = kept_input(context, 2)?;
    array.write(&mut *array.open()?, index, tensor)?;
    flow(context, 0)
}

/// TensorFlow `TensorArrayReadV3`.
fn read(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    kernel(move |context| {
        let array = array_of(context)?;
        array.check_type(dtype)?;
        let index = scalar(context.input(1)?, "the index")?;
        let tensor = array.read(context, &mut *array.open()?, index)?;
        context.set_output(0, tensor)
    })
}

/// TensorFlow `TensorArrayGatherV3`.
fn gather(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    let asked = node
        .attrs
        .shape("element_shape")
        .cloned()
        .unwrap_or_default();
    kernel(move |context| {
        let array = array_of(context)?;
        array.check_type(dtype)?;
        let positions = vector(context.input(1)?, "the indices")?;
        let mut state = array.open()?;
        // The array remembers the shape that this op asks for, also for elements to come.
        state.element_shape = state.element_shape.merge(&asked).ok_or_else(|| {
            KernelError::invalid(format!(
                "the op expects elements of shape {asked}, but those of the array have shape {}",
                state.element_shape
            ))
        })?;
        let known = state.element_shape.clone();
        let elements = array.read_all(context, &mut state, positions.into_iter())?;
        drop(state);
        let first = elements.first().map(|first| first.shape().clone());
        let shape = first.or_else(|| known.to_shape()).ok_or_else(|| {
            KernelError::Unimplemented(format!(
                "no elements are gathered, and their shape is only known as {known}"
            ))
        })?;
        for (at, element) in elements.iter().enumerate() {
            if *element.shape() != shape || !known.matches(&shape) {
                return Err(KernelError::invalid(format!(
                    "gathered element {at} has shape {}, the first one {shape}, and {known} is \
                     expected",
                    element.shape()
                )));
            }
        }
        joined(
            context,
            0,
            dtype,
            &of_rows(elements.len(), &shape),
            &elements,
        )
    })
}

/// TensorFlow `TensorArrayScatterV3`.
fn scatter(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let array = array_of(context)?;
    let positions = vector(context.input(1)?, "the indices")?;
    let tensor = context.input(2)?;
    let (n, row) = rows(tensor, "the value")?;
    if positions.len() != n {
        return Err(KernelError::invalid(format!(
            "there are {} indices for a value with {n} rows",
            positions.len()
        )));
    }
    array.check_type(tensor.dtype())?;
    let mut state = array.open()?;
    for (at, index) in positions.into_iter().enumerate() {
        let row = part(context, tensor, at * row.n_elements(), &row)?;
        array.write(&mut state, index, row)?;
    }
    flow(context, 0)
}

/// TensorFlow `TensorArrayConcatV3`.
fn concat(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    let row = node
        .attrs
        .shape("element_shape_except0")
        .cloned()
        .unwrap_or_default();
    kernel(move |context| {
        let array = array_of(context)?;
        array.check_type(dtype)?;
        let mut state = array.open()?;
        let positions = 0..state.elements.len();
        #[expect(clippy::cast_possible_wrap, reason = "at most `LEN_MAX`")]
        let positions = positions.map(|index| index as i64);
        let elements = array.read_all(context, &mut state, positions)?;
        drop(state);
        concatenated(context, dtype, &elements, &row)
    })
}

/// TensorFlow `TensorArraySplitV3`.
fn split(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let array = array_of(context)?;
    let lengths = vector(context.input(2)?, "the lengths")?;
    let tensor = context.input(1)?;
    array.check_type(tensor.dtype())?;
    let mut state = array.open()?;
    let len = state.elements.len();
    let fits = match array.may_grow {
        true => len <= lengths.len(),
        false => len == lengths.len(),
    };
    if !fits {
        return Err(KernelError::invalid(format!(
            "an array of size {len} cannot hold exactly {} pieces",
            lengths.len()
        )));
    }
    for (index, piece) in (0..).zip(pieces(context, tensor, &lengths)?) {
        array.write(&mut state, index, piece)?;
    }
    drop(state);
    flow(context, 0)
}

/// TensorFlow `TensorArraySizeV3`.
fn size(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let len = array_of(context)?.open()?.elements.len();
    context.fill_output(0, &Shape::scalar(), |out: &mut [i32]| {
        out.fill(i32::try_from(len).unwrap_or(i32::MAX));
        Ok(())
    })
}

/// TensorFlow `TensorArrayCloseV3`: drops the elements. The array may be closed again.
fn close(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let array = array_of(context)?;
    let mut state = array.lock();
    state.is_closed = true;
    state.elements = Vec::new();
    Ok(())
}

/// A stack of tensors.
#[derive(Debug)]
struct Stack {
    dtype: DType,
    len_max: usize,
    /// `None` if the stack is closed.
    tensors: Mutex<Option<Vec<Tensor>>>,
}

impl Stack {
    /// Ignores poisoning: each change is complete when the lock is released.
    fn lock(&self) -> MutexGuard<'_, Option<Vec<Tensor>>> {
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `change` with the tensors of a stack that is not closed.
    fn with_tensors<T>(
        &self,
        change: impl FnOnce(&mut Vec<Tensor>) -> Result<T, KernelError>,
    ) -> Result<T, KernelError> {
        match &mut *self.lock() {
            Some(tensors) => change(tensors),
            None => Err(KernelError::invalid("the stack has been closed")),
        }
    }
}

impl Resource for Stack {
    fn describe(&self) -> String {
        let len = self.lock().as_ref().map_or(0, Vec::len);
        format!("stack of {len} tensors of {}", self.dtype)
    }

    fn memory_bytes(&self) -> u64 {
        let tensors = self.lock();
        let tensors = tensors.iter().flatten();
        tensors.map(|tensor| tensor.len_bytes() as u64).sum()
    }
}

/// TensorFlow `StackV2`: each execution makes another stack.
fn stack(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "elem_type")?;
    kernel(move |context| {
        // Negative: no limit.
        let len_max = scalar(context.input(0)?, "max_size")?;
        let stack = Stack {
            dtype,
            len_max: usize::try_from(len_max).unwrap_or(LEN_MAX).min(LEN_MAX),
            tensors: Mutex::new(Some(Vec::new())),
        };
        context.set_output(0, created(context, "stack", stack)?)
    })
}

/// TensorFlow `StackPushV2`: returns what it pushes.
fn push(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let stack = context.resource::<Stack>(0)?;
    let tensor = context.input(1)?;
    if tensor.dtype() != stack.dtype {
        return Err(KernelError::invalid(format!(
            "the stack has elements of type {}, the op pushes {}",
            stack.dtype,
            tensor.dtype()
        )));
    }
    let kept = kept_input(context, 1)?;
    stack.with_tensors(|tensors| {
        if tensors.len() >= stack.len_max {
            return Err(KernelError::invalid(format!(
                "the stack is full: its limit is {} elements",
                stack.len_max
            )));
        }
        if tensors.try_reserve(1).is_err() {
            let bytes = (tensors.len() + 1).saturating_mul(size_of::<Tensor>());
            return Err(scratch::out_of_memory(bytes));
        }
        tensors.push(kept);
        Ok(())
    })?;
    context.forward_input(1, 0, tensor.shape())
}

/// TensorFlow `StackPopV2`.
fn pop(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "elem_type")?;
    kernel(move |context| {
        let stack = context.resource::<Stack>(0)?;
        if stack.dtype != dtype {
            return Err(KernelError::invalid(format!(
                "the stack has elements of type {}, the op pops {dtype}",
                stack.dtype
            )));
        }
        let tensor = stack.with_tensors(|tensors| {
            let last = tensors.pop();
            last.ok_or_else(|| KernelError::invalid("the stack is empty"))
        })?;
        context.set_output(0, tensor)
    })
}

/// TensorFlow `StackCloseV2`: drops the elements. The stack may be closed again.
fn close_stack(context: &KernelContext<'_>) -> Result<(), KernelError> {
    *context.resource::<Stack>(0)?.lock() = None;
    Ok(())
}
