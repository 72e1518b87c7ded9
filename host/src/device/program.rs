//! Devices that run programs: the interface for kernels that are not Rust (C of the dialect in
//! `backend/source`, or SPIR-V).
//!
//! It takes sources, sizes and tensors of the device, and submits work that the device does later.
//! Kernels get the device by [`KernelDevice::as_program_device`]. Nothing here depends on ops.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::context::DeviceContext;
use super::error::KernelError;
use super::routines::Routines;
use super::run::RunNumber;
use super::traits::KernelDevice;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The code of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProgramCode {
    /// C of the dialect, which each kind of device compiles after its own prelude
    /// (`backend/source/README.md`).
    Source(Cow<'static, str>),
    /// A SPIR-V module, as SYCL and OpenCL compilers produce it.
    SpirV(Arc<[u8]>),
}

/// A program before it is compiled. Equal sources are one program on a device, and one entry of its
/// cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProgramSource {
    /// Name for messages: `matmul.c`.
    pub name: Cow<'static, str>,
    /// Its code.
    pub code: ProgramCode,
    /// Macros and their values, in the order in which they are defined. They have no effect on
    /// SPIR-V.
    pub defines: Vec<(Cow<'static, str>, Cow<'static, str>)>,
}

impl ProgramSource {
    /// Returns a program in C of the dialect, without macros.
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

    /// Returns a program from a SPIR-V module.
    pub fn of_spirv(name: impl Into<Cow<'static, str>>, module: impl Into<Arc<[u8]>>) -> Self {
        Self {
            name: name.into(),
            code: ProgramCode::SpirV(module.into()),
            defines: Vec::new(),
        }
    }

    /// Adds a macro.
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

/// The kind of processor that a device computes with: what is fast on one kind is slow on the
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProcessorKind {
    /// Few cores with wide vectors and large caches: the work items of a group are iterations of a
    /// loop.
    Cpu,
    /// Many lanes in lockstep: adjacent work items should read adjacent bytes.
    Gpu,
}

/// The properties of a device by which kernels choose.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputeTraits {
    /// Kind of processor.
    pub kind: ProcessorKind,
    /// Number of cores or multiprocessors.
    pub n_compute_units: u32,
    /// Maximum number of work items of a group.
    pub group_size_max: usize,
    /// Memory that the work items of a group share, in bytes.
    pub local_memory_bytes: u64,
    /// Number of `float` elements in a vector of the processor; 1 if lanes are work items.
    pub vector_width_f32: u32,
    /// Whether it computes with 16-bit floats.
    pub has_f16: bool,
    /// Whether it computes with 64-bit floats.
    pub has_f64: bool,
}

/// One function of a compiled program, on one device.
pub trait DeviceFunction: Any + Send + Sync + fmt::Debug {
    /// Returns its name in the program.
    fn name(&self) -> &str;
}

/// The node that a launch belongs to, for errors after the kernel has returned.
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
    /// Two parameters, `FAULT_PARAMETERS` of the dialect: a function reports there that its inputs
    /// are wrong, and [`super::Device::sync`] then returns this error.
    Fault(&'a Arc<str>),
}

/// A call of a function.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The node that it belongs to.
    pub site: &'a Arc<LaunchSite>,
    /// The run that it is part of
    /// ([`KernelContext::run_number`](super::KernelContext::run_number)), which fails if the call
    /// fails.
    pub step: Option<RunNumber>,
    /// The device context of the node
    /// ([`KernelContext::device_context`](super::KernelContext::device_context)): on a GPU, it
    /// determines the streams. `None` means the default context.
    pub context: Option<&'a Arc<dyn DeviceContext>>,
    /// The function.
    pub function: &'a Arc<dyn DeviceFunction>,
    /// Number of groups of work items, per dimension.
    pub groups: [usize; 3],
    /// Number of work items of a group, per dimension.
    pub group_size: [usize; 3],
    /// The arguments, in the order of the function's parameters.
    pub args: &'a [KernelArg<'a>],
}

/// A device that compiles programs and runs their functions. Calls return when the work is
/// submitted; all work submitted afterwards sees its effects.
pub trait ProgramDevice: KernelDevice {
    /// Returns its properties.
    fn compute_traits(&self) -> &ComputeTraits;

    /// Returns function `name` of a program, which is compiled when it is first needed.
    ///
    /// # Errors
    /// [`KernelError::Device`] with the compiler's messages; [`KernelError::Unimplemented`] for
    /// code that the driver does not accept.
    fn function(
        &self,
        source: &ProgramSource,
        name: &str,
    ) -> Result<Arc<dyn DeviceFunction>, KernelError>;

    /// Allocates an uninitialised tensor in the device's memory, for kernels that write all of it.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn uninitialized(&self, dtype: DType, shape: Shape) -> Result<Tensor, KernelError>;

    /// Submits a call.
    ///
    /// # Errors
    /// If an argument is not in the device's memory, or the device is lost. Later failures are
    /// reported to readers of what the call writes, and by [`super::Device::sync`].
    fn launch(&self, launch: Launch<'_>) -> Result<(), KernelError>;

    /// Returns the vendor's routines for matmuls and convolutions, if there are any.
    fn routines(&self) -> Option<&dyn Routines> {
        None
    }
}
