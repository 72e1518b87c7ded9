// Functions of one element, of any type of numbers.

#define UNARY(name, expression)                                                    \
    KERNEL void name(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n) \
    {                                                                              \
        const Item i = GLOBAL_ID(0);                                               \
        if (i < n) {                                                               \
            const R x = LOAD(in, i);                                               \
            STORE(out, i, expression);                                             \
        }                                                                          \
    }

// NaN stays NaN.
UNARY(relu, x < 0 ? (R)0 : x)
UNARY(relu6, x < 0 ? (R)0 : x > 6 ? (R)6 : x)
UNARY(neg, (R)(-x))
UNARY(square, (R)(x * x))
UNARY(sign_of, x > 0 ? (R)1 : x < 0 ? (R)-1 : x != x ? x : (R)0)
UNARY(magnitude, x < 0 ? (R)(-x) : x)
UNARY(logical_not, (R)(x == 0))
