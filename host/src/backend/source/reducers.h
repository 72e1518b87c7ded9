// How totals grow, for reductions (reduce.c) and fused functions (fused.c): in the same order, so that they are the same.

// Terms of a lane that are added in turn.
#define LEVEL 128

// Lanes that a run is added up in.
#define LANES 16

// NaN stays NaN. Without a branch, so that lanes are vectors.
#define JOIN_sum(a, b) ((a) + (b))
#define JOIN_mean(a, b) ((a) + (b))
#define JOIN_product(a, b) ((a) * (b))
#define JOIN_maximum(a, b) WHERE(((a) > (b)) | ((a) != (a)), a, b)
#define JOIN_minimum(a, b) WHERE(((a) < (b)) | ((a) != (a)), a, b)
#define JOIN_every(a, b) ((a) & (b))
#define JOIN_some(a, b) ((a) | (b))
