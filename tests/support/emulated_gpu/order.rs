//! The order of work: vector clocks, and the recent accesses of an allocation.
//!
//! This module takes streams, by index, and ranges of bytes, and returns pairs of accesses that
//! nothing orders. It does not know memory and executes nothing: its results follow only from the
//! order of the calls, and not from when the work happens to be done.

use std::ops::Range;
use std::sync::Arc;

/// The progress of each stream: the number of its pieces of work that are certainly done, by the
/// stream's index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// Returns the progress of a stream.
    pub(super) fn of(&self, stream_idx: usize) -> u64 {
        self.0.get(stream_idx).copied().unwrap_or_default()
    }

    /// Merges what `other` knows into this clock.
    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    /// Records that all work of a stream up to a number is done.
    pub(super) fn raise(&mut self, stream_idx: usize, number: u64) {
        if self.0.len() <= stream_idx {
            self.0.resize(stream_idx + 1, 0);
        }
        self.0[stream_idx] = self.0[stream_idx].max(number);
    }

    /// Counts one more piece of work.
    pub(super) fn advance(&mut self, stream_idx: usize) -> u64 {
        let number = self.of(stream_idx) + 1;
        self.raise(stream_idx, number);
        number
    }
}

/// Whether bytes are read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
}

impl Way {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Write => "writes",
        }
    }
}

/// A piece of work of a stream that accesses bytes of an allocation.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// Relative to the start of the allocation.
    pub(super) bytes: Range<usize>,
    pub(super) way: Way,
    pub(super) stream_idx: usize,
    /// The number of the piece of work in its stream.
    pub(super) number: u64,
    /// For messages: ``launch of `relu` ``.
    pub(super) what: Arc<str>,
}

impl Access {
    /// Returns whether the owner of `clock` knows that it is done.
    pub(super) fn is_known_by(&self, clock: &Clock) -> bool {
        clock.of(self.stream_idx) >= self.number
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }

    /// Returns whether work that is ordered after this access and after `earlier` need not be
    /// compared with `earlier` any more.
    fn replaces(&self, earlier: &Self) -> bool {
        let covers = self.bytes.start <= earlier.bytes.start && earlier.bytes.end <= self.bytes.end;
        let says_more = match self.way {
            Way::Write => true,
            Way::Read => earlier.way == Way::Read && earlier.stream_idx == self.stream_idx,
        };
        covers && says_more
    }
}

/// Accesses of one allocation after which later ones may have to be ordered.
#[derive(Debug, Default)]
pub(super) struct Accesses {
    recent: Vec<Access>,
    /// Length of the list at which it is cleaned up.
    n_max: usize,
}

/// Number of accesses that are kept without checking whether they have ended.
const N_MIN: usize = 32;

impl Accesses {
    /// Adds an access of a stream whose clock, before the access, is `clock`. Returns the earlier
    /// accesses that it should have waited for, but does not. Accesses that the host knows to have
    /// ended precede everything queued from now on.
    pub(super) fn add(&mut self, access: Access, clock: &Clock, host: &Clock) -> Vec<Access> {
        let is_race = |earlier: &&Access| {
            (earlier.way == Way::Write || access.way == Way::Write)
                && earlier.overlaps(&access)
                && !earlier.is_known_by(clock)
                // A stream is ordered with itself, and a call may use its own arguments in any way.
                && earlier.stream_idx != access.stream_idx
        };
        let races: Vec<Access> = self.recent.iter().filter(is_race).cloned().collect();
        self.recent.retain(|earlier| !access.replaces(earlier));
        self.recent.push(access);
        if self.recent.len() > self.n_max {
            self.recent.retain(|access| !access.is_known_by(host));
            self.n_max = N_MIN.max(2 * self.recent.len());
        }
        races
    }

    /// Returns the accesses that the host does not know to have ended.
    pub(super) fn unknown_to<'a>(&'a self, host: &'a Clock) -> impl Iterator<Item = &'a Access> {
        self.recent
            .iter()
            .filter(|access| !access.is_known_by(host))
    }
}
