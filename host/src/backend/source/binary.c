// Functions of two elements. There is a variant for tensors of one shape, one for tensors broadcast
// to one shape element by element (`.._spread`), and one for tensors broadcast row by row
// (`.._rows`). Fused programs (fused.c) use the expressions for lanes.

#ifndef FUSED

// The innermost axis of broadcast tensors, of which each work item computes a run: `row * n_runs +
// run`. The step of an operand is 1, or 0 if one element is repeated. `Rows` of binary.rs has the
// same layout.
typedef struct {
    u32 n_items, n_runs, run, width, lhs_step, rhs_step;
} Rows;

#define BINARY_TO(result, name, expression)                                                                           \
    KERNEL void name(GLOBAL const T *RESTRICT lhs, GLOBAL const T *RESTRICT rhs, GLOBAL STORED(result) *RESTRICT out,  \
                     Index n)                                                                                         \
    {                                                                                                                 \
        const Item i = GLOBAL_ID(0);                                                                                  \
        if (i < n) {                                                                                                  \
            const R x = LOAD(lhs, i), y = LOAD(rhs, i);                                                               \
            STORE_AS(result, out, i, expression);                                                                     \
        }                                                                                                             \
    }                                                                                                                 \
    KERNEL void name##_spread(GLOBAL const T *RESTRICT lhs, GLOBAL const T *RESTRICT rhs,                             \
                              GLOBAL STORED(result) *RESTRICT out, Index n, Axes axes)                                \
    {                                                                                                                 \
        const Index i = GLOBAL_ID(0);                                                                                 \
        if (i < n) {                                                                                                  \
            const R x = LOAD(lhs, axes_offset(axes, i, 0)), y = LOAD(rhs, axes_offset(axes, i, 1));                   \
            STORE_AS(result, out, i, expression);                                                                     \
        }                                                                                                             \
    }                                                                                                                 \
    SERIAL_KERNEL void name##_rows(GLOBAL const T *RESTRICT lhs, GLOBAL const T *RESTRICT rhs,                        \
                                   GLOBAL STORED(result) *RESTRICT out, Rows rows, Axes axes)                         \
    {                                                                                                                 \
        const Index item = GLOBAL_ID(0);                                                                              \
        if (item >= rows.n_items) {                                                                                   \
            return;                                                                                                   \
        }                                                                                                             \
        const Index row = item / rows.n_runs, first = (item - row * rows.n_runs) * rows.run;                          \
        const Index end = min(first + rows.run, rows.width);                                                          \
        lhs += axes_offset(axes, row, 0);                                                                             \
        rhs += axes_offset(axes, row, 1);                                                                             \
        out += row * rows.width;                                                                                      \
        if (rows.rhs_step == 0) {                                                                                     \
            const R y = LOAD(rhs, 0);                                                                                 \
            for (Item i = first; i < end; i++) {                                                                      \
                const R x = LOAD(lhs, i);                                                                             \
                STORE_AS(result, out, i, expression);                                                                 \
            }                                                                                                         \
        } else if (rows.lhs_step == 0) {                                                                              \
            const R x = LOAD(lhs, 0);                                                                                 \
            for (Item i = first; i < end; i++) {                                                                      \
                const R y = LOAD(rhs, i);                                                                             \
                STORE_AS(result, out, i, expression);                                                                 \
            }                                                                                                         \
        } else {                                                                                                      \
            for (Item i = first; i < end; i++) {                                                                      \
                const R x = LOAD(lhs, i), y = LOAD(rhs, i);                                                           \
                STORE_AS(result, out, i, expression);                                                                 \
            }                                                                                                         \
        }                                                                                                             \
    }

#define V R
#define BINARY(name, expression) BINARY_TO(TYPE, name, expression)
#define COMPARE(name, expression) BINARY_TO(boolean, name, expression)
#endif

#ifdef NUMBERS
BINARY(add, (V)(x + y))
BINARY(sub, (V)(x - y))
BINARY(mul, (V)(x * y))
// NaN if either operand is; of two equal operands, the second one.
BINARY(maximum, WHERE(x > y || x != x, x, y))
BINARY(minimum, WHERE(x < y || x != x, x, y))
BINARY(squared_difference, (V)((V)(x - y) * (V)(x - y)))
COMPARE(less, x < y)
COMPARE(less_equal, x <= y)
COMPARE(greater, x > y)
COMPARE(greater_equal, x >= y)
COMPARE(equal, x == y)
COMPARE(not_equal, x != y)
#endif

#ifdef REALS
#ifndef FUSED
INLINE f32 floored_remainder(f32 x, f32 y)
{
    const f32 truncated = fmod(x, y);
    return truncated != 0 && (truncated < 0) != (y < 0) ? truncated + y : truncated;
}

// f16 and bf16 quotients are rounded to their type before floor, as a quotient computed in that
// type is.
INLINE f32 floored_quotient(f32 x, f32 y)
{
    return floor(ROUNDED(x / y));
}

BINARY(floor_div, floored_quotient(x, y))
BINARY(floor_mod, floored_remainder(x, y))
#endif

BINARY(real_div, x / y)
BINARY(div_no_nan, WHERE(y == 0, (V)0, x / y))
BINARY(truncate_mod, fmod(x, y))
BINARY(power, pow(x, y))
BINARY(angle, atan2(x, y))
#endif

#ifdef INTEGERS
BINARY(bitwise_and, (V)(x & y))
BINARY(bitwise_or, (V)(x | y))
BINARY(bitwise_xor, (V)(x ^ y))
#endif

#ifdef BOOLEANS
BINARY(logical_and, x & y)
BINARY(logical_or, x | y)
COMPARE(equal, x == y)
COMPARE(not_equal, x != y)
#endif
