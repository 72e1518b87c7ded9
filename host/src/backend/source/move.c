// Copies of elements whose value does not matter. UNIT is an unsigned type as large as one element,
// or as several that stay adjacent.
//
// An item moves `run` units that are adjacent in the result, or next to each other in its order:
// this needs few divisions on processors that execute items one after the other. Where adjacent
// items should access adjacent units, `run` is 1.

// No machine type has 16 bytes everywhere.
typedef struct {
    u64 low, high;
} pair;

// The position of an item: loops go along the last axis, the other axes are an odometer.
typedef struct {
    Index index[8];
    i32 from, to;
    Index column;
} Place;

// Unit `at`, row-major in the axes' sizes. Operand 0 is read, operand 1 written.
INLINE Place place_of(const Axes *axes, Index at)
{
    Place place;
    const int last = axes->n_axes - 1;
    const Index size = (Index)axes->sizes[last];
    Index rest = at / size;
    place.column = at - rest * size;
    place.from = axes->starts[0];
    place.to = axes->starts[1];
    for (int axis = last - 1; axis >= 0; axis--) {
        const Index outer = rest / (Index)axes->sizes[axis];
        const Index index = rest - outer * (Index)axes->sizes[axis];
        place.index[axis] = index;
        place.from += (i32)index * axes->strides[0][axis];
        place.to += (i32)index * axes->strides[1][axis];
        rest = outer;
    }
    return place;
}

// The start of the next row.
INLINE void advance(const Axes *axes, Place *place)
{
    place->column = 0;
    for (int axis = axes->n_axes - 2; axis >= 0; axis--) {
        const i32 size = axes->sizes[axis];
        place->from += axes->strides[0][axis];
        place->to += axes->strides[1][axis];
        if (++place->index[axis] < (Index)size)
            return;
        place->index[axis] = 0;
        place->from -= size * axes->strides[0][axis];
        place->to -= size * axes->strides[1][axis];
    }
}

// `out[starts[1] + i * strides[1]] = in[starts[0] + i * strides[0]]` for each index. There is at
// least one axis.
SERIAL_KERNEL void copy_strided(GLOBAL const UNIT *RESTRICT in, GLOBAL UNIT *RESTRICT out, Axes axes, Index n, Index run)
{
    const Index first = GLOBAL_ID(0) * run;
    if (first >= n)
        return;
    const int last = axes.n_axes - 1;
    const Index size = (Index)axes.sizes[last];
    const i32 from_step = axes.strides[0][last], to_step = axes.strides[1][last];
    Place place = place_of(&axes, first);
    for (Index left = n - first < run ? n - first : run; left > 0;) {
        const Index whole = size - place.column;
        const Index length = left < whole ? left : whole;
        GLOBAL const UNIT *from = in + place.from + (i32)place.column * from_step;
        GLOBAL UNIT *to = out + place.to + (i32)place.column * to_step;
        if (from_step == 1 && to_step == 1) {
            for (Index i = 0; i < length; i++)
                to[i] = from[i];
        } else if (from_step == 0 && to_step == 1) {
            const UNIT unit = from[0];
            for (Index i = 0; i < length; i++)
                to[i] = unit;
        } else {
            for (Index i = 0; i < length; i++)
                to[(i32)i * to_step] = from[(i32)i * from_step];
        }
        left -= length;
        advance(&axes, &place);
    }
}

