// Functions of one real number. Fused programs (fused.c) use the expressions for lanes.

#ifndef FUSED
NO_CONTRACTION

#define V f32
#define UNARY(name, expression)                                                    \
    KERNEL void name(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n) \
    {                                                                              \
        const Item i = GLOBAL_ID(0);                                               \
        if (i < n) {                                                               \
            const f32 x = LOAD(in, i);                                             \
            STORE(out, i, expression);                                             \
        }                                                                          \
    }
#endif

// ln(2^-23) + 2: beyond it, one term of softplus is negligible.
#define SOFTPLUS_EDGE 13.942385f

// Klambauer et al. 2017, eq. 2: scale, and scale times alpha.
#define SELU_SCALE 1.0507009873554805f
#define SELU_SCALE_ALPHA 1.7580993408473769f

INLINE V softplus_of(V x)
{
    return WHERE(x > SOFTPLUS_EDGE, x, WHERE(x < -SOFTPLUS_EDGE, exp(x), log1p(exp(x))));
}

// Beyond 9.02 the rounded result is 1, which some drivers miss by one bit.
INLINE V tanh_of(V x)
{
    return WHERE(fabs(x) > 9.02f, WHERE(x > 0, (V)1.0f, (V)-1.0f), tanh(x));
}

// Evaluates the form that loses no precision for the sign of x.
INLINE V sigmoid_of(V x)
{
    const V e = exp(-fabs(x));
    return WHERE(x < 0, e / (1.0f + e), 1.0f / (1.0f + e));
}

// A rational function without branches, as in XLA: vectors of any numbers take the same time.
// The functions of drivers have a branch per range of x, and PoCL's took 13 times as long for
// numbers of several ranges. Beyond 3.744 the quotient stays within two steps of 1. Beyond 3.92 the
// rounded result is 1.
INLINE V erf_of(V x)
{
    const V edge = WHERE(x < 0, (V)-3.7439211f, (V)3.7439211f);
    const V c = WHERE(fabs(x) > 3.7439211f, edge, x);
    const V s = c * c;
    V over = 0.00022905065861350646f * s + 0.0034082910107109506f;
    over = over * s + 0.050955695062380861f;
    over = over * s + 0.18520832239976145f;
    over = over * s + 1.128379143519084f;
    V under = -1.1791602954361697e-7f * s + 0.000023547966471313185f;
    under = under * s + 0.0010179625278914885f;
    under = under * s + 0.014070470171167667f;
    under = under * s + 0.11098505178285362f;
    under = under * s + 0.49746925110067538f;
    under = under * s + 1.0f;
    const V limit = WHERE(x < 0, (V)-1.0f, (V)1.0f);
    return WHERE(fabs(x) > 3.92f, limit, c * over / under);
}

UNARY(abs_real, fabs(x))
UNARY(floor_, floor(x))
UNARY(ceil_, ceil(x))
UNARY(rint_, rint(x))
UNARY(exp_, exp(x))
UNARY(expm1_, expm1(x))
UNARY(log_, log(x))
UNARY(log1p_, log1p(x))
UNARY(sqrt_, sqrt(x))
UNARY(rsqrt_, 1.0f / sqrt(x))
UNARY(reciprocal, 1.0f / x)
UNARY(sigmoid, sigmoid_of(x))
UNARY(tanh_, tanh_of(x))
UNARY(erf_, erf_of(x))
UNARY(erfc_, erfc(x))
UNARY(sin_, sin(x))
UNARY(cos_, cos(x))
UNARY(tan_, tan(x))
UNARY(asin_, asin(x))
UNARY(acos_, acos(x))
UNARY(atan_, atan(x))
UNARY(sinh_, sinh(x))
UNARY(cosh_, cosh(x))
UNARY(asinh_, asinh(x))
UNARY(acosh_, acosh(x))
UNARY(atanh_, atanh(x))
UNARY(softplus, softplus_of(x))
UNARY(softsign, x / (1.0f + fabs(x)))
UNARY(elu, WHERE(x < 0, expm1(x), x))
UNARY(selu, WHERE(x < 0, SELU_SCALE_ALPHA * expm1(x), SELU_SCALE * x))

#ifndef FUSED
KERNEL void leaky_relu(GLOBAL const T *RESTRICT in, GLOBAL T *RESTRICT out, Index n, f32 alpha)
{
    const Item i = GLOBAL_ID(0);
    if (i < n) {
        const f32 x = LOAD(in, i);
        STORE(out, i, x > 0 ? x : x * alpha);
    }
}

#define PREDICATE(name, expression)                                                 \
    KERNEL void name(GLOBAL const T *RESTRICT in, GLOBAL u8 *RESTRICT out, Index n) \
    {                                                                               \
        const Item i = GLOBAL_ID(0);                                                \
        if (i < n) {                                                                \
            const f32 x = LOAD(in, i);                                              \
            out[i] = (expression) ? 1 : 0;                                          \
        }                                                                           \
    }

PREDICATE(is_nan, x != x)
PREDICATE(is_inf, fabs(x) == INFINITY)
PREDICATE(is_finite, fabs(x) < INFINITY)
#endif
