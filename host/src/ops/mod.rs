//! Op definitions: arity, element types, shapes and work of each op. No devices, no kernels.
//!
//! A definition is TensorFlow's signature text with a shape function and a work function beside it.
//! [`OpRegistry::default`] holds the ops that ship, one file per family; apps
//! [`OpRegistry::register`] their own. [`crate::builder`] and [`crate::import`] read them to check
//! nodes, and whoever needs to know which inputs an argument name covers asks
//! [`OpDef::input_range`].

mod array;
mod assemble;
mod attr_def;
mod check;
mod control;
mod definition;
mod fold;
mod functional;
mod infer;
mod layout;
mod lists;
mod math;
mod matrix;
mod misc;
mod nn;
mod reduce;
mod registry;
mod rules;
mod slice;
mod state;
#[cfg(test)]
mod tests;
mod window;
mod work;

pub(crate) use assemble::Inferred;
pub(crate) use assemble::OpAssembler;
pub(crate) use assemble::OpNode;
pub(crate) use assemble::OpNodeError;
pub(crate) use assemble::input_shapes;
pub use attr_def::{AttrDef, AttrKind};
pub use check::NodeDefError;
pub(crate) use definition::AttrFault;
pub use definition::{ArgDef, ArgType, OpDef, OpDefError, SignatureError, TypedSlot};
pub use infer::{InferenceContext, IntTensor, Known, OpInput, ShapeError};
pub use registry::OpRegistry;
#[cfg(feature = "graphdef")]
pub(crate) use state::PLACEHOLDER_SHAPES_MEAN_WHAT_THEY_SAY;
#[cfg(feature = "graphdef")]
pub(crate) use state::has_legacy_placeholders;
