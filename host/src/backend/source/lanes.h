// For programs that compute several ops at once (FUSED): included before unary.c, unary_real.c and
// binary.c, whose expressions then become functions of lanes.

NO_CONTRACTION

#define V Lanes
#define UNARY(name, expression) \
    INLINE Lanes name(Lanes x) { return expression; }
#define BINARY(name, expression) \
    INLINE Lanes name(Lanes x, Lanes y) { return expression; }
#define COMPARE(name, expression)

// Loads min(WIDTH, left) elements; the last one is repeated.
INLINE Lanes load_left(GLOBAL const T *p, Index at, Index left)
{
    if (left >= WIDTH) {
        return LOAD_LANES(p, at);
    }
    R lanes[WIDTH];
    UNROLL for (Index lane = 0; lane < WIDTH; lane++) {
        lanes[lane] = LOAD(p, at + min(lane, left - 1));
    }
    return LANES_AT(lanes, 0);
}

INLINE void store_left(GLOBAL T *p, Index at, Index left, Lanes x)
{
    if (left >= WIDTH) {
        STORE_LANES(p, at, x);
        return;
    }
    R lanes[WIDTH];
    LANES_PUT(lanes, 0, x);
    for (Index lane = 0; lane < left; lane++) {
        STORE(p, at + lane, lanes[lane]);
    }
}

INLINE Lanes same(Lanes x) { return x; }
