//! Matmuls and convolutions by NVIDIA's libraries: converts tensors to the driver's calls.
//!
//! The module takes sizes and strides of row-major tensors and calls cuBLASLt and cuDNN, which take
//! column-major matrices and padding that is equal at both ends. Operations that cannot be
//! expressed this way are not supported here.

use smallvec::SmallVec;

use super::device::GpuDevice;
use super::driver::Arithmetic;
use super::driver::ConvolutionForward;
use super::driver::DriverError;
use super::driver::DriverErrorKind;
use super::driver::Gpu;
use super::driver::Matmul;
use super::driver::Matrices;
use super::driver::Span;
use super::driver::StreamHandle;
use super::driver::WindowSize;
use super::lane::Use;
use super::memory::parts;
use crate::device::KernelError;
use crate::device::RoutineConvolution;
use crate::device::RoutineMatmul;
use crate::device::RoutineMatrices;
use crate::device::RoutineSite;
use crate::device::RoutineWindow;
use crate::device::Routines;
use crate::tensor::DType;
use crate::tensor::Tensor;

impl Routines for GpuDevice {
    fn can_matmul(&self, dtype: DType) -> bool {
        self.arithmetic(dtype).is_some() && self.has(|driver| driver.can_matmul())
    }

    fn matmul(&self, matmul: &RoutineMatmul<'_>) -> Result<bool, KernelError> {
        let Some(arithmetic) = self.arithmetic(matmul.out.tensor.dtype()) else {
            return Ok(false);
        };
        let mut uses = Used::default();
        // cuBLASLt computes the transposed result, whose columns are our rows, so our right side is
        // its left side.
        let [m, k, n] = matmul.size;
        let size_bytes = arithmetic.size_bytes();
        let sides = [
            (&matmul.right, [k, n]),
            (&matmul.left, [m, k]),
            (&matmul.out, [m, n]),
        ];
        let mut matrices: SmallVec<[Matrices; 3]> = SmallVec::new();
        for (index, (side, [rows, columns])) in sides.into_iter().enumerate() {
            let is_written = index == 2;
            let span = self.span(side.tensor, is_written, &mut uses)?;
            match column_major(side, rows, columns, matmul.n_batches, size_bytes, span) {
                Some(side) if !(is_written && side.is_transposed) => matrices.push(side),
                _ => return Ok(false),
            }
        }
        let Some(n_batches) = int(matmul.n_batches) else {
            return Ok(false);
        };
        let bias = matmul.bias.map(|bias| self.span(bias, false, &mut uses));
        let request = Matmul {
            arithmetic,
            left: matrices[0],
            right: matrices[1],
            out: matrices[2],
            n_batches,
            bias: bias.transpose()?,
            activation: matmul.activation,
        };
        self.give(
            &matmul.origin,
            uses,
            "a matmul",
            // SAFETY: the spans are of tensors that are released with their uses, and contain what
            // `column_major` has checked.
            |driver, stream, scratch| unsafe { driver.matmul(stream, &request, scratch) },
        )
    }

    fn can_convolve(&self, dtype: DType, windows: Option<&[RoutineWindow; 2]>) -> bool {
        self.arithmetic(dtype).is_some()
            && windows.is_none_or(|windows| windows.iter().all(|axis| window(*axis).is_some()))
            && self.has(|driver| driver.can_convolve())
    }

    fn convolve(&self, convolution: &RoutineConvolution<'_>) -> Result<bool, KernelError> {
        let Some(arithmetic) = self.arithmetic(convolution.out.dtype()) else {
            return Ok(false);
        };
        let (Some(n_images), Some(n_groups)) =
            (int(convolution.n_images), int(convolution.n_groups))
        else {
            return Ok(false);
        };
        let [rows, columns] = convolution.windows.map(window);
        let [channels, out_channels] = convolution.channels.map(int);
        let (Some(rows), Some(columns), Some(channels), Some(out_channels)) =
            (rows, columns, channels, out_channels)
        else {
            return Ok(false);
        };
        let mut uses = Used::default();
        let bias = convolution
            .bias
            .map(|bias| self.span(bias, false, &mut uses));
        let forward = ConvolutionForward {
            arithmetic,
            n_images,
            windows: [rows, columns],
            channels: [channels, out_channels],
            n_groups,
            input: self.span(convolution.input, false, &mut uses)?,
            filter: self.span(convolution.filter, false, &mut uses)?,
            out: self.span(convolution.out, true, &mut uses)?,
            bias: bias.transpose()?,
            activation: convolution.activation,
        };
        self.give(
            &convolution.origin,
            uses,
            "a convolution",
            // SAFETY: the spans are of tensors that are released with their uses; their kernel has
            // derived their shapes from these sizes.
            |driver, stream, scratch| unsafe { driver.convolve(stream, &forward, scratch) },
        )
    }
}

