//! Matmuls and convolutions as in NVIDIA's libraries, computed by the host: matrices are
//! column-major, images have channels last. This module takes a call and the bytes that it may
//! access, and returns the bytes of the result.

use half::bf16;
use half::f16;
use placewright::backend::cuda::driver::Arithmetic;
use placewright::backend::cuda::driver::ConvolutionForward;
use placewright::backend::cuda::driver::Matmul;
use placewright::backend::cuda::driver::Matrices;
use placewright::backend::cuda::driver::Span;
use placewright::backend::cuda::driver::WindowSize;
use placewright::device::Activation;

/// Checks what a library would reject, or would read out of bounds.
pub(super) fn check(matmul: &Matmul) -> Result<(), String> {
    let Matmul {
        arithmetic,
        left,
        right,
        out,
        n_batches,
        bias,
        ..
    } = matmul;
    let size_bytes = arithmetic.size_bytes() as u64;
    if out.is_transposed {
        return Err("the result is transposed".to_owned());
    }
    let ([m, k], [inner, n]) = (size(left), size(right));
    if inner != k || [m, n] != [out.rows, out.columns] {
        return Err(format!("{m} x {k} by {inner} x {n} is no {out:?}"));
    }
    for matrices in [left, right, out] {
        let Matrices {
            rows,
            columns,
            leading,
            batch,
            ..
        } = *matrices;
        let last = (u64::from(*n_batches) - 1) * batch + (columns - 1) * leading + rows;
        if leading < rows || last * size_bytes != matrices.span.len_bytes as u64 {
            return Err(format!("{matrices:?} are no {n_batches} matrices"));
        }
        if matrices.span.address % size_bytes != 0 {
            return Err(format!("{matrices:?} start within an element"));
        }
    }
    if *n_batches > 65_535 {
        return Err(format!("{n_batches} are deeper than a launch may be"));
    }
    if *n_batches > 1 && out.batch == 0 {
        return Err("several results stand in one place".to_owned());
    }
    match bias {
        Some(bias) if bias.len_bytes as u64 != m * size_bytes => {
            Err(format!("{bias:?} is no bias for {m} rows"))
        }
        _ => Ok(()),
    }
}

/// Returns rows and columns as the matmul reads them.
fn size(matrices: &Matrices) -> [u64; 2] {
    let stored = [matrices.rows, matrices.columns];
    match matrices.is_transposed {
        true => [stored[1], stored[0]],
        false => stored,
    }
}

/// The same for convolutions.
pub(super) fn check_convolution(convolution: &ConvolutionForward) -> Result<(), String> {
    let [channels, out_channels] = convolution.channels;
    let n_groups = convolution.n_groups;
    if channels % n_groups != 0 || out_channels % n_groups != 0 {
        return Err(format!(
            "{channels} and {out_channels} channels are no {n_groups} groups"
        ));
    }
    for window in convolution.windows {
        let padded = window.input + 2 * window.pad;
        let reach = (window.taps - 1) * window.dilation + 1;
        let n_places = padded
            .checked_sub(reach)
            .map(|left| left / window.stride + 1);
        if n_places != Some(window.output) {
            return Err(format!("{window:?} has another number of places"));
        }
    }
    let [rows, columns] = convolution.windows;
    let check = |what: &str, span: Span, sizes: [u32; 4]| {
        let n_elements: usize = sizes.iter().map(|&size| size as usize).product();
        match span.len_bytes == n_elements * convolution.arithmetic.size_bytes() {
            true => Ok(()),
            false => Err(format!("the {what} {span:?} has not {sizes:?} elements")),
        }
    };
    let n = convolution.n_images;
    check(
        "input",
        convolution.input,
        [n, rows.input, columns.input, channels],
    )?;
    let filter = [out_channels, rows.taps, columns.taps, channels / n_groups];
    check("filter", convolution.filter, filter)?;
    check(
        "result",
        convolution.out,
        [n, rows.output, columns.output, out_channels],
    )?;
    match convolution.bias {
        Some(bias) => check("bias", bias, [1, 1, 1, out_channels]),
        None => Ok(()),
    }
}

