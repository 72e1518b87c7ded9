//! The ways in which one plan has been run: one per combination of shapes that was fed, with the
//! stages kept for the next run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;
use tracing::debug;

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
use crate::trace::targets;

/// Combinations of shapes that a plan is kept compiled for.
const N_VARIANTS_MAX: usize = 16;

/// Stages (with their arenas) that wait for the next run, per combination; more than run at one
/// time are never made.
const N_IDLE_MAX: usize = 16;

/// Runs that are measured before it is decided how the others go. The first one finds cold caches.
const N_MEASURED: u32 = 3;

/// Runs of each mode that are timed where several may be fastest.
const N_TRIALS: usize = 7;

/// Runs of a mode before them, which are not: threads have to be started and woken, and find the
/// caches as another mode left them.
const N_UNTIMED: usize = 7;

/// Trials that are not counted because nobody came: waking a thread of a busy machine takes many
/// runs of a small plan.
const N_WITHOUT_WORKER_MAX: usize = 64;

/// Runs after which all are timed again: what else the machine does changes. Twice as many after
/// each time, up to the most.
const N_SETTLED_MIN: u32 = 128;
const N_SETTLED_MAX: u32 = 8_192;

/// Runs of a plan, for one combination of fed shapes, after which it is settled how the next ones
/// go ([`Scheduling::Measured`]), where threads come when they are asked. Benchmarks begin after
/// them.
pub const N_RUNS_TO_SETTLE: u32 = N_MEASURED + 3 * (N_UNTIMED + N_TRIALS) as u32;

/// What an operation costs beyond its kernel when one thread executes all, and when several do: as
/// measured on empty kernels.
const SERIAL_OVERHEAD_NS: u64 = 10;
const SHARED_OVERHEAD_NS: u64 = 300;

/// What it costs that others join, and leave again.
const JOIN_NS: u64 = 10_000;

/// Operations that threads which attend can shorten: far longer than it takes to show them.
const WORTH_SPINNING_NS: u32 = 4_000;

/// What reading the clock twice adds to a measurement.
const CLOCK_NS: u32 = 30;

/// A plan's variants, the one used last first.
#[derive(Debug, Default)]
pub(super) struct Variants(Mutex<Vec<Arc<Variant>>>);

/// A plan for fed tensors of certain shapes, run with certain config.
#[derive(Debug)]
pub(super) struct Variant {
    feeds: Vec<Shape>,
    config: RunConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    compiled: Arc<Compiled>,
    tuner: Tuner,
    /// Per value, as far as they are known.
    shapes: Vec<Option<Shape>>,
    has_learned_shapes: bool,
    idle: Vec<Stage>,
}

/// Which threads a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExecutionMode {
    /// The caller's; the pool is woken inside long kernels.
    Serial,
    /// The caller's, while threads of the pool attend: they help inside shorter kernels, too.
    Spinning,
    /// Several execute operations.
    Shared,
}

/// How runs go.
#[derive(Debug, Clone)]
enum Tuner {
    Measuring(Measurements),
    /// All ways that may pay, one after the other.
    Trying(Box<Trials>),
    /// As the last trials say.
    Settled(TuningResult),
    /// Always so.
    Fixed(ExecutionMode),
}

/// Single operations, of runs by this mode.
#[derive(Debug, Clone)]
struct Measurements {
    mode: ExecutionMode,
    /// Per rank the least so far, in ns.
    least: Vec<u32>,
    n_runs: u32,
}

type ExecutionModes = SmallVec<[ExecutionMode; 3]>;

/// Whole runs, by each mode.
#[derive(Debug, Clone)]
struct Trials {
    /// Which trials of the plan these are: runs of earlier ones may still be under choice.
    round: u32,
    tried: SmallVec<[Tried; 3]>,
    /// For how many runs the result will hold.
    n_settled: u32,
}

/// The runs of one mode.
#[derive(Debug, Clone)]
struct Tried {
    mode: ExecutionMode,
    n_started: usize,
    n_without_worker: usize,
    durations: SmallVec<[Duration; N_TRIALS]>,
}

