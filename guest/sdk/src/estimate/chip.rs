//! Chips whose threads several kernels share.

use std::cmp::Ordering;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::CHIP;
use super::Event;
use super::What;

/// A chip whose threads several kernels share. All of them advance at one rate, so their ends are
/// kept on a clock that advances at that rate.
#[derive(Debug, Clone)]
pub(super) struct Chip {
    n_threads: f64,
    /// Threads that the running kernels would use.
    n_wanted: f64,
    /// The shared clock, and when it was read.
    clock_ns: f64,
    read_at_ns: f64,
    rate: f64,
    pub(super) running: BinaryHeap<Reverse<Running>>,
    /// Events of other versions are out of date.
    pub(super) version: u32,
    has_changed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Running {
    /// On the chip's clock.
    finish_ns: f64,
    pub(super) id: u32,
    pub(super) pool: u32,
    n_threads: f64,
}

impl Eq for Running {}

impl Ord for Running {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = self.finish_ns.total_cmp(&other.finish_ns);
        by_time.then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for Running {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Chip {
    pub(super) fn new(n_threads: f64) -> Self {
        Self {
            n_threads,
            n_wanted: 0.0,
            clock_ns: 0.0,
            read_at_ns: 0.0,
            rate: 1.0,
            running: BinaryHeap::new(),
            version: 0,
            has_changed: false,
        }
    }

    pub(super) fn reset(&mut self) {
        self.running.clear();
        (self.n_wanted, self.rate) = (0.0, 1.0);
        (self.clock_ns, self.read_at_ns) = (0.0, 0.0);
        self.has_changed = false;
    }

    pub(super) fn add(&mut self, id: u32, pool: u32, work_ns: f64, n_threads: f64, now_ns: f64) {
        self.advance(now_ns);
        self.n_wanted += n_threads;
        self.running.push(Reverse(Running {
            finish_ns: self.clock_ns + work_ns,
            id,
            pool,
            n_threads,
        }));
        self.has_changed = true;
    }

    fn advance(&mut self, now_ns: f64) {
        if now_ns > self.read_at_ns {
            self.clock_ns += (now_ns - self.read_at_ns) * self.rate;
            self.read_at_ns = now_ns;
        }
    }

    /// Takes out a kernel that ends at this instant, which is that of the chip's event.
    pub(super) fn pop_ended(&mut self, now_ns: f64) -> Option<Running> {
        let &Reverse(first) = self.running.peek()?;
        if !self.has_changed {
            // The clock is set, and not computed: the event is the end of the first one.
            self.clock_ns = first.finish_ns;
            self.read_at_ns = now_ns;
            self.has_changed = true;
        } else if first.finish_ns > self.clock_ns {
            return None;
        }
        self.running.pop();
        self.n_wanted = match self.running.is_empty() {
            true => 0.0,
            false => self.n_wanted - first.n_threads,
        };
        Some(first)
    }

    /// Returns the event of the next end, if something has started or ended.
    pub(super) fn next_event(&mut self, index: u32, now_ns: f64) -> Option<Event> {
        if !std::mem::take(&mut self.has_changed) {
            return None;
        }
        self.version = (self.version + 1) % (What::MAX - CHIP);
        let &Reverse(first) = self.running.peek()?;
        self.rate = (self.n_threads / self.n_wanted).min(1.0);
        let left_ns = match first.finish_ns.is_finite() {
            true => (first.finish_ns - self.clock_ns).max(0.0) / self.rate,
            false => f64::INFINITY,
        };
        Some(Event {
            at_ns: now_ns + left_ns,
            id: index,
            what: CHIP + self.version,
        })
    }
}
