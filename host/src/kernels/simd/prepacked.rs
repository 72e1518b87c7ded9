//! Matmuls with a prepacked right-hand matrix, such as weights and filters.
//!
//! The prepacked layout is the order in which the matmul reads: the columns are divided into panels
//! of a few vectors, and each panel is stored row by row. A tile of the result (some rows of one
//! panel) stays in registers over the whole inner dimension, and the left side is not copied. While
//! the tiles of one panel are computed, the next panel is fetched into the L2 cache: the weights of
//! a network come from the main memory. Each tile fetches an equal share of it. (If the first tile
//! fetches all, it waits for the memory: a matmul of 64 rows then takes 1.2 times as long.) A row
//! of the left side may consist of any segments: a piece of a matrix, or the pixels under a window
//! ([`Segment`]).

use std::cell::Cell;
use std::ops::Range;

use rten_simd::Isa;
use rten_simd::SimdOp;
#[cfg(target_arch = "x86_64")]
use rten_simd::isa::Avx2Isa;
use rten_simd::ops::BitOps;
use rten_simd::ops::NumOps;

use crate::device::Activation;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Threads;
use crate::kernels::simd::epilogue::Epilogue;
use crate::kernels::simd::epilogue::activate;
use crate::kernels::simd::gemm::Target;
use crate::kernels::simd::gemm::estimate_ns;
use crate::kernels::simd::gemm::share;

/// Maximum number of rows of a tile.
const ROWS_MAX: usize = 8;

/// Columns of a usual panel.
const PANEL_COLUMNS: usize = 64;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Contiguous elements of a row of the left side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Segment {
    /// Distance from the start of the row, in elements.
    pub(crate) offset: usize,
    /// Number of elements.
    pub(crate) len: usize,
}

/// Start of each row of the left side in its data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowStarts<'a> {
    /// `n_rows` rows, `stride` elements apart.
    Strided { n_rows: usize, stride: usize },
    /// One start per row.
    Listed(&'a [usize]),
}

/// The left side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// The data that contains the segments.
    pub(crate) data: &'a [f32],
    /// Start of each row.
    pub(crate) starts: RowStarts<'a>,
    /// Segments of each row, in order; their lengths add up to the inner dimension.
    pub(crate) segments: &'a [Segment],
}

/// The right side, `[inner, columns]`, in the layout of [`prepack`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepacked<'a> {
    data: &'a [f32],
    inner: usize,
    columns: usize,
}

impl RowStarts<'_> {
    fn len(&self) -> usize {
        match *self {
            Self::Strided { n_rows, .. } => n_rows,
            Self::Listed(starts) => starts.len(),
        }
    }

    #[inline(always)]
    fn get(&self, row: usize) -> usize {
        match *self {
            Self::Strided { stride, .. } => row * stride,
            Self::Listed(starts) => starts[row],
        }
    }
}

/// Vectors of a whole panel, by the number of lanes: together with the rows of a tile
/// ([`tile_rows`]) they fill the registers (32 of 16 lanes; 16 of 8 lanes).
const fn panel_vectors(lanes: usize) -> usize {
    match lanes {
        8 => 2,
        _ => 4,
    }
}

/// Returns the maximum number of rows of a tile.
const fn tile_rows(lanes: usize, vectors: usize) -> usize {
    match (lanes, vectors) {
        (8, 2) | (_, 4) => 6,
        _ => 8,
    }
}

/// Returns the number of `f32` lanes of a vector on this machine.
pub(crate) fn lanes() -> usize {
    struct Lanes;
    impl SimdOp for Lanes {
        type Output = usize;
        #[inline(always)]
        fn eval<I: Isa>(self, isa: I) -> usize {
            isa.f32().len()
        }
    }
    Lanes.dispatch()
}

