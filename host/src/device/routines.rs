//! Products and convolutions that the maker of a device has written (cuBLASLt, cuDNN): what a
//! kernel asks for before it runs a program of its own.
//!
//! In go tensors of the device, sizes and strides in elements, out goes work that the device does
//! later. What the maker's routines do not do is answered with `false`, and then nothing has
//! happened: the kernel computes it itself.

use std::sync::Arc;

use super::context::DeviceContext;
use super::error::KernelError;
use super::program::LaunchSite;
use super::step::StepNumber;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// What is done to sums before they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`. Whether it keeps a NaN is the routine's affair, as it is with TensorFlow's
    /// fused nodes on GPUs.
    Relu,
}

/// Whose work a call is, and by which of the device's contexts it is done ([`super::Launch`] has
/// the same).
#[derive(Debug, Clone, Copy)]
pub struct RoutineSite<'a> {
    /// The node.
    pub site: &'a Arc<LaunchSite>,
    /// The run that it is part of.
    pub step: Option<StepNumber>,
    /// `None`: the default context.
    pub context: Option<&'a Arc<dyn DeviceContext>>,
}

/// Matrices in a tensor.
#[derive(Debug, Clone, Copy)]
pub struct RoutineMatrices<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// The first element of the first matrix.
    pub first: usize,
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub column: usize,
    /// From one matrix to the next; 0 where all are the same.
    pub batch: usize,
}

/// `[n_batches, m, k] x [n_batches, k, n] -> [n_batches, m, n]`, all of one type, none without
/// elements. Sums are `float`.
#[derive(Debug, Clone, Copy)]
pub struct RoutineMatmul<'a> {
    /// Whose it is.
    pub origin: RoutineSite<'a>,
    /// `m`, `k` and `n`.
    pub size: [usize; 3],
    /// How many products.
    pub n_batches: usize,
    /// The left side.
    pub left: RoutineMatrices<'a>,
    /// The right side.
    pub right: RoutineMatrices<'a>,
    /// The result, of which nothing else is written.
    pub out: RoutineMatrices<'a>,
    /// `n` elements, one for each column.
    pub bias: Option<&'a Tensor>,
    /// What follows.
    pub activation: Activation,
}

/// One axis that a window is moved along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoutineWindow {
    /// Pixels that are read.
    pub input: usize,
    /// Pixels that are written.
    pub output: usize,
    /// Taps of the filter.
    pub taps: usize,
    /// Pixels that the window moves on by.
    pub stride: usize,
    /// From one tap to the next.
    pub dilation: usize,
    /// Zeroes before the first pixel.
    pub pad_before: usize,
}

/// `[n, rows, columns, channels] * [out_channels, rows, columns, channels / n_groups] -> [n, rows,
/// columns, out_channels]`, all of one type, none without elements. Sums are `float`.
#[derive(Debug, Clone, Copy)]
pub struct RoutineConvolution<'a> {
    /// Whose it is.
    pub origin: RoutineSite<'a>,
    /// Images.
    pub n_images: usize,
    /// Rows and columns.
    pub windows: [RoutineWindow; 2],
    /// Channels of the input, and of the output.
    pub channels: [usize; 2],
    /// Groups that channels are parted into.
    pub n_groups: usize,
    /// The images.
    pub input: &'a Tensor,
    /// The filter, output channels outermost.
    pub filter: &'a Tensor,
    /// The result.
    pub out: &'a Tensor,
    /// An element for each channel of the output.
    pub bias: Option<&'a Tensor>,
    /// What follows.
    pub activation: Activation,
}

/// What a device has of its maker.
pub trait Routines {
    /// Whether products of this type are worth asking for at all: inputs that are the same in all
    /// runs are prepared accordingly.
    fn can_matmul(&self, dtype: DType) -> bool;

    /// Gives products to the device; `false` where the routines do not do these.
    ///
    /// # Errors
    /// As [`super::ProgramDevice::launch`].
    fn matmul(&self, matmul: &RoutineMatmul<'_>) -> Result<bool, KernelError>;

    /// Whether convolutions of this type are worth asking for at all, with windows such as these,
    /// or with any.
    fn can_convolve(&self, dtype: DType, windows: Option<&[RoutineWindow; 2]>) -> bool;

    /// Gives a convolution to the device; `false` where the routines do not do this one.
    ///
    /// # Errors
    /// As [`super::ProgramDevice::launch`].
    fn convolve(&self, convolution: &RoutineConvolution<'_>) -> Result<bool, KernelError>;
}
