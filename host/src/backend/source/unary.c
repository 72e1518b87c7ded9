// Functions of one element, of any numeric type. Fused programs (fused.c) use the expressions for
// lanes.

#ifndef FUSED
#define V R
#define UNARY(name, expression)                                                    \
    KERNEL void name(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n) \
    {                                                                              \
        const Item i = GLOBAL_ID(0);                                               \
        if (i < n) {                                                               \
            const R x = LOAD(in, i);                                               \
            STORE(out, i, expression);                                             \
        }                                                                          \
    }
#endif

// NaN stays NaN.
UNARY(relu, WHERE(x < 0, (V)0, x))
UNARY(relu6, WHERE(x < 0, (V)0, WHERE(x > 6, (V)6, x)))
UNARY(neg, (V)(-x))
UNARY(square, (V)(x * x))
UNARY(sign_of, WHERE(x > 0, (V)1, WHERE(x < 0, (V)-1, WHERE(x != x, x, (V)0))))
UNARY(magnitude, WHERE(x < 0, (V)(-x), x))
#ifndef FUSED
UNARY(logical_not, (V)(x == 0))
#endif
