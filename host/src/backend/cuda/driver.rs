//! What the GPU device asks of a driver: the seam under streams, events, memory and programs.
//!
//! CUDA's driver is behind it (`ffi.rs`). All that decides about order and memory stands above it
//! and is the same for every driver, so that a driver that records its calls can check them where
//! there is no card: who uses memory that is free, who reads what another stream may
//! still be writing. An app that brings a driver of its own (an emulator, a GPU of another maker
//! with the same model of streams) implements it, and makes devices by
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

/// Why a driver does not do what it is asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct DriverError {
    /// The driver's number.
    pub code: i32,
    /// The driver's name of it, and what it says.
    pub message: String,
    /// What follows from it.
    pub kind: DriverErrorKind,
}

impl DriverError {
    /// Of routines that do not do such a thing.
    pub fn unsupported(what: &str) -> Self {
        Self {
            code: 0,
            message: format!("no routine for such {what}"),
            kind: DriverErrorKind::Unsupported,
        }
    }
}

/// What follows from an error of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriverErrorKind {
    /// There is no room.
    OutOfMemory,
    /// The GPU, or this process's part of it, answers nothing any more: whatever stood in its
    /// memory is gone. CUDA says so of work that has failed on the GPU, at any call after it.
    Lost,
    /// This call has failed; others may succeed.
    Refused,
    /// This is nothing that it does; nothing has happened.
    Unsupported,
}

/// Bytes that a GPU reaches: of its own memory, of a peer's, or of pinned memory of the host, which
/// all have addresses of one space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Where they start.
    pub address: u64,
    /// How many they are. With 0, the address means nothing.
    pub len_bytes: usize,
}

/// A stream: work that is done in the order in which it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamHandle(pub u64);

/// An event: how far a stream had come when it was last recorded. The events of all GPUs of a
/// driver have handles of their own, so that a stream can wait for an event of a peer.
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

/// What products and convolutions compute with: elements and what is multiplied. Sums are `float`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// `float`.
    F32,
    /// Elements are `float`, of which factors lose 13 bits (TensorFloat-32).
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

/// Matrices as cuBLAS has them: elements of a column stand side by side. Numbers count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrices {
    /// All of them, from the first element to the last.
    pub span: Span,
    /// Rows, as they stand.
    pub rows: u64,
    /// Columns, as they stand.
    pub columns: u64,
    /// From one column to the next; at least as many as there are rows.
    pub leading: u64,
    /// From one matrix to the next; 0 where all are the same.
    pub batch: u64,
    /// Whether rows are columns to the product.
    pub is_transposed: bool,
}

/// `out = activation(left * right + bias)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matmul {
    /// What it computes with.
    pub arithmetic: Arithmetic,
    /// The left side.
    pub left: Matrices,
    /// The right side.
    pub right: Matrices,
    /// The result, which is never transposed. Nothing between its columns is written.
    pub out: Matrices,
    /// How many products.
    pub n_batches: u32,
    /// An element for each row of the result.
    pub bias: Option<Span>,
    /// What follows.
    pub activation: Activation,
}

/// `out = activation(input * filter + bias)`: images `[n, rows, columns, channels]`, filters
/// `[out_channels, rows, columns, channels / n_groups]`, none without elements. Outside of an image
/// are zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionForward {
    /// What it computes with.
    pub arithmetic: Arithmetic,
    /// Images.
    pub n_images: u32,
    /// Rows and columns.
    pub windows: [WindowSize; 2],
    /// Channels of the input, and of the output.
    pub channels: [u32; 2],
    /// Groups that channels are parted into.
    pub n_groups: u32,
    /// The images.
    pub input: Span,
    /// The filter.
    pub filter: Span,
    /// The result.
    pub out: Span,
    /// An element for each channel of the result.
    pub bias: Option<Span>,
    /// What follows.
    pub activation: Activation,
}

/// One axis of a convolution. The padding is the same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WindowSize {
    /// Pixels that are read.
    pub input: u32,
    /// Pixels that are written: as many as the window finds places among the padded ones.
    pub output: u32,
    /// Taps of the filter.
    pub taps: u32,
    /// Pixels that the window moves on by.
    pub stride: u32,
    /// From one tap to the next.
    pub dilation: u32,
    /// Zeroes before the first pixel, and behind the last.
    pub pad: u32,
}