/// Returns the lanes of the vectors that multiply a matrix of `columns` columns. With up to 8
/// columns, half of an AVX-512 vector would be empty, and cores that execute it in two halves pay
/// for the empty one in full.
fn lanes_for(columns: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if columns <= 8 && Avx2Isa::new().is_some() {
        return 8;
    }
    let _ = columns;
    lanes()
}

/// Returns the number of elements that [`prepack`] writes; `None` if it exceeds the address space.
pub(crate) fn prepacked_len(inner: usize, columns: usize) -> Option<usize> {
    columns
        .checked_next_multiple_of(lanes_for(columns))?
        .checked_mul(inner)
}

/// Prepacks a matrix.
///
/// # Panics
/// If the length of `prepacked` is not [`prepacked_len`].
pub(crate) fn prepack(matrix: MatrixView<'_, f32>, prepacked: &mut [f32]) {
    let (inner, columns) = (matrix.rows(), matrix.columns());
    let lanes = lanes_for(columns);
    assert_eq!(
        Some(prepacked.len()),
        prepacked_len(inner, columns),
        "the target has the prepacked length"
    );
    let width = panel_vectors(lanes) * lanes;
    let mut rest = prepacked;
    for first in (0..columns).step_by(width) {
        let n_columns = width.min(columns - first);
        let stride = n_columns.next_multiple_of(lanes);
        let (panel, others) = rest.split_at_mut(stride * inner);
        rest = others;
        for (i, row) in panel.chunks_exact_mut(stride).enumerate() {
            let (elements, beyond) = row.split_at_mut(n_columns);
            for (j, element) in elements.iter_mut().enumerate() {
                *element = matrix.at(i, first + j);
            }
            beyond.fill(0.0);
        }
    }
}

impl<'a> Prepacked<'a> {
    /// Wraps the output of [`prepack`] for a matrix of this shape; `None` if the length does not
    /// match.
    pub(crate) fn new(data: &'a [f32], inner: usize, columns: usize) -> Option<Self> {
        (prepacked_len(inner, columns) == Some(data.len())).then_some(Self {
            data,
            inner,
            columns,
        })
    }

    /// Writes the matrix, row-major, to `matrix`, which has as many elements.
    pub(crate) fn unpack(&self, matrix: &mut [f32]) {
        let lanes = lanes_for(self.columns);
        let width = panel_vectors(lanes) * lanes;
        let mut rest = self.data;
        for first in (0..self.columns).step_by(width) {
            let n_columns = width.min(self.columns - first);
            let stride = n_columns.next_multiple_of(lanes);
            let (panel, others) = rest.split_at(stride * self.inner);
            rest = others;
            let rows = matrix.chunks_exact_mut(self.columns);
            for (row, elements) in rows.zip(panel.chunks_exact(stride)) {
                row[first..first + n_columns].copy_from_slice(&elements[..n_columns]);
            }
        }
    }

    /// Returns the number of panels: a matmul can be divided by panels without reading anything
    /// twice.
    pub(crate) fn n_panels(&self) -> usize {
        let lanes = lanes_for(self.columns);
        self.columns.div_ceil(panel_vectors(lanes) * lanes)
    }
}

