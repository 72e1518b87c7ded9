// Quotients and remainders of integers. A divisor of 0 is a fault: the run fails with an error.

// Rounds towards 0; the smallest number divided by -1 is itself. y is not 0.
INLINE R truncated_quotient(R x, R y)
{
    const int is_signed = (R)-1 < (R)0;
    return is_signed && y == (R)-1 ? (R)(0 - (u64)x) : (R)(x / y);
}

INLINE R truncated_remainder(R x, R y)
{
    return (R)((u64)x - (u64)truncated_quotient(x, y) * (u64)y);
}

INLINE R floored_quotient(R x, R y)
{
    const R quotient = truncated_quotient(x, y);
    const int is_between = truncated_remainder(x, y) != 0 && (x < 0) != (y < 0);
    return is_between ? (R)(quotient - 1) : quotient;
}

INLINE R floored_remainder(R x, R y)
{
    const R truncated = truncated_remainder(x, y);
    return truncated != 0 && (truncated < 0) != (y < 0) ? (R)(truncated + y) : truncated;
}

#define DIVISION(name, function)                                                                                    \
    KERNEL void name(GLOBAL const T *RESTRICT lhs, GLOBAL const T *RESTRICT rhs, GLOBAL T *RESTRICT out, Index n,   \
                     FAULT_PARAMETERS)                                                                              \
    {                                                                                                               \
        const Item i = GLOBAL_ID(0);                                                                                \
        if (i < n) {                                                                                                \
            const R x = LOAD(lhs, i), y = LOAD(rhs, i);                                                             \
            if (y == 0) {                                                                                           \
                FAULT();                                                                                            \
            }                                                                                                       \
            STORE(out, i, function(x, y == 0 ? (R)1 : y));                                                          \
        }                                                                                                           \
    }                                                                                                               \
    KERNEL void name##_spread(GLOBAL const T *RESTRICT lhs, GLOBAL const T *RESTRICT rhs, GLOBAL T *RESTRICT out,   \
                              Index n, Axes axes, FAULT_PARAMETERS)                                                 \
    {                                                                                                               \
        const Item i = GLOBAL_ID(0);                                                                                \
        if (i < n) {                                                                                                \
            const R x = LOAD(lhs, axes_offset(axes, i, 0)), y = LOAD(rhs, axes_offset(axes, i, 1));                 \
            if (y == 0) {                                                                                           \
                FAULT();                                                                                            \
            }                                                                                                       \
            STORE(out, i, function(x, y == 0 ? (R)1 : y));                                                          \
        }                                                                                                           \
    }

DIVISION(truncate_div, truncated_quotient)
DIVISION(truncate_mod, truncated_remainder)
DIVISION(floor_div, floored_quotient)
DIVISION(floor_mod, floored_remainder)
