
// The part of the prelude that all languages share. It follows the language's own prelude and
// precedes each source.

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

// For each element type: the type in memory, the type that is computed with, and the conversions
// between them.
#define PLAIN_TYPE(type)                                                    \
    typedef type stored_##type;                                             \
    typedef type computed_##type;                                           \
    INLINE type load_##type(GLOBAL const type *p, Item i) { return p[i]; }  \
    INLINE void store_##type(GLOBAL type *p, Item i, type x) { p[i] = x; }

PLAIN_TYPE(f32)
PLAIN_TYPE(i8)
PLAIN_TYPE(i16)
PLAIN_TYPE(i32)
PLAIN_TYPE(i64)
PLAIN_TYPE(u8)
PLAIN_TYPE(u16)
PLAIN_TYPE(u32)
PLAIN_TYPE(u64)

// TensorFlow's booleans are bytes, 0 or 1.
typedef u8 stored_boolean;
typedef u8 computed_boolean;
INLINE u8 load_boolean(GLOBAL const u8 *p, Item i) { return p[i] != 0; }
INLINE void store_boolean(GLOBAL u8 *p, Item i, int x) { p[i] = x != 0; }

// f16 and bf16 are computed as f32 and rounded once, to nearest, ties to even.
typedef u16 stored_f16;
typedef f32 computed_f16;

typedef u16 stored_bf16;
typedef f32 computed_bf16;

INLINE f32 load_bf16(GLOBAL const u16 *p, Item i) { return f32_of_bits((u32)p[i] << 16); }

INLINE void store_bf16(GLOBAL u16 *p, Item i, f32 x)
{
    const u32 bits = bits_of_f32(x);
    // A NaN whose upper half is 0 must not become infinite.
    p[i] = x != x ? (u16)((bits >> 16) | 0x40) : (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#define STORED(type) PASTE(stored_, type)
#define COMPUTED(type) PASTE(computed_, type)
#define LOAD_AS(type, p, i) PASTE(load_, type)(p, i)
#define STORE_AS(type, p, i, x) PASTE(store_, type)(p, i, x)

// A program of one element type receives the type's name as TYPE.
#ifdef TYPE
typedef STORED(TYPE) T;
typedef COMPUTED(TYPE) R;
#define LOAD(p, i) LOAD_AS(TYPE, p, i)
#define STORE(p, i, x) STORE_AS(TYPE, p, i, x)
#ifdef WIDTH
typedef PASTE(lanes_, TYPE) Lanes;
#define LOAD_LANES(p, i) PASTE(load_lanes_, TYPE)(p, i)
#define STORE_LANES(p, i, x) PASTE(store_lanes_, TYPE)(p, i, x)
#define MULTIPLY_ADD(a, b, c) PASTE(multiply_add_, TYPE)(a, b, c)
#endif
#endif

// The value of an f16 or bf16 after an operation in its own type.
#define ROUNDED(x) PASTE(rounded_, TYPE)(x)
INLINE f32 rounded_f32(f32 x) { return x; }

INLINE f32 rounded_bf16(f32 x)
{
    const u32 bits = bits_of_f32(x);
    return x != x ? x : f32_of_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}

// A function that checks its inputs sets its fault flag if they are wrong: the run then fails with
// an error.
#define FAULT_PARAMETERS GLOBAL u32 *fault_flags, u32 fault_slot
#define FAULT() (fault_flags[fault_slot] = 1)

// Sizes and strides of up to 8 axes, outermost first; strides and starts in elements. `Axes` of
// call.rs has the same layout.
typedef struct {
    i32 n_axes;
    i32 sizes[8];
    i32 strides[3][8];
    i32 starts[3];
} Axes;

// The offset in operand `which` of element `at`, which counts row-major in the axes' sizes.
INLINE i32 axes_offset(Axes axes, Index at, int which)
{
    i32 offset = axes.starts[which];
    for (int axis = axes.n_axes - 1; axis >= 0; axis--) {
        const Index size = (Index)axes.sizes[axis];
        const Index rest = at / size;
        offset += (i32)(at - rest * size) * axes.strides[which][axis];
        at = rest;
    }
    return offset;
}