/// Computes `out[i, j] = sum over k of lhs[i, k] * rhs[k, j]`, and the epilogue of it.
///
/// # Panics
/// If the shapes disagree, or a row of the left side reaches beyond its data.
pub(crate) fn matmul_prepacked(
    lhs: Rows<'_>,
    rhs: Prepacked<'_>,
    epilogue: Option<Epilogue<'_>>,
    out: &mut MatrixMut<'_, f32>,
    threads: Threads<'_>,
) {
    let inner: usize = lhs.segments.iter().map(|segment| segment.len).sum();
    assert_eq!(inner, rhs.inner, "inner dimensions agree");
    let n_rows = lhs.starts.len();
    assert_eq!(
        (out.rows(), out.columns()),
        (n_rows, rhs.columns),
        "the result has its shape"
    );
    assert!(
        epilogue.is_none_or(|epilogue| epilogue.fits(n_rows, rhs.columns)),
        "the epilogue has its rows and columns"
    );
    let row_stride = out.row_stride();
    let out = Target(out.data_mut().as_mut_ptr());
    let compute = |rows: Range<usize>, panels: Range<usize>| {
        Block {
            lhs,
            rhs,
            epilogue,
            rows,
            panels,
            is_backward: n_rows <= ROWS_MAX && begins_at_end(),
            out,
            row_stride,
        }
        .compute();
    };
    let n_panels = rhs.n_panels();
    let work_ns = estimate_ns(n_rows, inner, rhs.columns);
    let n_parts = threads.pieces_for(work_ns);
    if n_parts < 2 {
        return compute(0..n_rows, 0..n_panels);
    }
    let lanes = lanes_for(rhs.columns);
    let unit = tile_rows(lanes, panel_vectors(lanes).min(rhs.columns.div_ceil(lanes)));
    let n_threads = threads.n_threads();
    let (n_slices, n_bands) = split(n_rows.div_ceil(unit), unit, n_panels, n_parts, n_threads);
    threads.for_each(work_ns, n_slices * n_bands, |part| {
        let (slice, band) = (part / n_bands, part % n_bands);
        compute(
            share(n_rows, band, n_bands, unit),
            share(n_panels, slice, n_slices, 1),
        );
    });
}

/// Returns whether a matmul of few rows begins with the last panel: every second one of a thread
/// does. It takes as long as it takes to read the panels, and those that the matmul before has read
/// last are still in the cache. The steps of a recurrent network read the same panels.
fn begins_at_end() -> bool {
    thread_local! {
        static NEXT: Cell<bool> = const { Cell::new(false) };
    }
    NEXT.with(|next| next.replace(!next.get()))
}

/// Divides `n_tiles` tiles of `rows` rows in each of `n_panels` panels into at least `n_parts`
/// parts: slices of the panels, and bands of the tiles. Each band reads the panels, and each slice
/// the rows. Threads have nearly the same to do, and little is read twice; then more parts are
/// better, because threads may be late.
fn split(
    n_tiles: usize,
    rows: usize,
    n_panels: usize,
    n_parts: usize,
    n_threads: usize,
) -> (usize, usize) {
    let mut best = (usize::MAX, (1, 1));
    for n_slices in (1..=n_panels.min(n_parts)).rev() {
        let n_bands = n_parts.div_ceil(n_slices).min(n_tiles).max(1);
        let part = n_panels.div_ceil(n_slices) * n_tiles.div_ceil(n_bands);
        let n_rounds = (n_slices * n_bands).div_ceil(n_threads);
        // In units of a tile of one panel. To read a panel from a shared cache takes as long as
        // one.
        let panels_read = n_panels * n_bands;
        let rows_read = n_tiles * n_slices * rows / PANEL_COLUMNS;
        let cost = n_rounds * part + (panels_read + rows_read) / n_threads;
        if cost < best.0 {
            best = (cost, (n_slices, n_bands));
        }
    }
    best.1
}

/// A block of the result: some rows, in the columns of some panels.
struct Block<'a> {
    lhs: Rows<'a>,
    rhs: Prepacked<'a>,
    epilogue: Option<Epilogue<'a>>,
    rows: Range<usize>,
    panels: Range<usize>,
    /// Whether the last panel is the first.
    is_backward: bool,
    out: Target<f32>,
    row_stride: usize,
}

impl Block<'_> {
    /// Computes the block with vectors of [`lanes_for`] lanes.
    fn compute(self) {
        #[cfg(target_arch = "x86_64")]
        if lanes_for(self.rhs.columns) == 8
            && let Some(isa) = Avx2Isa::new()
        {
            // SAFETY: `Avx2Isa` exists only on machines that support it.
            return unsafe { compute_in_avx2(isa, self) };
        }
        self.dispatch();
    }
}

