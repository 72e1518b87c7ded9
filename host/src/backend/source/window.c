// Windows that slide over each channel separately: pools, depthwise convolutions. Channels come
// last.

// `Windows` of window.rs has the same layout. Axis 0 is vertical.
typedef struct {
    // Vectors of the result.
    u32 n_items;
    u32 in_size[2], out_size[2];
    // Channels of the input, and channels of the result for each of them.
    u32 channels, multiplier;
    u32 taps[2];
    i32 stride[2], pad[2];
} Windows;

// The part of the result that a work item computes: WIDTH channels of a pixel, or the rest of them.
typedef struct {
    Index channel, n_channels;
    Index out;
    // Taps outside of the padding, and the pixel under tap (0, 0) of the window.
    Index first[2], end[2];
    i32 corner;
} Window;

INLINE Window window_of(Index item, Windows w)
{
    const Index channels = w.channels * w.multiplier;
    const Index n_vectors = (channels + WIDTH - 1) / WIDTH;
    const Index pixel = item / n_vectors;
    Window window;
    window.channel = (item - pixel * n_vectors) * WIDTH;
    window.n_channels = min((Index)WIDTH, channels - window.channel);
    window.out = pixel * channels + window.channel;
    const Index line = pixel / w.out_size[1];
    const Index image = line / w.out_size[0];
    const i32 at[2] = {
        (i32)(line - image * w.out_size[0]) * w.stride[0] - w.pad[0],
        (i32)(pixel - line * w.out_size[1]) * w.stride[1] - w.pad[1],
    };
    for (int axis = 0; axis < 2; axis++) {
        window.first[axis] = (Index)max(-at[axis], 0);
        window.end[axis] = (Index)min(max((i32)w.in_size[axis] - at[axis], 0), (i32)w.taps[axis]);
        window.end[axis] = max(window.end[axis], window.first[axis]);
    }
    window.corner = ((i32)(image * w.in_size[0]) + at[0]) * (i32)w.in_size[1] + at[1];
    return window;
}

// The offset of a tap's pixel, channel 0.
INLINE Index tap_at(Window window, Index y, Index x, Windows w)
{
    return (Index)(window.corner + (i32)(y * w.in_size[1] + x)) * w.channels;
}

// Neither NaN nor anything that is not above `LOWEST`, the lowest finite number, is ever the
// maximum.
KERNEL void max_pool(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Windows w)
{
    const Index item = GLOBAL_ID(0);
    if (item >= w.n_items) {
        return;
    }
    const Window window = window_of(item, w);
    if (window.n_channels == WIDTH) {
        Lanes largest = (Lanes)(LOWEST);
        for (Index y = window.first[0]; y < window.end[0]; y++) {
            for (Index x = window.first[1]; x < window.end[1]; x++) {
                const Lanes value = LOAD_LANES(in, tap_at(window, y, x, w) + window.channel);
                largest = WHERE(value > largest, value, largest);
            }
        }
        STORE_LANES(out, window.out, largest);
        return;
    }
    for (Index channel = 0; channel < window.n_channels; channel++) {
        R largest = LOWEST;
        for (Index y = window.first[0]; y < window.end[0]; y++) {
            for (Index x = window.first[1]; x < window.end[1]; x++) {
                const R value = LOAD(in, tap_at(window, y, x, w) + window.channel + channel);
                largest = value > largest ? value : largest;
            }
        }
        STORE(out, window.out + channel, largest);
    }
}

#ifdef FLOATS
// The mean of the elements that are not padding.
KERNEL void mean_pool(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Windows w)
{
    const Index item = GLOBAL_ID(0);
    if (item >= w.n_items) {
        return;
    }
    const Window window = window_of(item, w);
    const f32 n = (f32)((window.end[0] - window.first[0]) * (window.end[1] - window.first[1]));
    if (window.n_channels == WIDTH) {
        Lanes sum = (Lanes)(0);
        for (Index y = window.first[0]; y < window.end[0]; y++) {
            for (Index x = window.first[1]; x < window.end[1]; x++) {
                sum += LOAD_LANES(in, tap_at(window, y, x, w) + window.channel);
            }
        }
        STORE_LANES(out, window.out, sum / n);
        return;
    }
    for (Index channel = 0; channel < window.n_channels; channel++) {
        R sum = 0;
        for (Index y = window.first[0]; y < window.end[0]; y++) {
            for (Index x = window.first[1]; x < window.end[1]; x++) {
                sum += LOAD(in, tap_at(window, y, x, w) + window.channel + channel);
            }
        }
        STORE(out, window.out + channel, sum / n);
    }
}

// Whether a tap is in the padding. The padding is zeroes, which matters if a weight is infinite or
// NaN.
INLINE bool is_padding(Window window, Index y, Index x)
{
    return y < window.first[0] || y >= window.end[0] || x < window.first[1] || x >= window.end[1];
}

// `[batch, rows, columns, channels] * [taps, taps, channels, multiplier] -> [.., channels *
// multiplier]`.
KERNEL void depthwise(GLOBAL const T *RESTRICT in, GLOBAL const T *RESTRICT filter, GLOBAL T *RESTRICT out, Windows w)
{
    const Index item = GLOBAL_ID(0);
    if (item >= w.n_items) {
        return;
    }
    const Window window = window_of(item, w);
    const Index depth = w.channels * w.multiplier;
    if (window.n_channels == WIDTH && w.multiplier == 1) {
        Lanes sum = (Lanes)(0);
        for (Index y = 0; y < w.taps[0]; y++) {
            for (Index x = 0; x < w.taps[1]; x++) {
                const Lanes weight = LOAD_LANES(filter, (y * w.taps[1] + x) * depth + window.channel);
                if (is_padding(window, y, x)) {
                    sum += weight * 0;
                } else {
                    sum += LOAD_LANES(in, tap_at(window, y, x, w) + window.channel) * weight;
                }
            }
        }
        STORE_LANES(out, window.out, sum);
        return;
    }
    for (Index channel = 0; channel < window.n_channels; channel++) {
        const Index at = window.channel + channel;
        R sum = 0;
        for (Index y = 0; y < w.taps[0]; y++) {
            for (Index x = 0; x < w.taps[1]; x++) {
                R value = 0;
                if (!is_padding(window, y, x)) {
                    value = LOAD(in, tap_at(window, y, x, w) + at / w.multiplier);
                }
                sum += value * LOAD(filter, (y * w.taps[1] + x) * depth + at);
            }
        }
        STORE(out, window.out + channel, sum);
    }
}
#endif
