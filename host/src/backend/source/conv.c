// Convolutions as matmuls of the pixels under each window with the filter; included after tile.h.
// Channels come last. No patch is copied: a row of the left side is read in place from the image,
// and from zeroes where it is padding.

// `Convolution` of conv.rs has the same layout. Axis 0 is vertical.
typedef struct {
    // Pixels of the result, in all images; its rows and columns.
    u32 n_pixels, out_size[2];
    // The input: rows and columns, channels of a pixel, and of a group.
    u32 in_size[2], channels, group_channels;
    u32 taps[2];
    i32 stride[2], dilation[2], pad[2];
    // Channels of the result, and of a group of it; panels of a group, and of all groups.
    u32 out_channels, group_columns, n_panels, n_panels_of_all;
    // Where the zeroes behind the panels start.
    u32 zeroes;
} Convolution;

// A row of the tile: where its result is stored, and which pixel of the result it is.
typedef struct {
    Index pixel;
    Index image;
    i32 y, x;
} Place;

INLINE Place place_of(Index pixel, Convolution c)
{
    Place place;
    place.pixel = pixel;
    place.x = (i32)(pixel % c.out_size[1]);
    place.y = (i32)(pixel / c.out_size[1] % c.out_size[0]);
    place.image = pixel / c.out_size[1] / c.out_size[0] * c.in_size[0] * c.in_size[1];
    return place;
}

// Pixel (y, x) of an image of the input, or zeroes.
INLINE GLOBAL const T *pixel_at(GLOBAL const T *in, GLOBAL const T *zeroes, Index image, i32 y, i32 x, Convolution c)
{
    const bool is_inside = y >= 0 && y < (i32)c.in_size[0] && x >= 0 && x < (i32)c.in_size[1];
    return is_inside ? in + (image + (Index)y * c.in_size[1] + (Index)x) * c.channels : zeroes;
}

INLINE void store_tile(const Sums *sums, BIAS_PARAMETER GLOBAL T *out, const Place *places, Index first, Index panel,
                       Convolution c)
{
    const Index group = panel / c.n_panels;
    const Index column = (panel - group * c.n_panels) * COLUMNS;
    const Index channel = group * c.group_columns + column;
    UNROLL for (int r = 0; r < ROWS; r++) {
        if (first + r < c.n_pixels) {
            GLOBAL T *pixel = out + places[r].pixel * c.out_channels + channel;
            store_row(sums->at[r], BIAS_FROM(channel) pixel, c.group_columns - column);
        }
    }
}

// `[batch, rows, columns, channels] * [taps, taps, group_channels, out_channels]`. A work item
// computes a tile of pixels and panels.
KERNEL void convolve(GLOBAL const T *RESTRICT in, GLOBAL const R *RESTRICT panels, BIAS_PARAMETER
                     GLOBAL T *RESTRICT out, Convolution c)
{
    const Index first = GLOBAL_ID(0) * ROWS;
    const Index panel = GLOBAL_ID(1);
    if (first >= c.n_pixels || panel >= c.n_panels_of_all) {
        return;
    }
    GLOBAL const T *zeroes = (GLOBAL const T *)(panels + c.zeroes);
    Place places[ROWS];
    // If windows lie within the image from left to right, a line of taps is one run of elements.
    bool is_inside = c.dilation[1] == 1 && c.group_channels == c.channels;
    UNROLL for (int r = 0; r < ROWS; r++) {
        places[r] = place_of(min(first + r, c.n_pixels - 1), c);
        places[r].y = places[r].y * c.stride[0] - c.pad[0];
        places[r].x = places[r].x * c.stride[1] - c.pad[1];
        is_inside = is_inside && places[r].x >= 0 && places[r].x + (i32)c.taps[1] <= (i32)c.in_size[1];
    }
    const Index n_runs = is_inside ? 1 : c.taps[1];
    const Index run = is_inside ? c.taps[1] * c.channels : c.group_channels;
    const Index line = c.taps[1] * c.group_channels;
    in += panel / c.n_panels * c.group_channels;
    panels += panel * c.taps[0] * line * COLUMNS;
    Sums sums;
    clear(&sums);
    for (Index y = 0; y < c.taps[0]; y++) {
        for (Index x = 0; x < n_runs; x++) {
            GLOBAL const T *rows[ROWS];
            UNROLL for (int r = 0; r < ROWS; r++) {
                const i32 at_y = places[r].y + (i32)y * c.dilation[0];
                const i32 at_x = places[r].x + (i32)x * c.dilation[1];
                rows[r] = pixel_at(in, zeroes, places[r].image, at_y, at_x, c);
            }
            accumulate_rows(&sums, rows, 1, panels + (y * line + x * run) * COLUMNS, run);
        }
    }
    store_tile(&sums, BIAS_FROM(0) out, places, first, panel, c);
}

// The pixel of the input, on one axis, that a tap of the transposed convolution reads for pixel
// `at` of its output; -1 if there is none.
INLINE i32 source_at(i32 at, Index tap, i32 stride, i32 pad)
{
    const i32 from = at + pad - (i32)tap;
    return from >= 0 && from % stride == 0 ? from / stride : -1;
}

// A transposed convolution: each pixel of the result sums over the pixels of `in` whose windows
// reach it. A work item computes a tile of pixels and panels.
KERNEL void convolve_transposed(GLOBAL const T *RESTRICT in, GLOBAL const R *RESTRICT panels, BIAS_PARAMETER
                     GLOBAL T *RESTRICT out, Convolution c)
{
    const Index first = GLOBAL_ID(0) * ROWS;
    const Index panel = GLOBAL_ID(1);
    if (first >= c.n_pixels || panel >= c.n_panels_of_all) {
        return;
    }
    GLOBAL const T *zeroes = (GLOBAL const T *)(panels + c.zeroes);
    panels += panel * c.taps[0] * c.taps[1] * c.channels * COLUMNS;
    Place places[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        places[r] = place_of(min(first + r, c.n_pixels - 1), c);
        // Adjacent pixels of a tile are a stride apart: the same taps reach all of them, and the
        // other taps, which reach none, are skipped.
        const i32 n = (i32)c.out_size[1] / c.stride[1];
        if (n * c.stride[1] == (i32)c.out_size[1]) {
            const i32 x = places[r].x % n * c.stride[1] + places[r].x / n;
            places[r].pixel += (Index)(x - places[r].x);
            places[r].x = x;
        }
    }
    Sums sums;
    clear(&sums);
    for (Index y = 0; y < c.taps[0]; y++) {
        for (Index x = 0; x < c.taps[1]; x++) {
            GLOBAL const T *rows[ROWS];
            bool is_needed = false;
            UNROLL for (int r = 0; r < ROWS; r++) {
                const i32 at_y = source_at(places[r].y, y, c.stride[0], c.pad[0]);
                const i32 at_x = source_at(places[r].x, x, c.stride[1], c.pad[1]);
                rows[r] = pixel_at(in, zeroes, places[r].image, at_y, at_x, c);
                is_needed = is_needed || rows[r] != zeroes;
            }
            if (is_needed) {
                accumulate_rows(&sums, rows, 1, panels + (y * c.taps[1] + x) * c.channels * COLUMNS, c.channels);
            }
        }
    }
    store_tile(&sums, BIAS_FROM(0) out, places, first, panel, c);
}
