//! What an execution or a transfer costs, and the measuring of what that is computed from.
//!
//! Takes the work of a node and the rates of a device; gives nanoseconds. Takes a device and its
//! kernels; gives its rates, which are kept for later sets of devices. Knows no graph (but the
//! attributes of the nodes whose kernels it times) and no placement.

mod calibrate;
mod calibration;
mod calibrations;
mod classes;
mod model;
mod probe;

pub use calibrate::{CalibrateError, CalibrateOptions, calibrate, computes_alike};
pub use calibration::{Calibration, LinkDirection, MeasuredLink, Sample};
pub use calibrations::{Calibrations, CalibrationsError, RatesKey};
pub use classes::{CostClass, CostClasses, LinkEnd};
pub use model::CostModel;
