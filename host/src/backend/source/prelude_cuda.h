// The dialect in CUDA C++, for NVRTC: no header is included. README.md in this folder describes the
// dialect.

#define KERNEL extern "C" __global__
#define SERIAL_KERNEL KERNEL
#define GLOBAL
#define SHARED __shared__
#define OF_GROUP
#define INLINE static __device__ __forceinline__
#define RESTRICT __restrict__

typedef unsigned int Index;
typedef unsigned long long Item;

typedef float f32;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

template <int axis> INLINE unsigned axis_of(uint3 of) { return axis == 0 ? of.x : axis == 1 ? of.y : of.z; }
template <int axis> INLINE unsigned axis_of(dim3 of) { return axis == 0 ? of.x : axis == 1 ? of.y : of.z; }

#define LOCAL_ID(axis) ((Index)axis_of<axis>(threadIdx))
#define GROUP_ID(axis) ((Index)axis_of<axis>(blockIdx))
#define GROUP_SIZE(axis) ((Index)axis_of<axis>(blockDim))
#define N_GROUPS(axis) ((Index)axis_of<axis>(gridDim))
#define GLOBAL_ID(axis) ((Item)GROUP_ID(axis) * GROUP_SIZE(axis) + LOCAL_ID(axis))
#define BARRIER() __syncthreads()

#define f32_of_bits(bits) __uint_as_float((u32)(bits))
#define bits_of_f32(x) __float_as_uint((f32)(x))

#ifndef INFINITY
#define INFINITY f32_of_bits(0x7f800000u)
#endif