/// # Safety
/// The machine has the features that [`Avx2Isa::new`] checks.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx,fma,f16c")]
unsafe fn compute_in_avx2(isa: Avx2Isa, block: Block<'_>) {
    block.eval(isa);
}

impl SimdOp for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let lanes = isa.f32().len();
        let width = panel_vectors(lanes) * lanes;
        let ends = self.lhs.segments.iter().map(|s| s.offset + s.len);
        let extent = ends.max().unwrap_or(0);
        let n_panels = self.panels.len();
        for index in 0..n_panels {
            let at = |index: usize| match self.is_backward {
                false => self.panels.start + index,
                true => self.panels.end - 1 - index,
            };
            let panel = at(index);
            let first = panel * width;
            let n_columns = width.min(self.rhs.columns - first);
            let n_vectors = n_columns.div_ceil(lanes);
            let start = first * self.rhs.inner;
            let data = &self.rhs.data[start..start + n_vectors * lanes * self.rhs.inner];
            let most = tile_rows(lanes, n_vectors);
            let n_tiles = (self.rows.end - self.rows.start).div_ceil(most).max(1);
            let (next, ahead_step) = match index + 1 < n_panels {
                true => {
                    let row_bytes = n_vectors * lanes * size_of::<f32>();
                    let step = row_bytes.div_ceil(n_tiles).min(LINE_BYTES);
                    (
                        &self.rhs.data[at(index + 1) * width * self.rhs.inner..],
                        step,
                    )
                }
                false => (data, 0),
            };
            let mut row = self.rows.start;
            for index in 0.. {
                if row >= self.rows.end {
                    break;
                }
                let n_rows = match self.rows.end - row {
                    left if left >= most => most,
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                let mut rows = [self.lhs.data.as_ptr(); ROWS_MAX];
                for (index, start) in rows.iter_mut().take(n_rows).enumerate() {
                    let at = self.lhs.starts.get(row + index);
                    *start = self.lhs.data[at..at + extent].as_ptr();
                }
                // SAFETY: `matmul_prepacked` has checked the shape of the result, and this row and
                // column are in it.
                let out = unsafe { self.out.start().add(row * self.row_stride + first) };
                // Rows without gaps: the ends of rows are written before the rows that follow.
                let n_writable = if self.rhs.columns == n_columns && self.row_stride == n_columns {
                    (self.rows.end - row) * n_columns
                } else {
                    0
                };
                let tile = Tile {
                    rows,
                    segments: self.lhs.segments,
                    epilogue: self.epilogue.map(|epilogue| TileEpilogue {
                        bias: &epilogue.bias[first..first + n_columns],
                        addend: epilogue
                            .addend
                            .map(|addend| &addend[row * self.rhs.columns + first..]),
                        addend_stride: self.rhs.columns,
                        activation: epilogue.activation,
                    }),
                    panel: data.as_ptr(),
                    ahead: next
                        .as_ptr()
                        .wrapping_byte_add(index * self.rhs.inner * ahead_step),
                    ahead_step,
                    out,
                    row_stride: self.row_stride,
                    n_columns,
                    n_writable,
                };
                #[expect(
                    clippy::multiple_unsafe_ops_per_block,
                    reason = "only one of these calls is made"
                )]
                // SAFETY: each of these rows has `extent` elements, the panel has its vectors for
                // the whole inner dimension, and the result has these rows and columns; the
                // `n_writable` elements from here on belong to rows that are written now or later.
                unsafe {
                    match (n_vectors, n_rows) {
                        (4, 6) => tile.fill::<I, 6, 4, 1>(isa),
                        (4, 4) => tile.fill::<I, 4, 4, 1>(isa),
                        (4, 2) => tile.fill::<I, 2, 4, 1>(isa),
                        (4, _) => tile.fill::<I, 1, 4, 2>(isa),
                        (3, 8) => tile.fill::<I, 8, 3, 1>(isa),
                        (3, 4) => tile.fill::<I, 4, 3, 1>(isa),
                        (3, 2) => tile.fill::<I, 2, 3, 1>(isa),
                        (3, _) => tile.fill::<I, 1, 3, 2>(isa),
                        (2, 8) => tile.fill::<I, 8, 2, 1>(isa),
                        (2, 6) => tile.fill::<I, 6, 2, 1>(isa),
                        (2, 4) => tile.fill::<I, 4, 2, 1>(isa),
                        (2, 2) => tile.fill::<I, 2, 2, 2>(isa),
                        (2, _) => tile.fill::<I, 1, 2, 4>(isa),
                        (_, 8) => tile.fill::<I, 8, 1, 1>(isa),
                        (_, 4) => tile.fill::<I, 4, 1, 2>(isa),
                        (_, 2) => tile.fill::<I, 2, 1, 4>(isa),
                        (_, _) => tile.fill::<I, 1, 1, 4>(isa),
                    }
                }
                row += n_rows;
            }
        }
    }
}

