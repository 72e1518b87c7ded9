// What products and convolutions have in common: a work item holds ROWS x COLUMNS sums in registers.
//
// The right side stands in panels: COLUMNS columns wide, one behind the other, each with all of its rows and with zeroes for the
// columns that the last one lacks. What a row of the left side is, is free: it is walked over from a pointer.

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
INLINE void multiply_row(Sums *sums, GLOBAL const T *const *rows, Index at, const Lanes *right)
{
    UNROLL for (int r = 0; r < ROWS; r++) {
        const R left = LOAD(rows[r], at);
        UNROLL for (int v = 0; v < VECTORS; v++) {
            sums->at[r][v] = MULTIPLY_ADD(left, right[v], sums->at[r][v]);
        }
    }
}

// sums += rows[.., 0 : n] * panel[0 : n, ..]; elements of a row stand `step` apart.
INLINE void multiply_rows(Sums *sums, GLOBAL const T *const *rows, Index step, GLOBAL const R *panel, Index n)
{
    for (Index q = 0; q < n; q++) {
        Lanes right[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) {
            right[v] = LANES_AT(panel, q * COLUMNS + v * WIDTH);
        }
        multiply_row(sums, rows, q * step, right);
    }
}

// A row of the sums, as many columns as there are (`n_columns`, perhaps more than a tile has).
INLINE void store_row(const Lanes *sums, GLOBAL T *out, Index n_columns)
{
    UNROLL for (int v = 0; v < VECTORS; v++) {
        const Index first = v * WIDTH;
        if (first + WIDTH <= n_columns) {
            STORE_LANES(out, first, sums[v]);
        } else if (first < n_columns) {
            R lanes[WIDTH];
            LANES_PUT(lanes, 0, sums[v]);
            for (Index lane = 0; first + lane < n_columns; lane++) {
                STORE(out, first + lane, lanes[lane]);
            }
        }
    }
}
