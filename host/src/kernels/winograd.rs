//! Winograd's convolution: 3 x 3 windows with stride 1 in 2.25 or 4 times fewer multiplications.
//!
//! `F(2 x 2, 3 x 3)` and `F(4 x 4, 3 x 3)` of Lavin and Gray, "Fast Algorithms for Convolutional
//! Neural Networks" (2015). A tile of 2 x 2 or 4 x 4 output pixels is computed from the patch of
//! the image under its windows: `A' ((G g G') * (B' d B)) A`, where `*` multiplies elements, and
//! sums over the channels make it one matmul per element of a patch.
//!
//! The points of `F(4 x 4)` are 0, 1, -1, 1/2, -2 and infinity. With 64 channels, its error is 2.5
//! times that of sums in order; with 2 in place of 1/2, as in the paper, it is 7 times as large.
//! The error of `F(2 x 2)` is half that of sums in order.

use crate::device::KernelError;
use crate::kernels::MatrixView;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::conv::Convolution;
use crate::kernels::simd;
use crate::kernels::simd::DILATION_MAX;
use crate::kernels::simd::Epilogue;
use crate::kernels::simd::TileGrid;
use crate::kernels::simd::vectorize;
use crate::kernels::window::WindowAxis;

/// Minimum number of channels of image and result: with fewer, most of the time goes into the
/// transforms.
const CHANNELS_MIN: usize = 16;

/// Multiply-adds that take as long as it takes to read an element of a filter: filters of a network
/// come from a shared cache or from the main memory.
const READ_MACS: usize = 27;

/// Multiply-adds of a core in a nanosecond.
const MACS_PER_NS: usize = 50;

/// The size of the tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Winograd {
    /// `F(2 x 2, 3 x 3)`.
    Two,
    /// `F(4 x 4, 3 x 3)`.
    Four,
}

/// The matrix `G` of [`Winograd::Two`].
const G_TWO: [[f64; 3]; 4] = [
    [1.0, 0.0, 0.0],
    [0.5, 0.5, 0.5],
    [0.5, -0.5, 0.5],
    [0.0, 0.0, 1.0],
];

/// The matrix `G` of [`Winograd::Four`].
const G_FOUR: [[f64; 3]; 6] = [
    [1.0, 0.0, 0.0],
    [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0],
    [-1.0 / 3.0, 1.0 / 3.0, -1.0 / 3.0],
    [-16.0 / 15.0, -8.0 / 15.0, -4.0 / 15.0],
    [1.0 / 15.0, -2.0 / 15.0, 4.0 / 15.0],
    [0.0, 0.0, 1.0],
];

impl Winograd {
    /// Returns the tiles with which a convolution is fastest; `None` if it is faster without. The
    /// filter is taken to be prepacked.
    pub fn best(convolution: &Convolution) -> Option<Self> {
        let (rows, columns) = (convolution.rows, convolution.columns);
        let (input_channels, output_channels) =
            (convolution.input_channels, convolution.output_channels);
        if !has_tiles(convolution) || input_channels.min(output_channels) < CHANNELS_MIN {
            return None;
        }
        // Per pair of an input and an output channel.
        let n_pixels = convolution.batch.saturating_mul(rows.output);
        let n_pixels = n_pixels.saturating_mul(columns.output);
        let direct = n_pixels.saturating_add(READ_MACS).saturating_mul(9);
        let n_pairs = input_channels.saturating_mul(output_channels);
        let cost = |it: Self| it.macs(convolution) / n_pairs;
        let best = [Self::Two, Self::Four]
            .into_iter()
            .min_by_key(|&it| cost(it));
        best.filter(|&it| cost(it) < direct / 20 * 17)
    }

