// Conversion of element types, from SOURCE to TARGET, as x86 converts: a value that does not fit
// into an integer type becomes its smallest number.

typedef COMPUTED(SOURCE) S;

#ifdef FROM_REAL
INLINE i32 i32_of(f32 x)
{
    return x >= -2147483648.0f && x < 2147483648.0f ? (i32)x : (i32)0x80000000;
}

INLINE i64 i64_of(f32 x)
{
    return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? (i64)x : (i64)1 << 63;
}

INLINE u64 u64_of(f32 x)
{
    const i64 low = i64_of(x), high = i64_of(x - 9223372036854775808.0f);
    return (u64)(low | (high & (low >> 63)));
}

// Clears the `n_bits` lowest bits of the number.
INLINE f32 truncated(f32 x, u32 n_bits)
{
    return x != x ? x : f32_of_bits(bits_of_f32(x) & (0xffffffffu << n_bits));
}
#endif

KERNEL void convert(GLOBAL const STORED(SOURCE) *RESTRICT in, GLOBAL STORED(TARGET) *RESTRICT out, Index n)
{
    const Item i = GLOBAL_ID(0);
    if (i < n) {
        const S x = LOAD_AS(SOURCE, in, i);
        STORE_AS(TARGET, out, i, CONVERSION);
    }
}