/// What trials have shown.
#[derive(Debug, Clone)]
struct TuningResult {
    mode: ExecutionMode,
    round: u32,
    /// What was tried, and will be again.
    modes: ExecutionModes,
    /// For how many runs it holds: more, and in all.
    n_left: u32,
    n_settled: u32,
}

/// How a run goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModeChoice {
    pub(super) mode: ExecutionMode,
    /// Of which trials it is one; `None` where it does not matter how long the run takes.
    pub(super) trial: Option<u32>,
}

/// How a run of [`ModeChoice::trial`] went.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    pub(super) round: u32,
    pub(super) mode: ExecutionMode,
    pub(super) duration: Duration,
    /// Whether threads were to attend, and none did.
    pub(super) no_worker_joined: bool,
}

/// What a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunConfig {
    pub(super) scheduling: Scheduling,
    /// Threads that execute operations, at most.
    pub(super) n_threads: usize,
    /// Whether devices have threads that may attend.
    pub(super) may_spin: bool,
}

impl ExecutionMode {
    /// What a duration counts as, in twentieths: a mode costs the machine more than the time that
    /// it takes, so it must be faster than the caller alone by that much.
    fn weight(self) -> u32 {
        match self {
            Self::Serial => 20,
            Self::Shared => 21,
            // Threads that attend are busy even where there is nothing to do.
            Self::Spinning => 22,
        }
    }
}

impl Tuner {
    fn new(config: RunConfig) -> Self {
        let measuring = |mode| {
            Self::Measuring(Measurements {
                mode,
                least: Vec::new(),
                n_runs: 0,
            })
        };
        match config.scheduling {
            Scheduling::Serial => Self::Fixed(ExecutionMode::Serial),
            Scheduling::Shared => Self::Fixed(ExecutionMode::Shared),
            Scheduling::Measured if config.n_threads > 1 => measuring(ExecutionMode::Shared),
            Scheduling::Measured if config.may_spin => measuring(ExecutionMode::Serial),
            Scheduling::Measured => Self::Fixed(ExecutionMode::Serial),
        }
    }

    /// These are to be tried, if there are several.
    fn trying(modes: ExecutionModes) -> Self {
        match modes[..] {
            [only] => Self::Fixed(only),
            _ => Self::Trying(Trials::new(0, modes, N_SETTLED_MIN)),
        }
    }

    /// Whether plans are compiled for operations that overlap. Also where another mode has won for
    /// now: they are tried again.
    fn is_for_threads(&self) -> bool {
        match self {
            Self::Measuring(measurements) => measurements.mode == ExecutionMode::Shared,
            Self::Trying(trials) => trials.modes().contains(&ExecutionMode::Shared),
            Self::Settled(result) => result.modes.contains(&ExecutionMode::Shared),
            Self::Fixed(mode) => *mode == ExecutionMode::Shared,
        }
    }

    /// How the next run goes.
    fn next_choice(&mut self) -> ModeChoice {
        if let Self::Settled(result) = self
            && result.n_left == 0
        {
            let n_settled = result.n_settled.saturating_mul(2).min(N_SETTLED_MAX);
            let round = result.round.wrapping_add(1);
            *self = Self::Trying(Trials::new(round, result.modes.clone(), n_settled));
        }
        let untimed = |mode| ModeChoice { mode, trial: None };
        match self {
            Self::Measuring(measurements) => untimed(measurements.mode),
            Self::Trying(trials) => trials.next_choice(),
            Self::Settled(result) => {
                result.n_left -= 1;
                untimed(result.mode)
            }
            Self::Fixed(mode) => untimed(*mode),
        }
    }

    /// A trial has ended; one that ends when all is settled is late, and counts no more.
    fn add_trial(&mut self, trial: Trial) {
        if let Self::Trying(trials) = self
            && trials.round == trial.round
        {
            trials.add(trial);
            if let Some(mode) = trials.fastest() {
                debug!(target: targets::EXECUTE, ?mode, ?trials, "a plan has been tried");
                *self = Self::Settled(TuningResult {
                    mode,
                    round: trials.round,
                    modes: trials.modes(),
                    n_left: trials.n_settled,
                    n_settled: trials.n_settled,
                });
            }
        }
    }
}

