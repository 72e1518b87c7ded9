//! The cost of executions and transfers, and the measurement of the rates behind it.
//!
//! [`CostModel`] computes nanoseconds from the work of a node and the rates of a device.
//! [`calibrate()`] measures the rates of a device with its own kernels, and [`Calibrations`] keeps
//! them for later device sets. This module does not depend on graphs or placements, except that it
//! reads the attributes of the nodes whose kernels it times.

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
