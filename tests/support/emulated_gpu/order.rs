//! Which work is ordered after which: vector clocks, and what has touched an allocation lately.
//!
//! In go streams, by index, and ranges of bytes; out come pairs of accesses that nothing orders. It
//! knows no memory and executes nothing: what is told here follows from the order of the calls
//! alone, and not from when the work happens to be done.

use std::ops::Range;
use std::sync::Arc;

/// How far each stream had come: how many pieces of its work are done for certain, by the stream's
/// index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// How far a stream had come.
    pub(super) fn of(&self, stream_idx: usize) -> u64 {
        self.0.get(stream_idx).copied().unwrap_or_default()
    }

    /// The owner of this clock now also knows what `other` knew.
    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    /// Whatever a stream was given up to a number is done.
    pub(super) fn raise(&mut self, stream_idx: usize, number: u64) {
        if self.0.len() <= stream_idx {
            self.0.resize(stream_idx + 1, 0);
        }
        self.0[stream_idx] = self.0[stream_idx].max(number);
    }

    /// One piece of work more.
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

/// A piece of work of a stream that touches bytes of an allocation.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// From the allocation's start.
    pub(super) bytes: Range<usize>,
    pub(super) way: Way,
    pub(super) stream_idx: usize,
    /// Which of the stream's pieces of work it is.
    pub(super) number: u64,
    /// For messages: ``launch of `relu` ``.
    pub(super) what: Arc<str>,
}

impl Access {
    /// Whether who has `clock` knows that it is done.
    pub(super) fn is_known_by(&self, clock: &Clock) -> bool {
        clock.of(self.stream_idx) >= self.number
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }

    /// Whether what is ordered after this one, and after `earlier`, need not look at `earlier` any
    /// more.
    fn replaces(&self, earlier: &Self) -> bool {
        let covers = self.bytes.start <= earlier.bytes.start && earlier.bytes.end <= self.bytes.end;
        let says_more = match self.way {
            Way::Write => true,
            Way::Read => earlier.way == Way::Read && earlier.stream_idx == self.stream_idx,
        };
        covers && says_more
    }
}

/// Accesses of one allocation that later ones may have to be ordered after.
#[derive(Debug, Default)]
pub(super) struct Accesses {
    recent: Vec<Access>,
    /// How long the list may grow before it is looked through.
    n_max: usize,
}

/// Accesses of an allocation that are kept without a look at whether they have ended.
const N_MIN: usize = 32;

impl Accesses {
    /// Adds an access of a stream, whose clock, before it, is `clock`; gives the earlier ones that
    /// it should have waited for, and does not. What the host knows to have ended is before
    /// everything that is given from now on.
    pub(super) fn add(&mut self, access: Access, clock: &Clock, host: &Clock) -> Vec<Access> {
        let is_race = |earlier: &&Access| {
            (earlier.way == Way::Write || access.way == Way::Write)
                && earlier.overlaps(&access)
                && !earlier.is_known_by(clock)
                // A stream is ordered with itself; and with its own arguments a call may do as it
                // likes.
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

    /// Those which the host does not know to have ended.
    pub(super) fn unknown_to<'a>(&'a self, host: &'a Clock) -> impl Iterator<Item = &'a Access> {
        self.recent
            .iter()
            .filter(|access| !access.is_known_by(host))
    }
}
