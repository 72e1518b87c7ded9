//! Places of a run's tensors: offsets into one arena per memory, computed from lifetimes.
//!
//! Greedy by time, best fit: steps are visited in the order in which one thread would execute them,
//! and a tensor takes the smallest hole that fits. With several threads, a step may use a hole only
//! if, in every order, it starts after all readers of the previous tensor have ended. [`Ancestry`]
//! determines that.

use smallvec::SmallVec;

use crate::graph::Csr;

/// Number of chains that the ancestry distinguishes. More chains find more holes in wide graphs,
/// and cost 4 bytes each per step.
const CHAINS_MAX: usize = 32;

const NO_CHAIN: u32 = u32::MAX;

/// Which steps have ended before which, in every order of execution, as far as it pays to compute.
///
/// Steps are covered by chains (paths). Each step stores how far down each chain its ancestors
/// reach. Steps on no chain are never known ancestors.
#[derive(Debug)]
pub(super) struct Ancestry {
    /// Per step: chain, and position on it.
    places: Vec<(u32, u32)>,
    /// Per step, a row of [`CHAINS_MAX`]: the number of steps of the chain that it depends on,
    /// including itself.
    reach: Vec<u32>,
}

impl Ancestry {
    /// Computes the ancestry of steps whose numbers are a topological order.
    pub(super) fn new(successors: &Csr) -> Self {
        let n_steps = successors.n_rows();
        let mut places = vec![(NO_CHAIN, 0); n_steps];
        let mut reach = vec![0; n_steps * CHAINS_MAX];
        let mut n_chains = 0;
        // The chain that a step continues: the first successor of a chain's last step continues it.
        let mut inherits: Vec<u32> = vec![NO_CHAIN; n_steps];
        for step in 0..n_steps {
            let (chain, position) = match inherits[step] {
                NO_CHAIN if n_chains < CHAINS_MAX => {
                    n_chains += 1;
                    (n_chains - 1, 0)
                }
                NO_CHAIN => (CHAINS_MAX, 0),
                chain => (chain as usize, reach[step * CHAINS_MAX + chain as usize]),
            };
            if chain < CHAINS_MAX {
                places[step] = (u32::try_from(chain).unwrap_or(NO_CHAIN), position);
                reach[step * CHAINS_MAX + chain] = position + 1;
            }
            let mut heir = chain;
            for &successor in successors.row(step) {
                let successor = successor as usize;
                let (own, others) = reach.split_at_mut(successor * CHAINS_MAX);
                let own = &own[step * CHAINS_MAX..][..CHAINS_MAX];
                for (other, &own) in others[..CHAINS_MAX].iter_mut().zip(own) {
                    *other = (*other).max(own);
                }
                if heir < CHAINS_MAX && inherits[successor] == NO_CHAIN {
                    inherits[successor] = u32::try_from(heir).unwrap_or(NO_CHAIN);
                    heir = CHAINS_MAX;
                }
            }
        }
        Self { places, reach }
    }

    /// Checks whether `first` has ended when `second` starts, in every order.
    #[cfg(test)]
    fn is_before(&self, first: u32, second: u32) -> bool {
        let mut guard = Guard::default();
        guard.add(self, first);
        guard.is_met(self, second)
    }
}

/// Steps that must have ended before a hole may be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Guard {
    /// (chain, number of its steps).
    steps: SmallVec<[(u32, u32); 2]>,
}

impl Guard {
    fn add(&mut self, ancestry: &Ancestry, step: u32) {
        let (chain, position) = ancestry.places[step as usize];
        let n_steps = position + 1;
        match self.steps.iter_mut().find(|(other, _)| *other == chain) {
            Some((_, most)) => *most = n_steps.max(*most),
            None => self.steps.push((chain, n_steps)),
        }
    }

    fn is_met(&self, ancestry: &Ancestry, step: u32) -> bool {
        let reach = &ancestry.reach[step as usize * CHAINS_MAX..][..CHAINS_MAX];
        self.steps.iter().all(|&(chain, n_steps)| {
            reach
                .get(chain as usize)
                .is_some_and(|&reach| reach >= n_steps)
        })
    }
}

