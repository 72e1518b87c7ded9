//! Matmuls and convolutions from the vendor's libraries (cuBLASLt, cuDNN). A kernel tries these
//! routines before it runs its own program.
//!
//! A call takes tensors of the device, with sizes and strides in elements, and queues work that the
//! device does later. If the vendor's routines do not support a call, it returns `false` and has
//! done nothing; the kernel then computes the result itself.

use std::sync::Arc;

use super::context::DeviceContext;
use super::error::KernelError;
use super::program::LaunchSite;
use super::run::RunNumber;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// The elementwise function after the bias of a matmul or convolution, applied to sums before they
/// are stored.
///
/// CPU kernels keep a NaN. Whether a vendor's routine keeps it depends on the routine, as in
/// TensorFlow's fused nodes on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`. Kernels of programs ask no routine for it, because cuBLASLt has none.
    Relu6,
}

/// The node and run that a call belongs to, and the device context that does the work
/// ([`super::Launch`] has the same fields).
#[derive(Debug, Clone, Copy)]
pub struct RoutineSite<'a> {
    /// The node.
    pub site: &'a Arc<LaunchSite>,
    /// The run that the node is part of.
    pub step: Option<RunNumber>,
    /// The context; `None` means the default context.
    pub context: Option<&'a Arc<dyn DeviceContext>>,
}

/// Matrices in a tensor.
#[derive(Debug, Clone, Copy)]
pub struct RoutineMatrices<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// Offset of the first matrix's first element.
    pub first: usize,
    /// Stride from one row to the next.
    pub row: usize,
    /// Stride from one column to the next.
    pub column: usize,
    /// Stride from one matrix to the next; 0 if all are the same matrix.
    pub batch: usize,
}

/// A batch of matmuls: `[n_batches, m, k] x [n_batches, k, n] -> [n_batches, m, n]`. All tensors
/// have one type, and none is empty. Sums are `float`.
#[derive(Debug, Clone, Copy)]
pub struct RoutineMatmul<'a> {
    /// The node and run that it belongs to.
    pub origin: RoutineSite<'a>,
    /// `m`, `k` and `n`.
    pub size: [usize; 3],
    /// Number of matmuls.
    pub n_batches: usize,
    /// The left side.
    pub left: RoutineMatrices<'a>,
    /// The right side.
    pub right: RoutineMatrices<'a>,
    /// The result. Elements between its rows and matrices are not written.
    pub out: RoutineMatrices<'a>,
    /// The bias: `n` elements, one for each column.
    pub bias: Option<&'a Tensor>,
    /// The activation that follows.
    pub activation: Activation,
}

/// One axis along which a window moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoutineWindow {
    /// Pixels of the input.
    pub input: usize,
    /// Pixels of the output.
    pub output: usize,
    /// Taps of the filter.
    pub taps: usize,
    /// Pixels between two positions of the window.
    pub stride: usize,
    /// Pixels between two taps.
    pub dilation: usize,
    /// Zeroes before the first pixel.
    pub pad_before: usize,
}

/// A convolution: `[n, rows, columns, channels] * [out_channels, rows, columns, channels /
/// n_groups] -> [n, rows, columns, out_channels]`. All tensors have one type, and none is empty.
/// Sums are `float`.
#[derive(Debug, Clone, Copy)]
pub struct RoutineConvolution<'a> {
    /// The node and run that it belongs to.
    pub origin: RoutineSite<'a>,
    /// Number of images.
    pub n_images: usize,
    /// Rows and columns.
    pub windows: [RoutineWindow; 2],
    /// Channels of the input, and of the output.
    pub channels: [usize; 2],
    /// Number of groups of channels.
    pub n_groups: usize,
    /// The images.
    pub input: &'a Tensor,
    /// The filter, output channels outermost.
    pub filter: &'a Tensor,
    /// The result.
    pub out: &'a Tensor,
    /// The bias: an element for each channel of the output.
    pub bias: Option<&'a Tensor>,
    /// The activation that follows.
    pub activation: Activation,
}

/// The vendor's routines of a device.
pub trait Routines {
    /// Checks whether the routines support matmuls of this type at all. If so, kernels do not
    /// prepack constant inputs, which the routines read as they are.
    fn can_matmul(&self, dtype: DType) -> bool;

    /// Queues matmuls on the device; returns `false` if the routines do not support them.
    ///
    /// # Errors
    /// As [`super::ProgramDevice::launch`].
    fn matmul(&self, matmul: &RoutineMatmul<'_>) -> Result<bool, KernelError>;

    /// Checks whether the routines support convolutions of this type with these windows, or with
    /// any windows.
    fn can_convolve(&self, dtype: DType, windows: Option<&[RoutineWindow; 2]>) -> bool;

    /// Queues a convolution on the device; returns `false` if the routines do not support it.
    ///
    /// # Errors
    /// As [`super::ProgramDevice::launch`].
    fn convolve(&self, convolution: &RoutineConvolution<'_>) -> Result<bool, KernelError>;
}
