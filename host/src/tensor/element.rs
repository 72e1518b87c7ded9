//! Rust types that tensors hold.

use super::DType;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of a tensor. Booleans are `u8` in memory (0 or 1) and have no `Element`: see
/// [`super::Tensor::as_bools`].
pub trait Element:
    bytemuck::Pod + sealed::Sealed + PartialEq + std::fmt::Debug + Send + Sync
{
    /// The element type of tensors of `Self`.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 => F32, f64 => F64, half::f16 => F16, half::bf16 => BF16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}
