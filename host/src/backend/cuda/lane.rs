//! Streams, and the order of their work.
//!
//! Each piece of work in a stream has a number, its ticket. Memory records which stream and ticket
//! wrote it last, and which ones have read it since. New work comes after all work that it depends
//! on: automatically in the same stream, by an event in another one. An event is recorded only if
//! some work waits for it, and each stream waits for it only once. So a run in one stream needs no
//! events, and memory is released the moment its tensor is dropped, because its next owner comes
//! after its uses.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::hint;
use std::mem;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use smallvec::SmallVec;

use super::bfc;
use super::driver::DriverError;
use super::driver::EventHandle;
use super::driver::Gpu;
use super::driver::StreamHandle;
use super::open_gpu::OpenGpu;
use crate::device::LaunchSite;

/// The number of a piece of work in its stream, from 1.
pub(super) type Ticket = u64;

/// How long a thread spins for the end of work before it sleeps: waking up takes about as long.
const SPIN: Duration = Duration::from_micros(50);

/// Maximum number of launches whose nodes are kept for the error of a launch that fails on the GPU.
const SITES_MAX: usize = 1024;

/// Maximum number of pieces of work that keep something; beyond, the first one is waited for.
const KEPT_MAX: usize = 64;

/// A point in each of several streams.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock(SmallVec<[(Arc<Lane>, Ticket); 2]>);

