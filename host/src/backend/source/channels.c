// Functions of each element and its channel. The tensor is `[rows, width]`: channels are the
// columns (`.._last`), or row `r` is of channel `r % channels` (`.._first`). A work item computes
// WIDTH elements of a row, or the rest of it.

#define IN_ROW(i, width)                                             \
    const Index n_vectors_ = ((width) + WIDTH - 1) / WIDTH;          \
    const Index row = (i) / n_vectors_;                              \
    const Index column = ((i) - row * n_vectors_) * WIDTH;           \
    const Index at = row * (width) + column;                         \
    const Index n_left = min((Index)WIDTH, (width) - column)

KERNEL void bias_last(GLOBAL const T *RESTRICT in, GLOBAL const T *RESTRICT bias, GLOBAL T *RESTRICT out, Index n_items, Index width)
{
    const Index i = GLOBAL_ID(0);
    if (i >= n_items) {
        return;
    }
    IN_ROW(i, width);
    if (n_left == WIDTH) {
        STORE_LANES(out, at, LOAD_LANES(in, at) + LOAD_LANES(bias, column));
        return;
    }
    for (Index lane = 0; lane < n_left; lane++) {
        STORE(out, at + lane, LOAD(in, at + lane) + LOAD(bias, column + lane));
    }
}

KERNEL void bias_first(GLOBAL const T *RESTRICT in, GLOBAL const T *RESTRICT bias, GLOBAL T *RESTRICT out, Index n_items, Index width,
                       Index channels)
{
    const Index i = GLOBAL_ID(0);
    if (i >= n_items) {
        return;
    }
    IN_ROW(i, width);
    const R b = LOAD(bias, row % channels);
    if (n_left == WIDTH) {
        STORE_LANES(out, at, LOAD_LANES(in, at) + (Lanes)(b));
        return;
    }
    for (Index lane = 0; lane < n_left; lane++) {
        STORE(out, at + lane, LOAD(in, at + lane) + b);
    }
}

#ifdef FLOATS
// `(x - mean) * factor + offset`.
KERNEL void normalise_last(GLOBAL const T *RESTRICT in, GLOBAL const f32 *RESTRICT mean, GLOBAL const f32 *RESTRICT factor,
                           GLOBAL const f32 *RESTRICT offset, GLOBAL T *RESTRICT out, Index n_items, Index width)
{
    const Index i = GLOBAL_ID(0);
    if (i >= n_items) {
        return;
    }
    IN_ROW(i, width);
    if (n_left == WIDTH) {
        const Lanes x = LOAD_LANES(in, at) - LANES_AT(mean, column);
        STORE_LANES(out, at, x * LANES_AT(factor, column) + LANES_AT(offset, column));
        return;
    }
    for (Index lane = 0; lane < n_left; lane++) {
        const f32 x = LOAD(in, at + lane) - mean[column + lane];
        STORE(out, at + lane, x * factor[column + lane] + offset[column + lane]);
    }
}

KERNEL void normalise_first(GLOBAL const T *RESTRICT in, GLOBAL const f32 *RESTRICT mean, GLOBAL const f32 *RESTRICT factor,
                            GLOBAL const f32 *RESTRICT offset, GLOBAL T *RESTRICT out, Index n_items, Index width, Index channels)
{
    const Index i = GLOBAL_ID(0);
    if (i >= n_items) {
        return;
    }
    IN_ROW(i, width);
    const Index channel = row % channels;
    const f32 m = mean[channel];
    const f32 f = factor[channel];
    const f32 o = offset[channel];
    if (n_left == WIDTH) {
        STORE_LANES(out, at, (LOAD_LANES(in, at) - (Lanes)(m)) * f + (Lanes)(o));
        return;
    }
    for (Index lane = 0; lane < n_left; lane++) {
        STORE(out, at + lane, (LOAD(in, at + lane) - m) * f + o);
    }
}

// A sum that keeps its rounding errors and adds them (Kahan): there is no f64.
typedef struct {
    f32 sum, lost;
} Exact;

INLINE Exact plus(Exact total, f32 x)
{
    const f32 y = x - total.lost;
    const f32 sum = total.sum + y;
    total.lost = (sum - total.sum) - y;
    total.sum = sum;
    return total;
}

// Mean and (biased) variance of each channel of `[outer, channels, inner]`. A work item computes a
// channel.
KERNEL void moments(GLOBAL const T *RESTRICT in, GLOBAL f32 *RESTRICT mean, GLOBAL f32 *RESTRICT variance, Index outer, Index channels,
                    Index inner)
{
    const Index channel = GLOBAL_ID(0);
    if (channel >= channels) {
        return;
    }
    const f32 n = (f32)outer * (f32)inner;
    f32 center = 0;
    for (int pass = 0; pass < 2; pass++) {
        Exact total = {0, 0};
        for (Index o = 0; o < outer; o++) {
            for (Index i = 0; i < inner; i++) {
                const f32 x = LOAD(in, (o * channels + channel) * inner + i) - center;
                total = plus(total, pass == 0 ? x : x * x);
            }
        }
        if (pass == 0) {
            center = total.sum / n;
            mean[channel] = center;
        } else {
            variance[channel] = total.sum / n;
        }
    }
}

// The factor, and the running mean and variance, of a normalisation. A work item computes a
// channel.
typedef struct {
    u32 channels;
    f32 epsilon;
    // The weight of the new moments in the running ones, and Bessel's correction.
    f32 weight, correction;
    // 0 if there are no running moments to start from, or if the moments are the ones passed in.
    u32 has_old;
} Normalisation;

KERNEL void running(GLOBAL const f32 *scale, GLOBAL const f32 *mean, GLOBAL const f32 *variance, GLOBAL const f32 *old_mean,
                    GLOBAL const f32 *old_variance, GLOBAL f32 *RESTRICT factor, GLOBAL f32 *RESTRICT running_mean,
                    GLOBAL f32 *RESTRICT running_variance, GLOBAL f32 *RESTRICT saved_mean, GLOBAL f32 *RESTRICT saved_variance,
                    Normalisation p)
{
    const Index i = GLOBAL_ID(0);
    if (i >= p.channels) {
        return;
    }
    const f32 m = mean[i];
    const f32 v = variance[i];
    factor[i] = 1 / sqrt(v + p.epsilon) * scale[i];
    running_mean[i] = p.has_old ? (1 - p.weight) * old_mean[i] + p.weight * m : m;
    running_variance[i] = p.has_old ? (1 - p.weight) * old_variance[i] + p.weight * p.correction * v : v * p.correction;
    saved_mean[i] = m;
    saved_variance[i] = v;
}

// `x[c] / (bias + alpha * (x[c - radius]^2 + .. + x[c + radius]^2))^beta`. A work item computes an
// element.
KERNEL void local_response(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n, Index channels, Index radius, f32 bias, f32 alpha,
                           f32 beta)
{
    const Index i = GLOBAL_ID(0);
    if (i >= n) {
        return;
    }
    const Index channel = i % channels;
    const Index before = min(channel, radius);
    const Index after = min(channels - 1 - channel, radius);
    f32 sum = 0;
    for (Index at = i - before; at <= i + after; at++) {
        const f32 x = LOAD(in, at);
        sum += x * x;
    }
    const f32 norm = bias + alpha * sum;
    // Not `pow`, which also handles negative bases with integral exponents.
    const f32 factor = beta == 1 ? 1 / norm : beta == 0.5f ? 1 / sqrt(norm) : exp(-beta * log(norm));
    STORE(out, i, LOAD(in, i) * factor);
}
#endif