#[derive(Debug, Clone)]
struct Hole {
    offset: usize,
    len: usize,
    guard: Guard,
}

/// Assigns offsets in one arena.
#[derive(Debug)]
pub(super) struct OffsetPlanner<'a> {
    /// `None` if one thread executes the steps, in the order in which they are passed.
    ancestry: Option<&'a Ancestry>,
    /// By offset.
    holes: Vec<Hole>,
    len: usize,
    unit: usize,
}

impl<'a> OffsetPlanner<'a> {
    /// Creates an empty arena, allocated in multiples of `unit` bytes.
    pub(super) fn new(ancestry: Option<&'a Ancestry>, unit: usize) -> Self {
        Self {
            ancestry,
            holes: Vec::new(),
            len: 0,
            unit,
        }
    }

    /// Returns the size of the arena so far, in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the size that a tensor of `bytes` occupies.
    fn rounded(&self, bytes: usize) -> usize {
        // No memory is that large, so its allocation fails.
        let rounded = bytes.max(1).checked_next_multiple_of(self.unit);
        rounded.unwrap_or(usize::MAX)
    }

    /// Returns the offset for a tensor that `step` writes.
    pub(super) fn take(&mut self, bytes: usize, step: u32) -> usize {
        let len = self.rounded(bytes);
        let fits = |hole: &Hole| {
            hole.len >= len
                && self
                    .ancestry
                    .is_none_or(|ancestry| hole.guard.is_met(ancestry, step))
        };
        let fitting = self.holes.iter().enumerate().filter(|(_, hole)| fits(hole));
        let Some((index, _)) = fitting.min_by_key(|(_, hole)| hole.len) else {
            let offset = self.len;
            self.len = self.len.saturating_add(len);
            return offset;
        };
        let hole = &mut self.holes[index];
        let offset = hole.offset;
        if hole.len == len {
            self.holes.remove(index);
        } else {
            hole.offset += len;
            hole.len -= len;
        }
        offset
    }

