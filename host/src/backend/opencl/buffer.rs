//! A buffer of the driver's, and what its commands wait for: who reads one waits for who wrote it,
//! who writes one waits for everybody before.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use smallvec::SmallVec;

use super::ffi::Mem;
use super::order::End;
use super::order::Order;
use crate::device::DeviceError;

/// Ends of readers that a buffer remembers before those that have ended are forgotten for the first
/// time.
const READERS_MIN: usize = 8;

/// A buffer, and what its commands wait for.
#[derive(Debug)]
pub(super) struct RawBuffer {
    pub(super) mem: Mem,
    /// At least what tensors in it need.
    pub(super) len_bytes: usize,
    hazards: Mutex<Hazards>,
}

/// What commands leave for those that come after them.
#[derive(Debug, Default)]
struct Hazards {
    /// The end of who wrote it last.
    writer: Option<Arc<End>>,
    /// The ends of those who have read it since.
    readers: SmallVec<[Arc<End>; 2]>,
    /// How many there were after those that had ended were last forgotten.
    n_pending: usize,
    /// Why there is nothing to read in it.
    failure: Option<Failure>,
}

impl RawBuffer {
    pub(super) fn new(mem: Mem, len_bytes: usize) -> Self {
        Self {
            mem,
            len_bytes,
            hazards: Mutex::default(),
        }
    }

    fn hazards(&self) -> MutexGuard<'_, Hazards> {
        // Nothing panics under the lock.
        self.hazards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a reader waits for; an error if there will be nothing to read.
    pub(super) fn before_reading(&self, order: &mut Order) -> Result<(), Failure> {
        let hazards = self.hazards();
        if let Some(failure) = &hazards.failure {
            return Err(failure.clone());
        }
        if let Some(writer) = &hazards.writer {
            // Its end is not waited for any more.
            if let Some(failure) = writer.failure() {
                return Err(failure.clone());
            }
            order.come_after(writer);
        }
        Ok(())
    }

    /// An error if there is nothing to read in it, as far as that is known.
    pub(super) fn is_there(&self) -> Result<(), Failure> {
        let hazards = self.hazards();
        let of_writer = hazards.writer.as_ref().and_then(|writer| writer.failure());
        let failure = hazards.failure.as_ref().or(of_writer);
        failure.map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// The end of who writes it.
    pub(super) fn writer(&self) -> Option<Arc<End>> {
        self.hazards().writer.clone()
    }

    pub(super) fn before_writing(&self, order: &mut Order) {
        let hazards = self.hazards();
        for end in hazards.writer.iter().chain(&hazards.readers) {
            order.come_after(end);
        }
    }

    pub(super) fn is_read_until(&self, end: &Arc<End>, order: &Order) {
        let mut hazards = self.hazards();
        // Weights have thousands of readers under way: asking for all of them each time would be
        // most of the work.
        if hazards.readers.len() >= READERS_MIN.max(2 * hazards.n_pending) {
            hazards.readers.retain(|reader| !order.has_ended(reader));
            hazards.n_pending = hazards.readers.len();
        }
        hazards.readers.push(Arc::clone(end));
    }

    pub(super) fn is_written_until(&self, end: &Arc<End>) {
        *self.hazards() = Hazards {
            writer: Some(Arc::clone(end)),
            ..Hazards::default()
        };
    }

    pub(super) fn is_not_written(&self, failure: &Failure) {
        self.hazards().failure = Some(failure.clone());
    }
}

/// A failure of work that was given to the device, until somebody has heard of it.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    error: Arc<DeviceError>,
    /// Whether an error has been handed to whoever waits for results.
    is_reported: Arc<Mutex<bool>>,
}

impl Failure {
    pub(super) fn new(error: DeviceError) -> Self {
        Self {
            error: Arc::new(error),
            is_reported: Arc::default(),
        }
    }

    /// The error, for somebody who will tell of it.
    pub(super) fn report(&self) -> DeviceError {
        *self
            .is_reported
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        DeviceError::clone(&self.error)
    }

    /// The same failure for others, who have not heard of it.
    pub(super) fn of_others(&self) -> Self {
        Self {
            error: Arc::clone(&self.error),
            is_reported: Arc::default(),
        }
    }

    pub(super) fn is_reported(&self) -> bool {
        *self
            .is_reported
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