impl Trials {
    fn new(round: u32, modes: ExecutionModes, n_settled: u32) -> Box<Self> {
        let tried = modes.into_iter().map(|mode| Tried {
            mode,
            n_started: 0,
            n_without_worker: 0,
            durations: SmallVec::new(),
        });
        Box::new(Self {
            round,
            tried: tried.collect(),
            n_settled,
        })
    }

    fn modes(&self) -> ExecutionModes {
        self.tried.iter().map(|tried| tried.mode).collect()
    }

    /// One mode's runs are started one after the other, as they will be when it has won: what
    /// stands in caches, and who attends, is its own.
    fn next_choice(&mut self) -> ModeChoice {
        let mut tried = self.tried.iter_mut();
        match tried.find(|tried| tried.durations.len() < N_TRIALS) {
            Some(tried) => {
                tried.n_started += 1;
                ModeChoice {
                    mode: tried.mode,
                    trial: (tried.n_started > N_UNTIMED).then_some(self.round),
                }
            }
            // The result is due.
            None => ModeChoice {
                mode: ExecutionMode::Serial,
                trial: None,
            },
        }
    }

    fn add(&mut self, trial: Trial) {
        let mut tried = self.tried.iter_mut();
        if let Some(tried) = tried.find(|tried| tried.mode == trial.mode) {
            if trial.no_worker_joined && tried.n_without_worker < N_WITHOUT_WORKER_MAX {
                tried.n_without_worker += 1;
            } else {
                tried.durations.push(trial.duration);
            }
        }
    }

    /// When all have been tried often enough.
    fn fastest(&mut self) -> Option<ExecutionMode> {
        if self
            .tried
            .iter()
            .any(|tried| tried.durations.len() < N_TRIALS)
        {
            return None;
        }
        let weighed = self.tried.iter_mut().map(|tried| {
            // Medians: the shortest run of several threads is a lucky one.
            let middle = tried.durations.len() / 2;
            let median = *tried.durations.select_nth_unstable(middle).1;
            (median * tried.mode.weight(), tried.mode)
        });
        weighed
            .min_by_key(|&(weighed, _)| weighed)
            .map(|(_, mode)| mode)
    }
}

impl Variants {
    /// The variant for these feeds, compiled if it is new.
    pub(super) fn find(
        &self,
        program: &Program,
        feeds: &[Tensor],
        config: RunConfig,
    ) -> Arc<Variant> {
        let mut variants = lock(&self.0);
        let fits = |variant: &Arc<Variant>| {
            let mut shapes = variant.feeds.iter().zip(feeds);
            variant.config == config && shapes.all(|(shape, tensor)| shape == tensor.shape())
        };
        if let Some(index) = variants.iter().position(fits) {
            variants[..=index].rotate_right(1);
            return Arc::clone(&variants[0]);
        }
        let variant = Arc::new(Variant::new(program, feeds, config));
        variants.truncate(N_VARIANTS_MAX - 1);
        variants.insert(0, Arc::clone(&variant));
        variant
    }

    /// Drops the stages that wait for a next run, with their arenas.
    pub(super) fn drop_idle(&self) {
        let variants: Vec<Arc<Variant>> = lock(&self.0).iter().map(Arc::clone).collect();
        for variant in variants {
            let idle = std::mem::take(&mut lock(&variant.state).idle);
            drop(idle); // Without the lock.
        }
    }
}

impl Variant {
    fn new(program: &Program, feeds: &[Tensor], config: RunConfig) -> Self {
        let shapes = value_shapes(program, |feed| Some(feeds[feed as usize].shape().clone()));
        let tuner = Tuner::new(config);
        Self {
            feeds: feeds.iter().map(|tensor| tensor.shape().clone()).collect(),
            config,
            state: Mutex::new(State {
                compiled: Arc::new(compile(program, &shapes, &tuner)),
                tuner,
                shapes,
                has_learned_shapes: false,
                idle: Vec::new(),
            }),
        }
    }

