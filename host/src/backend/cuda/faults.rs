//! Functions that report invalid inputs: they set a u32 flag that the host reads after they have
//! ended.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;

use super::driver::DriverError;
use super::driver::Span;
use super::lane::Lane;
use super::lane::Ticket;
use super::pinned::PinnedMemory;
use crate::device::LaunchSite;
use crate::device::RunNumber;

/// Maximum number of launches in flight that may report invalid inputs.
pub(super) const SLOTS: usize = 1024;

/// Maximum number of faults kept for runs that have not asked for them. Such runs have failed
/// otherwise, and never ask.
const FOUND_MAX: usize = 1024;

/// The fault flags of a GPU device, and the faults found in them.
#[derive(Debug)]
pub(super) struct Faults {
    flags: Arc<PinnedMemory>,
    state: Mutex<State>,
}

impl Drop for Faults {
    /// Returns after the last launch that writes the flags.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut under_way = state.under_way.iter();
        let all_ended = under_way.all(|checked| {
            checked.lane.wait(checked.ticket).is_ok() || checked.lane.gpu().is_lost()
        });
        if !all_ended {
            // The memory is never used again.
            mem::forget(Arc::clone(&self.flags));
        }
    }
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Slot>,
    under_way: VecDeque<Checked>,
    found: VecDeque<Fault>,
}

/// A launch that may report invalid inputs.
#[derive(Debug)]
struct Checked {
    slot: Slot,
    lane: Arc<Lane>,
    ticket: Ticket,
    fault: Fault,
}

/// The node with invalid inputs, and the message.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) step: Option<RunNumber>,
    pub(super) site: Arc<LaunchSite>,
    pub(super) message: Arc<str>,
}

/// The flag of a launch that is being queued.
#[derive(Debug)]
pub(super) struct Slot(usize);

impl Faults {
    /// `flags`: [`SLOTS`] u32 elements, all 0.
    pub(super) fn new(flags: PinnedMemory) -> Self {
        let free = (0..flags.as_u32s().len()).rev().map(Slot).collect();
        Self {
            flags: Arc::new(flags),
            state: Mutex::new(State {
                free,
                ..State::default()
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a flag that is 0, and its address. If no flag is free, waits for the first launch in
    /// flight.
    ///
    /// # Errors
    /// If the GPU is lost.
    pub(super) fn take_slot(&self) -> Result<(Slot, Span), DriverError> {
        loop {
            let first = {
                let mut state = self.state();
                if let Some(slot) = state.free.pop() {
                    let flags = self.flags.span();
                    let span = Span {
                        address: flags.address + 4 * slot.0 as u64,
                        len_bytes: 4,
                    };
                    return Ok((slot, span));
                }
                let mut under_way = state.under_way.iter();
                under_way
                    .next()
                    .map(|checked| (Arc::clone(&checked.lane), checked.ticket))
            };
            // The other flags belong to threads that are currently queueing launches.
            if let Some((lane, ticket)) = first {
                lane.wait(ticket)?;
                self.look();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Records whether the launch was queued.
    pub(super) fn given(&self, slot: Slot, lane: &Arc<Lane>, ticket: Option<Ticket>, fault: Fault) {
        let mut state = self.state();
        match ticket {
            Some(ticket) => state.under_way.push_back(Checked {
                slot,
                lane: Arc::clone(lane),
                ticket,
                fault,
            }),
            None => state.free.push(slot),
        }
    }

    /// Reads the flags of launches that are known to have ended.
    fn look(&self) {
        let mut state = self.state();
        let State {
            free,
            under_way,
            found,
        } = &mut *state;
        let (ended, others) = mem::take(under_way)
            .into_iter()
            .partition(|checked| checked.lane.has_done(checked.ticket));
        *under_way = others;
        let ended: VecDeque<Checked> = ended;
        for checked in ended {
            let flag = self.flags.as_u32s().get(checked.slot.0);
            let is_wrong = flag.is_some_and(|flag| flag.swap(0, Ordering::AcqRel) != 0);
            let step = checked.fault.step;
            // Later faults of a run are consequences of the first.
            let is_first = step.is_none() || found.iter().all(|fault| fault.step != step);
            if is_wrong && is_first {
                if found.len() == FOUND_MAX {
                    found.pop_front();
                }
                found.push_back(checked.fault);
            }
            free.push(checked.slot);
        }
    }

    /// Returns the first fault of a run, or of any run, among the launches that are known to have
    /// ended. Each fault is reported once.
    pub(super) fn take(&self, step: Option<RunNumber>) -> Option<Fault> {
        self.look();
        let mut first = None;
        self.state().found.retain(|fault| {
            let is_asked = step.is_none() || fault.step == step;
            if is_asked {
                first.get_or_insert_with(|| fault.clone());
            }
            !is_asked
        });
        first
    }
}