INLINE f32 f32_of_f16(u16 bits)
{
    f32 x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

INLINE u16 f16_of_f32(f32 x)
{
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

INLINE f32 load_f16(const u16 *p, Item i) { return f32_of_f16(p[i]); }
INLINE void store_f16(u16 *p, Item i, f32 x) { p[i] = f16_of_f32(x); }
INLINE f32 rounded_f16(f32 x) { return f32_of_f16(f16_of_f32(x)); }

#define UNROLL _Pragma("unroll")
// Programs that use this are compiled without contraction (--fmad=false).
#define NO_CONTRACTION

// Selects lane by lane. Lanes may be a structure, which `? :` does not accept.
template <typename X> INLINE X where(bool condition, X x, X y) { return condition ? x : y; }
#define WHERE(condition, x, y) where(condition, x, y)

#ifdef WIDTH
#if WIDTH == 1

#define LANES_AT(p, i) ((p)[i])
#define LANES_PUT(p, i, x) ((p)[i] = (x))

#define PLAIN_LANES(type)                                                                  \
    typedef type lanes_##type;                                                             \
    INLINE type load_lanes_##type(const type *p, Index i) { return p[i]; }                 \
    INLINE void store_lanes_##type(type *p, Index i, type x) { p[i] = x; }

#define INTEGER_LANES(type)                                                                \
    PLAIN_LANES(type)                                                                      \
    INLINE type multiply_add_##type(type a, type b, type c) { return (type)(a * b + c); }

PLAIN_LANES(f32)
INLINE f32 multiply_add_f32(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }

typedef f32 lanes_f16;
typedef f32 lanes_bf16;
INLINE f32 load_lanes_f16(const u16 *p, Index i) { return load_f16(p, i); }
INLINE void store_lanes_f16(u16 *p, Index i, f32 x) { store_f16(p, i, x); }
INLINE f32 load_bf16(const u16 *p, Item i);
INLINE void store_bf16(u16 *p, Item i, f32 x);
INLINE f32 load_lanes_bf16(const u16 *p, Index i) { return load_bf16(p, i); }
INLINE void store_lanes_bf16(u16 *p, Index i, f32 x) { store_bf16(p, i, x); }

#else

struct Mask {
    bool at[WIDTH];
};

INLINE Mask operator||(Mask x, Mask y)
{
    UNROLL for (int lane = 0; lane < WIDTH; lane++) {
        x.at[lane] = x.at[lane] || y.at[lane];
    }
    return x;
}

INLINE Mask operator|(Mask x, Mask y) { return x || y; }

INLINE Mask operator&&(Mask x, Mask y)
{
    UNROLL for (int lane = 0; lane < WIDTH; lane++) {
        x.at[lane] = x.at[lane] && y.at[lane];
    }
    return x;
}

#define LANES_OPERATOR(op)                                                                 \
    friend INLINE_FRIEND Vector operator op(Vector x, Vector y)                            \
    {                                                                                      \
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {                                  \
            x.at[lane] = (E)(x.at[lane] op y.at[lane]);                                    \
        }                                                                                  \
        return x;                                                                          \
    }

#define LANES_COMPARISON(op)                                                               \
    friend INLINE_FRIEND Mask operator op(Vector x, Vector y)                              \
    {                                                                                      \
        Mask mask;                                                                         \
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {                                  \
            mask.at[lane] = x.at[lane] op y.at[lane];                                      \
        }                                                                                  \
        return mask;                                                                       \
    }

#define INLINE_FRIEND __device__ __forceinline__

// WIDTH elements in registers. A number converts to a vector of equal elements.
template <typename E> struct Vector {
    E at[WIDTH];

    __device__ __forceinline__ Vector() {}
    __device__ __forceinline__ Vector(E x)
    {
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {
            at[lane] = x;
        }
    }

    LANES_OPERATOR(+)
    LANES_OPERATOR(-)
    LANES_OPERATOR(*)
    LANES_OPERATOR(/)
    LANES_COMPARISON(<)
    LANES_COMPARISON(>)
    LANES_COMPARISON(<=)
    LANES_COMPARISON(>=)
    LANES_COMPARISON(==)
    LANES_COMPARISON(!=)

    friend INLINE_FRIEND Vector operator-(Vector x)
    {
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {
            x.at[lane] = -x.at[lane];
        }
        return x;
    }
    friend INLINE_FRIEND Vector &operator+=(Vector &x, Vector y) { return x = x + y; }
    friend INLINE_FRIEND Vector where(Mask mask, Vector x, Vector y)
    {
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {
            x.at[lane] = mask.at[lane] ? x.at[lane] : y.at[lane];
        }
        return x;
    }
};

template <typename E> INLINE Vector<E> lanes_at(const E *p)
{
    Vector<E> x;
    UNROLL for (int lane = 0; lane < WIDTH; lane++) {
        x.at[lane] = p[lane];
    }
    return x;
}

template <typename E> INLINE void lanes_put(E *p, Vector<E> x)
{
    UNROLL for (int lane = 0; lane < WIDTH; lane++) {
        p[lane] = x.at[lane];
    }
}

#define LANES_AT(p, i) lanes_at((p) + (i))
#define LANES_PUT(p, i, x) lanes_put((p) + (i), x)

#define PLAIN_LANES(type)                                                                              \
    typedef Vector<type> lanes_##type;                                                                 \
    INLINE lanes_##type load_lanes_##type(const type *p, Index i) { return lanes_at(p + i); }          \
    INLINE void store_lanes_##type(type *p, Index i, lanes_##type x) { lanes_put(p + i, x); }

#define INTEGER_LANES(type)                                                                            \
    PLAIN_LANES(type)                                                                                  \
    INLINE lanes_##type multiply_add_##type(type a, lanes_##type b, lanes_##type c) { return (lanes_##type)(a) * b + c; }

PLAIN_LANES(f32)

INLINE lanes_f32 multiply_add_f32(f32 a, lanes_f32 b, lanes_f32 c)
{
    UNROLL for (int lane = 0; lane < WIDTH; lane++) {
        c.at[lane] = fmaf(a, b.at[lane], c.at[lane]);
    }
    return c;
}

typedef lanes_f32 lanes_f16;
typedef lanes_f32 lanes_bf16;

#define HALF_LANES(type)                                                                              \
    INLINE lanes_f32 load_lanes_##type(const u16 *p, Index i)                                          \
    {                                                                                                  \
        lanes_f32 x;                                                                                   \
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {                                              \
            x.at[lane] = load_##type(p, i + lane);                                                     \
        }                                                                                              \
        return x;                                                                                      \
    }                                                                                                  \
    INLINE void store_lanes_##type(u16 *p, Index i, lanes_f32 x)                                       \
    {                                                                                                  \
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {                                              \
            store_##type(p, i + lane, x.at[lane]);                                                     \
        }                                                                                              \
    }

INLINE f32 load_bf16(const u16 *p, Item i);
INLINE void store_bf16(u16 *p, Item i, f32 x);
HALF_LANES(f16)
HALF_LANES(bf16)

#define LANES_FUNCTION(name)                                                               \
    INLINE Vector<f32> name(Vector<f32> x)                                                 \
    {                                                                                      \
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {                                  \
            x.at[lane] = name(x.at[lane]);                                                 \
        }                                                                                  \
        return x;                                                                          \
    }

#define LANES_FUNCTION_OF_TWO(name)                                                        \
    INLINE Vector<f32> name(Vector<f32> x, Vector<f32> y)                                  \
    {                                                                                      \
        UNROLL for (int lane = 0; lane < WIDTH; lane++) {                                  \
            x.at[lane] = name(x.at[lane], y.at[lane]);                                     \
        }                                                                                  \
        return x;                                                                          \
    }

LANES_FUNCTION(exp)
LANES_FUNCTION(expm1)
LANES_FUNCTION(log)
LANES_FUNCTION(log1p)
LANES_FUNCTION(sqrt)
LANES_FUNCTION(fabs)
LANES_FUNCTION(floor)
LANES_FUNCTION(ceil)
LANES_FUNCTION(rint)
LANES_FUNCTION(erf)
LANES_FUNCTION(erfc)
LANES_FUNCTION(sin)
LANES_FUNCTION(cos)
LANES_FUNCTION(tan)
LANES_FUNCTION(asin)
LANES_FUNCTION(acos)
LANES_FUNCTION(atan)
LANES_FUNCTION(sinh)
LANES_FUNCTION(cosh)
LANES_FUNCTION(tanh)
LANES_FUNCTION(asinh)
LANES_FUNCTION(acosh)
LANES_FUNCTION(atanh)
LANES_FUNCTION_OF_TWO(fmod)
LANES_FUNCTION_OF_TWO(pow)
LANES_FUNCTION_OF_TWO(atan2)
#endif

INTEGER_LANES(i8)
INTEGER_LANES(i16)
INTEGER_LANES(i32)
INTEGER_LANES(i64)
INTEGER_LANES(u8)
INTEGER_LANES(u16)
INTEGER_LANES(u32)
INTEGER_LANES(u64)

#define multiply_add_f16 multiply_add_f32
#define multiply_add_bf16 multiply_add_f32
#endif