/// Fetches a cache line into the L2 cache; does nothing for an address without memory.
#[inline(always)]
fn prefetch(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never faults and which every x86-64 processor has.
    unsafe {
        use std::arch::x86_64::_MM_HINT_T1;
        use std::arch::x86_64::_mm_prefetch;
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The epilogue of a tile.
#[derive(Debug, Clone, Copy)]
struct TileEpilogue<'a> {
    /// The bias of the panel's columns.
    bias: &'a [f32],
    /// From the tile's first element on, with rows `addend_stride` elements apart.
    addend: Option<&'a [f32]>,
    addend_stride: usize,
    activation: Activation,
}

/// Some rows of one panel's columns.
#[derive(Debug, Clone, Copy)]
struct Tile<'a> {
    rows: [*const f32; ROWS_MAX],
    segments: &'a [Segment],
    epilogue: Option<TileEpilogue<'a>>,
    panel: *const f32,
    /// What is fetched into the cache meanwhile.
    ahead: *const f32,
    /// Bytes of it per inner element; at most a cache line.
    ahead_step: usize,
    out: *mut f32,
    row_stride: usize,
    n_columns: usize,
    /// Number of elements of the result, from the tile's first on, that whole vectors may
    /// overwrite: elements beyond the columns are written again later.
    n_writable: usize,
}

/// Repeats the body for each row of a tile. The compiler does not always unroll a loop of this
/// length, and then the sums leave the registers.
macro_rules! for_rows {
    ($r:ident, $body:expr) => {
        for_rows!($r, $body; 0 1 2 3 4 5 6 7)
    };
    ($r:ident, $body:expr; $($index:literal)*) => {
        $(if $index < R {
            let $r = $index;
            $body
        })*
    };
}

/// Adds the products of element `$k` of a segment to the sums `$sums`. A closure would not be
/// compiled with the instructions of the function around it.
macro_rules! add_products {
    ($k:expr, $sums:expr, $tile:ident, $ops:ident, $rows:ident, $panel:ident, $ahead:ident) => {{
        prefetch($ahead);
        $ahead = $ahead.wrapping_byte_add($tile.ahead_step);
        let mut vectors = [$ops.zero(); V];
        for v in 0..V {
            // SAFETY: the panel has `V` vectors for this element.
            let vector = unsafe { $panel.add(v * $ops.len()) };
            // SAFETY: as above.
            vectors[v] = unsafe { $ops.load_ptr(vector) };
        }
        // SAFETY: the next element, or the end.
        $panel = unsafe { $panel.add(V * $ops.len()) };
        for_rows!(r, {
            // SAFETY: the segment has more than `$k` elements.
            let element = unsafe { $rows[r].add($k) };
            // SAFETY: as above.
            let factor = $ops.splat(unsafe { *element });
            for v in 0..V {
                $sums[r][v] = $ops.mul_add(factor, vectors[v], $sums[r][v]);
            }
        });
    }};
}

