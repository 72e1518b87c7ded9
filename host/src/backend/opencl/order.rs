//! The order in which a device's commands end, as far as it is known. The driver need not wait for
//! commands that have ended, nor for those that another wait implies; each wait costs it about as
//! much as a small kernel.

use std::mem;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::buffer::Failure;
use super::ffi::Code;
use super::ffi::Event;
use super::ffi::Progress;
use super::ffi::Queue;
use super::ffi::Waits;
use super::stream::Shared;
use crate::device::LaunchSite;
use crate::device::RunNumber;

/// The end of a command.
#[derive(Debug)]
pub(super) struct End {
    pub(super) event: Event,
    /// The device of the command.
    device: Arc<Shared>,
    mark: Mark,
    of: Of,
    /// Set if the command is known to have failed.
    failure: OnceLock<Failure>,
    /// Whether its device reports the failure.
    is_reported: AtomicBool,
}

/// What a command is.
#[derive(Debug)]
pub(super) enum Of {
    Launch(Work),
    /// Moves or fills memory of the device.
    Memory,
    /// Copies to the host: the receiver gets the failure.
    Answer,
}

/// The node and run of a launch.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) site: Arc<LaunchSite>,
    pub(super) step: Option<RunNumber>,
}

impl End {
    pub(super) fn work(&self) -> Option<&Work> {
        match &self.of {
            Of::Launch(work) => Some(work),
            Of::Memory | Of::Answer => None,
        }
    }

    /// Returns the failure, if it is known.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Records that the command has failed with this code. Returns the failure, which is `of_run`
    /// if another failure of the run is the cause.
    pub(super) fn fail(&self, code: Code, of_run: Option<&Failure>) -> &Failure {
        let failure = self.failure.get_or_init(|| {
            of_run.cloned().unwrap_or_else(|| {
                let (site, doing) = match &self.of {
                    Of::Launch(work) => (Some(&*work.site), "executing it"),
                    Of::Memory => (None, "moving or filling memory"),
                    Of::Answer => (None, "copying to the host"),
                };
                Failure::new(self.device.error(site, doing, code))
            })
        });
        self.event.has_failed(code);
        failure
    }

    /// Returns whether its device should report its failure: not if a caller waits for this very
    /// command, and not twice.
    pub(super) fn begin_report(&self) -> bool {
        !matches!(self.of, Of::Answer) && !self.is_reported.swap(true, Ordering::Relaxed)
    }

    /// Returns the command's number, counted per device.
    pub(super) fn number(&self) -> u64 {
        self.mark.number
    }
}

/// The position of an end among those of its device.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// The number of the command, from 1.
    number: u64,
    /// If the command has succeeded, all commands up to this number have ended.
    covers: u64,
}

/// Computes two numbers from the ends that a command must come after, if all commands up to
/// `n_ended` have ended. The command waits only for ends above the first number. If it succeeds,
/// all commands up to the second have ended.
fn implied(n_ended: u64, after: &(impl Iterator<Item = Mark> + Clone)) -> (u64, u64) {
    let implied = after.clone().map(|mark| mark.covers).max().unwrap_or(0);
    let implied = implied.max(n_ended);
    let mut covers = implied;
    // Quadratic, but few ends are waited for.
    while after.clone().any(|mark| mark.number == covers + 1) {
        covers += 1;
    }
    (implied, covers)
}

/// The order of one device's commands, and the ends that the current command waits for.
#[derive(Debug)]
pub(super) struct Order {
    device: Arc<Shared>,
    /// Whether commands cannot wait for events of other devices, so that the host must wait.
    is_alone: bool,
    n_commands: u64,
    /// All commands up to this number have ended.
    n_ended: u64,
    /// The ends that the current command must come after.
    after: Vec<Arc<End>>,
    /// All commands up to this number have ended if the current one succeeds.
    covers: u64,
    waits: Waits,
}

impl Order {
    /// Creates the order of another device's commands.
    pub(super) fn new(device: Arc<Shared>, is_alone: bool) -> Self {
        Self {
            device,
            is_alone,
            n_commands: 0,
            n_ended: 0,
            after: Vec::new(),
            covers: 0,
            waits: Waits::default(),
        }
    }

    /// Starts the next command.
    pub(super) fn clear(&mut self) {
        self.after.clear();
        self.waits.clear();
        self.covers = self.n_ended;
    }

    /// Makes the current command come after this end.
    pub(super) fn come_after(&mut self, end: &Arc<End>) {
        let is_there = |other: &Arc<End>| Arc::ptr_eq(other, end);
        if !self.is_known_to_have_ended(end) && !self.after.iter().any(is_there) {
            self.after.push(Arc::clone(end));
        }
    }

    /// Polls the ends that the current command comes after, and removes those that have ended.
    /// Returns the failed ones: there may be nothing to read, and PoCL 3.1 never starts a command
    /// that waits for a failed one.
    pub(super) fn look(&mut self, queue: &Queue) -> SmallVec<[(Arc<End>, Code); 2]> {
        let mut failed = SmallVec::new();
        let mut after = mem::take(&mut self.after);
        loop {
            let n_failed = failed.len();
            let (implied, _) = implied(self.n_ended, &self.own_marks(&after));
            after.retain(|end| {
                if self.is_own(end) && end.mark.number <= implied {
                    return true;
                }
                match self.progress(end, queue) {
                    Progress::Pending => true,
                    Progress::Done => {
                        if self.is_own(end) {
                            self.note_end(end, true);
                        }
                        false
                    }
                    Progress::Failed(code) => {
                        failed.push((Arc::clone(end), code));
                        false
                    }
                }
            });
            // A failed command implies nothing about those before it.
            if failed.len() == n_failed {
                break;
            }
        }
        self.after = after;
        failed
    }

