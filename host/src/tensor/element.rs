//! Rust types of tensor elements.

use super::DType;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type of tensor elements.
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
    Boolean => Bool, Complex64 => Complex64, Complex128 => Complex128,
}

/// The element of boolean tensors: one byte, true unless it is 0. It is not a `bool`, which must be
/// 0 or 1, because tensors come from outside.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Boolean(u8);

impl Boolean {
    /// False.
    pub const FALSE: Self = Self(0);
    /// True.
    pub const TRUE: Self = Self(1);

    /// Returns whether it is true.
    #[inline]
    pub const fn is_true(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Boolean {
    #[inline]
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl PartialEq for Boolean {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.is_true() == other.is_true()
    }
}

impl PartialOrd for Boolean {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.is_true().partial_cmp(&other.is_true())
    }
}

/// A complex number of two `f32`.
pub type Complex64 = num_complex::Complex<f32>;

/// A complex number of two `f64`.
pub type Complex128 = num_complex::Complex<f64>;
