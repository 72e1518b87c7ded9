//! The gaps between the tasks of one processor, searched block by block.
//!
//! A timeline contains times only, neither nodes nor devices. All times are in ns.

use std::cell::Cell;

use super::lanes::LANES;
use super::lanes::Lanes;
use super::lanes::later;

/// Gaps per block. A search reads whole blocks, and splitting a gap moves the gaps of one block.
pub const BLOCK: usize = 8;

/// Maximum number of hints per timeline.
const HINTS_MAX: usize = 1 << 16;

/// Number of blocks that a search walks from its hint before it starts a binary search.
const STEPS: usize = 6;

/// The schedule of one processor, as the gaps in it.
///
/// Gaps are disjoint and sorted. Each block stores its last end and its longest gap, so that a
/// search reads only blocks that can contain a result. Gaps in which no task ever fits are dropped.
#[derive(Debug, Clone)]
pub struct Timeline {
    /// Per block: the end of its last gap.
    last_end: Vec<f64>,
    /// Per block: the start of its first gap.
    first_start: Vec<f64>,
    /// Per block: an upper bound on the length of a task that fits into one of its gaps.
    longest: Vec<f64>,
    /// Per block: its index in `pool`.
    block: Vec<u32>,
    pool: Vec<Block>,
    /// Blocks of the pool that are unused.
    unused: Vec<u32>,
    hints: Hints,
    /// When the last task ends.
    tail: f64,
    /// The length of the shortest task.
    shortest_task: f64,
}

/// The blocks where searches ended, by time. Tasks that become ready at about the same time find
/// their gaps in about the same block.
#[derive(Debug, Clone)]
pub struct Hints {
    cells: Vec<Cell<u32>>,
    cells_per_ns: f64,
}

impl Hints {
    /// Creates hints for a schedule that is expected to end at `horizon` and to have `n_blocks`
    /// blocks. Both may be wrong.
    #[expect(clippy::cast_precision_loss, reason = "a rough number")]
    pub fn new(horizon: f64, n_blocks: usize) -> Self {
        let n_cells = n_blocks.clamp(1, HINTS_MAX);
        let cells_per_ns = n_cells as f64 / horizon;
        Self {
            cells: vec![Cell::new(0); n_cells],
            cells_per_ns: if cells_per_ns.is_finite() {
                cells_per_ns
            } else {
                0.0
            },
        }
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are not negative, and what is too large is in the last cell"
    )]
    fn of(&self, time: f64) -> &Cell<u32> {
        &self.cells[((time * self.cells_per_ns) as usize).min(self.cells.len() - 1)]
    }
}

/// A place in the schedule, from [`Timeline::earliest_gap`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slot {
    start: f64,
    block: u32,
    gap: u32,
}

impl Slot {
    /// Returns when a task starts that fills it.
    #[inline]
    pub fn start(self) -> f64 {
        self.start
    }
}

#[derive(Debug, Clone)]
struct Block {
    len: usize,
    starts: [f64; BLOCK],
    /// -inf after the last gap: nothing fits there.
    ends: [f64; BLOCK],
}

impl Block {
    const EMPTY: Self = Self {
        len: 0,
        starts: [0.0; BLOCK],
        ends: [f64::NEG_INFINITY; BLOCK],
    };

    /// Returns the earliest gap that fits a task of length `work` starting at `ready` or later, and
    /// the task's start there.
    #[inline]
    fn earliest_gap(&self, ready: f64, work: f64) -> Option<(u32, f64)> {
        let (starts, _) = self.starts.as_chunks::<LANES>();
        let (ends, _) = self.ends.as_chunks::<LANES>();
        let (not_before, length) = (Lanes::splat(ready), Lanes::splat(work));
        let mut fits = 0;
        for (chunk, (starts, ends)) in starts.iter().zip(ends).enumerate() {
            let finish = Lanes::load(starts).later(not_before).plus(length);
            fits |= finish.at_most(Lanes::load(ends)) << (chunk * LANES);
        }
        let gap = fits.trailing_zeros();
        let start = later(*self.starts.get(gap as usize)?, ready);
        Some((gap, start))
    }

    fn insert(&mut self, gap: usize, start: f64, end: f64) {
        self.starts.copy_within(gap..self.len, gap + 1);
        self.ends.copy_within(gap..self.len, gap + 1);
        (self.starts[gap], self.ends[gap]) = (start, end);
        self.len += 1;
    }

    fn remove(&mut self, gap: usize) {
        self.starts.copy_within(gap + 1..self.len, gap);
        self.ends.copy_within(gap + 1..self.len, gap);
        self.len -= 1;
        self.ends[self.len] = f64::NEG_INFINITY;
    }
}