    fn progress(&self, end: &End, queue: &Queue) -> Progress {
        let progress = end.event.progress();
        if progress == Progress::Pending && self.is_alone && !self.is_own(end) {
            // It may wait for commands that this queue has not flushed.
            let _ = queue.flush();
            return match end.event.wait() {
                Ok(()) => Progress::Done,
                Err(code) => Progress::Failed(code),
            };
        }
        progress
    }

    /// Returns whether this is the end of a command of this device.
    pub(super) fn is_own(&self, end: &End) -> bool {
        Arc::ptr_eq(&end.device, &self.device)
    }

    fn own_marks<'a>(
        &'a self,
        after: &'a [Arc<End>],
    ) -> impl Iterator<Item = Mark> + Clone + use<'a> {
        let own = after.iter().filter(|end| self.is_own(end));
        own.map(|end| end.mark)
    }

    /// Returns the events that the driver must wait for before the current command; call
    /// [`Self::look`] first.
    pub(super) fn waits(&mut self) -> &Waits {
        self.waits.clear();
        let (implied, covers) = implied(self.n_ended, &self.own_marks(&self.after));
        for end in &self.after {
            if !self.is_own(end) || end.mark.number > implied {
                self.waits.push(&end.event);
            }
        }
        self.covers = covers;
        &self.waits
    }

    /// Returns whether the current command comes after this end, because of what it waits for;
    /// call [`Self::waits`] first.
    pub(super) fn is_after(&self, end: &End) -> bool {
        self.is_own(end) && end.mark.number <= self.covers
    }

    /// Returns the number that the current command gets if the driver accepts it.
    pub(super) fn number(&self) -> u64 {
        self.n_commands + 1
    }

    /// Returns the end of the current command, which the driver has accepted.
    pub(super) fn end(&mut self, event: Event, of: Of) -> Arc<End> {
        self.n_commands += 1;
        Arc::new(End {
            event,
            device: Arc::clone(&self.device),
            mark: Mark {
                number: self.n_commands,
                covers: self.covers,
            },
            of,
            failure: OnceLock::new(),
            is_reported: AtomicBool::new(false),
        })
    }

    /// Returns whether a command is known to have ended, without polling the driver.
    pub(super) fn is_known_to_have_ended(&self, end: &End) -> bool {
        self.is_own(end) && end.mark.number <= self.n_ended
    }

    /// The same, but polls the driver for commands of other devices.
    pub(super) fn has_ended(&self, end: &End) -> bool {
        self.is_known_to_have_ended(end)
            || (!self.is_own(end) && end.event.progress() != Progress::Pending)
    }

    /// Records that a command of this device has ended. `is_well` means without an error.
    pub(super) fn note_end(&mut self, end: &End, is_well: bool) {
        if is_well {
            self.n_ended = self.n_ended.max(end.mark.covers);
        }
        if end.mark.number == self.n_ended + 1 {
            self.n_ended = end.mark.number;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn mark(number: u64, covers: u64) -> Mark {
        Mark { number, covers }
    }

    #[test]
    fn in_a_chain_each_command_waits_for_its_predecessor_only() {
        // The third comes after both others.
        let (above, covers) = implied(0, &[mark(1, 0), mark(2, 1)].into_iter());
        assert_eq!((above, covers), (1, 2));
    }

    #[test]
    fn a_join_waits_for_both_branches() {
        let (above, covers) = implied(0, &[mark(2, 1), mark(3, 1)].into_iter());
        assert_eq!((above, covers), (1, 3));
    }

    #[test]
    fn ended_commands_are_not_waited_for() {
        let (above, covers) = implied(7, &[mark(3, 2), mark(7, 0)].into_iter());
        assert_eq!((above, covers), (7, 7));
    }

    proptest! {
        /// Compares with sets of all ancestors of each command.
        #[test]
        fn every_command_comes_after_all_that_it_must(
            commands in vec((vec(1u64..30, 0..4), 0u64..6), 1..60),
        ) {
            let mut marks: Vec<Mark> = Vec::new();
            let mut ancestors: Vec<BTreeSet<u64>> = Vec::new();
            let mut n_ended = 0;
            for (number, (distances, n_later)) in (1u64..).zip(commands) {
                let after: BTreeSet<u64> = distances
                    .iter()
                    .filter_map(|distance| number.checked_sub(*distance).filter(|&n| n > n_ended))
                    .filter(|&n| n < number)
                    .collect();
                let of = |n: u64| usize::try_from(n - 1).expect("there are few");
                let (above, covers) = implied(n_ended, &after.iter().map(|&n| marks[of(n)]));
                let mut known: BTreeSet<u64> = (1..=n_ended).collect();
                for &n in after.iter().filter(|&&n| n > above) {
                    known.insert(n);
                    known.extend(&ancestors[of(n)]);
                }
                prop_assert!(after.is_subset(&known), "{number} must wait for {after:?}, does for {known:?}");
                prop_assert!((1..=covers).all(|n| known.contains(&n)), "{number} covers {covers}");
                marks.push(mark(number, covers));
                ancestors.push(known);
                // Sometimes the driver is ahead.
                n_ended = n_ended.max(number.saturating_sub(5 * n_later + 1));
            }
        }
    }
}
