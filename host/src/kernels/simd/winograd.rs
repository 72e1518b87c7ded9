//! Winograd's convolution of `f32` images: the transforms are vectors of channels in registers, and
//! the products matmuls with prepacked filters.

use std::ops::Range;
use std::sync::OnceLock;

use rten_simd::Isa;
use rten_simd::SimdOp;
use rten_simd::ops::BitOps;
use rten_simd::ops::NumOps;

use crate::device::Activation;
use crate::device::KernelError;
use crate::kernels::MatrixMut;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::simd::epilogue::Epilogue;
use crate::kernels::simd::epilogue::activate;
use crate::kernels::simd::gemm::Target;
use crate::kernels::simd::prepacked::Prepacked;
use crate::kernels::simd::prepacked::RowStarts;
use crate::kernels::simd::prepacked::Rows;
use crate::kernels::simd::prepacked::Segment;
use crate::kernels::simd::prepacked::load;
use crate::kernels::simd::prepacked::matmul_prepacked;
use crate::kernels::simd::prepacked::prepacked_len;
use crate::kernels::window::WindowAxis;

/// Pixels of an edge of the largest patch.
const EDGE_MAX: usize = 6;

/// Maximum dilation of windows.
pub(crate) const DILATION_MAX: usize = 64;

/// Minimum number of tiles of a block or part, if there are as many: each reads the filters.
const TILES_MIN: usize = 48;

/// Elements of the transformed patches and products of a block with many tiles. They stay in the L2
/// cache.
const BLOCK_ELEMENTS: usize = 144 * 1024;

/// The square tiles of output pixels of a batch, line by line. All windows of a tile are over one
/// patch of the image, which is two pixels larger than the tile in both directions. The pixels of a
/// tile, and of its patch, are as far apart as those of a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileGrid {
    /// Windows over the rows: of size 3, with stride 1, and a dilation of at most [`DILATION_MAX`].
    pub(crate) rows: WindowAxis,
    /// Windows over the columns, likewise.
    pub(crate) columns: WindowAxis,
    /// Output pixels of an edge of a tile: 2 or 4.
    pub(crate) edge: usize,
}

impl TileGrid {
    /// Returns the number of elements of a patch.
    fn n_elements(&self) -> usize {
        (self.edge + 2).pow(2)
    }

    /// Returns the number of tiles of an image.
    pub(crate) fn n_tiles(&self) -> usize {
        self.n_along(&self.rows) * self.n_along(&self.columns)
    }

    /// Returns the number of tiles along an axis.
    fn n_along(&self, axis: &WindowAxis) -> usize {
        let n_phases = axis.dilation.min(axis.output);
        n_phases * axis.output.div_ceil(axis.dilation).div_ceil(self.edge)
    }

    /// Returns image, first row and first column of a tile. Some have no output pixels.
    fn position(&self, tile: usize) -> (usize, usize, usize) {
        let per_line = self.n_along(&self.columns);
        let (image, tile) = (tile / self.n_tiles(), tile % self.n_tiles());
        // Tiles of different phases are side by side.
        let first = |axis: &WindowAxis, index: usize| {
            let n_phases = axis.dilation.min(axis.output).max(1);
            index / n_phases * self.edge * axis.dilation + index % n_phases
        };
        let (row, column) = (tile / per_line, tile % per_line);
        (image, first(&self.rows, row), first(&self.columns, column))
    }
}

/// Winograd's convolution, with transformed filters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TiledConvolution<'a> {
    pub(crate) grid: TileGrid,
    pub(crate) batch: usize,
    pub(crate) input_channels: usize,
    pub(crate) output_channels: usize,
    /// `[batch, rows.input, columns.input, input_channels]`
    pub(crate) images: &'a [f32],
    /// One prepacked `[input_channels, output_channels]` matrix per element of a patch, one after
    /// another.
    pub(crate) filters: &'a [f32],
    pub(crate) epilogue: Option<Epilogue<'a>>,
}