/// The uses of tensors.
type Used<'a> = SmallVec<[Use<'a>; 6]>;

impl GpuDevice {
    /// Returns the arithmetic for elements of this type.
    fn arithmetic(&self, dtype: DType) -> Option<Arithmetic> {
        match dtype {
            DType::F32 if self.allows_tf32() => Some(Arithmetic::Tf32),
            DType::F32 => Some(Arithmetic::F32),
            DType::F16 => Some(Arithmetic::F16),
            DType::BF16 => Some(Arithmetic::Bf16),
            _ => None,
        }
    }

    /// Returns whether the driver has a library; a lost GPU has none.
    fn has(&self, library: fn(&dyn Gpu) -> bool) -> bool {
        let found = self.group().gpu.call(|driver| Ok(library(driver)));
        found.unwrap_or(false)
    }

    fn span<'a>(
        &self,
        tensor: &'a Tensor,
        is_written: bool,
        uses: &mut Used<'a>,
    ) -> Result<Span, KernelError> {
        let (span, memory) = self.parts(tensor)?;
        uses.push(if is_written {
            Use::Writes(memory.uses())
        } else {
            Use::Reads(memory.uses())
        });
        Ok(span)
    }

    /// Queues work in the node's stream. Returns `false` if the libraries do not support it.
    fn give<'a>(
        &'a self,
        origin: &RoutineSite<'a>,
        mut uses: Used<'a>,
        what: &str,
        work: impl FnOnce(&dyn Gpu, StreamHandle, Span) -> Result<(), DriverError>,
    ) -> Result<bool, KernelError> {
        let context = self.context_of(origin.context)?;
        let scratch = context.scratch().and_then(parts);
        let mut workspace = Span {
            address: 0,
            len_bytes: 0,
        };
        if let Some((span, memory)) = scratch {
            workspace = span;
            uses.push(Use::Writes(memory.uses()));
        }
        let given = context
            .lane()
            .give(&uses, Some(origin.site), None, |driver, stream| {
                work(driver, stream, workspace)
            });
        match given {
            Ok(ticket) => {
                self.synced(context, ticket)
                    .map_err(|error| self.failed_at(origin.site, what, &error))?;
                Ok(true)
            }
            Err(error) if error.kind == DriverErrorKind::Unsupported => Ok(false),
            Err(error) => Err(self.failed_at(origin.site, what, &error)),
        }
    }
}

/// Views row-major matrices `[rows, columns]` as column-major matrices with `columns` rows. `None`
/// if neither rows nor columns are contiguous, or if they do not lie within their tensor.
fn column_major(
    side: &RoutineMatrices<'_>,
    rows: usize,
    columns: usize,
    n_batches: usize,
    size_bytes: usize,
    span: Span,
) -> Option<Matrices> {
    // An axis of size 1 may have any stride.
    let (is_transposed, leading, [inner, outer]) =
        if (side.column == 1 || columns == 1) && (side.row >= columns || rows == 1) {
            (false, side.row.max(columns), [columns, rows])
        } else if (side.row == 1 || rows == 1) && (side.column >= rows || columns == 1) {
            (true, side.column.max(rows), [rows, columns])
        } else {
            return None;
        };
    let leading = if outer == 1 { inner } else { leading };
    let last = (n_batches - 1)
        .checked_mul(side.batch)?
        .checked_add((outer - 1).checked_mul(leading)?)?
        .checked_add(inner)?;
    let (start, len_bytes) = (
        side.first.checked_mul(size_bytes)?,
        last.checked_mul(size_bytes)?,
    );
    let is_within = start.checked_add(len_bytes)? <= span.len_bytes;
    is_within.then_some(Matrices {
        span: Span {
            address: span.address + start as u64,
            len_bytes,
        },
        rows: inner as u64,
        columns: outer as u64,
        leading: leading as u64,
        batch: side.batch as u64,
        is_transposed,
    })
}

/// Converts a number to the libraries' ints.
fn int(n: usize) -> Option<u32> {
    i32::try_from(n).ok().map(i32::cast_unsigned)
}

/// Returns an axis whose padding is equal at both ends.
fn window(window: RoutineWindow) -> Option<WindowSize> {
    let RoutineWindow {
        input,
        output,
        taps,
        stride,
        dilation,
        pad_before,
    } = window;
    let reach = taps.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    let padded = pad_before.checked_mul(2)?.checked_add(input)?;
    let n_places = padded.checked_sub(reach)?.checked_div(stride)? + 1;
    (n_places == output).then_some(WindowSize {
        input: int(input)?,
        output: int(output)?,
        taps: int(taps)?,
        stride: int(stride)?,
        dilation: int(dilation)?,
        pad: int(pad_before)?,
    })
}
