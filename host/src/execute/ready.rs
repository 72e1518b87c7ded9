//! The ready steps of a run: a set of ranks from which any thread takes the smallest.
//!
//! Ranks define the order, so the policy's start order holds for any number of threads. The set
//! neither locks nor allocates. It is a bitmap of ranks, above it a bitmap of the non-zero integers
//! of that bitmap, and so on up to a single integer.

use super::sync::AtomicU64;
use super::sync::Ordering::SeqCst;

const BITS: usize = u64::BITS as usize;

/// A set of numbers below a bound.
#[derive(Debug)]
pub(super) struct ReadySet {
    /// Numbers first, a single integer last. A bit above may be set over a zero integer for a
    /// while; a bit above may be missing only while the thread that set the integer is on its way
    /// up.
    levels: Vec<Box<[AtomicU64]>>,
}

impl ReadySet {
    /// Creates an empty set for numbers below `bound`.
    pub(super) fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut n_integers = bound.div_ceil(BITS).max(1);
        loop {
            levels.push((0..n_integers).map(|_| AtomicU64::new(0)).collect());
            if n_integers == 1 {
                return Self { levels };
            }
            n_integers = n_integers.div_ceil(BITS);
        }
    }

    /// Adds a number that is not in the set.
    pub(super) fn insert(&self, number: u32) {
        self.raise(0, number as usize);
    }

    /// Takes the smallest number, or one that was the smallest a moment ago. `None` means empty,
    /// except for numbers that other threads are adding right now; those threads look for work
    /// afterwards.
    pub(super) fn pop(&self) -> Option<u32> {
        'descend: loop {
            let mut index = 0;
            for level in (0..self.levels.len()).rev() {
                let bits = self.levels[level][index].load(SeqCst);
                if bits == 0 {
                    if level + 1 == self.levels.len() {
                        return None;
                    }
                    self.lower(level + 1, index);
                    continue 'descend;
                }
                index = index * BITS + bits.trailing_zeros() as usize;
            }
            let (position, bit) = (index / BITS, 1 << (index % BITS));
            let before = self.levels[0][position].fetch_and(!bit, SeqCst);
            if before & bit == 0 {
                continue; // Another thread took it.
            }
            if before == bit && self.levels.len() > 1 {
                self.lower(1, position);
            }
            return u32::try_from(index).ok();
        }
    }

    /// Returns the smallest number, or one that was the smallest a moment ago, and leaves it there.
    pub(super) fn first(&self) -> Option<u32> {
        let mut index = 0;
        for level in self.levels.iter().rev() {
            match level[index].load(SeqCst) {
                // A bit above may be set over a zero integer for a while.
                0 => return None,
                bits => index = index * BITS + bits.trailing_zeros() as usize,
            }
        }
        u32::try_from(index).ok()
    }

    /// Checks whether [`Self::pop`] would find nothing.
    pub(super) fn is_empty(&self) -> bool {
        let top = self.levels.last().map(|level| level[0].load(SeqCst));
        top.is_none_or(|bits| bits == 0)
    }

    /// Removes all numbers. No other thread may use the set meanwhile.
    pub(super) fn clear(&self) {
        for bits in self.levels.iter().flatten() {
            bits.store(0, SeqCst);
        }
    }

    /// Sets a bit, and those above it.
    fn raise(&self, first_level: usize, mut index: usize) {
        for level in &self.levels[first_level..] {
            let before = level[index / BITS].fetch_or(1 << (index % BITS), SeqCst);
            if before != 0 {
                return; // The thread that set the first bit also sets the bits above it.
            }
            index /= BITS;
        }
    }

    /// Clears the bit over an integer that was seen to be zero, and the bits above it.
    fn lower(&self, first_level: usize, mut index: usize) {
        for level in first_level..self.levels.len() {
            let (position, bit) = (index / BITS, 1 << (index % BITS));
            let before = self.levels[level][position].fetch_and(!bit, SeqCst);
            // Another thread may have set the integer since it was checked, and have found the bit
            // still set.
            if self.levels[level - 1][index].load(SeqCst) != 0 {
                return self.raise(level, index);
            }
            if before & !bit != 0 {
                return;
            }
            index = position;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::*;

    #[test]
    fn the_smallest_comes_first() {
        for bound in [1, 64, 65, 5_000, 300_000] {
            let set = ReadySet::new(bound);
            assert_eq!(set.pop(), None);
            let bound = u32::try_from(bound).unwrap();
            let mut numbers: Vec<u32> = (0..bound).step_by(7).chain([bound - 1]).collect();
            for &number in numbers.iter().rev() {
                set.insert(number);
            }
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(set.first(), numbers.first().copied());
            let popped: Vec<u32> = std::iter::from_fn(|| set.pop()).collect();
            assert_eq!(popped, numbers);
            assert_eq!(set.first(), None);
        }
    }

    #[test]
    fn numbers_may_come_and_go() {
        let set = ReadySet::new(10_000);
        set.insert(9_000);
        set.insert(70);
        assert_eq!(set.pop(), Some(70));
        set.insert(3);
        assert_eq!(
            (set.pop(), set.pop(), set.pop()),
            (Some(3), Some(9_000), None)
        );
        set.insert(9_000);
        set.clear();
        assert_eq!(set.pop(), None);
    }

    #[test]
    fn every_number_is_taken_once_by_whichever_thread() {
        const N: u32 = 20_000;
        let (set, taken) = (ReadySet::new(N as usize), AtomicUsize::new(0));
        let counts: Vec<AtomicUsize> = (0..N).map(|_| AtomicUsize::new(0)).collect();
        let adds: [Vec<u32>; 2] = [
            (0..N).step_by(2).collect(),
            (1..N).step_by(2).rev().collect(),
        ];
        thread::scope(|scope| {
            for numbers in &adds {
                let (set, counts, taken) = (&set, &counts, &taken);
                scope.spawn(move || {
                    for &number in numbers {
                        set.insert(number);
                        if number % 3 == 0
                            && let Some(number) = set.pop()
                        {
                            counts[number as usize].fetch_add(1, Ordering::Relaxed);
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < N as usize {
                        if let Some(number) = set.pop() {
                            counts[number as usize].fetch_add(1, Ordering::Relaxed);
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert!(
            counts
                .iter()
                .all(|count| count.load(Ordering::Relaxed) == 1)
        );
    }
}