impl TiledConvolution<'_> {
    /// Computes `[batch, rows.output, columns.output, output_channels]`, until the run is
    /// interrupted; `work_ns` is the time on one thread.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If a length does not match.
    pub(crate) fn apply(
        self,
        out: &mut [f32],
        work_ns: u64,
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let TileGrid { rows, columns, .. } = self.grid;
        let n_pixels = self.batch * rows.output * columns.output;
        assert_eq!(
            (self.images.len(), out.len()),
            (
                self.batch * rows.input * columns.input * self.input_channels,
                n_pixels * self.output_channels
            ),
            "images and result have their shapes"
        );
        assert!(
            self.epilogue
                .is_none_or(|it| it.fits(n_pixels, self.output_channels)),
            "the epilogue has the pixels and channels"
        );
        let matrix = prepacked_len(self.input_channels, self.output_channels);
        assert_eq!(
            matrix.and_then(|len| len.checked_mul(self.grid.n_elements())),
            Some(self.filters.len()),
            "a matrix per element of a patch"
        );
        let n_tiles = self.batch * self.grid.n_tiles();
        let n_threads = threads.n_threads();
        // One part per thread, or several if they are large.
        let n_parts = match threads.parts_for(work_ns) {
            0 | 1 => 1,
            n_parts => {
                let n_even = n_tiles / TILES_MIN / n_threads * n_threads;
                n_even.clamp(n_threads, n_parts.max(n_threads))
            }
        };
        let part = n_tiles.div_ceil(n_parts).max(1);
        let failure = OnceLock::new();
        let out = Target(out.as_mut_ptr());
        let uninterrupted = threads.uninterrupted();
        uninterrupted.for_each(work_ns, n_tiles.div_ceil(part), |index| {
            let tiles = index * part..n_tiles.min((index + 1) * part);
            match BlockScratch::new(&self, tiles.len(), threads) {
                // SAFETY: `out` has the pixels of all tiles, and parts have different tiles.
                Ok(mut scratch) => unsafe {
                    self.tiles(tiles, &mut scratch, out, threads.alone());
                },
                Err(error) => drop(failure.set(error)),
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// Returns the maximum number of tiles of a block.
    fn block_max(&self) -> usize {
        let elements = self.grid.n_elements() * (self.input_channels + self.output_channels);
        (BLOCK_ELEMENTS / elements.max(1)).max(TILES_MIN)
    }

    /// Computes some tiles.
    ///
    /// # Safety
    /// `out` has the output pixels of all tiles, and no other thread uses those of these tiles.
    unsafe fn tiles(
        &self,
        tiles: Range<usize>,
        scratch: &mut BlockScratch,
        out: Target<f32>,
        threads: Threads<'_>,
    ) {
        let (inputs, outputs) = (self.input_channels, self.output_channels);
        let n_elements = self.grid.n_elements();
        // Blocks of nearly the same size.
        let n_blocks = tiles.len().div_ceil(self.block_max()).max(1);
        let size = tiles.len().div_ceil(n_blocks).max(1);
        let filter_len = prepacked_len(inputs, outputs).unwrap_or(usize::MAX);
        let segments = [Segment {
            offset: 0,
            len: inputs,
        }];
        for start in tiles.clone().step_by(size) {
            if threads.is_interrupted() {
                return;
            }
            let block = start..tiles.end.min(start + size);
            let n = block.len();
            let patches = &mut scratch.patches[..n_elements * n * inputs];
            let products = &mut scratch.products[..n_elements * n * outputs];
            Input {
                grid: &self.grid,
                images: self.images,
                tiles: block.clone(),
                zeros: &scratch.zeros,
                transformed: patches,
            }
            .dispatch();
            let filters = self.filters.chunks_exact(filter_len);
            let matrices = patches.chunks_exact(n * inputs);
            let results = products.chunks_exact_mut(n * outputs);
            for ((patches, filter), products) in matrices.zip(filters).zip(results) {
                let lhs = Rows {
                    data: patches,
                    starts: RowStarts::Strided {
                        n_rows: n,
                        stride: inputs,
                    },
                    segments: &segments,
                };
                let rhs = Prepacked::new(filter, inputs, outputs).expect("a filter has its length");
                let mut out = MatrixMut::new(products, n, outputs, outputs).expect("whole rows");
                matmul_prepacked(lhs, rhs, None, &mut out, threads);
            }
            Output {
                grid: &self.grid,
                products,
                tiles: block,
                channels: outputs,
                epilogue: self.epilogue,
                out,
            }
            .dispatch();
        }
    }
}

/// Scratch memory of one part.
struct BlockScratch {
    /// A pixel.
    zeros: Scratch<f32>,
    /// The transformed patches of a block: one matrix, `[tiles, input channels]`, per element.
    patches: Scratch<f32>,
    /// Their products with the filters: one matrix, `[tiles, output channels]`, per element.
    products: Scratch<f32>,
}

impl BlockScratch {
    /// Allocates scratch for a part of `n_tiles` tiles.
    fn new(
        convolution: &TiledConvolution<'_>,
        n_tiles: usize,
        threads: Threads<'_>,
    ) -> Result<Self, KernelError> {
        let n_elements = convolution.grid.n_elements() * convolution.block_max().min(n_tiles);
        Ok(Self {
            zeros: threads.scratch(convolution.input_channels)?,
            patches: threads.unset_scratch(n_elements * convolution.input_channels)?,
            products: threads.unset_scratch(n_elements * convolution.output_channels)?,
        })
    }
}

/// Transforms the patches under some tiles: element `(i, j)` of all transformed patches is a
/// matrix, `[tiles, channels]`, of its own.
struct Input<'a> {
    grid: &'a TileGrid,
    images: &'a [f32],
    tiles: Range<usize>,
    zeros: &'a [f32],
    /// Of the length that this takes.
    transformed: &'a mut [f32],
}

/// Computes the output pixels of some tiles, and the epilogue of all output pixels, from the
/// products of the transformed patches and filters.
struct Output<'a> {
    grid: &'a TileGrid,
    /// One matrix, `[tiles, channels]`, per element of a patch.
    products: &'a [f32],
    tiles: Range<usize>,
    channels: usize,
    epilogue: Option<Epilogue<'a>>,
    /// The output pixels of all tiles. No other thread uses those of these.
    out: Target<f32>,
}

/// The transforms of one line of a patch of `P` pixels, and of `P` products to `T` output pixels.
trait Transform<const P: usize, const T: usize> {
    fn input<I: Isa>(isa: I, pixels: [I::F32; P]) -> [I::F32; P];
    fn output<I: Isa>(isa: I, products: [I::F32; P]) -> [I::F32; T];
}

/// Two output pixels, from the points 0, 1, -1 and infinity.
struct Two;

/// Four output pixels, from the points 0, 1, -1, 1/2, -2 and infinity.
struct Four;

impl Transform<4, 2> for Two {
    #[inline(always)]
    fn input<I: Isa>(isa: I, pixels: [I::F32; 4]) -> [I::F32; 4] {
        let ops = isa.f32();
        let [a, b, c, d] = pixels;
        [ops.sub(a, c), ops.add(b, c), ops.sub(c, b), ops.sub(b, d)]
    }

    #[inline(always)]
    fn output<I: Isa>(isa: I, products: [I::F32; 4]) -> [I::F32; 2] {
        let ops = isa.f32();
        let [a, b, c, d] = products;
        let (sum, difference) = (ops.add(b, c), ops.sub(b, c));
        [ops.add(a, sum), ops.sub(difference, d)]
    }
}

impl Transform<6, 4> for Four {
    #[inline(always)]
    fn input<I: Isa>(isa: I, pixels: [I::F32; 6]) -> [I::F32; 6] {
        let ops = isa.f32();
        let [a, b, c, d, e, f] = pixels;
        let half = ops.splat(0.5);
        let three_halves = ops.splat(1.5);
        let five_halves = ops.splat(2.5);
        let two = ops.splat(2.0);
        let (difference, outer) = (ops.sub(d, b), ops.sub(e, c));
        [
            // a - 3/2 b - 2 c + 3/2 d + e
            ops.mul_add(
                three_halves,
                difference,
                ops.add(ops.sub(a, ops.mul(two, c)), e),
            ),
            // -b + 1/2 c + 5/2 d + e
            ops.mul_add(five_halves, d, ops.mul_add(half, c, ops.sub(e, b))),
            // b - 5/2 c + 1/2 d + e
            ops.sub(ops.mul_add(half, d, ops.add(e, b)), ops.mul(five_halves, c)),
            // -2 b - c + 2 d + e
            ops.mul_add(two, difference, outer),
            // 1/2 b - c - 1/2 d + e
            ops.sub(outer, ops.mul(half, difference)),
            // b - 3/2 c - 2 d + 3/2 e + f
            ops.mul_add(three_halves, outer, ops.add(ops.sub(b, ops.mul(two, d)), f)),
        ]
    }

    #[inline(always)]
    fn output<I: Isa>(isa: I, products: [I::F32; 6]) -> [I::F32; 4] {
        let ops = isa.f32();
        let [a, b, c, d, e, f] = products;
        let (sum, difference) = (ops.add(b, c), ops.sub(b, c));
        let add = |factor: f32, x: I::F32, to: I::F32| ops.mul_add(ops.splat(factor), x, to);
        [
            ops.add(ops.add(a, sum), ops.add(d, e)),
            add(-2.0, e, add(0.5, d, difference)),
            add(4.0, e, add(0.25, d, sum)),
            add(-8.0, e, add(0.125, d, ops.add(difference, f))),
        ]
    }
}

impl SimdOp for Input<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        match self.grid.edge {
            2 => self.transform::<I, Two, 4, 2>(isa),
            _ => self.transform::<I, Four, 6, 4>(isa),
        }
    }
}

