// The common part of fused functions; included after reducers.h, lanes.h and the functions of
// lanes. fusion/program.rs writes the function itself, which comes last.
//
// A unit is a run of a row. GROUP work items compute it; on processors with vectors, one does.
// N_INPUTS tensors are broadcast to the rows of the output.

// The axes outside of the rows: sizes, and the strides of each input in elements. `Layout` of
// fusion/kernel.rs has the same layout.
typedef struct {
    u32 n_units, n_runs, run, width;
    u32 sizes[N_AXES];
    u32 strides[N_INPUTS][N_AXES];
} Layout;

// Where a row begins in an input.
INLINE Index row_start(Layout layout, Index row, int input)
{
    Index offset = 0;
    UNROLL for (int axis = N_AXES - 1; axis > 0; axis--) {
        const Index rest = row / layout.sizes[axis];
        offset += (row - rest * layout.sizes[axis]) * layout.strides[input][axis];
        row = rest;
    }
    return offset + row * layout.strides[input][0];
}

#define START_sum 0.0f
#define START_mean 0.0f
#define START_maximum (-INFINITY)
#define START_minimum INFINITY

#define FINISHED_sum(total, n) (total)
#define FINISHED_mean(total, n) ((total) / (f32)(n))
#define FINISHED_maximum(total, n) (total)
#define FINISHED_minimum(total, n) (total)

// Stores `value`, an expression of `at` and `left`, for every element of a unit.
#define STORE_EACH(value)                                                                             \
    for (Index at = first + LOCAL_ID(0) * WIDTH; at < end; at += GROUP * WIDTH) {                     \
        if (end - at >= WIDTH) {                                                                      \
            const Index left = WIDTH;                                                                 \
            STORE_LANES(out, row * layout.width + at, value);                                         \
        } else {                                                                                      \
            const Index left = end - at;                                                              \
            store_left(out, row * layout.width + at, left, value);                                    \
        }                                                                                             \
    }

// Sets the lanes of `result` to the reduction of `value`, an expression of `at` and `left`, over a
// row.
#if GROUP == 1
#define REDUCE(reducer, result, value)                                                                \
    Lanes result;                                                                                     \
    {                                                                                                 \
        R total = START_##reducer;                                                                    \
        Index next = 0;                                                                               \
        while (next + LANES <= layout.width) {                                                        \
            const Index whole = (layout.width - next) / LANES;                                        \
            const Index stop = next + (whole < LEVEL ? whole : LEVEL) * LANES;                        \
            Lanes parts[LANES / WIDTH];                                                               \
            UNROLL for (int part = 0; part < LANES / WIDTH; part++) {                                 \
                parts[part] = (Lanes)(START_##reducer);                                               \
            }                                                                                         \
            for (; next < stop; next += LANES) {                                                      \
                UNROLL for (int part = 0; part < LANES / WIDTH; part++) {                             \
                    const Index at = next + part * WIDTH, left = WIDTH;                               \
                    const Lanes x = value;                                                            \
                    parts[part] = JOIN_##reducer(parts[part], x);                                     \
                }                                                                                     \
            }                                                                                         \
            R lanes[LANES];                                                                           \
            UNROLL for (int part = 0; part < LANES / WIDTH; part++) {                                 \
                LANES_PUT(lanes, part * WIDTH, parts[part]);                                          \
            }                                                                                         \
            UNROLL for (int apart = LANES / 2; apart > 0; apart /= 2) {                               \
                UNROLL for (int lane = 0; lane < apart; lane++) {                                     \
                    lanes[lane] = JOIN_##reducer(lanes[lane], lanes[lane + apart]);                   \
                }                                                                                     \
            }                                                                                         \
            total = JOIN_##reducer(total, lanes[0]);                                                  \
        }                                                                                             \
        for (; next < layout.width; next += WIDTH) {                                                  \
            const Index at = next, left = min((Index)WIDTH, layout.width - next);                     \
            R lanes[WIDTH];                                                                           \
            const Lanes x = value;                                                                    \
            LANES_PUT(lanes, 0, x);                                                                   \
            for (Index lane = 0; lane < left; lane++) {                                               \
                total = JOIN_##reducer(total, lanes[lane]);                                           \
            }                                                                                         \
        }                                                                                             \
        result = (Lanes)(FINISHED_##reducer(total, layout.width));                                    \
    }
#else
#define REDUCE(reducer, result, value)                                                                \
    Lanes result;                                                                                     \
    {                                                                                                 \
        R total = START_##reducer;                                                                    \
        for (Index at = LOCAL_ID(0); at < layout.width; at += GROUP) {                                \
            const Index left = 1;                                                                     \
            const R x = value;                                                                        \
            total = JOIN_##reducer(total, x);                                                         \
        }                                                                                             \
        shared[LOCAL_ID(0)] = total;                                                                  \
        BARRIER();                                                                                    \
        for (Index apart = GROUP / 2; apart > 0; apart /= 2) {                                        \
            if (LOCAL_ID(0) < apart) {                                                                \
                const R x = shared[LOCAL_ID(0)], y = shared[LOCAL_ID(0) + apart];                     \
                shared[LOCAL_ID(0)] = JOIN_##reducer(x, y);                                           \
            }                                                                                         \
            BARRIER();                                                                                \
        }                                                                                             \
        result = (Lanes)(FINISHED_##reducer(shared[0], layout.width));                                \
        BARRIER();                                                                                    \
    }
#endif