// Transposes the matrix at each position of `outer`, by tiles of TILE x TILE units, so that cache
// lines are used whole: `out[r * to_step + c] = in[r + c * from_step]`.
#ifndef SHARED_TILE
// An item reads and writes a tile line by line: with strides of a power of two, all lines of a
// column fall into one set of the cache.
SERIAL_KERNEL void transpose_tiles(GLOBAL const UNIT *RESTRICT in, GLOBAL UNIT *RESTRICT out, Axes outer, Index n_outer,
                            Index n_rows, Index n_columns, i32 from_step, i32 to_step)
{
    const Index row_tiles = (n_rows + TILE - 1) / TILE, column_tiles = (n_columns + TILE - 1) / TILE;
    const Index tile = GLOBAL_ID(0), above = tile / column_tiles, at = above / row_tiles;
    if (at >= n_outer)
        return;
    const Index row = (above - at * row_tiles) * TILE, column = (tile - above * column_tiles) * TILE;
    const Index row_end = n_rows - row < TILE ? n_rows : row + TILE;
    const Index column_end = n_columns - column < TILE ? n_columns : column + TILE;
    GLOBAL const UNIT *from = in + axes_offset(outer, at, 0);
    GLOBAL UNIT *to = out + axes_offset(outer, at, 1);
    if (row_end - row == TILE && column_end - column == TILE) {
        UNIT values[TILE][TILE];
        for (Index c = 0; c < TILE; c++) {
            GLOBAL const UNIT *line = from + (i32)row + (i32)(column + c) * from_step;
            for (Index r = 0; r < TILE; r++)
                values[c][r] = line[r];
        }
        for (Index r = 0; r < TILE; r++) {
            GLOBAL UNIT *line = to + (i32)(row + r) * to_step + (i32)column;
            for (Index c = 0; c < TILE; c++)
                line[c] = values[c][r];
        }
        return;
    }
    for (Index r = row; r < row_end; r++)
        for (Index c = column; c < column_end; c++)
            to[(i32)r * to_step + (i32)c] = from[(i32)r + (i32)c * from_step];
}
#else
// A group of TILE * 8 items computes a tile. The extra column keeps the lanes of a transposed read
// in different banks.
KERNEL void transpose_tiles(GLOBAL const UNIT *RESTRICT in, GLOBAL UNIT *RESTRICT out, Axes outer, Index n_outer,
                            Index n_rows, Index n_columns, i32 from_step, i32 to_step)
{
    SHARED UNIT values[TILE][TILE + 1];
    const Index row_tiles = (n_rows + TILE - 1) / TILE, column_tiles = (n_columns + TILE - 1) / TILE;
    const Index tile = GROUP_ID(0), above = tile / column_tiles, at = above / row_tiles;
    const Index row = (above - at * row_tiles) * TILE, column = (tile - above * column_tiles) * TILE;
    const Index x = LOCAL_ID(0) % TILE, y = LOCAL_ID(0) / TILE;
    GLOBAL const UNIT *from = in + axes_offset(outer, at, 0);
    GLOBAL UNIT *to = out + axes_offset(outer, at, 1);
    for (Index c = y; c < TILE; c += 8)
        if (row + x < n_rows && column + c < n_columns)
            values[c][x] = from[(i32)(row + x) + (i32)(column + c) * from_step];
    BARRIER();
    for (Index r = y; r < TILE; r += 8)
        if (row + r < n_rows && column + x < n_columns)
            to[(i32)(row + r) * to_step + (i32)(column + x)] = values[x][r];
}
#endif

SERIAL_KERNEL void fill(GLOBAL const UNIT *RESTRICT value, GLOBAL UNIT *RESTRICT out, Index n, Index run)
{
    const Index first = GLOBAL_ID(0) * run;
    if (first >= n)
        return;
    const Index end = n - first < run ? n : first + run;
    const UNIT unit = value[0];
    for (Index i = first; i < end; i++)
        out[i] = unit;
}

// `[blocks, length, inner]` by positions `[blocks / outer, n_positions]` -> `[blocks, n_positions,
// inner]`, of n units. The host has checked that the positions are in range; a negative position
// gives 0.
SERIAL_KERNEL void gather(GLOBAL const UNIT *RESTRICT in, GLOBAL const i32 *RESTRICT positions, GLOBAL UNIT *RESTRICT out,
                   Index n, Index run, Index outer, Index length, Index inner, Index n_positions)
{
    const Index first = GLOBAL_ID(0) * run;
    if (first >= n)
        return;
    const Index end = n - first < run ? n : first + run;
    for (Index i = first; i < end;) {
        const Index row = i / inner, column = i - row * inner;
        const Index whole = inner - column;
        const Index size = end - i < whole ? end - i : whole;
        const Index block = row / n_positions;
        const i32 position = positions[block / outer * n_positions + (row - block * n_positions)];
        if (position >= 0) {
            GLOBAL const UNIT *from = in + (block * length + (Index)position) * inner + column;
            for (Index k = 0; k < size; k++)
                out[i + k] = from[k];
        } else {
            const UNIT zero = {0};
            for (Index k = 0; k < size; k++)
                out[i + k] = zero;
        }
        i += size;
    }
}