impl Input<'_> {
    #[inline(always)]
    fn transform<I: Isa, F: Transform<P, T>, const P: usize, const T: usize>(self, isa: I) {
        let channels = self.zeros.len();
        let (n_tiles, first) = (self.tiles.len(), self.tiles.start);
        for tile in self.tiles.clone() {
            let pixels = self.patch::<P>(tile);
            let row = (tile - first) * channels;
            for channel in (0..channels).step_by(isa.f32().len()) {
                let out = self.transformed[row + channel..].as_mut_ptr();
                // SAFETY: each pixel has the channels; so has this row of each matrix, and these
                // are `n_tiles * channels` elements apart.
                unsafe {
                    transform_patch::<I, F, P, T>(
                        isa,
                        &pixels,
                        channel,
                        channels - channel,
                        out,
                        n_tiles * channels,
                    );
                }
            }
        }
    }

    /// Returns the pixels of the patch under a tile. Those outside of the image are zeros.
    #[inline(always)]
    fn patch<const P: usize>(&self, tile: usize) -> [[*const f32; EDGE_MAX]; EDGE_MAX] {
        let channels = self.zeros.len();
        let TileGrid { rows, columns, .. } = self.grid;
        let (image, row, column) = self.grid.position(tile);
        let mut pixels = [[self.zeros.as_ptr(); EDGE_MAX]; EDGE_MAX];
        for (y, line) in pixels.iter_mut().take(P).enumerate() {
            // The windows follow one another without gaps.
            let Some(y) = rows.input_of(row, y) else {
                continue;
            };
            let start = (image * rows.input + y) * columns.input;
            for (x, pixel) in line.iter_mut().take(P).enumerate() {
                if let Some(x) = columns.input_of(column, x) {
                    *pixel = self.images[(start + x) * channels..][..channels].as_ptr();
                }
            }
        }
        pixels
    }
}