    /// A stage to run on, and how. `free_idle_memory` is called where there is no room for the
    /// arenas of one more; where that does not help, the stage has none.
    pub(super) fn take_stage(
        &self,
        program: &Arc<Program>,
        free_idle_memory: impl FnOnce(),
    ) -> Result<(Stage, ModeChoice), ExecuteError> {
        let mut state = lock(&self.state);
        let choice = state.tuner.next_choice();
        if let Some(stage) = state.idle.pop() {
            return Ok((stage, choice));
        }
        let compiled = Arc::clone(&state.compiled);
        let is_measured = matches!(state.tuner, Tuner::Measuring(..));
        drop(state);
        let new = || Stage::new(program, &compiled, is_measured);
        let made = match &compiled.short_memory {
            Some(memory) => Err(program.out_of_memory(memory)),
            None => new(),
        };
        let made = match made {
            Err(ExecuteError::Arena { .. }) if compiled.short_memory.is_none() => {
                free_idle_memory();
                new()
            }
            made => made,
        };
        let stage = match made {
            Err(out_of_memory @ ExecuteError::Arena { .. }) => {
                Stage::without_arenas(program, &compiled, is_measured, out_of_memory)?
            }
            made => made?,
        };
        Ok((stage, choice))
    }

    /// After a run that ended well: what it has shown about shapes and times.
    pub(super) fn learn(&self, stage: &mut Stage, config: RunConfig, trial: Option<Trial>) {
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
        if let Tuner::Measuring(Measurements { least, n_runs, .. }) = &mut state.tuner {
            least.resize(stage.nanoseconds.len(), u32::MAX);
            for (least, measured) in least.iter_mut().zip(&stage.nanoseconds) {
                let measured = measured.load(Ordering::Relaxed).saturating_sub(CLOCK_NS);
                *least = measured.min(*least);
            }
            *n_runs += 1;
            if *n_runs >= N_MEASURED {
                let costs = std::mem::take(least);
                state.tuner = Tuner::trying(modes_worth_trying(&state.compiled, &costs, config));
                state.compile(&stage.program, costs);
                return;
            }
        }
        if let Some(trial) = trial {
            state.tuner.add_trial(trial);
            return;
        }
        if is_new {
            state.compile(&stage.program, Vec::new());
        }
    }

    /// After a trial that ran out of time.
    pub(super) fn time_out(&self, trial: Trial) {
        lock(&self.state).tuner.add_trial(trial);
    }

    /// Keeps a stage for the next run.
    pub(super) fn give_back(&self, stage: Stage) {
        let mut state = lock(&self.state);
        // The next run may find room for arenas.
        if stage.has_arenas
            && Arc::ptr_eq(&state.compiled, &stage.compiled)
            && state.idle.len() < N_IDLE_MAX
        {
            state.idle.push(stage);
            return;
        }
        drop(state); // Tensors of apps are dropped without the lock.
    }
}

impl State {
    /// Compiles again, for what has been learned. `costs`: per rank, as far as measured.
    fn compile(&mut self, program: &Program, costs: Vec<u32>) {
        let mut compiled = compile(program, &self.shapes, &self.tuner);
        compiled.costs = costs.into();
        self.compiled = Arc::new(compiled);
        self.idle.clear();
    }
}

fn compile(program: &Program, shapes: &[Option<Shape>], tuner: &Tuner) -> Compiled {
    meters::add_variant();
    Compiled::new(program, shapes, tuner.is_for_threads())
}

/// The caller alone, and what may be faster.
fn modes_worth_trying(compiled: &Compiled, costs: &[u32], config: RunConfig) -> ExecutionModes {
    let mut modes = ExecutionModes::from_slice(&[ExecutionMode::Serial]);
    if config.may_spin && costs.iter().any(|&cost| cost >= WORTH_SPINNING_NS) {
        modes.push(ExecutionMode::Spinning);
    }
    if config.n_threads > 1 && sharing_pays(compiled, costs, config.n_threads) {
        modes.push(ExecutionMode::Shared);
    }
    modes
}

