//! The cost of executions and transfers, and the measurement of the rates behind it.
//!
//! [`CostModel`] computes nanoseconds from the work of a node and the rates of a device.
//! [`calibrate()`] measures a device with its own kernels: its rates, and the times of families of
//! kernels. [`Calibrations`] keeps both for later device sets. A [`CostSource`] knows better than
//! rates: calibrations, and [`History`], which has the times of kernels that were executed before.
//! This module does not depend on placements.

mod busy;
mod calibrate;
mod calibration;
mod calibrations;
mod classes;
mod curves;
mod dispatch;
mod families;
mod history;
mod model;
mod probe;
mod profiled;
mod source;

pub use calibrate::{
    CalibrateError, CalibrateOptions, calibrate, calibrate_pair, calibrate_with_progress,
    computes_alike, reference_ns,
};
pub use calibration::{
    Calibration, LinkDirection, MeasuredKernel, MeasuredLink, OTHERS_BUSY_MAX, Sample,
};
pub use calibrations::{Calibrations, CalibrationsError, RatesKey, pairs_with_direct_copies};
pub use classes::{CostClass, CostClasses, LinkEnd};
pub(crate) use dispatch::{FEED_NS, FETCH_NS, RUN_NS};
pub(crate) use dispatch::{JOIN_NS, SERIAL_DISPATCH_NS, SHARED_DISPATCH_NS, WORK_PER_THREAD_NS};
pub use history::History;
pub use model::CostModel;
pub(crate) use profiled::ProfiledCosts;
pub use source::{CostSource, KernelCosts, NodeWork, Prediction, WorkKey, WorkKeys};