    /// Estimates the time of a convolution, in multiply-adds of a matmul.
    fn macs(self, convolution: &Convolution) -> usize {
        let grid = self.grid(convolution);
        let n_elements = (grid.edge + 2).pow(2);
        let n_tiles = grid.n_tiles().saturating_mul(convolution.batch);
        let (inputs, outputs) = (convolution.input_channels, convolution.output_channels);
        let products = n_tiles.next_multiple_of(6).saturating_add(READ_MACS);
        let products = products.saturating_mul(inputs).saturating_mul(outputs);
        // A transform takes as long as some five multiply-adds per element.
        let transforms = n_tiles
            .saturating_mul(5)
            .saturating_mul(inputs.saturating_add(outputs));
        n_elements.saturating_mul(products.saturating_add(transforms))
    }

    fn grid(self, convolution: &Convolution) -> TileGrid {
        TileGrid {
            rows: convolution.rows,
            columns: convolution.columns,
            edge: match self {
                Self::Two => 2,
                Self::Four => 4,
            },
        }
    }

    fn matrix(self) -> &'static [[f64; 3]] {
        match self {
            Self::Two => &G_TWO,
            Self::Four => &G_FOUR,
        }
    }

    /// Returns the number of elements that [`Self::prepack`] writes; `None` if it exceeds the
    /// address space.
    pub fn prepacked_len(self, input_channels: usize, output_channels: usize) -> Option<usize> {
        let matrix = simd::prepacked_len(input_channels, output_channels)?;
        matrix.checked_mul(self.matrix().len().pow(2))
    }

    /// Transforms a filter `[3, 3, input channels, output channels]` and prepacks the matrices of
    /// its elements. Each element is rounded once.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the length of a slice does not match;
    /// [`KernelError::Tensor`] if scratch memory runs out.
    pub fn prepack(
        self,
        filter: &[f32],
        input_channels: usize,
        output_channels: usize,
        prepacked: &mut [f32],
    ) -> Result<(), KernelError> {
        let n = input_channels * output_channels;
        if filter.len() != 9 * n
            || self.prepacked_len(input_channels, output_channels) != Some(prepacked.len())
        {
            return Err(KernelError::invalid(format!(
                "{} filter and {} prepacked elements do not match {input_channels} and \
                 {output_channels} channels of {self:?}",
                filter.len(),
                prepacked.len()
            )));
        }
        if n == 0 {
            return Ok(());
        }
        let g = self.matrix();
        let mut matrix: Scratch<f32> = Threads::single().scratch(n)?;
        let panels = prepacked.chunks_exact_mut(prepacked.len() / g.len().pow(2));
        let elements = g
            .iter()
            .flat_map(|row| g.iter().map(move |column| (row, column)));
        for ((row, column), panels) in elements.zip(panels) {
            let mut factors = [0.0; 9];
            for (tap, factor) in factors.iter_mut().enumerate() {
                *factor = row[tap / 3] * column[tap % 3];
            }
            transform(filter, &factors, &mut matrix);
            let matrix = MatrixView::row_major(&matrix, input_channels, output_channels)?;
            simd::prepack(matrix, panels);
        }
        Ok(())
    }

    /// Computes a convolution with a filter that [`Self::prepack`] has prepacked, and its epilogue
    /// ([`Convolution::apply`]). An infinite or undefined pixel makes all output pixels of the
    /// tiles undefined whose patches contain it.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the length of a slice does not match its shape, or the
    /// windows are not 3 x 3 with stride 1; [`KernelError::Tensor`] if scratch memory runs out.
    pub fn apply(
        self,
        convolution: &Convolution,
        input: &[f32],
        filter: &[f32],
        epilogue: Option<Epilogue<'_>>,
        out: &mut [f32],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let Convolution {
            batch,
            input_channels,
            output_channels,
            ..
        } = *convolution;
        convolution.check(input.len(), 9 * input_channels * output_channels, out.len())?;
        let n_pixels = out.len() / output_channels.max(1);
        if !has_tiles(convolution)
            || self.prepacked_len(input_channels, output_channels) != Some(filter.len())
            || !epilogue.is_none_or(|it| it.fits(n_pixels, output_channels))
        {
            return Err(KernelError::invalid(format!(
                "the prepacked filter does not match {convolution:?}"
            )));
        }
        if out.is_empty() {
            return Ok(());
        }
        let work_ns = self.macs(convolution) / MACS_PER_NS;
        simd::TiledConvolution {
            grid: self.grid(convolution),
            batch,
            input_channels,
            output_channels,
            images: input,
            filters: filter,
            epilogue,
        }
        .apply(out, u64::try_from(work_ns).unwrap_or(u64::MAX), threads)
    }
}

