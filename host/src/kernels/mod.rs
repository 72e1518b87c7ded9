//! CPU arithmetic on slices.
//!
//! Functions take slices and shapes and fill slices. They do not use graphs, nodes or tensors;
//! devices only provide threads and scratch memory ([`Threads`]). The kernels of `backend::cpu` are
//! thin wrappers around these functions. Other backends use them for data that they keep on the
//! host.
//!
//! Each function names the TensorFlow op whose semantics it has. A function that is optimised
//! beyond a plain loop (a library, blocking, vector instructions) has a reference implementation
//! and a property test next to it.

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

pub mod ngrams;

pub mod norm;

pub mod number;

pub mod pack;

pub mod pad;

pub mod parallel;

pub mod philox;

pub mod pool;

pub mod printf;

pub mod ragged;

pub mod reduce;

pub mod reducer;

pub mod regex;

pub mod reshape;

pub mod sampling;

pub mod scan;

pub mod scratch;

#[expect(unsafe_code, reason = "the fast matmuls have raw-pointer interfaces")]
mod simd;

pub mod slice;

pub mod softmax;

pub mod sparse;

pub mod special;

pub mod spread;

pub mod strided;

pub mod strings;

pub mod unary;

pub mod unicode;

pub mod window;

pub use bits::Bits;
pub use broadcast::Broadcast;
pub use matmul::MatmulElement;
pub use matrix::{MatrixMut, MatrixView};
pub use number::{Arithmetic, Integer, Number, Real};
pub use parallel::Threads;
pub use scratch::Scratch;
