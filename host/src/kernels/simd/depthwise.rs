//! Depthwise convolutions of `f32` images with the sums in registers.
//!
//! A tile of the result is one vector of channels in some neighbouring pixels of a line. For each
//! line of the window, the weights are loaded once, and each pixel that is read serves all windows
//! of the tile that contain it.

use rten_simd::Isa;
use rten_simd::SimdOp;
use rten_simd::ops::BitOps;
use rten_simd::ops::NumOps;

use crate::device::Activation;
use crate::kernels::simd::epilogue::Epilogue;
use crate::kernels::simd::epilogue::activate;
use crate::kernels::simd::prepacked::lanes;
use crate::kernels::window::WindowAxis;

/// Maximum number of lines of a window.
pub(crate) const LINES_MAX: usize = 5;

/// Maximum number of pixels that a tile reads of a line: 8 windows of 5 pixels at stride 2.
const PIXELS_MAX: usize = 19;

/// A line of the image and the line of the filter over it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageLine<'a> {
    /// Pixels, `[columns.input, channels]`.
    pub(crate) pixels: &'a [f32],
    /// Weights, `[columns.size, channels]`.
    pub(crate) weights: &'a [f32],
}

/// A line of windows, with one output channel per channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DepthwiseLine<'a> {
    /// The windows.
    pub(crate) columns: WindowAxis,
    /// The lines under them; not those outside of the image.
    pub(crate) lines: &'a [ImageLine<'a>],
    /// A pixel of zeros, for the padding. It has the channels.
    pub(crate) zeros: &'a [f32],
    /// What is computed of the sums; without an addend.
    pub(crate) epilogue: Option<Epilogue<'a>>,
}

/// Returns whether [`DepthwiseLine::apply`] computes such windows.
pub(crate) fn is_in_registers(rows: &WindowAxis, columns: &WindowAxis, channels: usize) -> bool {
    rows.size <= LINES_MAX
        && matches!((columns.size, columns.stride), (3 | 5, 1 | 2))
        && columns.dilation == 1
        && channels >= lanes()
}

impl DepthwiseLine<'_> {
    /// Computes a line of the result, `[columns.output, channels]`.
    ///
    /// # Panics
    /// If a length does not match, or the windows are not such that [`is_in_registers`] accepts.
    pub(crate) fn apply(self, out: &mut [f32]) {
        let (columns, channels) = (&self.columns, self.zeros.len());
        assert!(self.lines.len() <= LINES_MAX, "the window has few lines");
        assert_eq!(out.len(), columns.output * channels, "a line of the result");
        for line in self.lines {
            assert_eq!(line.pixels.len(), columns.input * channels, "a line");
            assert_eq!(line.weights.len(), columns.size * channels, "its weights");
        }
        assert!(
            self.epilogue
                .is_none_or(|it| it.bias.len() == channels && it.addend.is_none()),
            "the bias has the channels"
        );
        assert!(channels >= lanes(), "a vector of channels");
        Run { line: self, out }.dispatch();
    }
}

/// One call of [`DepthwiseLine::apply`], which has checked the lengths.
struct Run<'a> {
    line: DepthwiseLine<'a>,
    out: &'a mut [f32],
}

impl SimdOp for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let columns = &self.line.columns;
        match (columns.size, columns.stride) {
            (3, 1) => self.tiles::<I, 3, 1>(isa),
            (3, 2) => self.tiles::<I, 3, 2>(isa),
            (5, 1) => self.tiles::<I, 5, 1>(isa),
            (5, 2) => self.tiles::<I, 5, 2>(isa),
            other => unreachable!("windows and stride {other:?}"),
        }
    }
}

/// Repeats the body with `$i` = 0, 1, and so on. The compiler does not always unroll a loop of this
/// length, and then the sums leave the registers.
macro_rules! repeat {
    ($i:ident < 8, $body:expr) => {
        repeat!($i, $body; 0 1 2 3 4 5 6 7)
    };
    ($i:ident < 19, $body:expr) => {
        repeat!($i, $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18)
    };
    ($i:ident, $body:expr; $($index:literal)*) => {
        $({
            let $i: usize = $index;
            $body
        })*
    };
}

