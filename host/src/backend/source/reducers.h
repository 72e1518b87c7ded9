// How totals are accumulated, for reductions (reduce.c) and fused functions (fused.c): in the same
// order, so that both give the same result.

// Terms of a lane that are added one after the other.
#define LEVEL 128

// Lanes of the accumulator of a run.
#define LANES 16

// NaN stays NaN. There is no branch, so that lanes become vectors.
#define JOIN_sum(a, b) ((a) + (b))
#define JOIN_mean(a, b) ((a) + (b))
#define JOIN_product(a, b) ((a) * (b))
#define JOIN_maximum(a, b) WHERE(((a) > (b)) | ((a) != (a)), a, b)
#define JOIN_minimum(a, b) WHERE(((a) < (b)) | ((a) != (a)), a, b)
#define JOIN_every(a, b) ((a) & (b))
#define JOIN_some(a, b) ((a) | (b))
