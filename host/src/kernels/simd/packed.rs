//! Products with a right-hand matrix that was put in order before: weights, filters.
//!
//! The order is that in which the product reads: the columns in panels of a few vectors, within a
//! panel row after row. A tile of the result (some rows of one panel) stands in registers while the
//! whole inner dimension goes by, so nothing is read twice from beyond the first cache and nothing
//! of the left side is copied. What a row of the left side is, is free: a piece of a matrix, or the
//! pixels under a window ([`Segment`]).

use std::ops::Range;

use rten_simd::Isa;
use rten_simd::SimdOp;
#[cfg(target_arch = "x86_64")]
use rten_simd::isa::Avx2Isa;
use rten_simd::ops::BitOps;
use rten_simd::ops::NumOps;

use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Threads;
use crate::kernels::simd::gemm::Target;
use crate::kernels::simd::gemm::estimate_ns;
use crate::kernels::simd::gemm::share;

/// Most rows of any tile.
const ROWS_MAX: usize = 8;

/// Contiguous elements of the left side that a row consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Segment {
    /// Elements from the start of the row.
    pub(crate) offset: usize,
    /// Number of elements.
    pub(crate) len: usize,
}

/// Where the rows of the left side start in its data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowStarts<'a> {
    /// So many rows, so many elements apart.
    Strided { n_rows: usize, stride: usize },
    /// There.
    Listed(&'a [usize]),
}

/// The left side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// What the segments are pieces of.
    pub(crate) data: &'a [f32],
    /// Start of each row.
    pub(crate) starts: RowStarts<'a>,
    /// What each row consists of, in order; the lengths add up to the inner dimension.
    pub(crate) segments: &'a [Segment],
}

/// The right side, `[inner, columns]`, in the order of [`pack`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed<'a> {
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

/// Vectors of a whole panel, by the lanes of a vector: with the rows of a tile ([`tile_rows`]) they
/// fill the registers (32 of 16 lanes; 16 of 8 lanes).
const fn panel_vectors(lanes: usize) -> usize {
    match lanes {
        8 => 2,
        _ => 4,
    }
}

/// Most rows of a tile.
const fn tile_rows(lanes: usize, vectors: usize) -> usize {
    match (lanes, vectors) {
        (8, 2) | (_, 4) => 6,
        _ => 8,
    }
}

/// Lanes of a vector on this machine.
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

/// Lanes of the vectors that a matrix of so many columns is multiplied in. Half of an AVX-512
/// vector would be empty for up to 8 columns, and on cores that execute it as two halves each empty
/// one costs what a full one does.
fn lanes_for(columns: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if columns <= 8 && Avx2Isa::new().is_some() {
        return 8;
    }
    let _ = columns;
    lanes()
}

/// Elements that [`pack`] writes; `None` beyond this machine's numbers.
pub(crate) fn packed_len(inner: usize, columns: usize) -> Option<usize> {
    columns
        .checked_next_multiple_of(lanes_for(columns))?
        .checked_mul(inner)
}