/// `bytes` are those of the result, both sides, and the bias.
pub(super) fn matmul(matmul: &Matmul, bytes: &mut [Vec<u8>]) {
    let arithmetic = matmul.arithmetic;
    let [left, right] = [1, 2].map(|index| factors(arithmetic, &bytes[index]));
    let bias = matmul.bias.map(|_| elements(arithmetic, &bytes[3]));
    let at = |matrices: &Matrices, batch: u64, row: u64, column: u64| {
        let [row, column] = match matrices.is_transposed {
            true => [column, row],
            false => [row, column],
        };
        (batch * matrices.batch + column * matrices.leading + row) as usize
    };
    let [m, k] = size(&matmul.left);
    let [_, n] = size(&matmul.right);
    for batch in 0..u64::from(matmul.n_batches) {
        for column in 0..n {
            for row in 0..m {
                let mut sum: f32 = (0..k)
                    .map(|inner| {
                        left[at(&matmul.left, batch, row, inner)]
                            * right[at(&matmul.right, batch, inner, column)]
                    })
                    .sum();
                if let Some(bias) = &bias {
                    sum += bias[row as usize];
                }
                let at = at(&matmul.out, batch, row, column);
                let sum = activated(matmul.activation, sum);
                store(arithmetic, &mut bytes[0], at, sum);
            }
        }
    }
}

/// `bytes` are those of the result, the images, the filter, and the bias.
pub(super) fn convolve(convolution: &ConvolutionForward, bytes: &mut [Vec<u8>]) {
    let arithmetic = convolution.arithmetic;
    let [input, filter] = [1, 2].map(|index| factors(arithmetic, &bytes[index]));
    let bias = convolution.bias.map(|_| elements(arithmetic, &bytes[3]));
    let [rows, columns] = convolution.windows;
    let [channels, out_channels] = convolution.channels.map(|n| n as usize);
    let n_groups = convolution.n_groups as usize;
    let (inner, outer) = (channels / n_groups, out_channels / n_groups);
    let places =
        (0..rows.output).flat_map(|row| (0..columns.output).map(move |column| (row, column)));
    for image in 0..convolution.n_images as usize {
        for (row, column) in places.clone() {
            let pixel = (image * rows.output as usize + row as usize) * columns.output as usize
                + column as usize;
            for out_channel in 0..out_channels {
                let mut sum = 0.0f32;
                for (y, from_row) in reached(rows, row) {
                    for (x, from_column) in reached(columns, column) {
                        let from = image * rows.input as usize + from_row;
                        let from = from * columns.input as usize + from_column;
                        let from = from * channels + out_channel / outer * inner;
                        let tap =
                            (out_channel * rows.taps as usize + y) * columns.taps as usize + x;
                        for channel in 0..inner {
                            sum += input[from + channel] * filter[tap * inner + channel];
                        }
                    }
                }
                if let Some(bias) = &bias {
                    sum += bias[out_channel];
                }
                let sum = activated(convolution.activation, sum);
                store(
                    arithmetic,
                    &mut bytes[0],
                    pixel * out_channels + out_channel,
                    sum,
                );
            }
        }
    }
}

/// Returns the taps that lie on pixels, with these pixels.
fn reached(window: WindowSize, place: u32) -> impl Iterator<Item = (usize, usize)> {
    (0..window.taps).filter_map(move |tap| {
        let at = (place * window.stride + tap * window.dilation).checked_sub(window.pad)?;
        (at < window.input).then_some((tap as usize, at as usize))
    })
}

fn activated(activation: Activation, sum: f32) -> f32 {
    match activation {
        Activation::None => sum,
        Activation::Relu => sum.max(0.0),
        Activation::Relu6 => sum.clamp(0.0, 6.0),
    }
}

/// Returns the factors of the multiplications.
fn factors(arithmetic: Arithmetic, bytes: &[u8]) -> Vec<f32> {
    let mut elements = elements(arithmetic, bytes);
    if arithmetic == Arithmetic::Tf32 {
        for element in &mut elements {
            *element = f32::from_bits(element.to_bits().wrapping_add(0x1000) & !0x1fff);
        }
    }
    elements
}

fn elements(arithmetic: Arithmetic, bytes: &[u8]) -> Vec<f32> {
    match arithmetic {
        Arithmetic::F32 | Arithmetic::Tf32 => decoded(bytes, f32::from_le_bytes),
        Arithmetic::F16 => decoded(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Arithmetic::Bf16 => decoded(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
    }
}

fn decoded<const N: usize>(bytes: &[u8], decode: fn([u8; N]) -> f32) -> Vec<f32> {
    let (elements, _) = bytes.as_chunks();
    elements.iter().map(|element| decode(*element)).collect()
}

fn store(arithmetic: Arithmetic, bytes: &mut [u8], at: usize, number: f32) {
    let len = arithmetic.size_bytes();
    let place = &mut bytes[at * len..(at + 1) * len];
    match arithmetic {
        Arithmetic::F32 | Arithmetic::Tf32 => place.copy_from_slice(&number.to_le_bytes()),
        Arithmetic::F16 => place.copy_from_slice(&f16::from_f32(number).to_le_bytes()),
        Arithmetic::Bf16 => place.copy_from_slice(&bf16::from_f32(number).to_le_bytes()),
    }
}
