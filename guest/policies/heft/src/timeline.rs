//! When a processor is free: its gaps between tasks, searched block by block.
//!
//! Knows times only, neither nodes nor devices. All times in ns.

/// Gaps per block: one block is 512 bytes, and 1,000,000 gaps are some 50,000 blocks.
const BLOCK: usize = 32;

/// The schedule of one processor, as the gaps in it.
///
/// Gaps are disjoint and sorted, in blocks that know their last end and their longest gap, so that a search touches only
/// blocks that can hold what it looks for. Gaps in which no task ever fits are not kept.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// Per block: end of its last gap.
    last_end: Vec<f64>,
    /// Per block: start of its first gap.
    first_start: Vec<f64>,
    /// Per block: an upper bound on what fits into any of its gaps.
    longest: Vec<f64>,
    blocks: Vec<Block>,
    /// When the last task ends.
    tail: f64,
    /// No task is shorter.
    shortest_task: f64,
}

/// A place in the schedule, from [`Timeline::earliest_gap`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slot {
    pub(crate) start: f64,
    block: usize,
    gap: usize,
}

#[derive(Debug, Clone)]
struct Block {
    starts: Vec<f64>,
    ends: Vec<f64>,
}

impl Timeline {
    /// Free from 0 on, for tasks none of which is shorter than `shortest_task`.
    pub(crate) fn new(shortest_task: f64) -> Self {
        Self {
            last_end: Vec::new(),
            first_start: Vec::new(),
            longest: Vec::new(),
            blocks: Vec::new(),
            tail: 0.0,
            shortest_task,
        }
    }

    /// When the last task ends.
    pub(crate) fn tail(&self) -> f64 {
        self.tail
    }

    /// When the last gap ends, -inf where there is none: nothing fits that would end later.
    pub(crate) fn last_gap_end(&self) -> f64 {
        self.last_end.last().copied().unwrap_or(f64::NEG_INFINITY)
    }

    /// The earliest gap that takes a task of length `work` not before `ready`, provided that it ends by `limit`.
    pub(crate) fn earliest_gap(&self, ready: f64, work: f64, limit: f64) -> Option<Slot> {
        let end_min = ready + work;
        let first = self.last_end.partition_point(|&end| end < end_min);
        for block in first..self.blocks.len() {
            if self.first_start[block] + work > limit {
                return None;
            }
            if self.longest[block] < work {
                continue;
            }
            let Block { starts, ends } = &self.blocks[block];
            for (gap, (&start, &end)) in starts.iter().zip(ends).enumerate() {
                if end < end_min {
                    continue;
                }
                let start = later(start, ready);
                if start + work > limit {
                    return None;
                }
                if start + work <= end {
                    return Some(Slot { start, block, gap });
                }
            }
        }
        None
    }

    /// Fills a slot that was found since the last change.
    pub(crate) fn fill(&mut self, slot: Slot, work: f64) {
        let Slot { start, block, gap } = slot;
        let Block { starts, ends } = &mut self.blocks[block];
        let (gap_start, gap_end) = (starts[gap], ends[gap]);
        let end = start + work;
        let keeps_left = room(gap_start, start) >= self.shortest_task && start > gap_start;
        let keeps_right = room(end, gap_end) >= self.shortest_task && end < gap_end;
        match (keeps_left, keeps_right) {
            (true, true) => {
                ends[gap] = start;
                starts.insert(gap + 1, end);
                ends.insert(gap + 1, gap_end);
            }
            (true, false) => ends[gap] = start,
            (false, true) => starts[gap] = end,
            (false, false) => {
                starts.remove(gap);
                ends.remove(gap);
            }
        }
        match self.blocks[block].starts.len() {
            0 => self.remove(block),
            n if n > BLOCK => self.split(block),
            _ => self.summarize(block),
        }
    }

    /// Puts a task behind all others: `start` is not before [`Self::tail`].
    pub(crate) fn append(&mut self, start: f64, work: f64) {
        if start > self.tail && room(self.tail, start) >= self.shortest_task {
            self.push(self.tail, start);
        }
        self.tail = start + work;
    }

    fn push(&mut self, start: f64, end: f64) {
        match self.blocks.last_mut() {
            Some(block) if block.starts.len() < BLOCK => {
                block.starts.push(start);
                block.ends.push(end);
                let last = self.blocks.len() - 1;
                self.last_end[last] = end;
                self.longest[last] = later(self.longest[last], room(start, end));
            }
            _ => {
                self.blocks.push(Block {
                    starts: vec![start],
                    ends: vec![end],
                });
                self.first_start.push(start);
                self.last_end.push(end);
                self.longest.push(room(start, end));
            }
        }
    }

    fn split(&mut self, block: usize) {
        let Block { starts, ends } = &mut self.blocks[block];
        let half = starts.len() / 2;
        let upper = Block {
            starts: starts.split_off(half),
            ends: ends.split_off(half),
        };
        self.blocks.insert(block + 1, upper);
        self.first_start.insert(block + 1, 0.0);
        self.last_end.insert(block + 1, 0.0);
        self.longest.insert(block + 1, 0.0);
        self.summarize(block);
        self.summarize(block + 1);
    }

    fn remove(&mut self, block: usize) {
        self.blocks.remove(block);
        self.first_start.remove(block);
        self.last_end.remove(block);
        self.longest.remove(block);
    }

    fn summarize(&mut self, block: usize) {
        let Block { starts, ends } = &self.blocks[block];
        let rooms = starts
            .iter()
            .zip(ends)
            .map(|(&start, &end)| room(start, end));
        self.longest[block] = rooms.fold(0.0, later);
        self.first_start[block] = starts[0];
        self.last_end[block] = ends[ends.len() - 1];
    }
}

/// An upper bound on the length of a task that `start + work <= end` lets through, rounding included.
#[inline]
fn room(start: f64, end: f64) -> f64 {
    end - start + end * f64::EPSILON
}

/// The maximum of two times. `f64::max` treats NaN, which never occurs here, and is slow in wasm for it.
#[inline]
pub(crate) fn later(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the timeline stands for, in the plainest way: tasks in order, every gap looked at.
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
        let mut timeline = Timeline::new(1.0);
        let mut plain = Plain::default();
        let mut filled = 0;
        for step in 0..3_000 {
            // Now and then far ahead, so that gaps arise; lengths are odd fractions, so that sums round.
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
        assert!(timeline.blocks.len() > 2);
    }

    #[test]
    fn a_limit_ends_the_search() {
        let mut timeline = Timeline::new(0.0);
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
