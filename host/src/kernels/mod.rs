//! CPU arithmetic on slices.
//!
//! In come slices and shapes, out go slices. Knows no graph, no node and no tensor; of devices it knows only that one
//! may lend its threads ([`Threads`]). The kernels of `backend::cpu` are thin wrappers around these functions, and
//! other backends may use them for what they keep on the host.
//!
//! Each function names the TensorFlow op whose semantics it has. Where a function is fast by other means than the
//! plainest loop (a library, a block structure, vector instructions), a plain twin and a property test stand beside it.

pub mod binary;

pub mod broadcast;

pub mod conv;

pub mod matmul;

pub mod matrix;

pub mod number;

pub mod parallel;

pub mod pool;

pub mod reshape;

#[expect(
    unsafe_code,
    reason = "the fast matrix product has a raw-pointer interface"
)]
mod simd;

pub mod softmax;

pub mod unary;

pub mod window;

pub use broadcast::Broadcast;
pub use matmul::Multiply;
pub use matrix::{MatrixMut, MatrixView};
pub use number::{Integer, Number, Real};
pub use parallel::Threads;