/// Transforms a vector of channels of a patch.
///
/// # Safety
/// From `channel` on, each of the first `P` pixels of the first `P` lines has `n_left` channels; so
/// has `out`, `P * P` times, at a distance of `stride` elements.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "loops over registers, by their number"
)]
unsafe fn transform_patch<I: Isa, F: Transform<P, T>, const P: usize, const T: usize>(
    isa: I,
    pixels: &[[*const f32; EDGE_MAX]; EDGE_MAX],
    channel: usize,
    n_left: usize,
    out: *mut f32,
    stride: usize,
) {
    let ops = isa.f32();
    let mut columns = [[ops.zero(); P]; P];
    for x in 0..P {
        let mut column = [ops.zero(); P];
        for y in 0..P {
            // SAFETY: the pixel has this channel.
            let from = unsafe { pixels[y][x].add(channel) };
            // SAFETY: as many as there are.
            column[y] = unsafe { load(isa, from, n_left) };
        }
        columns[x] = F::input(isa, column);
    }
    for y in 0..P {
        let mut line = [ops.zero(); P];
        for x in 0..P {
            line[x] = columns[x][y];
        }
        let line = F::input(isa, line);
        for x in 0..P {
            // SAFETY: there is such a matrix.
            let to = unsafe { out.add((y * P + x) * stride) };
            // SAFETY: it has as many.
            unsafe { store(isa, line[x], to, n_left) };
        }
    }
}