/// A GPU as its driver describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuFacts {
    /// What plans are made of. What is free and the priorities of streams are asked of the open
    /// GPU, NUMA nodes of the system.
    pub physical: PhysicalGpu,
    /// What kernels choose by.
    pub traits: ComputeTraits,
    /// What programs are compiled for: `sm_90a`, or `compute_121` where the compiler does not know
    /// the GPU, and the driver translates.
    pub architecture: String,
    /// The driver and its version, and that of the compiler: what compiled programs depend on.
    pub driver: String,
    /// Bytes a second that its memory gives at most, if the driver tells.
    pub memory_bytes_per_s: Option<f64>,
    /// Whether it pages memory in and out of the host's, so that [`Gpu::allocate_managed`] gives
    /// more than it has.
    pub has_managed_memory: bool,
}

/// A driver, before a GPU is opened.
pub trait Driver: Send + Sync + fmt::Debug {
    /// The GPUs, in the driver's order: the position of each is its id.
    ///
    /// # Errors
    /// [`DeviceError::Absent`], with the remedy, where there is no driver or no GPU.
    fn gpus(&self) -> Result<Vec<GpuFacts>, DeviceError>;

    /// Whether the compiler is there that [`Gpu::compile`] asks.
    fn can_compile(&self) -> bool;

    /// Opens a GPU. One that was lost is started anew, which ends what other parts of the process
    /// have on it: of what was opened before, nothing is called any more.
    ///
    /// # Errors
    /// What the driver says.
    fn open(&self, gpu: u32) -> Result<Arc<dyn Gpu>, DriverError>;
}

/// A GPU that is open. Every method may be called from any thread; none waits for the GPU's work
/// but [`Self::synchronize`].
///
/// Work is given to streams and done later; methods that give some are unsafe: what they are given
/// must stay, and not be used by others, until an event that is recorded behind it in the stream
/// has happened.
pub trait Gpu: Send + Sync + fmt::Debug {
    /// Memory of the GPU, at a multiple of 256 bytes, of whatever content. Gives its address.
    ///
    /// # Errors
    /// [`DriverErrorKind::OutOfMemory`] without room.
    fn allocate(&self, len_bytes: usize) -> Result<u64, DriverError>;

    /// The same of memory that the driver moves between the GPU and the host as it is used: there
    /// may be more of it than the GPU has, and what does not fit at one time costs time.
    ///
    /// # Errors
    /// [`DriverErrorKind::OutOfMemory`] without room in both, [`DriverErrorKind::Refused`] where
    /// the GPU does not page ([`GpuFacts::has_managed_memory`]).
    fn allocate_managed(&self, len_bytes: usize) -> Result<u64, DriverError>;

    /// Gives memory of the GPU back.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// [`Self::allocate`] or [`Self::allocate_managed`] has given the address; no work that uses it
    /// is under way.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn free(&self, address: u64) -> Result<(), DriverError>;

    /// Memory of the host that stays where it is, so that the GPU reaches it by the same address,
    /// at a multiple of 256 bytes. Its bytes are set. It outlives the GPU: results that the
    /// host has stand there.
    ///
    /// # Errors
    /// [`DriverErrorKind::OutOfMemory`] without room.
    fn allocate_pinned(&self, len_bytes: usize) -> Result<NonNull<u8>, DriverError>;

    /// Gives pinned memory back.
    ///
    /// # Safety
    /// [`Self::allocate_pinned`] has given it, with this length; nobody uses it any more.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn free_pinned(&self, start: NonNull<u8>, len_bytes: usize);

    /// Priorities that streams may have; smaller is more urgent.
    ///
    /// # Errors
    /// What the driver says.
    fn stream_priorities(&self) -> Result<RangeInclusive<i32>, DriverError>;

    /// Makes a stream. Smaller priorities are more urgent; 0 is the usual one.
    ///
    /// # Errors
    /// What the driver says.
    fn new_stream(&self, priority: i32) -> Result<StreamHandle, DriverError>;

