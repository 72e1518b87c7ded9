//! Calls that need `unsafe`. All arguments are checked views; no other module handles pointers.

mod gemm;
mod prepacked;
mod vectorize;

pub(crate) use gemm::GemmElement;
pub(crate) use gemm::gemm;
pub use prepacked::Epilogue;
pub(crate) use prepacked::Prepacked;
pub(crate) use prepacked::RowStarts;
pub(crate) use prepacked::Rows;
pub(crate) use prepacked::Segment;
pub(crate) use prepacked::matmul_prepacked;
pub(crate) use prepacked::prepack;
pub(crate) use prepacked::prepacked_len;
pub(crate) use vectorize::vectorize;
