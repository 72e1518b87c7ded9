// Choice between two tensors, element by element.

KERNEL void choose(GLOBAL const u8 *RESTRICT condition, GLOBAL const T *RESTRICT yes, GLOBAL const T *RESTRICT no,
                   GLOBAL T *RESTRICT out, Index n)
{
    const Item i = GLOBAL_ID(0);
    if (i < n) {
        out[i] = condition[i] ? yes[i] : no[i];
    }
}

KERNEL void choose_spread(GLOBAL const u8 *RESTRICT condition, GLOBAL const T *RESTRICT yes,
                          GLOBAL const T *RESTRICT no, GLOBAL T *RESTRICT out, Index n, Axes axes)
{
    const Item i = GLOBAL_ID(0);
    if (i < n) {
        out[i] = condition[axes_offset(axes, i, 0)] ? yes[axes_offset(axes, i, 1)] : no[axes_offset(axes, i, 2)];
    }
}
