// Functions along one axis of `[outer, n, inner]`: the position of the extreme, running sums and
// running products.

#ifdef LARGEST
#define BEYOND(a, b) ((a) > (b))
#else
#define BEYOND(a, b) ((a) < (b))
#endif

// An element counts only if it is beyond FIRST. NaNs and infinities on the wrong side never are; if
// no element counts, the index is 0.
#ifdef FIRST
#define LANES 16

// The index of the extreme among every `step`-th element of first..last. The extreme itself is
// stored in `extreme`. Elements are `inner` apart.
INLINE Index extreme_of(GLOBAL const T *p, Index first, Index last, Index step, Index inner, R *extreme)
{
    R best = FIRST;
    Index at = 0;
    if (step != 1 || inner != 1) {
        for (Index i = first; i < last; i += step) {
            const R x = LOAD(p, i * inner);
            if (BEYOND(x, best)) {
                best = x;
                at = i;
            }
        }
        *extreme = best;
        return at;
    }
    // Adjacent elements are scanned twice: as vectors, then up to the first element that equals the
    // extreme.
    R lanes[LANES];
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = FIRST;
    Index i = first;
    for (; i + LANES <= last; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const R x = LOAD(p, i + lane);
            lanes[lane] = BEYOND(x, lanes[lane]) ? x : lanes[lane];
        }
    for (; i < last; i++) {
        const R x = LOAD(p, i);
        best = BEYOND(x, best) ? x : best;
    }
    for (int lane = 0; lane < LANES; lane++)
        best = BEYOND(lanes[lane], best) ? lanes[lane] : best;
    if (BEYOND(best, (R)FIRST)) {
        at = first;
        while (LOAD(p, at) != best)
            at++;
    }
    *extreme = best;
    return at;
}

// Part `index` has the elements from `index * part` on. On processors where adjacent items should
// read adjacent elements, it has every n_parts-th element instead.
SERIAL_KERNEL void extreme_parts(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT best, GLOBAL i32 *RESTRICT found,
                          Index n_out, Index n_parts, Index n, Index inner)
{
    const Index item = GLOBAL_ID(0);
    if (item >= n_out * n_parts)
        return;
    const Index result = item / n_parts, index = item - result * n_parts;
#ifdef INTERLEAVED
    const Index first = index, last = n, step = n_parts;
#else
    const Index part = (n + n_parts - 1) / n_parts, step = 1;
    const Index first = index * part < n ? index * part : n;
    const Index last = n - first < part ? n : first + part;
#endif
    GLOBAL const T *base = in + result / inner * n * inner + result % inner;
    R extreme;
    found[item] = (i32)extreme_of(base, first, last, step, inner, &extreme);
    STORE(best, item, extreme);
}

SERIAL_KERNEL void extreme_rest(GLOBAL const T *RESTRICT best, GLOBAL const i32 *RESTRICT found,
                         GLOBAL POSITION *RESTRICT out, Index n_out, Index n_parts)
{
    const Index result = GLOBAL_ID(0);
    if (result >= n_out)
        return;
    R extreme = FIRST;
    i32 at = 0;
    for (Index i = result * n_parts; i < (result + 1) * n_parts; i++) {
        const R x = LOAD(best, i);
        // The first of equal elements; an index of an element that is not beyond FIRST does not
        // count.
        if (BEYOND(x, extreme) || (x == extreme && BEYOND(x, (R)FIRST) && found[i] < at)) {
            extreme = x;
            at = found[i];
        }
    }
    out[result] = (POSITION)at;
}

SERIAL_KERNEL void extreme_whole(GLOBAL const T *RESTRICT in, GLOBAL POSITION *RESTRICT out, Index n_out, Index n, Index inner)
{
    const Index result = GLOBAL_ID(0);
    if (result >= n_out)
        return;
    GLOBAL const T *base = in + result / inner * n * inner + result % inner;
    R extreme;
    out[result] = (POSITION)extreme_of(base, 0, n, 1, inner, &extreme);
}
#endif

// Signed numbers wrap around as unsigned ones (TOTAL) do. f16 and bf16 are rounded at each step, as
// on the CPU.
#define SCAN(name, start, operator)                                                                         \
    SERIAL_KERNEL void name(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n_lines, Index n, Index inner, \
                     Index is_exclusive, Index is_reverse)                                                  \
    {                                                                                                       \
        const Index line = GLOBAL_ID(0);                                                                    \
        if (line >= n_lines)                                                                                \
            return;                                                                                         \
        const Index base = line / inner * n * inner + line % inner;                                         \
        TOTAL total = start;                                                                                \
        for (Index i = 0; i < n; i++) {                                                                     \
            const Index at = base + (is_reverse ? n - 1 - i : i) * inner;                                   \
            const TOTAL next = (TOTAL)(total operator(TOTAL) LOAD(in, at));                                 \
            STORE(out, at, (R)next);                                                                        \
            const TOTAL rounded = (TOTAL)LOAD(out, at);                                                     \
            if (is_exclusive)                                                                               \
                STORE(out, at, (R)total);                                                                   \
            total = rounded;                                                                                \
        }                                                                                                   \
    }

#ifdef TOTAL
SCAN(running_sums, 0, +)
SCAN(running_products, 1, *)
#endif