    /// Lets a stream go; what was given to it is still done.
    fn drop_stream(&self, stream: StreamHandle);

    /// Makes an event, which has happened until it is recorded.
    ///
    /// # Errors
    /// What the driver says.
    fn new_event(&self) -> Result<EventHandle, DriverError>;

    /// Lets an event go; streams that wait for it still do.
    fn drop_event(&self, event: EventHandle);

    /// Has an event happen when the stream, which is of the same GPU, has done what it was given so
    /// far. It forgets what it was before; streams that wait already, wait for that.
    ///
    /// # Errors
    /// What the driver says.
    fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError>;

    /// Has a stream do what it is given from now on when an event, which may be of a peer's, has
    /// happened, as that was recorded last.
    ///
    /// # Errors
    /// What the driver says.
    fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError>;

    /// Whether an event has happened.
    ///
    /// # Errors
    /// [`DriverErrorKind::Lost`], also where work failed that was given before.
    fn has_happened(&self, event: EventHandle) -> Result<bool, DriverError>;

    /// Returns when an event has happened.
    ///
    /// # Errors
    /// As [`Self::has_happened`].
    fn synchronize(&self, event: EventHandle) -> Result<(), DriverError>;

    /// Copies bytes from one place to another: this GPU's memory, a peer's, or pinned memory of the
    /// host.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both spans are as long as each other, and stay until it is done; nobody writes the one or
    /// uses the other meanwhile.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn copy(&self, stream: StreamHandle, to: Span, from: Span) -> Result<(), DriverError>;

    /// Sets bytes of the GPU's memory to 0.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The span stays until it is done; nobody uses it meanwhile.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn zero(&self, stream: StreamHandle, span: Span) -> Result<(), DriverError>;

    /// Calls a function.
    ///
    /// # Errors
    /// What the driver says: too many work items in a group, say.
    ///
    /// # Safety
    /// The arguments are what the function takes, and their spans hold what it reads and writes,
    /// until it is done; nobody writes what it reads or uses what it writes meanwhile.
    #[expect(unsafe_code, reason = "work of the GPU knows no lifetimes")]
    unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError>;

    /// Compiles a program to what [`Self::load`] takes. The result depends on the source and on
    /// [`GpuFacts::architecture`] and [`GpuFacts::driver`] alone, so it may be kept in a file.
    ///
    /// # Errors
    /// [`CompileError`], with the compiler's messages where the program is at fault.
    fn compile(&self, source: &ProgramSource) -> Result<Vec<u8>, CompileError>;

    /// Loads a compiled program, which stays as long as the GPU is open.
    ///
    /// # Errors
    /// What the driver says: the image may be of another version of it.
    fn load(&self, image: &[u8]) -> Result<ModuleHandle, DriverError>;

    /// A function of a program.
    ///
    /// # Errors
    /// [`DriverErrorKind::Refused`] if it has none of that name.
    fn function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle, DriverError>;

    /// Lets this GPU reach the memory of a peer, from now on.
    ///
    /// # Errors
    /// What the driver says. That it may do so already is none.
    fn enable_peer(&self, peer: u32) -> Result<(), DriverError>;

    /// Bytes of its memory that are free, and all.
    ///
    /// # Errors
    /// What the driver says.
    fn memory_bytes(&self) -> Result<(u64, u64), DriverError>;

    /// Whether there are routines for products (cuBLASLt). Loads them.
    fn can_matmul(&self) -> bool {
        false
    }

    /// Multiplies matrices.
    ///
    /// # Errors
    /// [`DriverErrorKind::Unsupported`] for products that the routines do not do; else what they
    /// say.
    ///
    /// # Safety
    /// The spans hold all elements, and stay until it is done; nobody writes what it reads or uses
    /// what it writes meanwhile. `workspace`, at a multiple of 256 bytes, is written in any
    /// way.
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

    /// Whether there are routines for convolutions (cuDNN). Loads them.
    fn can_convolve(&self) -> bool {
        false
    }

    /// Computes a convolution.
    ///
    /// # Errors
    /// [`DriverErrorKind::Unsupported`] for convolutions that the routines do not do; else what
    /// they say.
    ///
    /// # Safety
    /// As [`Self::multiply`].
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
