//! The ways in which one plan has been run: one per combination of shapes that was fed, with the stages kept for the next run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::compile::Compiled;
use super::error::ExecuteError;
use super::memory::value_shapes;
use super::options::Scheduling;
use super::prepare::Program;
use super::ready::ReadySet;
use super::run::Stage;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::trace::meters;

/// Combinations of shapes that a plan is kept compiled for.
const N_VARIANTS_MAX: usize = 16;

/// Stages (with their arenas) that wait for the next run, per combination; more than run at one time are never made.
const N_IDLE_MAX: usize = 16;

/// Runs that are measured before it is decided how the others go. The first one finds cold caches.
const N_MEASURED: u32 = 3;

/// Runs that are timed each way where several threads may be faster.
const N_TRIALS: usize = 7;

/// Runs after which both ways are timed again: what else the machine does changes. Twice as many after each time, up to the most.
const N_SETTLED_MIN: u32 = 128;
const N_SETTLED_MAX: u32 = 8_192;

/// What an operation costs beyond its kernel when one thread executes all, and when several do: as measured on empty kernels.
const SERIAL_OVERHEAD_NS: u64 = 10;
const SHARED_OVERHEAD_NS: u64 = 300;

/// What it costs that others join, and leave again.
const JOIN_NS: u64 = 10_000;

/// What reading the clock twice adds to a measurement.
const CLOCK_NS: u32 = 30;

/// A plan's variants, the one used last first.
#[derive(Debug, Default)]
pub(super) struct Variants(Mutex<Vec<Arc<Variant>>>);

/// A plan for fed tensors of certain shapes.
#[derive(Debug)]
pub(super) struct Variant {
    feeds: Vec<Shape>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    compiled: Arc<Compiled>,
    mode: Mode,
    /// Per value, as far as they are known.
    shapes: Vec<Option<Shape>>,
    has_learned_shapes: bool,
    idle: Vec<Stage>,
}

#[derive(Debug, Clone)]
enum Mode {
    /// By several threads, while it is measured. Per rank the least so far, in ns, and how many runs were measured.
    Measuring(Vec<u32>, u32),
    /// By several threads, and by one that has the pool's help inside kernels, in turn.
    Trying(Box<Trials>),
    /// As the last trials say, for so many runs more.
    Settled {
        is_shared: bool,
        n_left: u32,
        n_settled: u32,
    },
    Serial,
    Shared,
}

/// Whole runs, both ways.
#[derive(Debug, Clone)]
struct Trials {
    /// For how many runs the verdict will hold.
    n_settled: u32,
    n_started: usize,
    shared: SmallVec<[Duration; N_TRIALS]>,
    serial: SmallVec<[Duration; N_TRIALS]>,
}

/// How a run goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// Whether several threads may execute operations.
    pub(super) is_shared: bool,
    /// Whether it matters how long the run takes.
    pub(super) is_trial: bool,
}

impl Mode {
    /// Several threads or one with help, to be tried.
    fn trying() -> Self {
        Self::Trying(Trials::new(N_SETTLED_MIN))
    }

    /// Whether plans are compiled for operations that overlap. Also where one thread has won for now: several are tried again.
    fn is_for_threads(&self) -> bool {
        !matches!(self, Self::Serial)
    }

    /// How the next run goes.
    fn next_way(&mut self) -> Way {
        if let Self::Settled {
            n_left: 0,
            n_settled,
            ..
        } = *self
        {
            let n_settled = n_settled.saturating_mul(2).min(N_SETTLED_MAX);
            *self = Self::Trying(Trials::new(n_settled));
        }
        let is_trial = matches!(self, Self::Trying(_));
        let is_shared = match self {
            Self::Settled {
                is_shared, n_left, ..
            } => {
                *n_left -= 1;
                *is_shared
            }
            Self::Trying(trials) => {
                trials.n_started += 1;
                trials.n_started.is_multiple_of(2)
            }
            Self::Serial => false,
            Self::Measuring(..) | Self::Shared => true,
        };
        Way {
            is_shared,
            is_trial,
        }
    }

    /// A trial has ended; one that ends when all is settled is late, and counts no more.
    fn add_trial(&mut self, way: Way, duration: Duration) {
        if let Self::Trying(trials) = self {
            trials.add(way, duration);
            if let Some(is_shared) = trials.sharing_wins() {
                *self = Self::Settled {
                    is_shared,
                    n_left: trials.n_settled,
                    n_settled: trials.n_settled,
                };
            }
        }
    }
}

impl Trials {
    fn new(n_settled: u32) -> Box<Self> {
        Box::new(Self {
            n_settled,
            n_started: 0,
            shared: SmallVec::new(),
            serial: SmallVec::new(),
        })
    }

    fn add(&mut self, way: Way, duration: Duration) {
        if way.is_shared {
            self.shared.push(duration);
        } else {
            self.serial.push(duration);
        }
    }