/// Returns whether there are tiles: the windows are 3 x 3 with stride 1, over all channels.
fn has_tiles(convolution: &Convolution) -> bool {
    let is_small =
        |axis: &WindowAxis| (axis.size, axis.stride) == (3, 1) && axis.dilation <= DILATION_MAX;
    is_small(&convolution.rows)
        && is_small(&convolution.columns)
        && convolution.filter_channels == convolution.input_channels
}

/// Computes one element of all transformed filters: the sum of their nine weights, multiplied by
/// these factors.
fn transform(filter: &[f32], factors: &[f64; 9], transformed: &mut [f32]) {
    let n = transformed.len();
    vectorize::<f32, _>(|| {
        for (index, element) in transformed.iter_mut().enumerate() {
            let mut sum = 0.0;
            for (tap, factor) in factors.iter().enumerate() {
                sum += f64::from(filter[tap * n + index]) * factor;
            }
            *element = sum as f32;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Activation;
    use crate::kernels::window::WindowSpec;
    use crate::ops::Padding;

    const ALL: [Winograd; 2] = [Winograd::Two, Winograd::Four];

    fn axis(input: usize, padding: Padding) -> WindowAxis {
        dilated(input, 1, padding)
    }

    fn dilated(input: usize, dilation: usize, padding: Padding) -> WindowAxis {
        let spec = WindowSpec {
            size: 3,
            stride: 1,
            dilation,
            padding,
        };
        spec.over(input).unwrap()
    }

    fn convolution(
        batch: usize,
        rows: WindowAxis,
        columns: WindowAxis,
        [input_channels, output_channels]: [usize; 2],
    ) -> Convolution {
        Convolution {
            batch,
            rows,
            columns,
            input_channels,
            filter_channels: input_channels,
            output_channels,
        }
    }

    /// Numbers between -1 and 1.
    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        let mut state = seed as u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from((state >> 16) as u16) / 32_768.0 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// Compares the result with sums in `f64`.
    fn check(winograd: Winograd, c: &Convolution, seed: usize) {
        let (inputs, outputs) = (c.input_channels, c.output_channels);
        let input = numbers(c.batch * c.rows.input * c.columns.input * inputs, seed);
        let filter = numbers(9 * inputs * outputs, seed + 1);
        let n = c.batch * c.rows.output * c.columns.output * outputs;
        let (bias, addend) = (numbers(outputs, seed + 2), numbers(n, seed + 3));
        let mut prepacked = vec![f32::NAN; winograd.prepacked_len(inputs, outputs).unwrap()];
        winograd
            .prepack(&filter, inputs, outputs, &mut prepacked)
            .unwrap();
        let exact = |numbers: &[f32]| numbers.iter().map(|&it| f64::from(it)).collect::<Vec<_>>();
        let mut expected = vec![0.0; n];
        let (x, f) = (exact(&input), exact(&filter));
        c.apply(&x, &f, &mut expected, Threads::single()).unwrap();
        let tolerance = 5e-6 * (9.0 * inputs as f64).sqrt();
        let run = |epilogue: Option<Epilogue<'_>>| {
            let mut out = vec![f32::NAN; n];
            winograd
                .apply(c, &input, &prepacked, epilogue, &mut out, Threads::single())
                .unwrap();
            out
        };
        for (index, (found, expected)) in run(None).iter().zip(&expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(
                error <= tolerance,
                "{winograd:?} {c:?} [{index}]: {found} is not {expected}"
            );
        }
        let epilogue = Epilogue {
            bias: &bias,
            addend: Some(&addend),
            activation: Activation::Relu,
        };
        for (index, (found, expected)) in run(Some(epilogue)).iter().zip(&expected).enumerate() {
            let sum = expected + f64::from(bias[index % outputs]) + f64::from(addend[index]);
            let error = (f64::from(*found) - sum.max(0.0)).abs();
            assert!(
                error <= tolerance,
                "{winograd:?} {c:?} [{index}]: {found} is not {sum}"
            );
        }
    }

    #[test]
    fn tiles_agree_with_sums_in_order() {
        let paddings = [
            Padding::Same,
            Padding::Valid,
            Padding::Explicit(2, 0),
            Padding::Explicit(0, 5),
        ];
        let mut seed = 0;
        for winograd in ALL {
            for padding in paddings {
                for (rows, columns) in [(3, 3), (4, 9), (7, 6), (11, 4)] {
                    seed += 10;
                    let axes = (axis(rows, padding), axis(columns, padding));
                    // Also channels that do not fill a vector.
                    for channels in [[1, 1], [5, 70], [16, 16], [33, 48]] {
                        check(winograd, &convolution(2, axes.0, axes.1, channels), seed);
                    }
                }
            }
            for (rows, columns) in [((9, 2), (12, 3)), ((5, 1), (11, 5)), ((2, 7), (3, 2))] {
                let axis = |(input, dilation)| dilated(input, dilation, Padding::Same);
                check(
                    winograd,
                    &convolution(2, axis(rows), axis(columns), [16, 32]),
                    seed,
                );
            }
            // Several blocks of tiles.
            let wide = convolution(
                3,
                axis(33, Padding::Same),
                axis(26, Padding::Same),
                [64, 96],
            );
            check(winograd, &wide, seed);
        }
    }

    #[test]
    fn the_size_of_tiles_depends_on_image_and_channels() {
        let best = |size: usize, channels: usize| {
            let axis = axis(size, Padding::Same);
            Winograd::best(&convolution(1, axis, axis, [channels; 2]))
        };
        assert_eq!(best(56, 64), Some(Winograd::Four));
        assert_eq!(best(14, 256), Some(Winograd::Two));
        // To read four times as many weights takes longer than the multiplications.
        assert_eq!(best(7, 512), None);
        assert_eq!(best(56, 8), None);
        let strided = WindowAxis {
            stride: 2,
            output: 28,
            ..axis(56, Padding::Same)
        };
        assert_eq!(
            Winograd::best(&convolution(1, strided, strided, [64; 2])),
            None
        );
    }

    #[test]
    fn slices_of_a_wrong_length_are_rejected() {
        let axis = axis(4, Padding::Same);
        let c = convolution(1, axis, axis, [2, 3]);
        for winograd in ALL {
            let len = winograd.prepacked_len(2, 3).unwrap();
            let mut prepacked = vec![0.0; len];
            winograd.prepack(&[1.0; 54], 2, 3, &mut prepacked).unwrap();
            winograd
                .prepack(&[1.0; 53], 2, 3, &mut prepacked)
                .unwrap_err();
            winograd
                .prepack(&[1.0; 54], 2, 3, &mut prepacked[1..])
                .unwrap_err();
            let mut out = [0.0; 48];
            let threads = Threads::single();
            winograd
                .apply(&c, &[1.0; 32], &prepacked, None, &mut out, threads)
                .unwrap();
            winograd
                .apply(&c, &[1.0; 31], &prepacked, None, &mut out, threads)
                .unwrap_err();
            winograd
                .apply(&c, &[1.0; 32], &prepacked[1..], None, &mut out, threads)
                .unwrap_err();
            winograd
                .apply(&c, &[1.0; 32], &prepacked, None, &mut out[1..], threads)
                .unwrap_err();
        }
    }
}
