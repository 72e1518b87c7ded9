// Elements moved and not looked at: WORD is as large as one of them, or as several that stay neighbours.
//
// An item moves `run` words that are neighbours in the result, or as near as the result has them: few divisions on processors
// that go through items in turn. Where neighbouring items are to touch neighbouring words, `run` is 1.

// No machine type has 16 bytes everywhere.
typedef struct {
    u64 low, high;
} pair;

// Where an item is: the last axis is left to loops, the others are an odometer.
typedef struct {
    Index index[8];
    i32 from, to;
    Index column;
} Place;

// Word `at`, row-major in the axes' sizes. Operand 0 is read, operand 1 written.
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

// `out[starts[1] + i * strides[1]] = in[starts[0] + i * strides[0]]` for each index. There is at least one axis.
SERIAL_KERNEL void copy_strided(GLOBAL const WORD *RESTRICT in, GLOBAL WORD *RESTRICT out, Axes axes, Index n, Index run)
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
        GLOBAL const WORD *from = in + place.from + (i32)place.column * from_step;
        GLOBAL WORD *to = out + place.to + (i32)place.column * to_step;
        if (from_step == 1 && to_step == 1) {
            for (Index i = 0; i < length; i++)
                to[i] = from[i];
        } else if (from_step == 0 && to_step == 1) {
            const WORD word = from[0];
            for (Index i = 0; i < length; i++)
                to[i] = word;
        } else {
            for (Index i = 0; i < length; i++)
                to[(i32)i * to_step] = from[(i32)i * from_step];
        }
        left -= length;
        advance(&axes, &place);
    }
}

// A matrix transposed at each place of `outer`, TILE by TILE words at a time, so that cache lines are used whole:
// `out[r * to_step + c] = in[r + c * from_step]`.
#ifndef SHARED_TILE
// An item per tile, which is read and written line by line: strides of a power of two have all lines of a column in one place
// of the cache.
SERIAL_KERNEL void transpose_tiles(GLOBAL const WORD *RESTRICT in, GLOBAL WORD *RESTRICT out, Axes outer, Index n_outer,
                            Index n_rows, Index n_columns, i32 from_step, i32 to_step)
{
    const Index row_tiles = (n_rows + TILE - 1) / TILE, column_tiles = (n_columns + TILE - 1) / TILE;
    const Index tile = GLOBAL_ID(0), above = tile / column_tiles, at = above / row_tiles;
    if (at >= n_outer)
        return;
    const Index row = (above - at * row_tiles) * TILE, column = (tile - above * column_tiles) * TILE;
    const Index row_end = n_rows - row < TILE ? n_rows : row + TILE;
    const Index column_end = n_columns - column < TILE ? n_columns : column + TILE;
    GLOBAL const WORD *from = in + axes_offset(outer, at, 0);
    GLOBAL WORD *to = out + axes_offset(outer, at, 1);
    if (row_end - row == TILE && column_end - column == TILE) {
        WORD words[TILE][TILE];
        for (Index c = 0; c < TILE; c++) {
            GLOBAL const WORD *line = from + (i32)row + (i32)(column + c) * from_step;
            for (Index r = 0; r < TILE; r++)
                words[c][r] = line[r];
        }
        for (Index r = 0; r < TILE; r++) {
            GLOBAL WORD *line = to + (i32)(row + r) * to_step + (i32)column;
            for (Index c = 0; c < TILE; c++)
                line[c] = words[c][r];
        }
        return;
    }
    for (Index r = row; r < row_end; r++)
        for (Index c = column; c < column_end; c++)
            to[(i32)r * to_step + (i32)c] = from[(i32)r + (i32)c * from_step];
}
#else
// A group of TILE * 8 items per tile; a column more than it needs keeps the lanes of a transposed read in different banks.
KERNEL void transpose_tiles(GLOBAL const WORD *RESTRICT in, GLOBAL WORD *RESTRICT out, Axes outer, Index n_outer,
                            Index n_rows, Index n_columns, i32 from_step, i32 to_step)
{
    SHARED WORD words[TILE][TILE + 1];
    const Index row_tiles = (n_rows + TILE - 1) / TILE, column_tiles = (n_columns + TILE - 1) / TILE;
    const Index tile = GROUP_ID(0), above = tile / column_tiles, at = above / row_tiles;
    const Index row = (above - at * row_tiles) * TILE, column = (tile - above * column_tiles) * TILE;
    const Index x = LOCAL_ID(0) % TILE, y = LOCAL_ID(0) / TILE;
    GLOBAL const WORD *from = in + axes_offset(outer, at, 0);
    GLOBAL WORD *to = out + axes_offset(outer, at, 1);
    for (Index c = y; c < TILE; c += 8)
        if (row + x < n_rows && column + c < n_columns)
            words[c][x] = from[(i32)(row + x) + (i32)(column + c) * from_step];
    BARRIER();
    for (Index r = y; r < TILE; r += 8)
        if (row + r < n_rows && column + x < n_columns)
            to[(i32)(row + r) * to_step + (i32)(column + x)] = words[x][r];
}
#endif

