// Copies the right sides of matmuls into panels (tile.h).

// `Panels` of tiles.rs has the same layout. Strides are in elements.
typedef struct {
    // Rows, columns and panels of a matrix, and matrices.
    u32 k, n, n_panels, n_matrices;
    // Row `q` stands at `q / inner * outer_stride + q % inner * row`.
    u32 inner, outer_stride, row, column;
    // From one matrix to the next: operand 0.
    Axes batch;
    // Lines of zeroes behind the last panel.
    u32 n_zero_lines;
} Panels;

// A work item writes a line of a panel: COLUMNS elements.
KERNEL void write_panels(GLOBAL const T *RESTRICT right, GLOBAL R *RESTRICT panels, Panels p)
{
    const Index i = GLOBAL_ID(0);
    const Index n_lines = p.n_matrices * p.n_panels * p.k;
    if (i >= n_lines + p.n_zero_lines) {
        return;
    }
    panels += i * COLUMNS;
    Index n = 0;
    if (i < n_lines) {
        const Index q = i % p.k;
        const Index panel = i / p.k;
        const Index first = panel % p.n_panels * COLUMNS;
        right += (Index)axes_offset(p.batch, panel / p.n_panels, 0);
        right += q / p.inner * p.outer_stride + q % p.inner * p.row + first * p.column;
        n = min(p.n - first, (Index)COLUMNS);
    }
    for (Index column = 0; column < n; column++) {
        panels[column] = LOAD(right, column * p.column);
    }
    for (Index column = n; column < COLUMNS; column++) {
        panels[column] = 0;
    }
}
