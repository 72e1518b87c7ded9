//! Code shared by the kernels in this folder: from a node to a function, from an execution to a
//! launch.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::OnceLock;

use crate::device::ComputeTraits;
use crate::device::DeviceFunction;
use crate::device::Kernel;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::Launch;
use crate::device::LaunchSite;
use crate::device::ProcessorKind;
use crate::device::ProgramDevice;
use crate::device::ProgramSource;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// The result of a kernel's factory.
pub(super) type Made = Result<Box<dyn Kernel>, KernelError>;

/// Maximum number of axes of functions ([`Axes`]); tensors with more are `Unimplemented`.
const AXES_MAX: usize = 8;

/// Default work items per group. The number is constant, because a driver of a CPU may compile a
/// function again for each size.
const GROUP_CPU: usize = 1024;
const GROUP_GPU: usize = 256;

/// Work items per group if each processes many elements: few enough that the driver can also
/// distribute short work over the cores.
const SMALL_GROUP_CPU: usize = 64;

/// A kernel that launches functions.
struct SourceKernel<F> {
    site: Arc<LaunchSite>,
    run: F,
}

impl<F> Kernel for SourceKernel<F>
where
    F: Fn(&Call<'_, '_>) -> Result<(), KernelError> + Send + Sync,
{
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        (self.run)(&Call::new(context, &self.site)?)
    }
}

/// Creates a kernel from `run`, which must set every output.
pub(super) fn kernel<F>(node: &KernelConstruction<'_>, run: F) -> Made
where
    F: Fn(&Call<'_, '_>) -> Result<(), KernelError> + Send + Sync + 'static,
{
    let site = site(node);
    Ok(Box::new(SourceKernel { site, run }))
}

/// Returns the node that a kernel's launches belong to.
pub(super) fn site(node: &KernelConstruction<'_>) -> Arc<LaunchSite> {
    Arc::new(LaunchSite {
        node: node.node.to_owned(),
        op: node.op.to_owned(),
    })
}

/// Returns function `name` of a program on the node's device.
pub(super) fn function(
    node: &KernelConstruction<'_>,
    source: &ProgramSource,
    name: &str,
) -> Result<Arc<dyn DeviceFunction>, KernelError> {
    program_device(node.device)?.function(source, name)
}

pub(super) fn program_device(device: &dyn KernelDevice) -> Result<&dyn ProgramDevice, KernelError> {
    device.as_program_device().ok_or_else(|| {
        KernelError::Unimplemented(format!(
            "{} does not compile programs",
            device.attributes().name
        ))
    })
}

/// Returns the name of an element type in the dialect.
pub(super) fn type_name(dtype: DType) -> Result<&'static str, KernelError> {
    Ok(match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::Bool => "boolean",
        other => {
            return Err(KernelError::Unimplemented(format!(
                "element type {other} in programs of devices"
            )));
        }
    })
}

/// Returns the name of the unsigned type as which elements of a type are copied.
pub(super) fn moved_type(dtype: DType) -> Result<&'static str, KernelError> {
    Ok(match dtype.size_bytes() {
        Some(1) => "u8",
        Some(2) => "u16",
        Some(4) => "u32",
        Some(8) => "u64",
        _ => {
            return Err(KernelError::Unimplemented(format!(
                "element type {dtype} in programs of devices"
            )));
        }
    })
}

/// One execution of a kernel.
pub(super) struct Call<'a, 'c> {
    pub(super) context: &'a KernelContext<'c>,
    pub(super) device: &'a dyn ProgramDevice,
    pub(super) site: &'a Arc<LaunchSite>,
}

impl<'a, 'c> Call<'a, 'c> {
    pub(super) fn new(
        context: &'a KernelContext<'c>,
        site: &'a Arc<LaunchSite>,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            context,
            device: program_device(context.device())?,
            site,
        })
    }
}

impl Call<'_, '_> {
    pub(super) fn input(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.context.input(index)
    }

    /// Returns input `index`, which must be of this type.
    pub(super) fn typed(&self, index: usize, expected: DType) -> Result<&Tensor, KernelError> {
        let tensor = self.context.input(index)?;
        let found = tensor.dtype();
        if found != expected {
            return Err(TensorError::WrongDType { expected, found }.into());
        }
        Ok(tensor)
    }

    /// Allocates an uninitialised tensor for an output; pass it to [`Self::set_output`].
    pub(super) fn output(&self, dtype: DType, shape: &Shape) -> Result<Tensor, KernelError> {
        self.device.uninitialized(dtype, shape.clone())
    }

    pub(super) fn set_output(&self, index: usize, tensor: Tensor) -> Result<(), KernelError> {
        self.context.set_output(index, tensor)
    }

    /// Returns the default work items per group.
    pub(super) fn group(&self) -> usize {
        group(self.device.compute_traits())
    }