/// Puts a matrix in order.
///
/// # Panics
/// If `packed` has another length than [`packed_len`].
pub(crate) fn pack(matrix: MatrixView<'_, f32>, packed: &mut [f32]) {
    let (inner, columns) = (matrix.rows(), matrix.columns());
    let lanes = lanes_for(columns);
    assert_eq!(
        Some(packed.len()),
        packed_len(inner, columns),
        "the target has the packed length"
    );
    let width = panel_vectors(lanes) * lanes;
    let mut rest = packed;
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

impl<'a> Packed<'a> {
    /// What [`pack`] has written for a matrix of this shape; `None` if the length is another.
    pub(crate) fn new(data: &'a [f32], inner: usize, columns: usize) -> Option<Self> {
        (packed_len(inner, columns) == Some(data.len())).then_some(Self {
            data,
            inner,
            columns,
        })
    }

    /// Number of panels: what a product can be divided by without reading anything twice.
    pub(crate) fn n_panels(&self) -> usize {
        let lanes = lanes_for(self.columns);
        self.columns.div_ceil(panel_vectors(lanes) * lanes)
    }
}

/// `out[i, j] = sum over k of lhs[i, k] * rhs[k, j]`.
///
/// # Panics
/// If the shapes disagree, or a row of the left side reaches beyond its data.
pub(crate) fn multiply_packed(
    lhs: Rows<'_>,
    rhs: Packed<'_>,
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
    let row_stride = out.row_stride();
    let out = Target(out.data_mut().as_mut_ptr());
    let multiply = |rows: Range<usize>, panels: Range<usize>| {
        Product {
            lhs,
            rhs,
            rows,
            panels,
            out,
            row_stride,
        }
        .multiply();
    };
    let n_panels = rhs.n_panels();
    let work_ns = estimate_ns(n_rows, inner, rhs.columns);
    let n_parts = threads.pieces_for(work_ns);
    if n_parts < 2 {
        multiply(0..n_rows, 0..n_panels);
    } else if n_panels >= n_parts.min(n_rows.div_ceil(ROWS_MAX)) {
        // Each part reads its own piece of the right side.
        let n_slices = n_parts.min(n_panels);
        // More than one per slice where each would take too long.
        let n_bands = (n_parts / n_slices).min(n_rows.div_ceil(ROWS_MAX)).max(1);
        threads.for_each(work_ns, n_slices * n_bands, |part| {
            let (slice, band) = (part / n_bands, part % n_bands);
            multiply(
                share(n_rows, band, n_bands, ROWS_MAX),
                share(n_panels, slice, n_slices, 1),
            );
        });
    } else {
        threads.for_each(work_ns, n_parts, |part| {
            multiply(share(n_rows, part, n_parts, ROWS_MAX), 0..n_panels);
        });
    }
}

/// Some rows of the result, in the columns of some panels.
struct Product<'a> {
    lhs: Rows<'a>,
    rhs: Packed<'a>,
    rows: Range<usize>,
    panels: Range<usize>,
    out: Target<f32>,
    row_stride: usize,
}

impl Product<'_> {
    /// With vectors of as many lanes as [`lanes_for`] says.
    fn multiply(self) {
        #[cfg(target_arch = "x86_64")]
        if lanes_for(self.rhs.columns) == 8
            && let Some(isa) = Avx2Isa::new()
        {
            // SAFETY: the machine has what the type stands for.
            return unsafe { multiply_in_avx2(isa, self) };
        }
        self.dispatch();
    }
}

/// # Safety
/// The machine has these features, which are those of [`Avx2Isa::new`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx,fma,f16c")]
unsafe fn multiply_in_avx2(isa: Avx2Isa, product: Product<'_>) {
    product.eval(isa);
}

impl SimdOp for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let lanes = isa.f32().len();
        let width = panel_vectors(lanes) * lanes;
        let ends = self.lhs.segments.iter().map(|s| s.offset + s.len);
        let extent = ends.max().unwrap_or(0);
        for panel in self.panels.clone() {
            let first = panel * width;
            let n_columns = width.min(self.rhs.columns - first);
            let n_vectors = n_columns.div_ceil(lanes);
            let start = first * self.rhs.inner;
            let data = &self.rhs.data[start..start + n_vectors * lanes * self.rhs.inner];
            let most = tile_rows(lanes, n_vectors);
            let mut row = self.rows.start;
            while row < self.rows.end {
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
                // SAFETY: `multiply_packed` has compared the shape of the result, and this row and
                // column lie in it.
                let out = unsafe { self.out.start().add(row * self.row_stride + first) };
                // Rows without gaps, whose ends are written before the rows that follow.
                let n_writable = if self.rhs.columns == n_columns && self.row_stride == n_columns {
                    (self.rows.end - row) * n_columns
                } else {
                    0
                };
                let tile = Tile {
                    rows,
                    segments: self.lhs.segments,
                    panel: data.as_ptr(),
                    out,
                    row_stride: self.row_stride,
                    n_columns,
                    n_writable,
                };
                #[expect(
                    clippy::multiple_unsafe_ops_per_block,
                    reason = "one of these calls is made"
                )]
                // SAFETY: each of these rows has `extent` elements, the panel its vectors for the
                // whole inner dimension, and the result these rows and columns; the
                // `n_writable` elements from here on are of rows that are written now or later.
                unsafe {
                    match (n_vectors, n_rows) {
                        (4, 6) => tile.fill::<I, 6, 4>(isa),
                        (4, 4) => tile.fill::<I, 4, 4>(isa),
                        (4, 2) => tile.fill::<I, 2, 4>(isa),
                        (4, _) => tile.fill::<I, 1, 4>(isa),
                        (3, 8) => tile.fill::<I, 8, 3>(isa),
                        (3, 4) => tile.fill::<I, 4, 3>(isa),
                        (3, 2) => tile.fill::<I, 2, 3>(isa),
                        (3, _) => tile.fill::<I, 1, 3>(isa),
                        (2, 8) => tile.fill::<I, 8, 2>(isa),
                        (2, 6) => tile.fill::<I, 6, 2>(isa),
                        (2, 4) => tile.fill::<I, 4, 2>(isa),
                        (2, 2) => tile.fill::<I, 2, 2>(isa),
                        (2, _) => tile.fill::<I, 1, 2>(isa),
                        (_, 8) => tile.fill::<I, 8, 1>(isa),
                        (_, 4) => tile.fill::<I, 4, 1>(isa),
                        (_, 2) => tile.fill::<I, 2, 1>(isa),
                        (_, _) => tile.fill::<I, 1, 1>(isa),
                    }
                }
                row += n_rows;
            }
        }
    }
}

