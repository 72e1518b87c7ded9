// Reductions. REDUCER is sum, mean, product, maximum, minimum, every or some; TYPE is the element
// type, TOTAL the type of the accumulator.
//
// Rows lie along the last axis, which is reduced; columns are adjacent elements that are kept. Long
// ones are split into parts: `parts` writes a TOTAL for each, `rest` combines them, `whole` does
// both at once. Sums are trees of few levels: no more than some hundred terms are added one after
// the other.

// Results of maximum and minimum over no elements.
#define LOWEST_f32 f32_of_bits(0xff800000u)
#define LOWEST_f16 LOWEST_f32
#define LOWEST_bf16 LOWEST_f32
#define LOWEST_i8 (-128)
#define LOWEST_i16 (-32768)
#define LOWEST_i32 (-2147483647 - 1)
#define LOWEST_i64 ((i64)1 << 63)
#define LOWEST_u8 0
#define LOWEST_u16 0
#define LOWEST_u32 0
#define LOWEST_u64 0
#define HIGHEST_f32 f32_of_bits(0x7f800000u)
#define HIGHEST_f16 HIGHEST_f32
#define HIGHEST_bf16 HIGHEST_f32
#define HIGHEST_i8 127
#define HIGHEST_i16 32767
#define HIGHEST_i32 2147483647
#define HIGHEST_i64 (~LOWEST_i64)
#define HIGHEST_u8 255
#define HIGHEST_u16 65535
#define HIGHEST_u32 (~(u32)0)
#define HIGHEST_u64 (~(u64)0)

// A second PASTE, since a macro does not expand within itself.
#define LIMIT_(a, b) a##b
#define LIMIT(a, b) LIMIT_(a, b)

#define START_sum 0
#define START_mean 0
#define START_product 1
#define START_maximum LIMIT(LOWEST_, TYPE)
#define START_minimum LIMIT(HIGHEST_, TYPE)
#define START_every 1
#define START_some 0
#define START ((TOTAL)PASTE(START_, REDUCER))

INLINE TOTAL join(TOTAL a, TOTAL b) { return (TOTAL)PASTE(JOIN_, REDUCER)(a, b); }

// Sums of signed numbers wrap around as unsigned ones do. QUOTIENT is the type in which a mean is
// divided; the mean of no integers is 0, of no floats NaN.
#ifdef QUOTIENT
INLINE R finished(TOTAL total, Index n)
{
    const int divides_integers = (QUOTIENT)0.5f == 0;
    return divides_integers && n == 0 ? (R)0 : (R)((QUOTIENT)total / (QUOTIENT)n);
}
#else
INLINE R finished(TOTAL total, Index n) { return (R)total; }
#endif

#define TAKE_TYPE(p, i) ((TOTAL)LOAD(p, i))
#define TAKE_TOTAL(p, i) ((p)[i])
#define GIVE_TYPE(p, i, total, n) STORE(p, i, finished(total, n))
#define GIVE_TOTAL(p, i, total, n) ((p)[i] = (total))

// Each function exists for each pair of what it reads and writes: S is the type in memory.
#define RUN(name, S, TAKE)                                                                                  \
    INLINE TOTAL name(GLOBAL const S *p, Index n)                                                           \
    {                                                                                                       \
        TOTAL total = START;                                                                                \
        Index i = 0;                                                                                        \
        while (i + LANES <= n) {                                                                            \
            const Index left = (n - i) / LANES;                                                             \
            const Index end = i + (left < LEVEL ? left : LEVEL) * LANES;                                    \
            TOTAL lanes[LANES];                                                                             \
            for (int lane = 0; lane < LANES; lane++)                                                        \
                lanes[lane] = START;                                                                        \
            for (; i < end; i += LANES)                                                                     \
                for (int lane = 0; lane < LANES; lane++)                                                    \
                    lanes[lane] = join(lanes[lane], TAKE(p, i + lane));                                     \
            for (int apart = LANES / 2; apart > 0; apart /= 2)                                              \
                for (int lane = 0; lane < apart; lane++)                                                    \
                    lanes[lane] = join(lanes[lane], lanes[lane + apart]);                                   \
            total = join(total, lanes[0]);                                                                  \
        }                                                                                                   \
        for (; i < n; i++)                                                                                  \
            total = join(total, TAKE(p, i));                                                                \
        return total;                                                                                       \
    }