    /// Frees the tensor at `offset` for reuse once all of `steps` (its writer and its readers) have
    /// ended.
    pub(super) fn give_back(&mut self, offset: usize, bytes: usize, steps: &[u32]) {
        let mut guard = Guard::default();
        if let Some(ancestry) = self.ancestry {
            for &step in steps {
                guard.add(ancestry, step);
            }
        }
        let mut hole = Hole {
            offset,
            len: self.rounded(bytes),
            guard,
        };
        let mut index = self.holes.partition_point(|other| other.offset < offset);
        // Holes with different guards are not merged: the result would serve fewer steps.
        if let Some(after) = self.holes.get(index)
            && hole.offset.saturating_add(hole.len) == after.offset
            && hole.guard == after.guard
        {
            hole.len = hole.len.saturating_add(after.len);
            self.holes.remove(index);
        }
        if index > 0
            && let Some(before) = self.holes.get(index - 1)
            && before.offset.saturating_add(before.len) == hole.offset
            && before.guard == hole.guard
        {
            hole.offset = before.offset;
            hole.len = hole.len.saturating_add(before.len);
            index -= 1;
            self.holes.remove(index);
        }
        self.holes.insert(index, hole);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_beyond_any_memory_saturate() {
        let half = 1 << (usize::BITS - 1);
        let mut planner = OffsetPlanner::new(None, 64);
        let places = [half, half, usize::MAX, 1].map(|bytes| (planner.take(bytes, 0), bytes));
        assert_eq!(planner.len(), usize::MAX);
        for (offset, bytes) in places {
            planner.give_back(offset, bytes, &[0]);
        }
        planner.take(usize::MAX, 1);
        assert_eq!(planner.len(), usize::MAX);
    }

    /// Steps with edges from smaller to larger numbers.
    fn dag() -> impl Strategy<Value = (usize, Vec<(u32, u32)>)> {
        (2usize..40).prop_flat_map(|n| {
            let n_u32 = u32::try_from(n).unwrap();
            let edge = (0..n_u32 - 1).prop_flat_map(move |from| (Just(from), from + 1..n_u32));
            (Just(n), proptest::collection::vec(edge, 0..3 * n))
        })
    }

    fn csr(n: usize, edges: &[(u32, u32)]) -> Csr {
        let mut rows = vec![Vec::new(); n];
        for &(from, to) in edges {
            rows[from as usize].push(to);
        }
        let mut csr = Csr::default();
        for row in rows {
            csr.items.extend(row);
            csr.offsets.push(u32::try_from(csr.items.len()).unwrap());
        }
        csr
    }

    /// Checks whether `to` can be reached, by plain recursion.
    fn reaches(successors: &Csr, from: u32, to: u32) -> bool {
        from == to
            || successors
                .row(from as usize)
                .iter()
                .any(|&next| reaches(successors, next, to))
    }

    proptest! {
        #[test]
        fn known_ancestors_are_ancestors((n, edges) in dag()) {
            let successors = csr(n, &edges);
            let ancestry = Ancestry::new(&successors);
            let n = u32::try_from(n).unwrap();
            let mut n_known = 0;
            for first in 0..n {
                for second in 0..n {
                    let known = ancestry.is_before(first, second);
                    prop_assert!(!known || reaches(&successors, first, second));
                    n_known += u32::from(known);
                }
            }
            prop_assert!(n_known >= n.min(32), "a step on a chain knows itself at least");
        }

        /// Every step writes a tensor that its successors read. Tensors that may be alive together
        /// never overlap.
        #[test]
        fn tensors_that_may_live_together_do_not_overlap(
            (n, edges) in dag(),
            sizes in proptest::collection::vec(0usize..300, 40),
            with_threads: bool,
        ) {
            let successors = csr(n, &edges);
            let ancestry = Ancestry::new(&successors);
            let mut planner = OffsetPlanner::new(with_threads.then_some(&ancestry), 64);
            let mut offsets = vec![0; n];
            let users = |step: usize| -> Vec<u32> {
                let mut users = successors.row(step).to_vec();
                users.push(u32::try_from(step).unwrap());
                users
            };
            for step in 0..n {
                let rank = u32::try_from(step).unwrap();
                offsets[step] = planner.take(sizes[step], rank);
                for before in 0..=step {
                    let users = users(before);
                    if users.iter().max() == Some(&rank) {
                        planner.give_back(offsets[before], sizes[before], &users);
                    }
                }
            }
            for first in 0..n {
                for second in first + 1..n {
                    let rank = u32::try_from(second).unwrap();
                    let is_over = users(first).iter().all(|&user| match with_threads {
                        true => user != rank && reaches(&successors, user, rank),
                        false => user < rank,
                    });
                    let (a, b) = (offsets[first], offsets[second]);
                    let apart = a + sizes[first] <= b || b + sizes[second] <= a;
                    prop_assert!(is_over || apart, "{first} and {second}");
                    prop_assert!(b + sizes[second] <= planner.len());
                }
            }
        }
    }

    #[test]
    fn a_chain_takes_two_places() {
        let edges: Vec<(u32, u32)> = (0..99).map(|step| (step, step + 1)).collect();
        let ancestry = Ancestry::new(&csr(100, &edges));
        for ancestry in [None, Some(&ancestry)] {
            let mut planner = OffsetPlanner::new(ancestry, 64);
            let mut offset = planner.take(100, 0);
            for step in 1..100 {
                let next = planner.take(100, step);
                planner.give_back(offset, 100, &[step - 1, step]);
                offset = next;
            }
            assert_eq!(planner.len(), 256);
        }
    }

    #[test]
    fn branches_share_nothing_until_they_meet() {
        // 0 -> (1, 2), 1 -> 3, 2 -> 3.
        let ancestry = Ancestry::new(&csr(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]));
        let mut planner = OffsetPlanner::new(Some(&ancestry), 64);
        let first = planner.take(64, 1);
        planner.give_back(first, 64, &[1]);
        let second = planner.take(64, 2);
        assert_ne!(first, second, "with two threads, 1 and 2 may run together");
        planner.give_back(second, 64, &[2]);
        assert!(planner.take(64, 3) <= second);
        assert_eq!(planner.len(), 128);
    }
}