/// Loads a vector, or the `n_left` elements of one that there are.
///
/// # Safety
/// There are `n_left` elements.
#[inline(always)]
pub(super) unsafe fn load<I: Isa>(isa: I, from: *const f32, n_left: usize) -> I::F32 {
    let ops = isa.f32();
    if n_left >= ops.len() {
        // SAFETY: a whole vector.
        unsafe { ops.load_ptr(from) }
    } else {
        // SAFETY: as many as the mask has.
        unsafe { ops.load_ptr_mask(from, ops.first_n_mask(n_left)) }
    }
}

impl Tile<'_> {
    /// Computes the tile with `U` sums per element of the result: a core starts a multiplication
    /// before the previous ones have ended, so it needs some eight sums that do not depend on each
    /// other.
    ///
    /// # Safety
    /// The first `R` rows have all segments, the panel has `V` vectors per inner element, and the
    /// result has `R` rows of `n_columns` elements: at most `V` vectors, and more than `V - 1`. The
    /// result has `n_writable` elements, and those beyond this tile have not been written yet.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "loops over registers, by their number"
    )]
    unsafe fn fill<I: Isa, const R: usize, const V: usize, const U: usize>(&self, isa: I) {
        let ops = isa.f32();
        let lanes = ops.len();
        let mut partial = [[[ops.zero(); V]; R]; U];
        let (mut panel, mut ahead) = (self.panel, self.ahead);
        for segment in self.segments {
            let mut rows = [self.rows[0]; R];
            // SAFETY: the row has the segment.
            for_rows!(r, rows[r] = unsafe { self.rows[r].add(segment.offset) });
            let n_whole = segment.len / U * U;
            for k in (0..n_whole).step_by(U) {
                for u in 0..U {
                    add_products!(k + u, partial[u], self, ops, rows, panel, ahead);
                }
            }
            for k in n_whole..segment.len {
                add_products!(k, partial[0], self, ops, rows, panel, ahead);
            }
        }
        let mut sums = partial[0];
        for u in 1..U {
            for_rows!(r, {
                for v in 0..V {
                    sums[r][v] = ops.add(sums[r][v], partial[u][r][v]);
                }
            });
        }
        let n_whole = self.n_columns / lanes;
        if let Some(epilogue) = &self.epilogue {
            let TileEpilogue {
                bias, activation, ..
            } = *epilogue;
            for v in 0..V {
                let n_left = self.n_columns - v * lanes;
                // SAFETY: there is one per column.
                let bias = unsafe { load(isa, bias[v * lanes..].as_ptr(), n_left) };
                for_rows!(r, {
                    let mut sum = ops.add(sums[r][v], bias);
                    if let Some(addend) = epilogue.addend {
                        let from = addend[r * epilogue.addend_stride + v * lanes..].as_ptr();
                        // SAFETY: the addend has the rows and columns of the tile.
                        sum = ops.add(sum, unsafe { load(isa, from, n_left) });
                    }
                    sums[r][v] = activate(isa, sum, activation);
                });
            }
        }
        for_rows!(r, {
            for v in 0..V {
                let offset = r * self.row_stride + v * lanes;
                // SAFETY: the row has elements from here on.
                let to = unsafe { self.out.add(offset) };
                // Many cores take tens of cycles to store a part of a vector.
                if v < n_whole || offset + lanes <= self.n_writable {
                    // SAFETY: a whole vector of elements, all of which may be written.
                    unsafe { ops.store_ptr(sums[r][v], to) };
                } else {
                    let mask = ops.first_n_mask(self.n_columns - v * lanes);
                    // SAFETY: as many elements as the mask has.
                    unsafe { ops.store_ptr_mask(sums[r][v], to, mask) };
                }
            }
        });
    }
}
