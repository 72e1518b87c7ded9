//! A driver's buffer, and what its commands wait for: a reader waits for the last writer, a writer
//! waits for all commands before it.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use smallvec::SmallVec;

use super::ffi::Mem;
use super::order::End;
use super::order::Order;
use crate::device::DeviceError;

/// Number of remembered readers from which on those that have ended are removed.
const READERS_MIN: usize = 8;

/// A buffer, and what its commands wait for.
#[derive(Debug)]
pub(super) struct RawBuffer {
    pub(super) mem: Mem,
    /// At least the length of the tensors in it.
    pub(super) len_bytes: usize,
    hazards: Mutex<Hazards>,
}

/// The accesses that later commands must wait for.
#[derive(Debug, Default)]
struct Hazards {
    /// The end of the last writer.
    writer: Option<Arc<End>>,
    /// The ends of the readers since.
    readers: SmallVec<[Arc<End>; 2]>,
    /// The last of the readers that maps the buffer.
    map: Option<Arc<End>>,
    /// Number of readers left when ended readers were last removed.
    n_pending: usize,
    /// The failure that left the buffer without contents.
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

    /// Adds the ends that a reader waits for; fails if there will be nothing to read.
    pub(super) fn before_reading(&self, order: &mut Order) -> Result<(), Failure> {
        let hazards = self.hazards();
        if let Some(failure) = &hazards.failure {
            return Err(failure.clone());
        }
        if let Some(writer) = &hazards.writer {
            // A failed writer is no longer waited for.
            if let Some(failure) = writer.failure() {
                return Err(failure.clone());
            }
            order.come_after(writer);
        }
        Ok(())
    }

    /// Adds what a map waits for: as a reader, and for the map before it. Both have one address, by
    /// which PoCL finds the map that an unmap ends. It takes the earlier one, and frees what
    /// belongs to it, which must not be about to execute.
    pub(super) fn before_mapping(&self, order: &mut Order) -> Result<(), Failure> {
        self.before_reading(order)?;
        if let Some(map) = &self.hazards().map {
            order.come_after(map);
        }
        Ok(())
    }

    /// Records a map; call [`Self::is_read_until`], too.
    pub(super) fn is_mapped_until(&self, end: &Arc<End>) {
        self.hazards().map = Some(Arc::clone(end));
    }

    /// Fails if the buffer is known to have no contents.
    pub(super) fn is_there(&self) -> Result<(), Failure> {
        let hazards = self.hazards();
        let of_writer = hazards.writer.as_ref().and_then(|writer| writer.failure());
        let failure = hazards.failure.as_ref().or(of_writer);
        failure.map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Returns the end of its writer.
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
        // Weights have thousands of readers in flight: polling all of them each time would be most
        // of the work.
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

/// A failure of queued work, until it has been reported.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    error: Arc<DeviceError>,
    /// Whether it has been reported to a caller that waits for results.
    is_reported: Arc<Mutex<bool>>,
}

impl Failure {
    pub(super) fn new(error: DeviceError) -> Self {
        Self {
            error: Arc::new(error),
            is_reported: Arc::default(),
        }
    }

    /// Returns the error and marks it as reported.
    pub(super) fn report(&self) -> DeviceError {
        *self
            .is_reported
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        DeviceError::clone(&self.error)
    }

    /// Returns the same failure for other runs, marked as unreported.
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
