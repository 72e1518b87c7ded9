// Functions of one element.

#define UNARY(name, expression)                                                    \
    KERNEL void name(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n) \
    {                                                                              \
        const Index i = GLOBAL_ID(0);                                              \
        if (i < n) {                                                               \
            const R x = LOAD(in, i);                                               \
            STORE(out, i, expression);                                             \
        }                                                                          \
    }

// NaN stays NaN.
UNARY(relu, x > 0 || x != x ? x : (R)0)
UNARY(neg, -x)
UNARY(square, x * x)