SERIAL_KERNEL void fill(GLOBAL const WORD *RESTRICT value, GLOBAL WORD *RESTRICT out, Index n, Index run)
{
    const Index first = GLOBAL_ID(0) * run;
    if (first >= n)
        return;
    const Index end = n - first < run ? n : first + run;
    const WORD word = value[0];
    for (Index i = first; i < end; i++)
        out[i] = word;
}

// `[blocks, length, inner]` by positions `[blocks / outer, n_positions]` -> `[blocks, n_positions, inner]`, of n words. The
// host has found the positions in range; 0 stands where one is negative.
SERIAL_KERNEL void gather(GLOBAL const WORD *RESTRICT in, GLOBAL const i32 *RESTRICT positions, GLOBAL WORD *RESTRICT out,
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
            GLOBAL const WORD *from = in + (block * length + (Index)position) * inner + column;
            for (Index k = 0; k < size; k++)
                out[i + k] = from[k];
        } else {
            const WORD zero = {0};
            for (Index k = 0; k < size; k++)
                out[i + k] = zero;
        }
        i += size;
    }
}

// The input with `value` around it: strides[1] of an axis are the words before, strides[2] the words of the input, sizes both
// and what is after.
SERIAL_KERNEL void pad_value(GLOBAL const WORD *RESTRICT in, GLOBAL const WORD *RESTRICT value, GLOBAL WORD *RESTRICT out,
                      Axes axes, Index n, Index run)
{
    const Index first = GLOBAL_ID(0) * run;
    if (first >= n)
        return;
    const Index end = n - first < run ? n : first + run;
    const int last = axes.n_axes - 1;
    const Index size = (Index)axes.sizes[last];
    const Index before = (Index)axes.strides[1][last], inside = (Index)axes.strides[2][last];
    const WORD around = value[0];
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
                // Before the input it wraps around to numbers that are larger than any.
                out[i + k] = at < inside ? in[source + (i32)at] : around;
            }
        }
        i += length;
    }
}

// The index that a mirror image shows; `skipped` is 1 where the border is not repeated.
INLINE i32 mirrored(i32 index, i32 before, i32 size, i32 skipped)
{
    if (index < before)
        return before - index - 1 + skipped;
    if (index < before + size)
        return index - before;
    const i32 from_end = 2 * size + before - index - 1 - skipped;
    // One element is the same in all directions.
    return from_end < 0 ? 0 : from_end < size - 1 ? from_end : size - 1;
}

KERNEL void pad_mirrored(GLOBAL const WORD *RESTRICT in, GLOBAL WORD *RESTRICT out, Axes axes, Index n, i32 skipped)
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

// `[prefix, suffix]` indices -> `[prefix, depth, suffix]`, n words.
#ifdef INDEX
KERNEL void one_hot(GLOBAL const INDEX *RESTRICT hot, GLOBAL const WORD *RESTRICT on, GLOBAL const WORD *RESTRICT off,
                    GLOBAL WORD *RESTRICT out, Index n, Index depth, Index suffix)
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