impl Clock {
    /// Adds a point in a stream.
    fn note(&mut self, lane: &Arc<Lane>, ticket: Ticket) {
        match self.0.iter_mut().find(|(own, _)| Arc::ptr_eq(own, lane)) {
            Some((_, own)) => *own = ticket.max(*own),
            None => self.0.push((Arc::clone(lane), ticket)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<Lane>, Ticket)> {
        self.0.iter().map(|(lane, ticket)| (lane, *ticket))
    }

    /// Removes the points that work `given` of `lane` comes after, if it has seen `seen`. Several
    /// threads may copy parts of one tensor, and a later piece of work may be here already.
    fn forget(&mut self, lane: &Arc<Lane>, given: Ticket, seen: &Self) {
        self.0.retain(|(own, ticket)| {
            if Arc::ptr_eq(own, lane) {
                return *ticket > given;
            }
            let mut seen = seen.iter();
            let is_seen = seen.any(|(other, so_far)| Arc::ptr_eq(own, other) && so_far >= *ticket);
            !is_seen && !own.has_done(*ticket)
        });
    }

    /// Waits until all streams have reached their points, for memory of `gpu`. Other GPUs that are
    /// lost do no more work.
    ///
    /// # Errors
    /// If the GPU is lost.
    pub(super) fn wait(&self, gpu: &Arc<OpenGpu>) -> Result<(), DriverError> {
        self.iter().try_for_each(|(lane, ticket)| {
            let is_other = !Arc::ptr_eq(&lane.gpu, gpu);
            match lane.wait(ticket) {
                Err(_) if is_other && lane.gpu.is_lost() => Ok(()),
                waited => waited,
            }
        })
    }
}

impl bfc::Uses for Clock {
    fn merge(&mut self, other: &Self) {
        for (lane, ticket) in other.iter() {
            // Ended work need not be recorded.
            if !lane.has_done(ticket) {
                self.note(lane, ticket);
            }
        }
    }

    fn forget_ended(&mut self) {
        self.0.retain(|(lane, ticket)| !lane.has_done(*ticket));
    }
}

/// The uses of a piece of memory.
#[derive(Debug, Default)]
pub(super) struct Uses(Mutex<History>);

#[derive(Debug, Default)]
struct History {
    written: Clock,
    /// Reads since the last write.
    read: Clock,
}

impl Uses {
    /// Creates the uses of memory that had earlier owners.
    pub(super) fn after(others: Clock) -> Self {
        Self(Mutex::new(History {
            written: Clock::default(),
            read: others,
        }))
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all uses, for the memory's next owner.
    pub(super) fn into_clock(self) -> Clock {
        let history = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut clock = history.written;
        bfc::Uses::merge(&mut clock, &history.read);
        clock
    }
}

/// How a piece of work uses memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Use<'a> {
    Reads(&'a Uses),
    Writes(&'a Uses),
}

/// A stream of a GPU.
pub(super) struct Lane {
    /// Unique in the process, unlike the driver's handle.
    id: u64,
    gpu: Arc<OpenGpu>,
    stream: StreamHandle,
    /// Its purpose, for messages.
    what: &'static str,
    /// All work up to this ticket is known to be done.
    done: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    given: Ticket,
    /// Events that may not have happened, in order, and the ticket that each follows.
    recorded: VecDeque<(Ticket, Arc<Event>)>,
    /// The ticket up to which this stream has waited for other streams, by their ids.
    awaited: SmallVec<[(u64, Ticket); 4]>,
    /// The nodes of work in flight.
    sites: VecDeque<(Ticket, Arc<LaunchSite>)>,
    /// Values to keep until work has ended.
    kept: VecDeque<(Ticket, Box<dyn Any + Send>)>,
}

/// An event, returned to the pool by its last user.
#[derive(Debug)]
struct Event {
    gpu: Arc<OpenGpu>,
    handle: EventHandle,
}

/// The id of another stream, a ticket there, and the event that follows this ticket.
type Before = (u64, Ticket, Arc<Event>);

impl Drop for Event {
    fn drop(&mut self) {
        self.gpu.give_event_back(self.handle);
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("gpu", &self.gpu.id())
            .field("what", &self.what)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// Creates a stream.
    ///
    /// # Errors
    /// The driver's error.
    pub(super) fn new(
        gpu: &Arc<OpenGpu>,
        what: &'static str,
        priority: i32,
    ) -> Result<Arc<Self>, DriverError> {
        let stream = gpu.call(|driver| driver.new_stream(priority))?;
        // A counter of ids only: no other state is shared through it.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let lane = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            gpu: Arc::clone(gpu),
            stream,
            what,
            done: AtomicU64::new(0),
            state: Mutex::default(),
        });
        gpu.has_lane(&lane);
        Ok(lane)
    }

    pub(super) fn gpu(&self) -> &Arc<OpenGpu> {
        &self.gpu
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Code of ours does not panic under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work in the stream, after all work that it depends on, and returns its ticket.
    ///
    /// `kept` is kept until the work has ended.
    ///
    /// # Errors
    /// The driver's error; the work is then not queued.
    pub(super) fn give(
        self: &Arc<Self>,
        uses: &[Use<'_>],
        site: Option<&Arc<LaunchSite>>,
        kept: Option<Box<dyn Any + Send>>,
        work: impl FnOnce(&dyn Gpu, StreamHandle) -> Result<(), DriverError>,
    ) -> Result<Ticket, DriverError> {
        let (events, seen) = self.events_before(uses)?;
        let given = self.try_give(&events, site, kept, work);
        // The driver may report the failure of other work at any call.
        let (ticket, first_kept) = given.map_err(|error| self.gpu.with_sites(error))?;
        for used in uses {
            match used {
                Use::Reads(uses) => uses.history().read.note(self, ticket),
                Use::Writes(uses) => {
                    let mut history = uses.history();
                    // Another thread may have used it meanwhile: another piece of a large copy, or
                    // against the rules for tensors. Its memory must not be lost.
                    history.written.forget(self, ticket, &seen);
                    history.read.forget(self, ticket, &seen);
                    history.written.note(self, ticket);
                }
            }
        }
        if let Some(first) = first_kept {
            self.wait(first)?;
        }
        Ok(ticket)
    }

    /// Queues work after these events. Returns its ticket, and if too many pieces of work keep
    /// something, the first of their tickets.
    fn try_give(
        &self,
        events: &[Before],
        site: Option<&Arc<LaunchSite>>,
        kept: Option<Box<dyn Any + Send>>,
        work: impl FnOnce(&dyn Gpu, StreamHandle) -> Result<(), DriverError>,
    ) -> Result<(Ticket, Option<Ticket>), DriverError> {
        let mut state = self.state();
        for (id, ticket, event) in events {
            self.gpu.wait_for(self.stream, &event.gpu, event.handle)?;
            match state.awaited.iter_mut().find(|(own, _)| own == id) {
                Some((_, own)) => *own = (*own).max(*ticket),
                None => state.awaited.push((*id, *ticket)),
            }
        }
        self.gpu.call(|driver| work(driver, self.stream))?;
        state.given += 1;
        let ticket = state.given;
        if let Some(site) = site {
            if state.sites.len() == SITES_MAX {
                state.sites.pop_front();
            }
            state.sites.push_back((ticket, Arc::clone(site)));
        }
        if let Some(kept) = kept {
            state.kept.push_back((ticket, kept));
        }
        let ended = state.take_ended(self.done.load(Ordering::Acquire));
        let too_much = state.kept.len() > KEPT_MAX;
        let first = state.kept.front().map(|(ticket, _)| *ticket);
        drop(state);
        drop(ended);
        Ok((ticket, first.filter(|_| too_much)))
    }

    /// Returns the events of other streams that work with these uses must come after.
    fn events_before(
        self: &Arc<Self>,
        uses: &[Use<'_>],
    ) -> Result<(SmallVec<[Before; 2]>, Clock), DriverError> {
        let mut seen = Clock::default();
        for used in uses {
            let (uses, is_written) = match used {
                Use::Reads(uses) => (uses, false),
                Use::Writes(uses) => (uses, true),
            };
            let history = uses.history();
            let readers = is_written.then_some(&history.read);
            for clock in [Some(&history.written), readers].into_iter().flatten() {
                for (lane, ticket) in clock.iter() {
                    if Arc::ptr_eq(lane, self) || lane.has_done(ticket) {
                        continue;
                    }
                    // Another GPU that is lost does no more work; what it should have written is
                    // missing.
                    let is_gone = lane.gpu.is_lost() && !Arc::ptr_eq(&lane.gpu, &self.gpu);
                    if !is_gone {
                        seen.note(lane, ticket);
                    } else if !is_written {
                        return Err(lane.gpu.lost_to_others());
                    }
                }
            }
        }
        let mut before = seen.clone();
        if !before.0.is_empty() {
            let state = self.state();
            before.0.retain(|(lane, ticket)| {
                let mut awaited = state.awaited.iter();
                !awaited.any(|(id, so_far)| *id == lane.id && *so_far >= *ticket)
            });
        }
        // Never locks two streams at once: each may be waiting for the other's memory.
        let events = before.0.iter().map(|(lane, ticket)| {
            let (so_far, event) = lane.event_behind(*ticket).map_err(|error| {
                if Arc::ptr_eq(&lane.gpu, &self.gpu) {
                    return self.gpu.with_sites(error);
                }
                lane.gpu.with_sites(error);
                lane.gpu.lost_to_others()
            })?;
            Ok((lane.id, so_far, event))
        });
        let events: Result<_, DriverError> = events.collect();
        Ok((events?, seen))
    }

    /// Returns an event that happens when the work of this ticket has ended, and the ticket that
    /// the event follows.
    fn event_behind(&self, ticket: Ticket) -> Result<(Ticket, Arc<Event>), DriverError> {
        let mut state = self.state();
        // The first sufficient event: later ones happen later.
        let mut recorded = state.recorded.iter();
        if let Some((so_far, event)) = recorded.find(|(so_far, _)| *so_far >= ticket) {
            return Ok((*so_far, Arc::clone(event)));
        }
        let event = Arc::new(Event {
            handle: self.gpu.take_event()?,
            gpu: Arc::clone(&self.gpu),
        });
        self.gpu
            .call(|driver| driver.record(event.handle, self.stream))?;
        let recorded = (state.given, event);
        state.recorded.push_back(recorded.clone());
        Ok(recorded)
    }

    /// Returns whether the work up to this ticket is known to have ended.
    pub(super) fn has_done(&self, ticket: Ticket) -> bool {
        self.done.load(Ordering::Acquire) >= ticket
    }

    /// Returns whether the work up to this ticket has ended; polls the driver.
    ///
    /// # Errors
    /// If the GPU is lost.
    pub(super) fn ask(&self, ticket: Ticket) -> Result<bool, DriverError> {
        if self.has_done(ticket) {
            return Ok(true);
        }
        let (so_far, event) = self
            .event_behind(ticket)
            .map_err(|error| self.gpu.with_sites(error))?;
        let has_happened = self
            .gpu
            .call(|driver| driver.has_happened(event.handle))
            .map_err(|error| self.gpu.with_sites(error))?;
        if has_happened {
            self.note_done(so_far);
        }
        Ok(has_happened)
    }

    /// Waits until the work of this ticket has ended.
    ///
    /// # Errors
    /// If the GPU is lost.
    pub(super) fn wait(&self, ticket: Ticket) -> Result<(), DriverError> {
        let started = Instant::now();
        loop {
            if self.ask(ticket)? {
                return Ok(());
            }
            if started.elapsed() > SPIN {
                break;
            }
            hint::spin_loop();
        }
        let (so_far, event) = self
            .event_behind(ticket)
            .map_err(|error| self.gpu.with_sites(error))?;
        self.gpu
            .call(|driver| driver.synchronize(event.handle))
            .map_err(|error| self.gpu.with_sites(error))?;
        self.note_done(so_far);
        Ok(())
    }

    /// Waits until all work queued so far has ended.
    ///
    /// # Errors
    /// If the GPU is lost.
    pub(super) fn wait_for_all(&self) -> Result<(), DriverError> {
        let given = self.given();
        self.wait(given)
    }

    /// Returns the ticket of the last queued work.
    pub(super) fn given(&self) -> Ticket {
        self.state().given
    }

    fn note_done(&self, ticket: Ticket) {
        self.done.fetch_max(ticket, Ordering::AcqRel);
        let (ended, events) = {
            let mut state = self.state();
            let mut recorded = state.recorded.iter();
            let n_happened = recorded
                .by_ref()
                .take_while(|(so_far, _)| *so_far <= ticket);
            let n_happened = n_happened.count();
            let events: SmallVec<[_; 2]> = state.recorded.drain(..n_happened).collect();
            (state.take_ended(ticket), events)
        };
        drop((ended, events));
    }

    /// Returns the node of the first work that may not have ended, and how much work follows it.
    pub(super) fn under_way(&self) -> Option<(Arc<LaunchSite>, usize)> {
        let state = self.state();
        let done = self.done.load(Ordering::Acquire);
        let mut under_way = state.sites.iter().filter(|(ticket, _)| *ticket > done);
        let (_, first) = under_way.next()?;
        Some((Arc::clone(first), under_way.count()))
    }
}

impl State {
    /// Removes the records that were needed up to this ticket.
    fn take_ended(&mut self, done: Ticket) -> SmallVec<[Box<dyn Any + Send>; 2]> {
        while self
            .sites
            .front()
            .is_some_and(|(ticket, _)| *ticket <= done)
        {
            self.sites.pop_front();
        }
        let n_ended = self
            .kept
            .iter()
            .take_while(|(ticket, _)| *ticket <= done)
            .count();
        self.kept.drain(..n_ended).map(|(_, kept)| kept).collect()
    }
}

impl Drop for Lane {
    /// Waits for the stream's work: the memory that it uses is released, too.
    fn drop(&mut self) {
        // A lost GPU does no more work, and may have been restarted.
        if self.gpu.is_lost() {
            return;
        }
        match self.wait_for_all() {
            Ok(()) => self.gpu.driver().drop_stream(self.stream),
            // The GPU may still use the kept values, so they must never be reused.
            Err(_) if !self.gpu.is_lost() => mem::forget(mem::take(&mut self.state().kept)),
            Err(_) => {}
        }
    }
}
