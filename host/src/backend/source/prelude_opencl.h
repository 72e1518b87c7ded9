// The dialect as OpenCL C says it. README.md beside this has the list.

#define KERNEL __kernel
#define GLOBAL __global
#define SHARED __local
#define INLINE static inline
#define RESTRICT restrict

#define GLOBAL_ID(axis) ((Index)get_global_id(axis))
#define LOCAL_ID(axis) ((Index)get_local_id(axis))
#define GROUP_ID(axis) ((Index)get_group_id(axis))
#define GROUP_SIZE(axis) ((Index)get_local_size(axis))
#define N_GROUPS(axis) ((Index)get_num_groups(axis))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)

typedef uint Index;

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

// 16-bit floats are stored everywhere; computing with them is a right that not every device has.
INLINE f32 load_f16(GLOBAL const u16 *p, Index i)
{
    return vload_half(i, (GLOBAL const half *)p);
}

INLINE void store_f16(GLOBAL u16 *p, Index i, f32 x)
{
    vstore_half_rte(x, i, (GLOBAL half *)p);
}

INLINE f32 rounded_f16(f32 x)
{
    u16 stored;
    vstore_half_rte(x, 0, (half *)&stored);
    return vload_half(0, (const half *)&stored);
}
