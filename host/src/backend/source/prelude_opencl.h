// The dialect in OpenCL C. README.md in this folder describes it.

#define KERNEL __kernel
// Intel's compiler for CPUs vectorises across adjacent items in any case. That is several times
// slower if their elements are far apart.
#ifdef __has_attribute
#if __has_attribute(intel_vec_len_hint)
#define SERIAL_KERNEL __attribute__((intel_vec_len_hint(1))) __kernel
#endif
#endif
#ifndef SERIAL_KERNEL
#define SERIAL_KERNEL __kernel
#endif
#define GLOBAL __global
#define SHARED __local
#define OF_GROUP __local
#define INLINE static inline
#define RESTRICT restrict

#define GLOBAL_ID(axis) ((Item)get_global_id(axis))
#define LOCAL_ID(axis) ((Index)get_local_id(axis))
#define GROUP_ID(axis) ((Index)get_group_id(axis))
#define GROUP_SIZE(axis) ((Index)get_local_size(axis))
#define N_GROUPS(axis) ((Index)get_num_groups(axis))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)

typedef uint Index;
typedef size_t Item;

typedef float f32;
typedef char i8;
typedef short i16;
typedef int i32;
typedef long i64;
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;

#define f32_of_bits(bits) as_float((u32)(bits))
#define bits_of_f32(x) as_uint((f32)(x))

// f16 can be stored on every device; arithmetic in f16 is optional.
INLINE f32 load_f16(GLOBAL const u16 *p, Item i)
{
    return vload_half(i, (GLOBAL const half *)p);
}

INLINE void store_f16(GLOBAL u16 *p, Item i, f32 x)
{
    vstore_half_rte(x, i, (GLOBAL half *)p);
}

INLINE f32 rounded_f16(f32 x)
{
    u16 stored;
    vstore_half_rte(x, 0, (half *)&stored);
    return vload_half(0, (const half *)&stored);
}
#define UNROLL _Pragma("unroll")
#define WHERE(condition, x, y) ((condition) ? (x) : (y))
// Multiplications and additions are rounded one by one: a fused program gives the same result as
// its parts.
#define NO_CONTRACTION _Pragma("OPENCL FP_CONTRACT OFF")

// Programs with the macro WIDTH compute with vectors of that many lanes.
#ifdef WIDTH

#define LANES_PASTE_(a, b) a##b
#define LANES_PASTE(a, b) LANES_PASTE_(a, b)

#if WIDTH == 1
#define LANES_OF(element) element
#define LANES_AT(p, i) ((p)[i])
#define LANES_PUT(p, i, x) ((p)[i] = (x))
#define LANES_CONVERT(element, x) ((element)(x))
#define LANES_AS(element, x) LANES_PASTE(as_, element)(x)
#define LANES_LOAD_HALF(p, i) vload_half(i, p)
#define LANES_STORE_HALF(p, i, x) vstore_half_rte(x, i, p)
#else
#define LANES_OF(element) LANES_PASTE(element, WIDTH)
#define LANES_AT(p, i) LANES_PASTE(vload, WIDTH)(0, (p) + (i))
#define LANES_PUT(p, i, x) LANES_PASTE(vstore, WIDTH)(x, 0, (p) + (i))
#define LANES_CONVERT(element, x) LANES_PASTE(convert_, LANES_OF(element))(x)
#define LANES_AS(element, x) LANES_PASTE(as_, LANES_OF(element))(x)
#define LANES_LOAD_HALF(p, i) LANES_PASTE(vload_half, WIDTH)(0, (p) + (i))
#define LANES_STORE_HALF(p, i, x) LANES_PASTE(LANES_PASTE(vstore_half, WIDTH), _rte)(x, 0, (p) + (i))
#endif

// For each element type: the vector type that is computed with, its load and store, and `a * b + c`
// of a number and vectors.
#define PLAIN_LANES(type, element)                                                                                        \
    typedef LANES_OF(element) lanes_##type;                                                                               \
    INLINE lanes_##type load_lanes_##type(GLOBAL const element *p, Index i) { return LANES_AT(p, i); }                    \
    INLINE void store_lanes_##type(GLOBAL element *p, Index i, lanes_##type x) { LANES_PUT(p, i, x); }

#define INTEGER_LANES(type, element)                                                                                      \
    PLAIN_LANES(type, element)                                                                                            \
    INLINE lanes_##type multiply_add_##type(element a, lanes_##type b, lanes_##type c) { return (lanes_##type)(a) * b + c; }

PLAIN_LANES(f32, float)
INTEGER_LANES(i8, char)
INTEGER_LANES(i16, short)
INTEGER_LANES(i32, int)
INTEGER_LANES(i64, long)
INTEGER_LANES(u8, uchar)
INTEGER_LANES(u16, ushort)
INTEGER_LANES(u32, uint)
INTEGER_LANES(u64, ulong)

INLINE lanes_f32 multiply_add_f32(f32 a, lanes_f32 b, lanes_f32 c) { return fma((lanes_f32)(a), b, c); }

typedef lanes_f32 lanes_f16;
#define multiply_add_f16 multiply_add_f32

INLINE lanes_f32 load_lanes_f16(GLOBAL const u16 *p, Index i) { return LANES_LOAD_HALF((GLOBAL const half *)p, i); }

INLINE void store_lanes_f16(GLOBAL u16 *p, Index i, lanes_f32 x) { LANES_STORE_HALF((GLOBAL half *)p, i, x); }

typedef lanes_f32 lanes_bf16;
#define multiply_add_bf16 multiply_add_f32

INLINE lanes_f32 load_lanes_bf16(GLOBAL const u16 *p, Index i)
{
    return LANES_AS(float, LANES_CONVERT(uint, LANES_AT(p, i)) << 16);
}

INLINE void store_lanes_bf16(GLOBAL u16 *p, Index i, lanes_f32 x)
{
    const LANES_OF(uint) bits = LANES_AS(uint, x);
    const LANES_OF(uint) rounded = (bits + (uint)0x7fff + ((bits >> 16) & (uint)1)) >> 16;
    LANES_PUT(p, i, LANES_CONVERT(ushort, x != x ? (bits >> 16) | (uint)0x40 : rounded));
}
#endif