// An item computes a part of a result. Its elements are `length` adjacent elements at each position
// of `outer`.
#define ROWS(name, run, S, O, GIVE)                                                                         \
    SERIAL_KERNEL void name(GLOBAL const S *RESTRICT in, GLOBAL O *RESTRICT out, Axes kept, Axes outer,     \
                     Index n_out, Index n_parts, Index part, Index length, Index n, Index count)            \
    {                                                                                                       \
        const Index item = GLOBAL_ID(0);                                                                    \
        if (item >= n_out * n_parts)                                                                        \
            return;                                                                                         \
        const Index result = item / n_parts;                                                                \
        const Index first = (item - result * n_parts) * part;                                               \
        const Index last = n - first < part ? n : first + part;                                             \
        GLOBAL const S *base = in + axes_offset(kept, result, 0);                                           \
        TOTAL sum = START, total = START;                                                                   \
        Index n_joined = 0;                                                                                 \
        for (Index at = first; at < last;) {                                                                \
            const Index row = at / length, column = at - row * length;                                      \
            const Index left = last - at, whole = length - column;                                          \
            const Index size = left < whole ? left : whole;                                                 \
            total = join(total, run(base + axes_offset(outer, row, 0) + column, size));                     \
            at += size;                                                                                     \
            if (++n_joined == LEVEL) {                                                                      \
                sum = join(sum, total);                                                                     \
                total = START;                                                                              \
                n_joined = 0;                                                                               \
            }                                                                                               \
        }                                                                                                   \
        sum = join(sum, total);                                                                             \
        GIVE(out, item, sum, count);                                                                        \
    }

// The totals of n_columns adjacent columns over first..last of the reduced axes, the last of which
// is a separate axis.
#define JOIN_COLUMNS(n_columns)                                                                             \
    const int axis = gone.n_axes - 1;                                                                       \
    const Index length = (Index)gone.sizes[axis], step = (Index)gone.strides[0][axis];                      \
    for (Index c = 0; c < (n_columns); c++)                                                                 \
        sums[c] = START;                                                                                    \
    for (Index at = first; at < last;) {                                                                    \
        TOTAL totals[COLUMNS];                                                                              \
        for (Index c = 0; c < (n_columns); c++)                                                             \
            totals[c] = START;                                                                              \
        const Index end = last - at < LEVEL ? last : at + LEVEL;                                            \
        while (at < end) {                                                                                  \
            Index offset = (Index)axes_offset(gone, at, 0);                                                 \
            const Index inside = length - at % length;                                                      \
            const Index stop = end - at < inside ? end : at + inside;                                       \
            for (; at < stop; at++, offset += step)                                                         \
                for (Index c = 0; c < (n_columns); c++)                                                     \
                    totals[c] = join(totals[c], TAKE_TYPE(base, offset + c));                               \
        }                                                                                                   \
        for (Index c = 0; c < (n_columns); c++)                                                             \
            sums[c] = join(sums[c], totals[c]);                                                             \
    }

// Loops of a known length keep their totals in registers.
INLINE void join_all_columns(GLOBAL const T *base, Axes gone, Index first, Index last, TOTAL *sums)
{
    JOIN_COLUMNS(COLUMNS)
}

INLINE void join_few_columns(GLOBAL const T *base, Axes gone, Index first, Index last, Index n_columns, TOTAL *sums)
{
    JOIN_COLUMNS(n_columns)
}

// An item computes a part of COLUMNS adjacent results. The last tile of a row starts early rather
// than being short, and leaves the results that overlap to the tile before it.
#define COLUMN_PARTS(name, O, GIVE)                                                                         \
    SERIAL_KERNEL void name(GLOBAL const T *RESTRICT in, GLOBAL O *RESTRICT out, Axes kept, Axes gone,      \
                     Index n_rows, Index n_parts, Index part, Index width, Index n, Index count)            \
    {                                                                                                       \
        const Index n_tiles = (width + COLUMNS - 1) / COLUMNS;                                              \
        const Index item = GLOBAL_ID(0), above = item / n_tiles, tile = item - above * n_tiles;             \
        const Index row = above % n_rows, index = above / n_rows;                                           \
        if (index >= n_parts)                                                                               \
            return;                                                                                         \
        const Index own = tile * COLUMNS;                                                                   \
        const Index first = index * part;                                                                   \
        const Index last = n - first < part ? n : first + part;                                             \
        GLOBAL const T *base = in + axes_offset(kept, row, 0);                                              \
        GLOBAL O *to = out + row * width * n_parts + index;                                                 \
        if (width >= COLUMNS) {                                                                             \
            TOTAL sums[COLUMNS];                                                                            \
            const Index left = width - own < COLUMNS ? width - COLUMNS : own;                               \
            join_all_columns(base + left, gone, first, last, sums);                                         \
            for (Index c = 0; c < COLUMNS; c++)                                                             \
                if (left + c >= own)                                                                        \
                    GIVE(to, (left + c) * n_parts, sums[c], count);                                         \
        } else {                                                                                            \
            TOTAL sums[COLUMNS];                                                                            \
            join_few_columns(base, gone, first, last, width, sums);                                         \
            for (Index c = 0; c < width; c++)                                                               \
                GIVE(to, c * n_parts, sums[c], count);                                                      \
        }                                                                                                   \
    }

// Joins what the items of a group have, whose number is a power of two, until `width` totals are
// left.
#define JOIN_LANES(lane, width)                                                                             \
    BARRIER();                                                                                              \
    for (Index apart = GROUP_SIZE(0) / 2; apart >= (width); apart /= 2) {                                   \
        if ((lane) < apart)                                                                                 \
            lanes[lane] = join(lanes[lane], lanes[(lane) + apart]);                                         \
        BARRIER();                                                                                          \
    }

