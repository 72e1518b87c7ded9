//! The interface between the GPU device and a driver: streams, events, memory and programs.
//!
//! `ffi.rs` implements it for CUDA. The code that decides about order and memory is above this
//! interface and is the same for every driver. A driver that records its calls can therefore check
//! that code on a machine without a card: whether freed memory is still in use, and whether a
//! stream reads what another may still write. To bring another driver (an emulator, or a GPU of
//! another vendor with the same model of streams), implement [`Driver`] and create the devices with
//! [`super::GpuDeviceFactory::with_driver`].

use std::fmt;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;

use super::CompileError;
use crate::device::Activation;
use crate::device::ComputeTraits;
use crate::device::DeviceError;
use crate::device::ProgramSource;
use crate::device::gpu::PhysicalGpu;

/// A driver's error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct DriverError {
    /// The driver's code.
    pub code: i32,
    /// The driver's name of the error, and its message.
    pub message: String,
    /// The consequence.
    pub kind: DriverErrorKind,
}

impl DriverError {
    /// The error of routines that do not support a call.
    pub fn unsupported(what: &str) -> Self {
        Self {
            code: 0,
            message: format!("no routine for such {what}"),
            kind: DriverErrorKind::Unsupported,
        }
    }
}

/// The consequence of a driver's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriverErrorKind {
    /// There is not enough memory.
    OutOfMemory,
    /// The GPU, or this process's part of it, no longer responds; the contents of its memory are
    /// lost. If work has failed on the GPU, CUDA reports this at any later call.
    Lost,
    /// This call has failed; others may succeed.
    Refused,
    /// The call is not supported; nothing has happened.
    Unsupported,
}

/// Bytes that a GPU can access: its own memory, a peer's, or pinned memory of the host. All of them
/// share one address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Where they start.
    pub address: u64,
    /// Their number. If it is 0, the address is meaningless.
    pub len_bytes: usize,
}

/// A stream: work that is done in the order in which it was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamHandle(pub u64);

/// An event: the point that a stream had reached when the event was last recorded. Event handles
/// are unique among all GPUs of a driver, so that a stream can wait for an event of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventHandle(pub u64);

/// A compiled program in the memory of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModuleHandle(pub u64);

/// A function of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionHandle(pub u64);

/// How many work items call a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Groups (CUDA: blocks), by dimension.
    pub groups: [u32; 3],
    /// Work items (threads) of a group, by dimension.
    pub group_size: [u32; 3],
    /// Memory that a group shares besides what the program declares, in bytes.
    pub shared_bytes: u32,
}

/// An argument of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument<'a> {
    /// A pointer to bytes that are read.
    Read(Span),
    /// A pointer to bytes that are written, and may be read.
    Write(Span),
    /// A number or a structure, as the GPU lays it out.
    Value(&'a [u8]),
}

/// The arithmetic of matmuls and convolutions: the types of elements and of factors. Sums are
/// `float`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// `float`.
    F32,
    /// Elements are `float`; factors are rounded to TensorFloat-32, which has 13 bits less.
    Tf32,
    /// `half`.
    F16,
    /// `bfloat16`.
    Bf16,
}

impl Arithmetic {
    /// Bytes of an element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::Tf32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Matrices in column-major order, as in cuBLAS. Sizes and strides are in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrices {
    /// The span from the first to the last element.
    pub span: Span,
    /// Rows, as stored.
    pub rows: u64,
    /// Columns, as stored.
    pub columns: u64,
    /// Stride from one column to the next; at least the number of rows.
    pub leading: u64,
    /// Stride from one matrix to the next; 0 if all are the same matrix.
    pub batch: u64,
    /// Whether the matmul reads it transposed.
    pub is_transposed: bool,
}

/// `out = activation(left * right + bias)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matmul {
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// The left side.
    pub left: Matrices,
    /// The right side.
    pub right: Matrices,
    /// The result, which is never transposed. Elements between its columns are not written.
    pub out: Matrices,
    /// Number of matmuls.
    pub n_batches: u32,
    /// One element per row of the result.
    pub bias: Option<Span>,
    /// The activation that follows.
    pub activation: Activation,
}

/// `out = activation(input * filter + bias)`: images `[n, rows, columns, channels]`, filters
/// `[out_channels, rows, columns, channels / n_groups]`; none is empty. Images are padded with
/// zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionForward {
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// Images.
    pub n_images: u32,
    /// Rows and columns.
    pub windows: [WindowSize; 2],
    /// Channels of the input, and of the output.
    pub channels: [u32; 2],
    /// Number of groups of channels.
    pub n_groups: u32,
    /// The images.
    pub input: Span,
    /// The filter.
    pub filter: Span,
    /// The result.
    pub out: Span,
    /// One element per channel of the result.
    pub bias: Option<Span>,
    /// The activation that follows.
    pub activation: Activation,
}

