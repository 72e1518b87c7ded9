//! Measured rates in sessions.

use std::sync::Arc;

use super::SessionBuilder;
use crate::cost::Calibrations;
use crate::device::DeviceSet;

impl SessionBuilder {
    /// Measured rates: devices that they know have them in place of those that they state, also
    /// devices of [`Self::with_devices`] and those that the session is given later. Without,
    /// nothing that was measured counts. Candidates that the app made keep their rates. Entries
    /// that cannot be used are ignored, and named by
    /// [`SessionReport::calibration_problems`](super::SessionReport::calibration_problems).
    #[must_use]
    pub fn with_calibrations(mut self, calibrations: Calibrations) -> Self {
        self.calibrations = Some(calibrations);
        self
    }

    /// The devices with what was measured of them, and what is wrong with entries that are not
    /// used.
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