impl Timeline {
    /// Creates a timeline that is free from 0 on. No task may be shorter than `shortest_task`.
    pub fn new(shortest_task: f64, hints: Hints) -> Self {
        Self {
            last_end: Vec::new(),
            first_start: Vec::new(),
            longest: Vec::new(),
            block: Vec::new(),
            pool: Vec::new(),
            unused: Vec::new(),
            hints,
            tail: 0.0,
            shortest_task,
        }
    }

    /// Returns when the last task ends.
    pub fn tail(&self) -> f64 {
        self.tail
    }

    /// Returns when the last gap ends, -inf if there is none. A task that would end later fits into
    /// no gap.
    pub fn last_gap_end(&self) -> f64 {
        self.last_end.last().copied().unwrap_or(f64::NEG_INFINITY)
    }

    /// Returns the earliest gap that fits a task of length `work` starting at `ready` or later and
    /// ending by `limit`.
    pub fn earliest_gap(&self, ready: f64, work: f64, limit: f64) -> Option<Slot> {
        let first = self.first_block(ready + work);
        let columns = self.first_start[first..].iter();
        let columns = columns
            .zip(&self.longest[first..])
            .zip(&self.block[first..]);
        for (block, ((&first_start, &longest), &body)) in (first..).zip(columns) {
            if first_start + work > limit {
                return None;
            }
            if longest < work {
                continue;
            }
            if let Some((gap, start)) = self.pool[body as usize].earliest_gap(ready, work) {
                let slot = Slot {
                    start,
                    block: to_u32(block),
                    gap,
                };
                return (start + work <= limit).then_some(slot);
            }
        }
        None
    }

    /// Returns the first block with a gap that ends at `end_min` or later. Starts at the block that
    /// was found for nearby times.
    #[inline]
    fn first_block(&self, end_min: f64) -> usize {
        let last_end = &self.last_end[..];
        let hint = self.hints.of(end_min);
        let is_late = |block: usize| last_end.get(block).is_none_or(|&end| end >= end_min);
        let mut block = (hint.get() as usize).min(last_end.len());
        for _ in 0..STEPS {
            if !is_late(block) {
                block += 1;
            } else if block > 0 && is_late(block - 1) {
                block -= 1;
            } else {
                hint.set(to_u32(block));
                return block;
            }
        }
        let block = last_end.partition_point(|&end| end < end_min);
        hint.set(to_u32(block));
        block
    }

    /// Fills a slot. The timeline must not have changed since the slot was found.
    pub fn fill(&mut self, slot: Slot, work: f64) {
        let (block, gap) = (slot.block as usize, slot.gap as usize);
        let body = &mut self.pool[self.block[block] as usize];
        let (gap_start, gap_end) = (body.starts[gap], body.ends[gap]);
        let (start, end) = (slot.start, slot.start + work);
        let keeps_left = start > gap_start && length_bound(gap_start, start) >= self.shortest_task;
        let keeps_right = end < gap_end && length_bound(end, gap_end) >= self.shortest_task;
        match (keeps_left, keeps_right) {
            (true, true) => {
                if body.len == BLOCK {
                    self.split(block);
                    let lower = self.pool[self.block[block] as usize].len;
                    let (block, gap) = if gap < lower {
                        (block, gap)
                    } else {
                        (block + 1, gap - lower)
                    };
                    let body = &mut self.pool[self.block[block] as usize];
                    body.ends[gap] = start;
                    body.insert(gap + 1, end, gap_end);
                    return self.summarize(block);
                }
                body.ends[gap] = start;
                body.insert(gap + 1, end, gap_end);
            }
            (true, false) => body.ends[gap] = start,
            (false, true) => body.starts[gap] = end,
            (false, false) => {
                body.remove(gap);
                if body.len == 0 {
                    return self.remove(block);
                }
            }
        }
        self.summarize(block);
    }

    /// Appends a task after all others. `start` must not be before [`Self::tail`].
    pub fn append(&mut self, start: f64, work: f64) {
        if start > self.tail && length_bound(self.tail, start) >= self.shortest_task {
            self.push(self.tail, start);
        }
        self.tail = start + work;
    }

    fn push(&mut self, start: f64, end: f64) {
        let last = match self.block.last() {
            Some(&body) if self.pool[body as usize].len < BLOCK => self.block.len() - 1,
            _ => {
                self.add_block(self.block.len());
                self.block.len() - 1
            }
        };
        let body = &mut self.pool[self.block[last] as usize];
        body.insert(body.len, start, end);
        self.first_start[last] = body.starts[0];
        self.last_end[last] = end;
        self.longest[last] = later(self.longest[last], length_bound(start, end));
    }

