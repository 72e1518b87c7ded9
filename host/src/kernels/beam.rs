//! Beam search over the classes of steps, one of which is a blank (Graves 2012; TensorFlow
//! `CTCBeamSearchDecoder`).

use hashbrown::HashMap;

use crate::device::KernelError;
use crate::kernels::scratch;

/// Logarithms of the probabilities of a sequence.
#[derive(Debug, Clone, Copy)]
struct Scores {
    total: f64,
    /// If it ends with a blank.
    blank: f64,
    /// If it ends with its last class.
    class: f64,
}

const IMPOSSIBLE: Scores = Scores {
    total: f64::NEG_INFINITY,
    blank: f64::NEG_INFINITY,
    class: f64::NEG_INFINITY,
};

/// A sequence: another one, and a class.
#[derive(Debug)]
struct Sequence {
    /// Its own number for the empty sequence.
    parent: usize,
    class: usize,
    before: Scores,
    now: Scores,
}

/// The most likely sequences of classes after some steps.
#[derive(Debug)]
pub struct Beam {
    width: usize,
    n_classes: usize,
    sequences: Vec<Sequence>,
    children: HashMap<(usize, usize), usize>,
    /// Numbers of the most likely ones, the most likely first.
    best: Vec<usize>,
}

impl Beam {
    /// Starts with the empty sequence. The last class is the blank.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if there is not enough memory.
    pub fn new(width: usize, n_classes: usize) -> Result<Self, KernelError> {
        let start = Scores {
            total: 0.0,
            blank: 0.0,
            class: f64::NEG_INFINITY,
        };
        let mut sequences = scratch::list(1)?;
        sequences.push(Sequence {
            parent: 0,
            class: usize::MAX,
            before: IMPOSSIBLE,
            now: start,
        });
        let mut best = scratch::list(1)?;
        best.push(0);
        Ok(Self {
            width,
            n_classes,
            sequences,
            children: HashMap::new(),
            best,
        })
    }

    fn total(&self, sequence: usize) -> f64 {
        self.sequences[sequence].now.total
    }

    /// Adds a sequence to the best ones; the worst of them leaves if there are too many.
    fn push(&mut self, sequence: usize) {
        let total = self.total(sequence);
        let place = self
            .best
            .partition_point(|&other| self.total(other) >= total);
        self.best.insert(place, sequence);
        if self.best.len() > self.width
            && let Some(worst) = self.best.pop()
        {
            self.sequences[worst].now = IMPOSSIBLE;
        }
    }

    /// Whether a sequence of this probability would be one of the best.
    fn is_candidate(&self, total: f64) -> bool {
        let is_better = || {
            self.best
                .last()
                .is_none_or(|&worst| total > self.total(worst))
        };
        total > f64::NEG_INFINITY && (self.best.len() < self.width || is_better())
    }

    /// Extends all sequences by a step with these logits.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if there is not enough memory.
    pub fn step(&mut self, logits: impl Fn(usize) -> f64) -> Result<(), KernelError> {
        let n = self.n_classes;
        let largest = (0..n).map(&logits).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..n).map(|class| (logits(class) - largest).exp()).sum();
        let norm = largest + sum.ln();
        let score = |class: usize| logits(class) - norm;
        let blank = n - 1;
        let branches = std::mem::take(&mut self.best);
        for &branch in &branches {
            self.sequences[branch].before = self.sequences[branch].now;
        }
        for &branch in &branches {
            let own = &self.sequences[branch];
            let mut now = own.now;
            if branch != own.parent {
                let parent = &self.sequences[own.parent];
                if parent.now.total > f64::NEG_INFINITY {
                    let previous = match own.class == parent.class {
                        true => parent.before.blank,
                        false => parent.before.total,
                    };
                    now.class = log_sum(now.class, previous);
                }
                now.class += score(own.class);
            }
            now.blank = own.before.total + score(blank);
            now.total = log_sum(now.blank, now.class);
            self.sequences[branch].now = now;
            self.push(branch);
        }
        for &branch in &branches {
            if !self.is_candidate(self.sequences[branch].before.total) {
                continue;
            }
            for class in 0..blank {
                let key = (branch, class);
                let known = self.children.get(&key).copied();
                if known.is_some_and(|child| self.total(child) > f64::NEG_INFINITY) {
                    continue;
                }
                let own = &self.sequences[branch];
                let previous = match own.class == class {
                    true => own.before.blank,
                    false => own.before.total,
                };
                let total = score(class) + previous;
                if !self.is_candidate(total) {
                    if let Some(child) = known {
                        self.sequences[child].before = IMPOSSIBLE;
                        self.sequences[child].now = IMPOSSIBLE;
                    }
                    continue;
                }
                let now = Scores {
                    total,
                    blank: f64::NEG_INFINITY,
                    class: total,
                };
                let child = match known {
                    Some(child) => child,
                    None => {
                        self.sequences
                            .try_reserve(1)
                            .map_err(|_| scratch::out_of_memory(size_of::<Sequence>()))?;
                        self.sequences.push(Sequence {
                            parent: branch,
                            class,
                            before: IMPOSSIBLE,
                            now,
                        });
                        self.children.insert(key, self.sequences.len() - 1);
                        self.sequences.len() - 1
                    }
                };
                self.sequences[child].now = now;
                self.push(child);
            }
        }
        Ok(())
    }

    /// Returns the logarithm of the probability of a sequence, and its classes from the last to the
    /// first; 0 is the most likely one. `merges` leaves out repetitions. `None` if there are fewer.
    pub fn path(&self, rank: usize, merges: bool) -> Option<(f64, impl Iterator<Item = usize>)> {
        let &last = self.best.get(rank)?;
        let ancestors = std::iter::successors(Some(last), |&at| Some(self.sequences[at].parent));
        let mut after = None;
        let classes = ancestors
            .take_while(|&at| self.sequences[at].parent != at)
            .map(|at| self.sequences[at].class)
            .filter(move |&class| after.replace(class) != Some(class) || !merges);
        Some((self.total(last), classes))
    }
}

/// Returns `ln(e^a + e^b)`.
fn log_sum(a: f64, b: f64) -> f64 {
    let (least, largest) = if a < b { (a, b) } else { (b, a) };
    match largest == f64::NEG_INFINITY {
        true => largest,
        false => largest + (least - largest).exp().ln_1p(),
    }
}