// The input with `value` around it. For each axis, strides[1] is the number of units before the
// input, strides[2] the number of units of the input, and sizes the whole with the units after it.
SERIAL_KERNEL void pad_value(GLOBAL const UNIT *RESTRICT in, GLOBAL const UNIT *RESTRICT value, GLOBAL UNIT *RESTRICT out,
                      Axes axes, Index n, Index run)
{
    const Index first = GLOBAL_ID(0) * run;
    if (first >= n)
        return;
    const Index end = n - first < run ? n : first + run;
    const int last = axes.n_axes - 1;
    const Index size = (Index)axes.sizes[last];
    const Index before = (Index)axes.strides[1][last], inside = (Index)axes.strides[2][last];
    const UNIT around = value[0];
    for (Index i = first; i < end;) {
        const Index row = i / size;
        const Index column = i - row * size;
        const Index length = end - i < size - column ? end - i : size - column;
        Index rest = row;
        i32 source = 0;
        int is_margin = 0;
        for (int axis = last - 1; axis >= 0; axis--) {
            const Index outer = rest / (Index)axes.sizes[axis];
            const i32 index = (i32)(rest - outer * (Index)axes.sizes[axis]) - axes.strides[1][axis];
            is_margin |= index < 0 || index >= axes.strides[2][axis];
            source += index * axes.strides[0][axis];
            rest = outer;
        }
        if (is_margin) {
            for (Index k = 0; k < length; k++)
                out[i + k] = around;
        } else {
            for (Index k = 0; k < length; k++) {
                const Index at = column + k - before;
                // Before the input, the unsigned index wraps around to a large number.
                out[i + k] = at < inside ? in[source + (i32)at] : around;
            }
        }
        i += length;
    }
}

// The index that a mirrored border repeats; `skipped` is 1 if the edge itself is not repeated.
INLINE i32 mirrored(i32 index, i32 before, i32 size, i32 skipped)
{
    if (index < before)
        return before - index - 1 + skipped;
    if (index < before + size)
        return index - before;
    const i32 from_end = 2 * size + before - index - 1 - skipped;
    // A dimension of one element mirrors itself.
    return from_end < 0 ? 0 : from_end < size - 1 ? from_end : size - 1;
}

KERNEL void pad_mirrored(GLOBAL const UNIT *RESTRICT in, GLOBAL UNIT *RESTRICT out, Axes axes, Index n, i32 skipped)
{
    const Index i = GLOBAL_ID(0);
    if (i >= n)
        return;
    Index rest = i;
    i32 source = 0;
    for (int axis = axes.n_axes - 1; axis >= 0; axis--) {
        const Index outer = rest / (Index)axes.sizes[axis];
        const i32 index = (i32)(rest - outer * (Index)axes.sizes[axis]);
        source += mirrored(index, axes.strides[1][axis], axes.strides[2][axis], skipped) * axes.strides[0][axis];
        rest = outer;
    }
    out[i] = in[source];
}

// `[prefix, suffix]` indices -> `[prefix, depth, suffix]`, n units.
#ifdef INDEX
KERNEL void one_hot(GLOBAL const INDEX *RESTRICT hot, GLOBAL const UNIT *RESTRICT on, GLOBAL const UNIT *RESTRICT off,
                    GLOBAL UNIT *RESTRICT out, Index n, Index depth, Index suffix)
{
    const Index i = GLOBAL_ID(0);
    if (i >= n)
        return;
    const Index row = i / suffix, column = i - row * suffix;
    const Index block = row / depth, index = row - block * depth;
    if ((i64)hot[block * suffix + column] == (i64)index)
        out[i] = on[0];
    else
        out[i] = off[0];
}
#endif

// Rows of a matrix from images with channels last: the taps of an output pixel's window, each with
// all channels. Zeroes where a window reaches beyond the image. `WindowsArgs` of conv.rs.
typedef struct {
    u32 first; // output pixel of the first row
    u32 units; // of a pixel of the image
    u32 out_size[2];
    u32 in_size[2];
    u32 taps[2];
    i32 stride[2];
    i32 dilation[2];
    i32 pad[2];
} Windows;

KERNEL void windows(GLOBAL const UNIT *RESTRICT in, GLOBAL UNIT *RESTRICT out, Windows p, Index n)
{
    const Index i = GLOBAL_ID(0);
    if (i >= n)
        return;
    const Index above = i / p.units, unit = i - above * p.units;
    const Index n_taps = p.taps[0] * p.taps[1];
    const Index index = above / n_taps, tap = above - index * n_taps;
    const Index pixel = p.first + index;
    const Index line = pixel / p.out_size[1], column = pixel - line * p.out_size[1];
    const Index image = line / p.out_size[0], row = line - image * p.out_size[0];
    const Index tap_row = tap / p.taps[1], tap_column = tap - tap_row * p.taps[1];
    const i32 y = (i32)row * p.stride[0] + (i32)tap_row * p.dilation[0] - p.pad[0];
    const i32 x = (i32)column * p.stride[1] + (i32)tap_column * p.dilation[1] - p.pad[1];
    UNIT value = {0};
    // Negative positions are beyond the end as unsigned numbers.
    if ((u32)y < p.in_size[0] && (u32)x < p.in_size[1])
        value = in[((image * p.in_size[0] + (u32)y) * p.in_size[1] + (u32)x) * p.units + unit];
    out[i] = value;
}