    /// Inserts an empty block at `at`.
    fn add_block(&mut self, at: usize) {
        let body = self.unused.pop().unwrap_or_else(|| {
            self.pool.push(Block::EMPTY);
            to_u32(self.pool.len() - 1)
        });
        self.block.insert(at, body);
        self.first_start.insert(at, 0.0);
        self.last_end.insert(at, 0.0);
        self.longest.insert(at, 0.0);
    }

    fn split(&mut self, block: usize) {
        self.add_block(block + 1);
        let mut upper = Block::EMPTY;
        let lower = &mut self.pool[self.block[block] as usize];
        let half = lower.len / 2;
        upper.len = lower.len - half;
        upper.starts[..upper.len].copy_from_slice(&lower.starts[half..lower.len]);
        upper.ends[..upper.len].copy_from_slice(&lower.ends[half..lower.len]);
        lower.ends[half..].fill(f64::NEG_INFINITY);
        lower.len = half;
        self.pool[self.block[block + 1] as usize] = upper;
        self.summarize(block);
        self.summarize(block + 1);
    }

    fn remove(&mut self, block: usize) {
        self.unused.push(self.block.remove(block));
        self.last_end.remove(block);
        self.first_start.remove(block);
        self.longest.remove(block);
    }

    fn summarize(&mut self, block: usize) {
        let Block { len, starts, ends } = &self.pool[self.block[block] as usize];
        let gaps = starts.iter().zip(ends).take(*len);
        self.longest[block] = gaps.fold(0.0, |longest, (&start, &end)| {
            later(length_bound(start, end), longest)
        });
        self.first_start[block] = starts[0];
        self.last_end[block] = ends[len - 1];
    }
}

fn to_u32(index: usize) -> u32 {
    u32::try_from(index).expect("there are fewer gaps than nodes")
}

/// Returns an upper bound on the length of a task for which `start + work <= end`, rounding
/// included.
#[inline]
fn length_bound(start: f64, end: f64) -> f64 {
    end - start + end * f64::EPSILON
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain implementation of a timeline: a sorted list of tasks; every gap is checked.
    #[derive(Default)]
    struct Plain {
        tasks: Vec<(f64, f64)>,
    }

    impl Plain {
        fn insert(&mut self, ready: f64, work: f64) -> f64 {
            let mut free_from = 0.0;
            for (i, &(start, end)) in self.tasks.iter().enumerate() {
                let begin = later(free_from, ready);
                if start > free_from && begin + work <= start {
                    self.tasks.insert(i, (begin, begin + work));
                    return begin;
                }
                free_from = end;
            }
            let begin = later(free_from, ready);
            self.tasks.push((begin, begin + work));
            begin
        }
    }

    #[test]
    fn finds_the_same_gaps_as_a_plain_scan() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f64::from(u32::try_from(state % n).unwrap())
        };
        let mut timeline = Timeline::new(1.0, Hints::new(20_000.0, 50));
        let mut plain = Plain::default();
        let mut filled = 0;
        for step in 0..3_000 {
            // Some tasks start far ahead, so that gaps arise. Lengths are odd fractions, so that
            // sums are rounded.
            let ready = random(40) * 7.3
                + if step % 3 == 0 {
                    f64::from(step) * 9.1
                } else {
                    0.0
                };
            let work = 1.0 + random(30) / 7.0;
            let start = match timeline.earliest_gap(ready, work, f64::INFINITY) {
                Some(slot) => {
                    timeline.fill(slot, work);
                    filled += 1;
                    slot.start
                }
                None => {
                    let start = later(ready, timeline.tail());
                    timeline.append(start, work);
                    start
                }
            };
            assert_eq!(start, plain.insert(ready, work), "step {step}");
        }
        assert!(filled > 500, "{filled} tasks went into gaps");
        assert!(timeline.block.len() > 2);
    }

    #[test]
    fn a_limit_ends_the_search() {
        let mut timeline = Timeline::new(0.0, Hints::new(0.0, 0));
        timeline.append(10.0, 5.0);
        assert_eq!(
            timeline.earliest_gap(2.0, 3.0, 5.0).map(|slot| slot.start),
            Some(2.0)
        );
        assert_eq!(timeline.earliest_gap(2.0, 3.0, 4.9), None);
        assert_eq!(timeline.earliest_gap(2.0, 9.0, f64::INFINITY), None);
        assert_eq!((timeline.tail(), timeline.last_gap_end()), (15.0, 10.0));
    }
}
