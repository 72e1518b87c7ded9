//! Devices that run programs: what a kernel that is not Rust (C of the dialect in `backend/source`,
//! SPIR-V) asks of its device.
//!
//! In go sources, sizes and tensors of the device, out goes work that the device does later.
//! Kernels find the device behind [`KernelDevice::as_program_device`]; it knows no op.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::context::DeviceContext;
use super::error::KernelError;
use super::routines::Routines;
use super::step::StepNumber;
use super::traits::KernelDevice;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// What a program is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProgramCode {
    /// C of the dialect, which each kind of device compiles behind a prelude of its own
    /// (`backend/source/README.md`).
    Source(Cow<'static, str>),
    /// A SPIR-V module, as SYCL and OpenCL compilers emit it.
    SpirV(Arc<[u8]>),
}

/// A program before it is compiled. Equal sources are one program on a device, and one entry in its
/// cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProgramSource {
    /// For messages: `matmul.c`.
    pub name: Cow<'static, str>,
    /// What is compiled.
    pub code: ProgramCode,
    /// Macros and their values, in the order in which they are defined. Without effect on SPIR-V.
    pub defines: Vec<(Cow<'static, str>, Cow<'static, str>)>,
}

impl ProgramSource {
    /// C of the dialect, without macros.
    pub fn of_source(
        name: impl Into<Cow<'static, str>>,
        source: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            name: name.into(),
            code: ProgramCode::Source(source.into()),
            defines: Vec::new(),
        }
    }

    /// A SPIR-V module.
    pub fn of_spirv(name: impl Into<Cow<'static, str>>, module: impl Into<Arc<[u8]>>) -> Self {
        Self {
            name: name.into(),
            code: ProgramCode::SpirV(module.into()),
            defines: Vec::new(),
        }
    }

    /// The same with a macro.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.defines.push((name.into(), value.into()));
        self
    }
}

impl fmt::Display for ProgramSource {
    /// `matmul.c (T=float, WIDTH=16)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (name, value)) in self.defines.iter().enumerate() {
            let separator = if index == 0 { " (" } else { ", " };
            write!(f, "{separator}{name}={value}")?;
        }
        f.write_str(if self.defines.is_empty() { "" } else { ")" })
    }
}

/// Which kind of processor a device computes with: what is fast on one is slow on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProcessorKind {
    /// Few cores with wide vectors and large caches: work items of a group are iterations of a
    /// loop.
    Cpu,
    /// Many lanes that run in step: neighbouring work items read neighbouring bytes.
    Gpu,
}

/// What a device can do, as far as kernels choose by it.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputeTraits {
    /// Kind of processor.
    pub kind: ProcessorKind,
    /// Cores, or multiprocessors.
    pub n_compute_units: u32,
    /// Work items that a group may have.
    pub group_size_max: usize,
    /// Memory that a group shares, in bytes.
    pub local_memory_bytes: u64,
    /// Elements of `float` that a vector of the processor holds; 1 where lanes are work items.
    pub vector_width_f32: u32,
    /// Whether it computes with 16-bit floats.
    pub has_f16: bool,
    /// Whether it computes with 64-bit floats.
    pub has_f64: bool,
}

/// One function of a compiled program, on one device.
pub trait DeviceFunction: Any + Send + Sync + fmt::Debug {
    /// Its name in the program.
    fn name(&self) -> &str;
}

/// Whose work a launch is, for errors that come when the kernel has returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchSite {
    /// Name of the node.
    pub node: String,
    /// Its op.
    pub op: String,
}

/// An argument of a function.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum KernelArg<'a> {
    /// A tensor of the device that the function reads.
    Read(&'a Tensor),
    /// A tensor of the device that the function writes, or reads and writes.
    Write(&'a Tensor),
    /// `int`.
    I32(i32),
    /// `unsigned int`.
    U32(u32),
    /// `float`.
    F32(f32),
    /// `long`, 64 bits.
    I64(i64),
    /// A structure by value, as the device lays it out (little-endian, C alignment).
    Bytes(&'a [u8]),
    /// Memory that a group shares, of so many bytes.
    Local(usize),
    /// Two parameters, `FAULT_PARAMETERS` of the dialect: a function that finds its inputs wrong
    /// says so there, and this is then the error of [`super::Device::sync`].
    Fault(&'a Arc<str>),
}

/// One call of a function.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Whose work it is.
    pub site: &'a Arc<LaunchSite>,
    /// The run that it is part of
    /// ([`KernelContext::step_number`](super::KernelContext::step_number)), whose error a failure
    /// is.
    pub step: Option<StepNumber>,
    /// By which of the device's contexts the node's tensors move
    /// ([`KernelContext::device_context`](super::KernelContext::device_context)): on
    /// a GPU, the streams that it runs in. `None`: the default one.
    pub context: Option<&'a Arc<dyn DeviceContext>>,
    /// The function.
    pub function: &'a Arc<dyn DeviceFunction>,
    /// Groups of work items, by dimension.
    pub groups: [usize; 3],
    /// Work items of a group, by dimension.
    pub group_size: [usize; 3],
    /// The arguments, in the order of the function's parameters.
    pub args: &'a [KernelArg<'a>],
}

/// A device that compiles programs and runs their functions. Calls return when the work is given to
/// the device; what it does is seen by everything that is given to it afterwards.
pub trait ProgramDevice: KernelDevice {
    /// What it can do.
    fn compute_traits(&self) -> &ComputeTraits;

    /// Function `name` of a program, which is compiled when it is first asked for.
    ///
    /// # Errors
    /// [`KernelError::Device`] with the compiler's messages, and [`KernelError::Unimplemented`] for
    /// code that the driver does not take.
    fn function(
        &self,
        source: &ProgramSource,
        name: &str,
    ) -> Result<Arc<dyn DeviceFunction>, KernelError>;

    /// A tensor in the device's memory with whatever is there: a kernel that writes all of it need
    /// not have it zeroed.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn uninitialized(&self, dtype: DType, shape: Shape) -> Result<Tensor, KernelError>;

    /// Gives a call to the device.
    ///
    /// # Errors
    /// When an argument is not in its memory, or the device is lost. What goes wrong later is an
    /// error of who reads what the call writes, and of [`super::Device::sync`].
    fn launch(&self, launch: Launch<'_>) -> Result<(), KernelError>;

    /// Products and convolutions of the device's maker, if there are any.
    fn routines(&self) -> Option<&dyn Routines> {
        None
    }
}