/// Stores a vector, or the `n_left` elements of one that there are.
///
/// # Safety
/// There are `n_left` elements.
#[inline(always)]
unsafe fn store<I: Isa>(isa: I, value: I::F32, to: *mut f32, n_left: usize) {
    let ops = isa.f32();
    if n_left >= ops.len() {
        // SAFETY: a whole vector.
        unsafe { ops.store_ptr(value, to) }
    } else {
        // SAFETY: as many as the mask has.
        unsafe { ops.store_ptr_mask(value, to, ops.first_n_mask(n_left)) }
    }
}

impl SimdOp for Output<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        match self.grid.edge {
            2 => self.transform::<I, Two, 4, 2>(isa),
            _ => self.transform::<I, Four, 6, 4>(isa),
        }
    }
}

impl Output<'_> {
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "loops over registers, by their number"
    )]
    fn transform<I: Isa, F: Transform<P, T>, const P: usize, const T: usize>(self, isa: I) {
        let (ops, channels) = (isa.f32(), self.channels);
        let TileGrid { rows, columns, .. } = self.grid;
        let matrix = self.tiles.len() * channels;
        for tile in self.tiles.clone() {
            let (image, row, column) = self.grid.position(tile);
            let first = (image * rows.output + row) * columns.output + column;
            let n_of = |axis: &WindowAxis, first: usize| {
                let n = axis.output.saturating_sub(first).div_ceil(axis.dilation);
                n.min(T)
            };
            let (n_rows, n_columns) = (n_of(rows, row), n_of(columns, column));
            let products = &self.products[(tile - self.tiles.start) * channels..];
            for channel in (0..channels).step_by(ops.len()) {
                let n_left = channels - channel;
                let from = products[channel..].as_ptr();
                // SAFETY: the matrices have this row.
                let pixels = unsafe { output_tile::<I, F, P, T>(isa, from, n_left, matrix) };
                let bias = self.epilogue.map(|it| {
                    // SAFETY: the bias has the channels.
                    let bias = unsafe { load(isa, it.bias[channel..].as_ptr(), n_left) };
                    (bias, it.addend, it.activation)
                });
                for y in 0..T {
                    for x in 0..T {
                        if y >= n_rows || x >= n_columns {
                            continue;
                        }
                        let pixel = y * rows.dilation * columns.output + x * columns.dilation;
                        let at = (first + pixel) * channels + channel;
                        let value = match bias {
                            Some((bias, addend, activation)) => {
                                // SAFETY: the addend has the channels of this pixel.
                                let added = addend
                                    .map(|it| unsafe { load(isa, it[at..].as_ptr(), n_left) });
                                finish(isa, pixels[y][x], bias, added, activation)
                            }
                            None => pixels[y][x],
                        };
                        // SAFETY: the result has this pixel, which only this thread uses.
                        let to = unsafe { self.out.start().add(at) };
                        // SAFETY: as above.
                        unsafe { store(isa, value, to, n_left) };
                    }
                }
            }
        }
    }
}

/// Computes the epilogue of a vector.
#[inline(always)]
fn finish<I: Isa>(
    isa: I,
    sum: I::F32,
    bias: I::F32,
    addend: Option<I::F32>,
    activation: Activation,
) -> I::F32 {
    let ops = isa.f32();
    let biased = ops.add(sum, bias);
    let sum = match addend {
        Some(addend) => ops.add(biased, addend),
        None => biased,
    };
    activate(isa, sum, activation)
}

/// Computes a vector of channels of a tile.
///
/// # Safety
/// There are `P * P` matrices, `stride` elements apart, and each has `n_left` channels at `from`.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "loops over registers, by their number"
)]
unsafe fn output_tile<I: Isa, F: Transform<P, T>, const P: usize, const T: usize>(
    isa: I,
    from: *const f32,
    n_left: usize,
    stride: usize,
) -> [[I::F32; T]; T] {
    let ops = isa.f32();
    let mut columns = [[ops.zero(); T]; P];
    for x in 0..P {
        let mut column = [ops.zero(); P];
        for y in 0..P {
            // SAFETY: there is such a matrix.
            let from = unsafe { from.add((y * P + x) * stride) };
            // SAFETY: as many as there are.
            column[y] = unsafe { load(isa, from, n_left) };
        }
        columns[x] = F::output(isa, column);
    }
    let mut pixels = [[ops.zero(); T]; T];
    for y in 0..T {
        let mut line = [ops.zero(); P];
        for x in 0..P {
            line[x] = columns[x][y];
        }
        pixels[y] = F::output(isa, line);
    }
    pixels
}