/// Whether several threads are worth their overhead: list scheduling of the operations, as
/// measured.
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

    /// Trials of a mode, and all its runs meanwhile.
    const TRIALS: u32 = N_TRIALS as u32;
    const N: u32 = N_UNTIMED as u32 + TRIALS;

    /// How long a run takes, in us.
    fn took(mode: ExecutionMode, [caller, attended, shared]: [u64; 3]) -> Duration {
        Duration::from_micros(match mode {
            ExecutionMode::Serial => caller,
            ExecutionMode::Spinning => attended,
            ExecutionMode::Shared => shared,
        })
    }

    /// Lets a plan whose runs take so long go through `n_runs` runs; how many went by each mode,
    /// and were trials.
    fn go(tuner: &mut Tuner, n_runs: u32, us: [u64; 3]) -> ([u32; 3], u32) {
        let (mut n_by, mut n_trials) = ([0; 3], 0);
        for _ in 0..n_runs {
            let choice = tuner.next_choice();
            n_by[choice.mode as usize] += 1;
            n_trials += u32::from(choice.trial.is_some());
            if let Some(round) = choice.trial {
                tuner.add_trial(Trial {
                    round,
                    mode: choice.mode,
                    duration: took(choice.mode, us),
                    no_worker_joined: false,
                });
            }
        }
        (n_by, n_trials)
    }

    fn trying(modes: &[ExecutionMode]) -> Tuner {
        Tuner::trying(ExecutionModes::from_slice(modes))
    }

    const ALL: [ExecutionMode; 3] = [
        ExecutionMode::Serial,
        ExecutionMode::Spinning,
        ExecutionMode::Shared,
    ];

    #[test]
    fn the_fastest_crew_is_taken_and_all_are_tried_again_ever_more_rarely() {
        for (us, winner) in [
            ([100, 90, 50], ExecutionMode::Shared),
            ([100, 50, 90], ExecutionMode::Spinning),
            ([50, 100, 90], ExecutionMode::Serial),
            // Not by enough.
            ([100, 92, 96], ExecutionMode::Serial),
            ([100, 70, 72], ExecutionMode::Shared),
        ] {
            let mut tuner = trying(&ALL);
            for n_settled in [N_SETTLED_MIN, 2 * N_SETTLED_MIN, 4 * N_SETTLED_MIN] {
                assert_eq!(go(&mut tuner, 3 * N, us), ([N; 3], 3 * TRIALS));
                let mut n_by = [0; 3];
                n_by[winner as usize] = n_settled;
                assert_eq!(go(&mut tuner, n_settled, us), (n_by, 0));
            }
            assert!(tuner.is_for_threads());
        }
    }

    #[test]
    fn what_cannot_be_faster_is_not_tried() {
        let mut tuner = trying(&[ExecutionMode::Serial, ExecutionMode::Spinning]);
        assert!(!tuner.is_for_threads());
        let n_runs = 2 * N + N_SETTLED_MIN;
        let n_by = [N + N_SETTLED_MIN, N, 0];
        assert_eq!(go(&mut tuner, n_runs, [50, 100, 1]), (n_by, 2 * TRIALS));
        assert!(!tuner.is_for_threads());
        assert_eq!(
            go(&mut trying(&[ExecutionMode::Serial]), 1_000, [100, 1, 1]),
            ([1_000, 0, 0], 0)
        );
    }

    #[test]
    fn who_chooses_a_scheduling_gets_it() {
        let tuner = |scheduling, n_threads, may_spin| {
            Tuner::new(RunConfig {
                scheduling,
                n_threads,
                may_spin,
            })
        };
        for may_spin in [false, true] {
            let mut serial = tuner(Scheduling::Serial, 4, may_spin);
            assert_eq!(serial.next_choice().mode, ExecutionMode::Serial);
            assert!(!serial.is_for_threads());
            let mut shared = tuner(Scheduling::Shared, 1, may_spin);
            assert_eq!(shared.next_choice().mode, ExecutionMode::Shared);
            assert!(shared.is_for_threads());
            assert!(tuner(Scheduling::Measured, 2, may_spin).is_for_threads());
            // One thread keeps the order of steps.
            let mut alone = tuner(Scheduling::Measured, 1, may_spin);
            assert_eq!(alone.next_choice().mode, ExecutionMode::Serial);
            assert_eq!(matches!(alone, Tuner::Measuring(_)), may_spin);
            assert!(!alone.is_for_threads());
        }
    }

    #[test]
    fn a_verdict_changes_with_the_machine_and_holds_for_a_while_at_most() {
        let two = [ExecutionMode::Serial, ExecutionMode::Shared];
        let mut tuner = trying(&two);
        go(&mut tuner, 2 * N, [50, 0, 100]);
        let (slow, fast) = ([N_SETTLED_MIN, 0, 0], [0, 0, N_SETTLED_MIN]);
        assert_eq!(go(&mut tuner, N_SETTLED_MIN, [100, 0, 50]), (slow, 0));
        go(&mut tuner, 2 * N, [100, 0, 50]);
        assert_eq!(go(&mut tuner, N_SETTLED_MIN, [100, 0, 50]), (fast, 0));
        let mut tuner = Tuner::Trying(Trials::new(
            0,
            ExecutionModes::from_slice(&two),
            N_SETTLED_MAX,
        ));
        go(&mut tuner, 2 * N + N_SETTLED_MAX + 2 * N, [100, 0, 50]);
        assert_eq!(go(&mut tuner, N_SETTLED_MAX + N, [100, 0, 50]).1, TRIALS);
    }

    #[test]
    fn one_lucky_run_wins_nothing_and_a_late_trial_changes_nothing() {
        let mut tuner = trying(&ALL);
        let lucky = Trial {
            round: 0,
            mode: ExecutionMode::Shared,
            duration: Duration::from_micros(1),
            no_worker_joined: false,
        };
        tuner.add_trial(lucky);
        go(&mut tuner, 3 * N, [50, 100, 100]);
        let is_settled = |tuner: &Tuner| matches!(tuner, Tuner::Settled(result) if result.mode == ExecutionMode::Serial);
        assert!(is_settled(&tuner), "{tuner:?}");
        let before = format!("{tuner:?}");
        tuner.add_trial(lucky);
        assert_eq!(format!("{tuner:?}"), before);
        // Nor in the next round, of which it is none.
        go(&mut tuner, N_SETTLED_MIN + 1, [50, 100, 100]);
        let before = format!("{tuner:?}");
        tuner.add_trial(lucky);
        assert_eq!(format!("{tuner:?}"), before);
        assert!(matches!(tuner, Tuner::Trying(_)));
    }

    #[test]
    fn trials_to_which_nobody_came_are_not_counted_unless_nobody_ever_comes() {
        let attended = |us, no_worker_joined| Trial {
            round: 0,
            mode: ExecutionMode::Spinning,
            duration: Duration::from_micros(us),
            no_worker_joined,
        };
        for n_without_worker in [N_WITHOUT_WORKER_MAX, 10 * N_WITHOUT_WORKER_MAX] {
            let mut tuner = trying(&[ExecutionMode::Serial, ExecutionMode::Spinning]);
            go(&mut tuner, N, [100, 0, 0]);
            for _ in 0..n_without_worker {
                assert_eq!(tuner.next_choice().mode, ExecutionMode::Spinning);
                tuner.add_trial(attended(100, true));
                if matches!(tuner, Tuner::Settled(_)) {
                    break;
                }
            }
            for _ in 0..TRIALS {
                tuner.add_trial(attended(50, false));
            }
            let Tuner::Settled(result) = tuner else {
                panic!("it is settled: {tuner:?}")
            };
            let is_hopeless = n_without_worker > N_WITHOUT_WORKER_MAX;
            assert_eq!(result.mode == ExecutionMode::Serial, is_hopeless);
        }
    }
}
