//! Calls that need `unsafe`. All arguments are checked views; no other module handles pointers.

mod depthwise;
mod epilogue;
mod gemm;
mod prepacked;
mod vectorize;
mod winograd;

pub(crate) use depthwise::DepthwiseLine;
pub(crate) use depthwise::ImageLine;
pub(crate) use depthwise::LINES_MAX;
pub(crate) use depthwise::is_in_registers;
pub use epilogue::Epilogue;
pub(crate) use gemm::GemmElement;
pub(crate) use gemm::gemm;
pub(crate) use prepacked::Prepacked;
pub(crate) use prepacked::RowStarts;
pub(crate) use prepacked::Rows;
pub(crate) use prepacked::Segment;
pub(crate) use prepacked::matmul_prepacked;
pub(crate) use prepacked::prepack;
pub(crate) use prepacked::prepacked_len;
pub(crate) use vectorize::vectorize;
pub(crate) use winograd::DILATION_MAX;
pub(crate) use winograd::TileGrid;
pub(crate) use winograd::TiledConvolution;
