//! Measured rates in sessions.

use std::sync::Arc;

use super::SessionBuilder;
use crate::cost::Calibrations;
use crate::device::DeviceSet;

impl SessionBuilder {
    /// Sets the store of measured rates. They replace the stated rates of devices that have an
    /// entry, also of devices from [`Self::with_devices`] and of those that the session gets
    /// later. By default, stated rates count. Candidates of the app keep their rates. Unusable
    /// entries are ignored and listed in
    /// [`SessionReport::calibration_problems`](super::SessionReport::calibration_problems).
    #[must_use]
    pub fn with_calibrations(mut self, calibrations: Calibrations) -> Self {
        self.calibrations = Some(calibrations);
        self
    }

    /// Returns the devices with measured rates, and the problems of unusable entries.
    pub(super) fn calibrated(&self, devices: Arc<DeviceSet>) -> (Arc<DeviceSet>, Vec<String>) {
        match &self.calibrations {
            Some(calibrations) if !self.has_own_candidates() => {
                let (devices, problems) = calibrations.apply(&devices);
                let problems = problems.iter().map(ToString::to_string);
                (Arc::new(devices), problems.collect())
            }
            _ => (devices, Vec::new()),
        }
    }
}
