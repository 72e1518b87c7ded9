//! What an execution or a transfer costs.
//!
//! Takes the work of a node and the rates of a device; gives nanoseconds. Knows no graph and no placement.

mod classes;
mod model;

pub use classes::{CostClass, CostClasses, LinkEnd};
pub use model::CostModel;
