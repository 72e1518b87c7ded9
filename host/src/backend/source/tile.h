// The common part of matmuls and convolutions: a work item holds ROWS x COLUMNS sums in registers.
//
// The right side is stored in panels: COLUMNS columns wide, one after the other, each with all of
// its rows; missing columns of the last panel are zeroes. The left side may have any layout: its
// rows are read through pointers.

#define COLUMNS (WIDTH * VECTORS)

typedef struct {
    Lanes at[ROWS][VECTORS];
} Sums;

INLINE void clear(Sums *sums)
{
    UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int v = 0; v < VECTORS; v++) {
            sums->at[r][v] = (Lanes)(0);
        }
    }
}

// sums[r, ..] += rows[r][at] * right[..].
INLINE void accumulate_row(Sums *sums, GLOBAL const T *const *rows, Index at, const Lanes *right)
{
    UNROLL for (int r = 0; r < ROWS; r++) {
        const R left = LOAD(rows[r], at);
        UNROLL for (int v = 0; v < VECTORS; v++) {
            sums->at[r][v] = MULTIPLY_ADD(left, right[v], sums->at[r][v]);
        }
    }
}

// sums += rows[.., 0 : n] * panel[0 : n, ..]; elements of a row are `step` apart.
INLINE void accumulate_rows(Sums *sums, GLOBAL const T *const *rows, Index step, GLOBAL const R *panel, Index n)
{
    for (Index q = 0; q < n; q++) {
        Lanes right[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) {
            right[v] = LANES_AT(panel, q * COLUMNS + v * WIDTH);
        }
        accumulate_row(sums, rows, q * step, right);
    }
}

// With ACTIVATION, a function of lanes, a bias per column is added to the sums, and the function is
// applied.
#ifdef ACTIVATION
#define BIAS_PARAMETER GLOBAL const T *RESTRICT bias,
#define BIAS_FROM(column) bias + (column),
INLINE Lanes finished(Lanes sum, GLOBAL const T *bias, Index at, Index left)
{
    return ACTIVATION(sum + load_left(bias, at, left));
}
#define FINISHED(sum, at, left) finished(sum, bias, at, left)
#else
#define BIAS_PARAMETER
#define BIAS_FROM(column)
#define FINISHED(sum, at, left) (sum)
#endif

// Stores a row of the sums: at most `n_columns` columns, which may be more than a tile has.
INLINE void store_row(const Lanes *sums, BIAS_PARAMETER GLOBAL T *out, Index n_columns)
{
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const Index first = v * WIDTH;
        if (first + WIDTH <= n_columns) {
            STORE_LANES(out, first, FINISHED(sums[v], first, WIDTH));
        } else if (first < n_columns) {
            R lanes[WIDTH];
            LANES_PUT(lanes, 0, FINISHED(sums[v], first, n_columns - first));
            for (Index lane = 0; first + lane < n_columns; lane++) {
                STORE(out, first + lane, lanes[lane]);
            }
        }
    }
}

#ifdef ACTIVATION
// Matmuls with an inner dimension of 0: the bias alone, for each row.
KERNEL void biases(GLOBAL const T *RESTRICT bias, GLOBAL T *RESTRICT out, Index n, Index n_columns)
{
    const Index i = GLOBAL_ID(0);
    if (i < n) {
        R lanes[WIDTH];
        LANES_PUT(lanes, 0, finished((Lanes)(0), bias, i % n_columns, 1));
        STORE(out, i, lanes[0]);
    }
}

// Applies the activation to sums that a vendor routine has stored.
KERNEL void activations(GLOBAL T *RESTRICT out, Index n)
{
    const Index at = GLOBAL_ID(0) * WIDTH;
    if (at < n) {
        store_left(out, at, n - at, ACTIVATION(load_left(out, at, n - at)));
    }
}
#endif
