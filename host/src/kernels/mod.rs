//! CPU arithmetic on slices.
//!
//! In come slices and shapes, out go slices. Knows no graph, no node and no tensor; of devices it
//! knows only that one may lend its threads ([`Threads`]). The kernels of `backend::cpu` are thin
//! wrappers around these functions, and other backends may use them for what they keep on the host.
//!
//! Each function names the TensorFlow op whose semantics it has. Where a function is fast by other
//! means than the plainest loop (a library, a block structure, vector instructions), a plain twin
//! and a property test stand beside it.

pub mod batch;

pub mod binary;

pub mod bits;

pub mod broadcast;

pub mod cast;

pub mod complex;

pub mod concat;

pub mod conv;

pub mod depthwise;

pub mod einsum;
pub mod epilogue;

pub mod gather;

pub mod image;

pub mod matmul;

pub mod matrix;

pub mod norm;

pub mod number;

pub mod pack;

pub mod pad;

pub mod parallel;

pub mod pool;

pub mod reduce;

pub mod reducer;

pub mod reshape;

pub mod scan;

pub mod scratch;

#[expect(
    unsafe_code,
    reason = "the fast matrix products have raw-pointer interfaces"
)]
mod simd;

pub mod slice;

pub mod softmax;

pub mod special;

pub mod spread;

pub mod strided;

pub mod unary;

pub mod window;

pub use bits::Bits;
pub use broadcast::Broadcast;
pub use matmul::Multiply;
pub use matrix::{MatrixMut, MatrixView};
pub use number::{Arithmetic, Integer, Number, Real};
pub use parallel::Threads;
pub use scratch::Scratch;
