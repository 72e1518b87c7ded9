// Copies between strided tensors, and functions that fill a tensor.

// `out[axes, 1] = in[axes, 0]` for each of `n` positions.
KERNEL void copy(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n, Axes axes)
{
    const Item i = GLOBAL_ID(0);
    if (i < n) {
        out[axes_offset(axes, i, 1)] = in[axes_offset(axes, i, 0)];
    }
}

KERNEL void fill(GLOBAL T *RESTRICT out, Index n, f32 value)
{
    const Item i = GLOBAL_ID(0);
    if (i < n) {
        STORE(out, i, (R)value);
    }
}
