//! Plain loops, compiled for the vector instructions of this machine.

use rten_simd::Isa;
use rten_simd::SimdOp;

use crate::tensor::DType;
use crate::tensor::Element;

/// Calls `body`. If `T` is `f32`, it is compiled once for each vector instruction set up to
/// AVX-512; everything that it calls must be inlined, so it should be a plain loop. For other
/// types, which are rarer, it is compiled once for the baseline instruction set: each further
/// version of hundreds of loops costs compile time.
#[inline]
pub(crate) fn vectorize<T: Element, R>(body: impl FnOnce() -> R) -> R {
    // A constant, so that the other versions are not generated.
    if const { matches!(T::DTYPE, DType::F32) } {
        Body(body).dispatch()
    } else {
        body()
    }
}

struct Body<F>(F);

impl<R, F: FnOnce() -> R> SimdOp for Body<F> {
    type Output = R;

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) -> R {
        (self.0)()
    }
}