    /// Launches a function with at least `n_items` work items in one dimension; the function
    /// ignores the surplus.
    pub(super) fn launch_items(
        &self,
        function: &Arc<dyn DeviceFunction>,
        n_items: usize,
        args: &[KernelArg<'_>],
    ) -> Result<(), KernelError> {
        let group = self.group();
        self.launch(
            function,
            [n_items.div_ceil(group), 1, 1],
            [group, 1, 1],
            args,
        )
    }

    /// Returns the work items per group if each processes many elements.
    pub(super) fn small_group(&self) -> usize {
        match self.device.compute_traits().kind {
            ProcessorKind::Cpu => self.group().min(SMALL_GROUP_CPU),
            ProcessorKind::Gpu => self.group(),
        }
    }

    /// Launches a function with at least `n_items` work items, each of which processes many
    /// elements.
    pub(super) fn launch_few(
        &self,
        function: &Arc<dyn DeviceFunction>,
        n_items: usize,
        args: &[KernelArg<'_>],
    ) -> Result<(), KernelError> {
        let group = self.small_group();
        self.launch(
            function,
            [n_items.div_ceil(group), 1, 1],
            [group, 1, 1],
            args,
        )
    }

    pub(super) fn launch(
        &self,
        function: &Arc<dyn DeviceFunction>,
        groups: [usize; 3],
        group_size: [usize; 3],
        args: &[KernelArg<'_>],
    ) -> Result<(), KernelError> {
        self.device.launch(Launch {
            site: self.site,
            step: self.context.run_number(),
            context: Some(self.context.device_context()),
            function,
            groups,
            group_size,
            args,
        })
    }
}

/// Returns the largest power of two of work items that a group may have.
pub(super) fn tree_group(traits: &ComputeTraits) -> usize {
    1 << group(traits).max(1).ilog2()
}

/// Returns the default work items per group.
pub(super) fn group(traits: &ComputeTraits) -> usize {
    let wanted = match traits.kind {
        ProcessorKind::Cpu => GROUP_CPU,
        ProcessorKind::Gpu => GROUP_GPU,
    };
    wanted.min(traits.group_size_max)
}

/// Returns the number of lanes of the vectors that functions compute with (`WIDTH`): the width of a
/// processor's registers, or the elements that one of many work items reads at once.
pub(super) fn width(traits: &ComputeTraits) -> usize {
    match (traits.kind, traits.vector_width_f32) {
        (ProcessorKind::Cpu, 16..) => 16,
        (ProcessorKind::Cpu, 8..) => 8,
        (ProcessorKind::Cpu, 4..) | (ProcessorKind::Gpu, _) => 4,
        (ProcessorKind::Cpu, _) => 1,
    }
}

/// A function that is compiled at its first call: which of several functions a kernel needs depends
/// on shapes.
pub(super) struct LazyFunction {
    source: ProgramSource,
    name: Cow<'static, str>,
    function: OnceLock<Arc<dyn DeviceFunction>>,
}

impl LazyFunction {
    pub(super) fn new(source: ProgramSource, name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            source,
            name: name.into(),
            function: OnceLock::new(),
        }
    }

    /// Returns the function on `device`, which must be the same each time.
    pub(super) fn on(
        &self,
        device: &dyn ProgramDevice,
    ) -> Result<&Arc<dyn DeviceFunction>, KernelError> {
        if let Some(function) = self.function.get() {
            return Ok(function);
        }
        let function = device.function(&self.source, &self.name)?;
        Ok(self.function.get_or_init(|| function))
    }
}

/// Converts a number of elements, or a position, to the type that functions take.
pub(super) fn index(n: usize) -> Result<u32, KernelError> {
    // The difference of two positions must not wrap when it is multiplied, either.
    u32::try_from(n)
        .ok()
        .filter(|&n| i32::try_from(n).is_ok())
        .ok_or_else(|| {
            KernelError::Unimplemented(format!(
                "tensors of {n} elements on a device that counts them with 31 bits"
            ))
        })
}

/// The same as a signed number.
pub(super) fn offset(n: usize) -> Result<i32, KernelError> {
    Ok(index(n)?.cast_signed())
}

/// Sizes of axes and, per operand, strides and a start: `Axes` of `prelude_common.h`.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Axes {
    n_axes: i32,
    sizes: [i32; AXES_MAX],
    strides: [[i32; AXES_MAX]; 3],
    starts: [i32; 3],
}

impl Axes {
    /// Creates axes, outermost first, from sizes and the stride in each operand, in elements.
    ///
    /// # Errors
    /// [`KernelError::Unimplemented`] if there are more axes than functions support, or if tensors
    /// are too large.
    pub(super) fn new(
        axes: impl IntoIterator<Item = (usize, [isize; 3])>,
        starts: [usize; 3],
    ) -> Result<Self, KernelError> {
        let mut out = Self::default();
        for (slot, start) in out.starts.iter_mut().zip(starts) {
            *slot = offset(start)?;
        }
        for (axis, (size, strides)) in axes.into_iter().enumerate() {
            if axis == AXES_MAX {
                return Err(KernelError::Unimplemented(format!(
                    "tensors that cannot be walked over with {AXES_MAX} axes"
                )));
            }
            out.n_axes = i32::try_from(axis + 1).expect("there are few axes");
            out.sizes[axis] = offset(size)?;
            for (operand, stride) in out.strides.iter_mut().zip(strides) {
                let magnitude = offset(stride.unsigned_abs())?;
                operand[axis] = if stride < 0 { -magnitude } else { magnitude };
            }
        }
        Ok(out)
    }

    /// Creates axes of operands that are broadcast or advance from their first element on.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(super) fn of_spread<const N: usize>(
        axes: impl IntoIterator<Item = (usize, [usize; N])>,
    ) -> Result<Self, KernelError> {
        let axes = axes.into_iter().map(|(size, strides)| {
            let mut all = [0isize; 3];
            for (slot, stride) in all.iter_mut().zip(strides) {
                *slot = isize::try_from(stride).unwrap_or(isize::MAX);
            }
            (size, all)
        });
        Self::new(axes, [0; 3])
    }

    pub(super) fn arg(&self) -> KernelArg<'_> {
        KernelArg::Bytes(bytemuck::bytes_of(self))
    }
}