    /// Whether several threads are faster by a twentieth at least: they cost the machine more than the time that they take.
    fn sharing_wins(&mut self) -> Option<bool> {
        if self.shared.len().min(self.serial.len()) < N_TRIALS {
            return None;
        }
        // Medians: the shortest run of several threads is a lucky one.
        let median = |durations: &mut [Duration]| {
            let middle = durations.len() / 2;
            *durations.select_nth_unstable(middle).1
        };
        Some(median(&mut self.shared) * 20 < median(&mut self.serial) * 19)
    }
}

impl Variants {
    /// The variant for these feeds, compiled if it is new.
    pub(super) fn find(
        &self,
        program: &Program,
        feeds: &[Tensor],
        scheduling: Scheduling,
    ) -> Arc<Variant> {
        let mut variants = lock(&self.0);
        let fits = |variant: &Arc<Variant>| {
            let shapes = variant.feeds.iter();
            shapes
                .zip(feeds)
                .all(|(shape, tensor)| shape == tensor.shape())
        };
        if let Some(index) = variants.iter().position(fits) {
            variants[..=index].rotate_right(1);
            return Arc::clone(&variants[0]);
        }
        let variant = Arc::new(Variant::new(program, feeds, scheduling));
        variants.truncate(N_VARIANTS_MAX - 1);
        variants.insert(0, Arc::clone(&variant));
        variant
    }
}

impl Variant {
    fn new(program: &Program, feeds: &[Tensor], scheduling: Scheduling) -> Self {
        let shapes = value_shapes(program, |feed| Some(feeds[feed as usize].shape().clone()));
        let mode = match scheduling {
            Scheduling::Measured => Mode::Measuring(Vec::new(), 0),
            Scheduling::Serial => Mode::Serial,
            Scheduling::Shared => Mode::Shared,
        };
        Self {
            feeds: feeds.iter().map(|tensor| tensor.shape().clone()).collect(),
            state: Mutex::new(State {
                compiled: Arc::new(compile(program, &shapes, &mode)),
                mode,
                shapes,
                has_learned_shapes: false,
                idle: Vec::new(),
            }),
        }
    }

    /// A stage to run on, and how.
    pub(super) fn take_stage(&self, program: &Arc<Program>) -> Result<(Stage, Way), ExecuteError> {
        let mut state = lock(&self.state);
        let way = state.mode.next_way();
        if let Some(stage) = state.idle.pop() {
            return Ok((stage, way));
        }
        let compiled = Arc::clone(&state.compiled);
        let is_measured = matches!(state.mode, Mode::Measuring(..));
        drop(state);
        Ok((Stage::new(program, &compiled, is_measured)?, way))
    }

    /// After a run that ended well: what it has shown about shapes and times. `trial`: how it went, and how long it took.
    pub(super) fn learn(
        &self,
        stage: &mut Stage,
        n_threads: usize,
        trial: Option<(Way, Duration)>,
    ) {
        let is_partial = stage.compiled.is_partial;
        if !is_partial && stage.nanoseconds.is_empty() && trial.is_none() {
            return;
        }
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if !Arc::ptr_eq(&state.compiled, &stage.compiled) {
            return; // Somebody was faster.
        }
        let mut is_new = false;
        if is_partial && !state.has_learned_shapes {
            let observed = stage.frame_mut().take_observed();
            for (shape, observed) in state.shapes.iter_mut().zip(observed) {
                if shape.is_none() {
                    *shape = observed;
                }
            }
            state.has_learned_shapes = true;
            is_new = true;
        }
        if let Mode::Measuring(least, n_measured) = &mut state.mode {
            least.resize(stage.nanoseconds.len(), u32::MAX);
            for (least, measured) in least.iter_mut().zip(&stage.nanoseconds) {
                let measured = measured.load(Ordering::Relaxed).saturating_sub(CLOCK_NS);
                *least = measured.min(*least);
            }
            *n_measured += 1;
            if *n_measured >= N_MEASURED {
                let costs = std::mem::take(least);
                state.mode = if sharing_pays(&state.compiled, &costs, n_threads) {
                    Mode::trying()
                } else {
                    Mode::Serial
                };
                state.compile(&stage.program, costs);
                return;
            }
        }
        if let Some((way, duration)) = trial {
            state.mode.add_trial(way, duration);
            return;
        }
        if is_new {
            state.compile(&stage.program, Vec::new());
        }
    }

    /// Keeps a stage for the next run.
    pub(super) fn give_back(&self, stage: Stage) {
        let mut state = lock(&self.state);
        if Arc::ptr_eq(&state.compiled, &stage.compiled) && state.idle.len() < N_IDLE_MAX {
            state.idle.push(stage);
            return;
        }
        drop(state); // Tensors of apps are dropped without the lock.
    }
}

