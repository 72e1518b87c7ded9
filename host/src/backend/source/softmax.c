// Softmax over rows. A group of up to GROUP work items computes a row; on processors with vectors,
// one item does.

INLINE f32 larger(f32 a, f32 b) { return b > a ? b : a; }

INLINE f32 sum_of(f32 a, f32 b) { return a + b; }

#if GROUP > 1
#define JOIN(name, function)                                        \
    INLINE f32 name(OF_GROUP f32 *shared, f32 x)                    \
    {                                                               \
        shared[LOCAL_ID(0)] = x;                                    \
        BARRIER();                                                  \
        for (Index half_ = GROUP_SIZE(0) / 2; half_ > 0; half_ /= 2) {      \
            if (LOCAL_ID(0) < half_) {                              \
                const f32 other = shared[LOCAL_ID(0) + half_];      \
                shared[LOCAL_ID(0)] = function(shared[LOCAL_ID(0)], other); \
            }                                                       \
            BARRIER();                                              \
        }                                                           \
        const f32 joined = shared[0];                               \
        BARRIER();                                                  \
        return joined;                                              \
    }
#else
#define JOIN(name, function) \
    INLINE f32 name(OF_GROUP f32 *shared, f32 x) { return x; }
#endif

JOIN(join_larger, larger)
JOIN(join_sum, sum_of)

// `e^(x - max) / sum`, or its logarithm. Groups take rows round-robin.
KERNEL void softmax(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n_rows, Index columns)
{
    SHARED f32 shared[GROUP];
    const Index start = LOCAL_ID(0) * WIDTH;
    const Index step = GROUP == 1 ? WIDTH : GROUP_SIZE(0) * WIDTH;
    for (Index row = GROUP_ID(0); row < n_rows; row += N_GROUPS(0)) {
        const Index at = row * columns;
        // NaNs are skipped here; they make the sum NaN later.
        f32 largest = -INFINITY;
        for (Index j = start; j < columns; j += step) {
            if (j + WIDTH <= columns) {
                f32 lanes[WIDTH];
                LANES_PUT(lanes, 0, LOAD_LANES(in, at + j));
                UNROLL for (int lane = 0; lane < WIDTH; lane++) {
                    largest = larger(largest, lanes[lane]);
                }
            } else {
                for (Index rest = j; rest < columns; rest++) {
                    largest = larger(largest, LOAD(in, at + rest));
                }
            }
        }
        largest = join_larger(shared, largest);
        Lanes sums = (Lanes)(0);
        f32 sum = 0;
        for (Index j = start; j < columns; j += step) {
            if (j + WIDTH <= columns) {
                sums += exp(LOAD_LANES(in, at + j) - largest);
            } else {
                for (Index rest = j; rest < columns; rest++) {
                    sum += exp(LOAD(in, at + rest) - largest);
                }
            }
        }
        f32 lanes[WIDTH];
        LANES_PUT(lanes, 0, sums);
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {
            sum += lanes[lane];
        }
        sum = join_sum(shared, sum);
        const f32 factor = 1 / sum;
        const f32 logarithm = log(sum);
        for (Index j = start; j < columns; j += step) {
            if (j + WIDTH <= columns) {
                const Lanes x = LOAD_LANES(in, at + j) - largest;
                STORE_LANES(out, at + j, IS_LOGARITHM ? x - logarithm : exp(x) * factor);
            } else {
                for (Index rest = j; rest < columns; rest++) {
                    const f32 x = LOAD(in, at + rest) - largest;
                    STORE(out, at + rest, IS_LOGARITHM ? x - logarithm : exp(x) * factor);
                }
            }
        }
    }
}
