//! Plain loops, compiled for the vectors of this machine.

use rten_simd::Isa;
use rten_simd::SimdOp;

use crate::tensor::DType;
use crate::tensor::Element;

/// Calls `body`, compiled once for each kind of vectors up to AVX-512 where `T` is `f32`: what it
/// calls must be inlined into it, so it should be a plain loop. For other types it is compiled
/// once, for vectors that every machine has: they are rarer, and each further version of hundreds
/// of loops costs time to compile.
#[inline]
pub(crate) fn vectorize<T: Element, R>(body: impl FnOnce() -> R) -> R {
    // A constant, so that the other versions are not even generated.
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