impl State {
    /// Compiles again, for what has been learned. `costs`: per rank, as far as measured.
    fn compile(&mut self, program: &Program, costs: Vec<u32>) {
        let mut compiled = compile(program, &self.shapes, &self.mode);
        compiled.costs = costs.into();
        self.compiled = Arc::new(compiled);
        self.idle.clear();
    }
}

fn compile(program: &Program, shapes: &[Option<Shape>], mode: &Mode) -> Compiled {
    meters::add_variant();
    Compiled::new(program, shapes, mode.is_for_threads())
}

/// Whether several threads are worth their overhead: list scheduling of the operations, as measured.
fn sharing_pays(compiled: &Compiled, costs: &[u32], n_threads: usize) -> bool {
    let cost = |rank: u32, overhead| u64::from(costs[rank as usize]) + overhead;
    let n_operations = u32::try_from(costs.len()).unwrap_or(u32::MAX);
    let serial: u64 = (0..n_operations)
        .map(|rank| cost(rank, SERIAL_OVERHEAD_NS))
        .sum();
    if serial < 2 * JOIN_NS {
        return false;
    }
    let ready = ReadySet::new(costs.len());
    let mut waits = compiled.n_waits.clone();
    for rank in (0..n_operations).filter(|&rank| waits[rank as usize] == 0) {
        ready.insert(rank);
    }
    let (mut now, mut n_idle) = (0, n_threads);
    let mut running: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    loop {
        while n_idle > 0
            && let Some(rank) = ready.pop()
        {
            n_idle -= 1;
            running.push(Reverse((now + cost(rank, SHARED_OVERHEAD_NS), rank)));
        }
        let Some(Reverse((end, rank))) = running.pop() else {
            break;
        };
        (now, n_idle) = (end, n_idle + 1);
        for &successor in compiled.successors.row(rank as usize) {
            let waits = &mut waits[successor as usize];
            *waits -= 1;
            if *waits == 0 {
                ready.insert(successor);
            }
        }
    }
    (now + JOIN_NS) * 10 < serial * 9
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a plan whose runs take so long, in us, go through `n_runs` runs; how many went by several threads, and were trials.
    fn go(mode: &mut Mode, n_runs: u32, shared_us: u64, serial_us: u64) -> (u32, u32) {
        let (mut n_shared, mut n_trials) = (0, 0);
        for _ in 0..n_runs {
            let way = mode.next_way();
            n_shared += u32::from(way.is_shared);
            n_trials += u32::from(way.is_trial);
            if way.is_trial {
                let took = if way.is_shared { shared_us } else { serial_us };
                mode.add_trial(way, Duration::from_micros(took));
            }
        }
        (n_shared, n_trials)
    }

    const N_BOTH: u32 = 2 * N_TRIALS as u32;

    #[test]
    fn the_faster_way_is_taken_and_the_other_one_tried_again_ever_more_rarely() {
        let half = N_BOTH / 2;
        for (shared_us, serial_us, is_shared) in
            [(50, 100, true), (100, 50, false), (98, 100, false)]
        {
            let mut mode = Mode::trying();
            for n_settled in [N_SETTLED_MIN, 2 * N_SETTLED_MIN, 4 * N_SETTLED_MIN] {
                assert_eq!(go(&mut mode, N_BOTH, shared_us, serial_us), (half, N_BOTH));
                let n_shared = if is_shared { n_settled } else { 0 };
                assert_eq!(
                    go(&mut mode, n_settled, shared_us, serial_us),
                    (n_shared, 0)
                );
            }
            assert!(mode.is_for_threads());
        }
    }

    #[test]
    fn a_verdict_changes_with_the_machine_and_holds_for_a_while_at_most() {
        let mut mode = Mode::trying();
        go(&mut mode, N_BOTH, 100, 50);
        assert_eq!(go(&mut mode, N_SETTLED_MIN, 50, 100), (0, 0));
        go(&mut mode, N_BOTH, 50, 100);
        assert_eq!(go(&mut mode, N_SETTLED_MIN, 50, 100), (N_SETTLED_MIN, 0));
        let mut mode = Mode::Trying(Trials::new(N_SETTLED_MAX));
        go(&mut mode, N_BOTH + N_SETTLED_MAX + N_BOTH, 50, 100);
        assert_eq!(go(&mut mode, N_SETTLED_MAX + 1, 50, 100).1, 1);
    }

    #[test]
    fn one_lucky_run_of_several_threads_wins_nothing_and_a_late_trial_changes_nothing() {
        let mut mode = Mode::trying();
        let way = |is_shared| Way {
            is_shared,
            is_trial: true,
        };
        mode.add_trial(way(true), Duration::from_micros(1));
        go(&mut mode, N_BOTH, 100, 50);
        assert!(
            matches!(
                mode,
                Mode::Settled {
                    is_shared: false,
                    ..
                }
            ),
            "{mode:?}"
        );
        let before = format!("{mode:?}");
        mode.add_trial(way(true), Duration::from_micros(1));
        assert_eq!(format!("{mode:?}"), before);
    }
}
