// Batches of matmuls; included after tile.h.

// `Matmul` of matmul.rs has the same layout. Strides are in elements.
typedef struct {
    u32 m, k, n;
    u32 left_row, left_column;
    // Strides of a right side that is read in place.
    u32 right_row, right_column;
    // Panels of a matrix of the right side.
    u32 n_panels;
    u32 out_row;
    // The first matrix of the launch: some devices limit a launch to 65,535 groups in this
    // dimension.
    u32 first;
    // Batch dimensions: strides of the matrices of the left side, of the right side (counted in
    // matrices if those are panels), and of the result.
    Axes batch;
} Matmul;

INLINE void rows_of(GLOBAL const T **rows, GLOBAL const T *left, Index first, Matmul p)
{
    UNROLL for (int r = 0; r < ROWS; r++) {
        // Rows beyond the last one repeat it and are not stored.
        rows[r] = left + min(first + r, p.m - 1) * p.left_row;
    }
}

INLINE void store_tile(const Sums *sums, BIAS_PARAMETER GLOBAL T *out, Index batch, Index row, Index column, Matmul p)
{
    out += (Index)axes_offset(p.batch, batch, 2) + row * p.out_row + column;
    UNROLL for (int r = 0; r < ROWS; r++) {
        if (row + r < p.m) {
            store_row(sums->at[r], BIAS_FROM(column) out + r * p.out_row, p.n - column);
        }
    }
}

// `[batch, m, k] x [batch, k, n] -> [batch, m, n]`. A work item computes a tile of rows, panels and
// matrices.
KERNEL void matmul(GLOBAL const T *RESTRICT left, GLOBAL const R *RESTRICT panels, BIAS_PARAMETER GLOBAL T *RESTRICT out, Matmul p)
{
    const Index row = GLOBAL_ID(0) * ROWS;
    const Index panel = GLOBAL_ID(1);
    const Index batch = p.first + GLOBAL_ID(2);
    if (row >= p.m || panel >= p.n_panels) {
        return;
    }
    GLOBAL const T *rows[ROWS];
    rows_of(rows, left + axes_offset(p.batch, batch, 0), row, p);
    panels += ((Index)axes_offset(p.batch, batch, 1) * p.n_panels + panel) * p.k * COLUMNS;
    Sums sums;
    clear(&sums);
    if (p.left_column == 1) {
        accumulate_rows(&sums, rows, 1, panels, p.k);
    } else {
        accumulate_rows(&sums, rows, p.left_column, panels, p.k);
    }
    store_tile(&sums, BIAS_FROM(0) out, batch, row, panel * COLUMNS, p);
}

// The same with a right side that is read in place: for matmuls with few rows, for which panels do
// not pay off.
KERNEL void matmul_direct(GLOBAL const T *RESTRICT left, GLOBAL const T *RESTRICT right, BIAS_PARAMETER GLOBAL T *RESTRICT out, Matmul p)
{
    const Index row = GLOBAL_ID(0) * ROWS;
    const Index column = GLOBAL_ID(1) * COLUMNS;
    const Index batch = p.first + GLOBAL_ID(2);
    if (row >= p.m || column >= p.n) {
        return;
    }
    GLOBAL const T *rows[ROWS];
    rows_of(rows, left + axes_offset(p.batch, batch, 0), row, p);
    right += (Index)axes_offset(p.batch, batch, 1) + column * p.right_column;
    const bool is_whole = p.right_column == 1 && column + COLUMNS <= p.n;
    Sums sums;
    clear(&sums);
    for (Index q = 0; q < p.k; q++) {
        Lanes values[VECTORS];
        if (is_whole) {
            UNROLL for (int v = 0; v < VECTORS; v++) {
                values[v] = LOAD_LANES(right, q * p.right_row + v * WIDTH);
            }
        } else {
            R lanes[COLUMNS];
            UNROLL for (int lane = 0; lane < COLUMNS; lane++) {
                lanes[lane] = LOAD(right, q * p.right_row + min((Index)lane, p.n - 1 - column) * p.right_column);
            }
            UNROLL for (int v = 0; v < VECTORS; v++) {
                values[v] = LANES_AT(lanes, v * WIDTH);
            }
        }
        accumulate_row(&sums, rows, q * p.left_column, values);
    }
    store_tile(&sums, BIAS_FROM(0) out, batch, row, column, p);
}