/// Some rows of one panel's columns.
#[derive(Debug, Clone, Copy)]
struct Tile<'a> {
    rows: [*const f32; ROWS_MAX],
    segments: &'a [Segment],
    panel: *const f32,
    out: *mut f32,
    row_stride: usize,
    n_columns: usize,
    /// Elements of the result, from the tile's first on, that whole vectors may be written to:
    /// what lies beyond the columns is written again.
    n_writable: usize,
}

/// The body once for each row of a tile. A loop of this length is not always unrolled, and then the
/// sums leave the registers.
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

impl Tile<'_> {
    /// # Safety
    /// The first `R` rows have all segments, the panel has `V` vectors per inner element, and the
    /// result has `R` rows of `n_columns` elements: at most `V` vectors, and more than `V - 1`.
    /// The result has `n_writable` elements, and those beyond this tile's are not written yet.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "loops over registers, by their number"
    )]
    unsafe fn fill<I: Isa, const R: usize, const V: usize>(&self, isa: I) {
        let ops = isa.f32();
        let lanes = ops.len();
        let mut sums = [[ops.zero(); V]; R];
        let mut panel = self.panel;
        for segment in self.segments {
            let mut rows = [self.rows[0]; R];
            // SAFETY: the row has the segment.
            for_rows!(r, rows[r] = unsafe { self.rows[r].add(segment.offset) });
            for k in 0..segment.len {
                let mut vectors = [ops.zero(); V];
                for v in 0..V {
                    // SAFETY: the panel has `V` vectors for this element.
                    let vector = unsafe { panel.add(v * lanes) };
                    // SAFETY: as above.
                    vectors[v] = unsafe { ops.load_ptr(vector) };
                }
                // SAFETY: that of the next element, or the end.
                panel = unsafe { panel.add(V * lanes) };
                for_rows!(r, {
                    // SAFETY: the segment has `len` elements.
                    let element = unsafe { rows[r].add(k) };
                    // SAFETY: as above.
                    let factor = ops.splat(unsafe { *element });
                    for v in 0..V {
                        sums[r][v] = ops.mul_add(factor, vectors[v], sums[r][v]);
                    }
                });
            }
        }
        let n_whole = self.n_columns / lanes;
        for_rows!(r, {
            for v in 0..V {
                let offset = r * self.row_stride + v * lanes;
                // SAFETY: the row has elements from here on.
                let to = unsafe { self.out.add(offset) };
                // Many cores take tens of cycles to store a part of a vector.
                if v < n_whole || offset + lanes <= self.n_writable {
                    // SAFETY: a whole vector of them, or of what may be written.
                    unsafe { ops.store_ptr(sums[r][v], to) };
                } else {
                    let mask = ops.first_n_mask(self.n_columns - v * lanes);
                    // SAFETY: as many as the mask has.
                    unsafe { ops.store_ptr_mask(sums[r][v], to, mask) };
                }
            }
        });
    }
}