// A group of up to GROUP items computes a part of a result: for processors where adjacent items
// should read adjacent elements.
#define GROUPS(name, S, TAKE, O, GIVE)                                                                      \
    KERNEL void name(GLOBAL const S *RESTRICT in, GLOBAL O *RESTRICT out, Axes kept, Axes outer,            \
                     Index n_out, Index n_parts, Index part, Index length, Index n, Index count)            \
    {                                                                                                       \
        SHARED TOTAL lanes[GROUP];                                                                          \
        const Index item = GROUP_ID(0), lane = LOCAL_ID(0);                                                 \
        const Index result = item / n_parts;                                                                \
        const Index first = (item - result * n_parts) * part;                                               \
        const Index last = n - first < part ? n : first + part;                                             \
        GLOBAL const S *base = in + axes_offset(kept, result, 0);                                           \
        TOTAL total = START;                                                                                \
        for (Index at = first + lane; at < last; at += GROUP_SIZE(0)) {                                     \
            const Index row = at / length;                                                                  \
            total = join(total, TAKE(base, axes_offset(outer, row, 0) + (at - row * length)));              \
        }                                                                                                   \
        lanes[lane] = total;                                                                                \
        JOIN_LANES(lane, 1)                                                                                 \
        if (lane == 0)                                                                                      \
            GIVE(out, item, lanes[0], count);                                                               \
    }

// The same for columns: a group computes a part of as many adjacent results as COLUMNS_OF_GROUP, or
// as the power of two that is not below `width`. Items load four elements at a time, because a load
// takes as long as many additions.
#define COLUMN_GROUPS(name, O, GIVE)                                                                        \
    KERNEL void name(GLOBAL const T *RESTRICT in, GLOBAL O *RESTRICT out, Axes kept, Axes gone,             \
                     Index n_rows, Index n_parts, Index part, Index width, Index n, Index count)            \
    {                                                                                                       \
        SHARED TOTAL lanes[GROUP];                                                                          \
        Index n_columns = COLUMNS_OF_GROUP;                                                                 \
        while (n_columns / 2 >= width)                                                                      \
            n_columns /= 2;                                                                                 \
        const Index n_tiles = (width + n_columns - 1) / n_columns;                                          \
        const Index item = GROUP_ID(0), above = item / n_tiles, tile = item - above * n_tiles;              \
        const Index row = above % n_rows, index = above / n_rows;                                           \
        const Index lane = LOCAL_ID(0), column = tile * n_columns + lane % n_columns;                       \
        const Index first = index * part;                                                                   \
        const Index last = n - first < part ? n : first + part;                                             \
        GLOBAL const T *base = in + axes_offset(kept, row, 0);                                              \
        const Index step = GROUP_SIZE(0) / n_columns;                                                       \
        TOTAL total = START;                                                                                \
        if (column < width) {                                                                               \
            Index at = first + lane / n_columns;                                                            \
            for (; at + 3 * step < last; at += 4 * step) {                                                  \
                TOTAL some[4];                                                                              \
                UNROLL for (int i = 0; i < 4; i++)                                                          \
                    some[i] = TAKE_TYPE(base, (Index)axes_offset(gone, at + i * step, 0) + column);         \
                total = join(total, join(join(some[0], some[1]), join(some[2], some[3])));                  \
            }                                                                                               \
            for (; at < last; at += step)                                                                   \
                total = join(total, TAKE_TYPE(base, (Index)axes_offset(gone, at, 0) + column));             \
        }                                                                                                   \
        lanes[lane] = total;                                                                                \
        JOIN_LANES(lane, n_columns)                                                                         \
        if (lane < n_columns && column < width)                                                             \
            GIVE(out, (row * width + column) * n_parts + index, lanes[lane], count);                        \
    }

RUN(run_of_type, T, TAKE_TYPE)
RUN(run_of_total, TOTAL, TAKE_TOTAL)

ROWS(rows_whole, run_of_type, T, T, GIVE_TYPE)
ROWS(rows_parts, run_of_type, T, TOTAL, GIVE_TOTAL)
ROWS(rows_rest, run_of_total, TOTAL, T, GIVE_TYPE)

COLUMN_PARTS(columns_whole, T, GIVE_TYPE)
COLUMN_PARTS(columns_parts, TOTAL, GIVE_TOTAL)

#ifdef GROUP
GROUPS(groups_whole, T, TAKE_TYPE, T, GIVE_TYPE)
GROUPS(groups_parts, T, TAKE_TYPE, TOTAL, GIVE_TOTAL)
GROUPS(groups_rest, TOTAL, TAKE_TOTAL, T, GIVE_TYPE)

COLUMN_GROUPS(column_groups_whole, T, GIVE_TYPE)
COLUMN_GROUPS(column_groups_parts, TOTAL, GIVE_TOTAL)
#endif