/// One axis of a convolution. The padding is the same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WindowSize {
    /// Number of input pixels.
    pub input: u32,
    /// Number of output pixels: the positions of the window in the padded input.
    pub output: u32,
    /// Taps of the filter.
    pub taps: u32,
    /// Pixels from one position of the window to the next.
    pub stride: u32,
    /// Pixels from one tap to the next.
    pub dilation: u32,
    /// Zeroes before the first pixel and after the last one.
    pub pad: u32,
}

/// A GPU as its driver describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuFacts {
    /// The facts that plans are based on. Free memory and stream priorities come from the open
    /// GPU, NUMA nodes from the system.
    pub physical: PhysicalGpu,
    /// The traits by which kernels are chosen.
    pub traits: ComputeTraits,
    /// The architecture that programs are compiled for: `sm_90a`, or `compute_121` if the compiler
    /// does not know the GPU and the driver translates.
    pub architecture: String,
    /// The versions of driver and compiler, which compiled programs depend on.
    pub driver: String,
    /// Peak memory bandwidth in bytes per second, if the driver reports it.
    pub memory_bytes_per_s: Option<f64>,
    /// Whether the GPU pages memory to and from the host, so that [`Gpu::allocate_managed`] can
    /// return more memory than the GPU has.
    pub has_managed_memory: bool,
}

/// A driver, before a GPU is opened.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Lists the GPUs in the driver's order: the position of each is its id.
    ///
    /// # Errors
    /// [`DeviceError::Absent`], with the remedy, if there is no driver or no GPU.
    fn gpus(&self) -> Result<Vec<GpuFacts>, DeviceError>;

    /// Checks whether the compiler that [`Gpu::compile`] uses is present.
    fn can_compile(&self) -> bool;

    /// Opens a GPU. A lost GPU is restarted, which invalidates everything that other parts of the
    /// process have on it: they must not use what was opened before.
    ///
    /// # Errors
    /// The driver's error.
    fn open(&self, gpu: u32) -> Result<Arc<dyn Gpu>, DriverError>;
}

/// An open GPU. Every method may be called from any thread; only [`Self::synchronize`] waits for
/// the GPU's work.
///
/// Work is queued in streams and done later. Methods that queue work are unsafe: the memory passed
/// must live, and must not be used otherwise, until an event recorded after the work in the same
/// stream has happened.
pub trait Gpu: Send + Sync + fmt::Debug {
    /// Allocates uninitialised memory of the GPU, at a multiple of 256 bytes. Returns its address.
    ///
    /// # Errors
    /// [`DriverErrorKind::OutOfMemory`] if there is not enough memory.
    fn allocate(&self, len_bytes: usize) -> Result<u64, DriverError>;

    /// Allocates memory that the driver moves between the GPU and the host on use. There may be
    /// more than the GPU has, but paging takes time.
    ///
    /// # Errors
    /// [`DriverErrorKind::OutOfMemory`] if neither has enough memory, [`DriverErrorKind::Refused`]
    /// if the GPU does not page ([`GpuFacts::has_managed_memory`]).
    fn allocate_managed(&self, len_bytes: usize) -> Result<u64, DriverError>;

    /// Frees memory of the GPU.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// [`Self::allocate`] or [`Self::allocate_managed`] has returned the address, and no work in
    /// flight uses it.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn free(&self, address: u64) -> Result<(), DriverError>;

    /// Allocates pinned host memory, which the GPU accesses at the same address, at a multiple of
    /// 256 bytes. Its bytes are initialised. It may outlive the GPU, because the host keeps results
    /// in it.
    ///
    /// # Errors
    /// [`DriverErrorKind::OutOfMemory`] if there is not enough memory.
    fn allocate_pinned(&self, len_bytes: usize) -> Result<NonNull<u8>, DriverError>;

    /// Frees pinned memory.
    ///
    /// # Safety
    /// [`Self::allocate_pinned`] has returned it, with this length; nothing uses it any more.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn free_pinned(&self, start: NonNull<u8>, len_bytes: usize);

    /// Returns the range of stream priorities; smaller is more urgent.
    ///
    /// # Errors
    /// The driver's error.
    fn stream_priorities(&self) -> Result<RangeInclusive<i32>, DriverError>;

    /// Creates a stream. Smaller priorities are more urgent; 0 is the default.
    ///
    /// # Errors
    /// The driver's error.
    fn new_stream(&self, priority: i32) -> Result<StreamHandle, DriverError>;

    /// Destroys a stream; work that was queued in it is still done.
    fn drop_stream(&self, stream: StreamHandle);

