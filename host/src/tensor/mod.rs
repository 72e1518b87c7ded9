//! Values on the host: element types, shapes, tensors and literals.
//!
//! Independent of graphs, devices and file formats.

mod buffer;
mod bytes;
mod dtype;
mod element;
mod handle;
mod literal;
mod shape;
mod string;
mod value;
mod variant;

pub(crate) use buffer::Arena;
pub use buffer::{
    Allocator, AllocatorStats, Buffer, HostAllocator, HostMemory, Memory, MemoryId, OutOfMemory,
};
pub(crate) use bytes::show_bytes;
pub use dtype::DType;
pub use element::{Boolean, Complex64, Complex128, Element};
pub use handle::ResourceHandle;
pub use literal::{
    Literal, LiteralData, LiteralError, Procedural, SharedBytes, StoredBytes, StoredBytesError,
};
pub(crate) use shape::RANK_MAX;
pub use shape::{PartialShape, Shape, ShapeTooLarge};
pub use string::ByteString;
pub use value::{Tensor, TensorError};
pub use variant::{RaggedTensor, TensorList, Variant};
