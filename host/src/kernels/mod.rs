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

pub mod beam;

pub mod binary;

pub mod bits;

pub mod broadcast;

pub mod cast;

pub mod codec;

pub mod color;

pub mod complex;

pub mod composite;

pub mod concat;

pub mod conv;

pub mod crop;

pub mod depthwise;

pub mod diagonal;

pub mod einsum;
pub mod epilogue;

pub mod example;

pub mod fft;

pub mod gamma;

pub mod gather;

pub mod histogram;

pub mod image;

pub mod linalg;

pub mod matmul;

pub mod matrix;

pub mod ngrams;

pub mod norm;

pub mod number;

pub mod pack;

pub mod pad;

pub mod parallel;

pub mod patches;
pub mod philox;
pub mod pool;
pub mod printf;
pub mod projective;
pub mod quantize;
pub mod ragged;
pub mod recurrent;

pub mod reduce;

pub mod reducer;

pub mod regex;
pub mod resample;

pub mod reshape;

pub mod sampled;
pub mod sampling;

pub mod scan;

pub mod scatter;

pub mod scratch;

pub mod search;

pub mod segment;

#[expect(unsafe_code, reason = "the fast matmuls have raw-pointer interfaces")]
mod simd;

pub mod slice;

pub mod softmax;

pub mod sparse;

pub mod special;

pub mod spectral;

pub mod spread;

pub mod strided;

pub mod strings;
pub mod suppression;
pub mod top_k;
pub mod unary;
pub mod unicode;
pub mod volume;

pub mod window;
pub mod winograd;

pub use bits::Bits;
pub use broadcast::Broadcast;
pub use matmul::MatmulElement;
pub use matrix::{MatrixMut, MatrixView};
pub use number::{Arithmetic, Integer, Number, Real};
pub use parallel::Threads;
pub use scratch::Scratch;