    /// Creates an event, which counts as happened until it is first recorded.
    ///
    /// # Errors
    /// The driver's error.
    fn new_event(&self) -> Result<EventHandle, DriverError>;

    /// Destroys an event; streams that wait for it continue to wait.
    fn drop_event(&self, event: EventHandle);

    /// Records an event: it happens when the stream, which must be of the same GPU, has done all
    /// work queued so far. A new record replaces the earlier one, except for streams that already
    /// wait for it.
    ///
    /// # Errors
    /// The driver's error.
    fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError>;

    /// Makes all work that is queued in a stream from now on wait for the last record of an event,
    /// which may be another GPU's.
    ///
    /// # Errors
    /// The driver's error.
    fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError>;

    /// Checks whether an event has happened.
    ///
    /// # Errors
    /// [`DriverErrorKind::Lost`], also if earlier work has failed.
    fn has_happened(&self, event: EventHandle) -> Result<bool, DriverError>;

    /// Waits until an event has happened.
    ///
    /// # Errors
    /// As [`Self::has_happened`].
    fn synchronize(&self, event: EventHandle) -> Result<(), DriverError>;

    /// Copies bytes from one place to another: this GPU's memory, a peer's, or pinned memory of the
    /// host.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// Both spans have the same length and live until the copy is done; until then nothing writes
    /// `from` or uses `to`.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn copy(&self, stream: StreamHandle, to: Span, from: Span) -> Result<(), DriverError>;

    /// Sets bytes of the GPU's memory to 0.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The span lives until the work is done, and nothing else uses it until then.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn zero(&self, stream: StreamHandle, span: Span) -> Result<(), DriverError>;

    /// Launches a function.
    ///
    /// # Errors
    /// The driver's error, for example for too many work items in a group.
    ///
    /// # Safety
    /// The arguments match the function's parameters, and their spans contain everything that it
    /// reads and writes. They live until the launch is done; until then nothing writes what it
    /// reads or uses what it writes.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError>;

    /// Compiles a program to an image for [`Self::load`]. The result depends only on the source,
    /// [`GpuFacts::architecture`] and [`GpuFacts::driver`], so it may be kept in a file.
    ///
    /// # Errors
    /// [`CompileError`], with the compiler's messages if the program is at fault.
    fn compile(&self, source: &ProgramSource) -> Result<Vec<u8>, CompileError>;

    /// Loads a compiled program, which stays loaded as long as the GPU is open.
    ///
    /// # Errors
    /// The driver's error: the image may be for another version of it.
    fn load(&self, image: &[u8]) -> Result<ModuleHandle, DriverError>;

    /// Returns a function of a program.
    ///
    /// # Errors
    /// [`DriverErrorKind::Refused`] if there is no function of that name.
    fn function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle, DriverError>;

    /// Lets this GPU access the memory of a peer from now on.
    ///
    /// # Errors
    /// The driver's error. Access that is enabled already is not an error.
    fn enable_peer(&self, peer: u32) -> Result<(), DriverError>;

    /// Returns the free and the total bytes of its memory.
    ///
    /// # Errors
    /// The driver's error.
    fn memory_bytes(&self) -> Result<(u64, u64), DriverError>;

    /// Checks whether there are routines for matmuls (cuBLASLt). Loads them.
    fn can_matmul(&self) -> bool {
        false
    }

    /// Queues matmuls.
    ///
    /// # Errors
    /// [`DriverErrorKind::Unsupported`] for matmuls that the routines do not support; otherwise
    /// their own errors.
    ///
    /// # Safety
    /// The spans contain all elements and live until the work is done; until then nothing writes
    /// what it reads or uses what it writes. `workspace`, at a multiple of 256 bytes, is
    /// overwritten.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn matmul(
        &self,
        stream: StreamHandle,
        matmul: &Matmul,
        workspace: Span,
    ) -> Result<(), DriverError> {
        let _ = (stream, matmul, workspace);
        Err(DriverError::unsupported("matmuls"))
    }

    /// Checks whether there are routines for convolutions (cuDNN). Loads them.
    fn can_convolve(&self) -> bool {
        false
    }

    /// Queues a convolution.
    ///
    /// # Errors
    /// [`DriverErrorKind::Unsupported`] for convolutions that the routines do not support;
    /// otherwise their own errors.
    ///
    /// # Safety
    /// As [`Self::matmul`].
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn convolve(
        &self,
        stream: StreamHandle,
        convolution: &ConvolutionForward,
        workspace: Span,
    ) -> Result<(), DriverError> {
        let _ = (stream, convolution, workspace);
        Err(DriverError::unsupported("convolutions"))
    }
}