impl Run<'_> {
    #[inline(always)]
    fn tiles<I: Isa, const K: usize, const S: usize>(self, isa: I) {
        match self.line.columns.output {
            8.. => self.tiles_of::<I, 8, K, S>(isa),
            7 => self.tiles_of::<I, 7, K, S>(isa),
            4.. => self.tiles_of::<I, 4, K, S>(isa),
            _ => self.tiles_of::<I, 1, K, S>(isa),
        }
    }

    /// Computes the line in tiles of `C` windows. The last one may repeat some of the one before.
    #[inline(always)]
    fn tiles_of<I: Isa, const C: usize, const K: usize, const S: usize>(self, isa: I) {
        let n_columns = self.line.columns.output;
        let (channels, epilogue) = (self.line.zeros.len(), self.line.epilogue);
        let lanes = isa.f32().len();
        for first in (0..n_columns).step_by(C) {
            let column = first.min(n_columns - C);
            let mut pixels = [[self.line.zeros.as_ptr(); PIXELS_MAX]; LINES_MAX];
            let mut weights = [self.line.zeros.as_ptr(); LINES_MAX];
            let lines = self.line.lines.iter().zip(&mut pixels).zip(&mut weights);
            for ((line, pixels), weights) in lines {
                *weights = line.weights.as_ptr();
                for (tap, pixel) in pixels.iter_mut().take((C - 1) * S + K).enumerate() {
                    // The windows of a tile follow one another without gaps.
                    if let Some(at) = self.line.columns.input_of(column, tap) {
                        *pixel = line.pixels[at * channels..][..channels].as_ptr();
                    }
                }
            }
            let out = &mut self.out[column * channels..][..C * channels];
            for first in (0..channels).step_by(lanes) {
                let tile = Tile {
                    pixels: &pixels[..self.line.lines.len()],
                    weights: &weights,
                    epilogue: epilogue.map(|it| (it.bias.as_ptr(), it.activation)),
                    out: out.as_mut_ptr(),
                    channels,
                    first: first.min(channels - lanes),
                };
                // SAFETY: each pixel, each weight and the bias have `channels` elements, and so has
                // each of the `C` pixels of `out`.
                unsafe { tile.fill::<I, C, K, S>(isa) };
            }
        }
    }
}

/// One vector of channels of some neighbouring pixels.
struct Tile<'a> {
    pixels: &'a [[*const f32; PIXELS_MAX]],
    weights: &'a [*const f32; LINES_MAX],
    epilogue: Option<(*const f32, Activation)>,
    out: *mut f32,
    channels: usize,
    /// The first of the channels.
    first: usize,
}

impl Tile<'_> {
    /// # Safety
    /// From `first` on, the first `(C - 1) * S + K` pixels of each line, `K` weights and the bias
    /// have a vector of channels, and so have `C` pixels of the result.
    #[inline(always)]
    unsafe fn fill<I: Isa, const C: usize, const K: usize, const S: usize>(&self, isa: I) {
        let ops = isa.f32();
        // SAFETY: each has this element.
        let load = |from: *const f32| unsafe { from.add(self.first) };
        let mut sums = [ops.zero(); C];
        for (pixels, &line) in self.pixels.iter().zip(self.weights) {
            let mut weights = [ops.zero(); K];
            for (tap, weight) in weights.iter_mut().enumerate() {
                // SAFETY: the line has `K` weights per channel.
                let from = load(unsafe { line.add(tap * self.channels) });
                // SAFETY: a vector of them.
                *weight = unsafe { ops.load_ptr(from) };
            }
            repeat!(
                i < 19,
                if i < (C - 1) * S + K {
                    // SAFETY: a vector of the pixel.
                    let pixel = unsafe { ops.load_ptr(load(pixels[i])) };
                    repeat!(
                        c < 8,
                        if c < C && i >= c * S && i - c * S < K {
                            sums[c] = ops.mul_add(pixel, weights[i - c * S], sums[c]);
                        }
                    );
                }
            );
        }
        repeat!(
            c < 8,
            if c < C {
                let mut sum = sums[c];
                if let Some((bias, activation)) = self.epilogue {
                    // SAFETY: a vector of the bias.
                    sum = ops.add(sum, unsafe { ops.load_ptr(load(bias)) });
                    sum = activate(isa, sum, activation);
                }
                // SAFETY: the result has this pixel.
                let to = unsafe { self.out.add(c * self.channels + self.first) };
                // SAFETY: a vector of it.
                unsafe { ops.store_ptr(sum, to) };
            }
        );
    }
}
