//! Op definitions: arity, element types, shapes and work of each op. No devices, no kernels.
//!
//! A definition is TensorFlow's signature with a shape function and a work function.
//! [`OpRegistry::default`] holds the shipped ops, one file per family; apps add their own with
//! [`OpRegistry::register`]. [`crate::builder`] and [`crate::import`] check nodes against
//! definitions. [`OpDef::input_range`] returns the inputs that an argument name covers.

mod array;
mod assemble;
mod attr_def;
mod check;
mod codec;
mod control;
mod crops;
mod cross;
mod data_format;
mod definition;
mod example;
mod fold;
mod functional;
mod infer;
mod joined;
mod layout;
mod linalg;
mod lists;
mod math;
mod matrix;
mod misc;
mod nn;
mod queues;
mod random;
mod reduce;
mod refine;
mod registry;
mod rows;
mod rules;
mod segments;
mod selection;
mod slice;
mod sparse;
mod special;
mod state;
mod strings;
mod tables;
#[cfg(test)]
mod tests;
mod volume;
mod window;
mod work;

pub(crate) use assemble::Inferred;
pub(crate) use assemble::OpAssembler;
pub(crate) use assemble::OpNode;
pub(crate) use assemble::OpNodeError;
pub(crate) use assemble::input_shapes;
pub use attr_def::{AttrDef, AttrKind};
pub use check::NodeDefError;
pub(crate) use data_format::CHANNELS_FIRST;
pub(crate) use data_format::CHANNELS_LAST;
pub(crate) use data_format::attrs_with_channels_last;
pub(crate) use data_format::shape_with_channels_last;
pub(crate) use definition::AttrFault;
pub use definition::{ArgDef, ArgType, OpDef, OpDefError, SignatureError, TypedSlot};
pub(crate) use functional::CallOp;
pub(crate) use functional::decides_dead_tensors;
pub use infer::{InferenceContext, IntTensor, Known, OpInput, ShapeError};
pub(crate) use refine::RefinedShapes;
pub use registry::OpRegistry;
#[cfg(feature = "graphdef")]
pub(crate) use state::PLACEHOLDER_SHAPES_MEAN_WHAT_THEY_SAY;
#[cfg(feature = "graphdef")]
pub(crate) use state::has_legacy_placeholders;
// Public for `kernels`, whose items are public for tests only.
#[doc(hidden)]
pub use window::Padding;
