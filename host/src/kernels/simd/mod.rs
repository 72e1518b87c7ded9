//! Calls that need `unsafe`: everything that comes in is a checked view, nothing else of the program sees a pointer.

mod gemm;

pub(crate) use gemm::gemm;
