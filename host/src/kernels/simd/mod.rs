//! Calls that need `unsafe`: everything that comes in is a checked view, nothing else of the
//! program sees a pointer.

mod gemm;
mod packed;
mod vectorize;

pub(crate) use gemm::GemmElement;
pub(crate) use gemm::gemm;
pub(crate) use packed::Packed;
pub(crate) use packed::RowStarts;
pub(crate) use packed::Rows;
pub(crate) use packed::Segment;
pub(crate) use packed::multiply_packed;
pub(crate) use packed::pack;
pub(crate) use packed::packed_len;
pub(crate) use vectorize::vectorize;
