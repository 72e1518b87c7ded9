//! Variables: tensors that stay on the device between runs. Their handles are in host memory.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::device::ContainerInfo;
use crate::device::DeviceContext;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::Resource;
use crate::device::ResourceError;
use crate::device::make_resource_handle;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// A tensor of a fixed type, once one has been assigned (TensorFlow `Var`).
#[derive(Debug)]
pub(in crate::backend) struct Variable {
    dtype: DType,
    value: Mutex<Option<Tensor>>,
}

impl Variable {
    fn new(dtype: DType) -> Self {
        Self {
            dtype,
            value: Mutex::default(),
        }
    }

    /// Ignores poisoning: a kernel that panics leaves either the old value or the new one.
    pub(in crate::backend) fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resource for Variable {
    fn describe(&self) -> String {
        match &*self.lock() {
            Some(value) => format!("{value:?}"),
            None => format!("variable of {}, not initialized", self.dtype),
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.lock()
            .as_ref()
            .map_or(0, |value| value.len_bytes() as u64)
    }

    fn moved(
        &self,
        from: &dyn DeviceContext,
        to: &dyn DeviceContext,
    ) -> Option<Result<Arc<dyn Resource>, KernelError>> {
        let value = self.lock().clone();
        let copy = |value: Tensor| to.copy_from_host(&from.copy_to_host(&value)?);
        let moved = value.map(copy).transpose().map(|value| Self {
            dtype: self.dtype,
            value: Mutex::new(value),
        });
        Some(moved.map(|variable| Arc::new(variable) as _))
    }
}

/// TensorFlow `VarHandleOp`: returns a handle of the variable. The first assignment creates it.
pub(in crate::backend) fn handle(node: &KernelConstruction<'_>) -> Made {
    let manager = node.device.resource_manager()?;
    let info = ContainerInfo::resolve(manager, node.node, node.attrs, true)?;
    let dtype = type_attr(node, "dtype")?;
    let shape = node.attrs.shape("shape").cloned();
    let handle = make_resource_handle::<Variable>(
        &node.device.attributes().name,
        &info,
        vec![(dtype, shape.unwrap_or_else(PartialShape::unknown))],
    );
    let tensor = Tensor::from_handle(handle);
    kernel(move |context| context.set_output(0, tensor.clone()))
}

/// Returns the variable of input 0, which must exist.
pub(in crate::backend) fn variable(
    context: &KernelContext<'_>,
) -> Result<Arc<Variable>, KernelError> {
    context
        .resource::<Variable>(0)
        .map_err(|error| match error {
            KernelError::Resource(
                ResourceError::NotFound {
                    container, name, ..
                }
                | ResourceError::NoContainer {
                    container, name, ..
                },
            ) => uninitialized(container, name),
            other => other,
        })
}

fn uninitialized(container: String, name: String) -> KernelError {
    KernelError::Resource(ResourceError::Uninitialized { container, name })
}

/// Returns the error for a variable that has no value yet.
pub(in crate::backend) fn no_value(context: &KernelContext<'_>) -> KernelError {
    match context.resource_handle::<Variable>(0) {
        Ok(handle) => uninitialized(handle.container.clone(), handle.name.clone()),
        Err(error) => error,
    }
}

/// Returns the error for a node whose type differs from the variable's. `is` says what has the
/// type.
fn wrong_type(variable: &str, dtype: DType, is: &str, given: DType) -> KernelError {
    KernelError::invalid(format!(
        "variable `{variable}` is of type {dtype}, {is} {given}"
    ))
}

/// Returns the variable's current value, which must be of this type.
pub(in crate::backend) fn read_as(
    context: &KernelContext<'_>,
    dtype: DType,
) -> Result<Tensor, KernelError> {
    let value = read(context)?;
    if value.dtype() == dtype {
        return Ok(value);
    }
    let handle = context.resource_handle::<Variable>(0)?;
    let error = wrong_type(&handle.name, value.dtype(), "it is read as", dtype);
    Err(error)
}

/// Returns the variable's current value; later assignments do not change it.
fn read(context: &KernelContext<'_>) -> Result<Tensor, KernelError> {
    let variable = variable(context)?;
    let value = variable.lock().clone();
    value.ok_or_else(|| no_value(context))
}

/// TensorFlow `ReadVariableOp`.
pub(in crate::backend) fn read_variable(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    kernel(move |context| context.set_output(0, read_as(context, dtype)?))
}

/// TensorFlow `AssignVariableOp`.
pub(in crate::backend) fn assign(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    let validate_shape = bool_attr(node, "validate_shape", false)?;
    kernel(move |context| {
        let handle = context.resource_handle::<Variable>(0)?;
        let value = context.input(1)?;
        if let Some((declared, shape)) = handle.dtypes_and_shapes.first() {
            if *declared != dtype {
                return Err(wrong_type(&handle.name, *declared, "the value is", dtype));
            }
            if validate_shape && !shape.matches(value.shape()) {
                return Err(KernelError::invalid(format!(
                    "variable `{}` has shape {shape}, the value has {}",
                    handle.name,
                    value.shape()
                )));
            }
        }
        // In the device's memory and counted there: a run reuses the memory of its inputs.
        let value = context.device_context().copy_on_device(value)?;
        let variable: Arc<Variable> = context.resource_manager()?.lookup_or_create(
            &handle.container,
            &handle.name,
            || Ok::<_, KernelError>(Variable::new(dtype)),
        )?;
        if variable.dtype != dtype {
            return Err(wrong_type(
                &handle.name,
                variable.dtype,
                "the value is",
                dtype,
            ));
        }
        *variable.lock() = Some(value);
        Ok(())
    })
}

/// Changes the value of the variable of input 0, which must be of this type. Changes of concurrent
/// runs follow each other. What has read the value before may still need it.
pub(in crate::backend) fn change(
    context: &KernelContext<'_>,
    dtype: DType,
    update: &mut dyn FnMut(&mut Tensor) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let variable = variable(context)?;
    let mut value = variable.lock();
    let held = value.as_mut().ok_or_else(|| no_value(context))?;
    if held.dtype() != dtype {
        let handle = context.resource_handle::<Variable>(0)?;
        let error = wrong_type(&handle.name, held.dtype(), "the value is", dtype);
        return Err(error);
    }
    update(held)
}

/// Changes the value of the variable of input 0 by input 1, which must be of the same type and
/// shape.
pub(in crate::backend) fn change_by_input(
    context: &KernelContext<'_>,
    dtype: DType,
    update: &mut dyn FnMut(&mut Tensor, &Tensor) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let delta = context.input(1)?;
    change(context, dtype, &mut |held| {
        if held.shape() != delta.shape() {
            return Err(KernelError::invalid(format!(
                "the variable has shape {}, the value has {}",
                held.shape(),
                delta.shape()
            )));
        }
        update(held, delta)
    })
}

/// TensorFlow `VarIsInitializedOp`.
pub(in crate::backend) fn is_initialized(_: &KernelConstruction<'_>) -> Made {
    kernel(has_value)
}

fn has_value(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let is_initialized = match context.resource::<Variable>(0) {
        Ok(variable) => variable.lock().is_some(),
        Err(KernelError::Resource(
            ResourceError::NotFound { .. } | ResourceError::NoContainer { .. },
        )) => false,
        Err(error) => return Err(error),
    };
    context.fill_output_bytes(0, DType::Bool, &Shape::default(), |bytes| {
        bytes[0] = u8::from(is_initialized);
        Ok(())
    })
}

/// TensorFlow `VariableShape`.
pub(in crate::backend) fn shape(node: &KernelConstruction<'_>) -> Made {
    dispatch!(type_attr(node, "out_type")?, [I32: i32, I64: i64], T => kernel(|context| {
        let value = read(context)?;
        let dims = value.shape().dims();
        let sizes: Result<Vec<T>, _> = dims.iter().map(|&size| T::try_from(size)).collect();
        let sizes = sizes.map_err(|_| {
            KernelError::invalid(format!("shape {} does not fit into {}", value.shape(), DType::I32))
        })?;
        context.fill_output(0, &Shape::from([sizes.len()]), |out| {
            out.copy_from_slice(&sizes);
            Ok(())
        })
    }))
}

/// TensorFlow `DestroyResourceOp`.
pub(in crate::backend) fn destroy(node: &KernelConstruction<'_>) -> Made {
    let ignore_lookup_error = bool_attr(node, "ignore_lookup_error", true)?;
    kernel(move |context| {
        let handle = context.resource_handle::<Variable>(0)?;
        let manager = context.resource_manager()?;
        match manager.delete::<Variable>(&handle.container, &handle.name) {
            Err(ResourceError::NotFound { .. } | ResourceError::NoContainer { .. })
                if ignore_lookup_error =>
            {
                Ok(())
            }
            result => Ok(result?),
        }
    })
}
