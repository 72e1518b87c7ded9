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

/// Runs of each crew that are timed where several may be fastest.
const N_TRIALS: usize = 7;

/// Runs of a crew before them, which are not: threads have to be started and woken, and find the
/// caches as another crew left them.
const N_UNTIMED: usize = 7;

/// Trials that are not counted because nobody came: waking a thread of a busy machine takes many
/// runs of a small plan.
const N_DESERTED_MAX: usize = 64;

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
const ATTENDED_NS: u32 = 4_000;

/// What reading the clock twice adds to a measurement.
const CLOCK_NS: u32 = 30;

/// A plan's variants, the one used last first.
#[derive(Debug, Default)]
pub(super) struct Variants(Mutex<Vec<Arc<Variant>>>);

/// A plan for fed tensors of certain shapes, run with certain means.
#[derive(Debug)]
pub(super) struct Variant {
    feeds: Vec<Shape>,
    means: Means,
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

/// Which threads a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crew {
    /// The caller's; the pool is woken inside long kernels.
    Caller,
    /// The caller's, while threads of the pool attend: they help inside shorter kernels, too.
    Attended,
    /// Several execute operations.
    Shared,
}

/// How runs go.
#[derive(Debug, Clone)]
enum Mode {
    Measuring(Measurements),
    /// All ways that may pay, one after the other.
    Trying(Box<Trials>),
    /// As the last trials say.
    Settled(Verdict),
    /// Always so.
    Fixed(Crew),
}

/// Single operations, of runs by this crew.
#[derive(Debug, Clone)]
struct Measurements {
    crew: Crew,
    /// Per rank the least so far, in ns.
    least: Vec<u32>,
    n_runs: u32,
}

type Crews = SmallVec<[Crew; 3]>;

/// Whole runs, by each crew.
#[derive(Debug, Clone)]
struct Trials {
    /// Which trials of the plan these are: runs of earlier ones may still be under way.
    round: u32,
    tried: SmallVec<[Tried; 3]>,
    /// For how many runs the verdict will hold.
    n_settled: u32,
}

/// The runs of one crew.
#[derive(Debug, Clone)]
struct Tried {
    crew: Crew,
    n_started: usize,
    n_deserted: usize,
    durations: SmallVec<[Duration; N_TRIALS]>,
}

/// What trials have shown.
#[derive(Debug, Clone)]
struct Verdict {
    crew: Crew,
    round: u32,
    /// What was tried, and will be again.
    crews: Crews,
    /// For how many runs it holds: more, and in all.
    n_left: u32,
    n_settled: u32,
}

/// How a run goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) crew: Crew,
    /// Of which trials it is one; `None` where it does not matter how long the run takes.
    pub(super) trial: Option<u32>,
}

/// How a run of [`Way::trial`] went.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    pub(super) round: u32,
    pub(super) crew: Crew,
    pub(super) duration: Duration,
    /// Whether threads were to attend, and none did.
    pub(super) is_deserted: bool,
}

/// What a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Means {
    pub(super) scheduling: Scheduling,
    /// Threads that execute operations, at most.
    pub(super) n_threads: usize,
    /// Whether devices have threads that may attend.
    pub(super) may_attend: bool,
}

impl Crew {
    /// What a duration counts as, in twentieths: a crew costs the machine more than the time that
    /// it takes, so it must be faster than the caller alone by that much.
    fn weight(self) -> u32 {
        match self {
            Self::Caller => 20,
            Self::Shared => 21,
            // Threads that attend are busy even where there is nothing to do.
            Self::Attended => 22,
        }
    }
}

impl Mode {
    fn new(means: Means) -> Self {
        let measuring = |crew| {
            Self::Measuring(Measurements {
                crew,
                least: Vec::new(),
                n_runs: 0,
            })
        };
        match means.scheduling {
            Scheduling::Serial => Self::Fixed(Crew::Caller),
            Scheduling::Shared => Self::Fixed(Crew::Shared),
            Scheduling::Measured if means.n_threads > 1 => measuring(Crew::Shared),
            Scheduling::Measured if means.may_attend => measuring(Crew::Caller),
            Scheduling::Measured => Self::Fixed(Crew::Caller),
        }
    }

    /// These are to be tried, if there are several.
    fn trying(crews: Crews) -> Self {
        match crews[..] {
            [only] => Self::Fixed(only),
            _ => Self::Trying(Trials::new(0, crews, N_SETTLED_MIN)),
        }
    }

    /// Whether plans are compiled for operations that overlap. Also where another crew has won for
    /// now: they are tried again.
    fn is_for_threads(&self) -> bool {
        match self {
            Self::Measuring(measurements) => measurements.crew == Crew::Shared,
            Self::Trying(trials) => trials.crews().contains(&Crew::Shared),
            Self::Settled(verdict) => verdict.crews.contains(&Crew::Shared),
            Self::Fixed(crew) => *crew == Crew::Shared,
        }
    }

    /// How the next run goes.
    fn next_way(&mut self) -> Way {
        if let Self::Settled(verdict) = self
            && verdict.n_left == 0
        {
            let n_settled = verdict.n_settled.saturating_mul(2).min(N_SETTLED_MAX);
            let round = verdict.round.wrapping_add(1);
            *self = Self::Trying(Trials::new(round, verdict.crews.clone(), n_settled));
        }
        let untimed = |crew| Way { crew, trial: None };
        match self {
            Self::Measuring(measurements) => untimed(measurements.crew),
            Self::Trying(trials) => trials.next_way(),
            Self::Settled(verdict) => {
                verdict.n_left -= 1;
                untimed(verdict.crew)
            }
            Self::Fixed(crew) => untimed(*crew),
        }
    }

    /// A trial has ended; one that ends when all is settled is late, and counts no more.
    fn add_trial(&mut self, trial: Trial) {
        if let Self::Trying(trials) = self
            && trials.round == trial.round
        {
            trials.add(trial);
            if let Some(crew) = trials.fastest() {
                debug!(target: targets::EXECUTE, ?crew, ?trials, "a plan has been tried");
                *self = Self::Settled(Verdict {
                    crew,
                    round: trials.round,
                    crews: trials.crews(),
                    n_left: trials.n_settled,
                    n_settled: trials.n_settled,
                });
            }
        }
    }
}

impl Trials {
    fn new(round: u32, crews: Crews, n_settled: u32) -> Box<Self> {
        let tried = crews.into_iter().map(|crew| Tried {
            crew,
            n_started: 0,
            n_deserted: 0,
            durations: SmallVec::new(),
        });
        Box::new(Self {
            round,
            tried: tried.collect(),
            n_settled,
        })
    }

    fn crews(&self) -> Crews {
        self.tried.iter().map(|tried| tried.crew).collect()
    }

    /// One crew's runs are started one after the other, as they will be when it has won: what
    /// stands in caches, and who attends, is its own.
    fn next_way(&mut self) -> Way {
        let mut tried = self.tried.iter_mut();
        match tried.find(|tried| tried.durations.len() < N_TRIALS) {
            Some(tried) => {
                tried.n_started += 1;
                Way {
                    crew: tried.crew,
                    trial: (tried.n_started > N_UNTIMED).then_some(self.round),
                }
            }
            // The verdict is due.
            None => Way {
                crew: Crew::Caller,
                trial: None,
            },
        }
    }

    fn add(&mut self, trial: Trial) {
        let mut tried = self.tried.iter_mut();
        if let Some(tried) = tried.find(|tried| tried.crew == trial.crew) {
            if trial.is_deserted && tried.n_deserted < N_DESERTED_MAX {
                tried.n_deserted += 1;
            } else {
                tried.durations.push(trial.duration);
            }
        }
    }

    /// When all have been tried often enough.
    fn fastest(&mut self) -> Option<Crew> {
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
            (median * tried.crew.weight(), tried.crew)
        });
        weighed
            .min_by_key(|&(weighed, _)| weighed)
            .map(|(_, crew)| crew)
    }
}

impl Variants {
    /// The variant for these feeds, compiled if it is new.
    pub(super) fn find(&self, program: &Program, feeds: &[Tensor], means: Means) -> Arc<Variant> {
        let mut variants = lock(&self.0);
        let fits = |variant: &Arc<Variant>| {
            let mut shapes = variant.feeds.iter().zip(feeds);
            variant.means == means && shapes.all(|(shape, tensor)| shape == tensor.shape())
        };
        if let Some(index) = variants.iter().position(fits) {
            variants[..=index].rotate_right(1);
            return Arc::clone(&variants[0]);
        }
        let variant = Arc::new(Variant::new(program, feeds, means));
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
    fn new(program: &Program, feeds: &[Tensor], means: Means) -> Self {
        let shapes = value_shapes(program, |feed| Some(feeds[feed as usize].shape().clone()));
        let mode = Mode::new(means);
        Self {
            feeds: feeds.iter().map(|tensor| tensor.shape().clone()).collect(),
            means,
            state: Mutex::new(State {
                compiled: Arc::new(compile(program, &shapes, &mode)),
                mode,
                shapes,
                has_learned_shapes: false,
                idle: Vec::new(),
            }),
        }
    }

    /// A stage to run on, and how. `make_room` is called where there is no room for the arenas of
    /// one more; where that does not help, the stage has none.
    pub(super) fn take_stage(
        &self,
        program: &Arc<Program>,
        make_room: impl FnOnce(),
    ) -> Result<(Stage, Way), ExecuteError> {
        let mut state = lock(&self.state);
        let way = state.mode.next_way();
        if let Some(stage) = state.idle.pop() {
            return Ok((stage, way));
        }
        let compiled = Arc::clone(&state.compiled);
        let is_measured = matches!(state.mode, Mode::Measuring(..));
        drop(state);
        let new = || Stage::new(program, &compiled, is_measured);
        let made = match &compiled.short_memory {
            Some(memory) => Err(program.no_room(memory)),
            None => new(),
        };
        let made = match made {
            Err(ExecuteError::Arena { .. }) if compiled.short_memory.is_none() => {
                make_room();
                new()
            }
            made => made,
        };
        let stage = match made {
            Err(no_room @ ExecuteError::Arena { .. }) => {
                Stage::without_arenas(program, &compiled, is_measured, no_room)?
            }
            made => made?,
        };
        Ok((stage, way))
    }

    /// After a run that ended well: what it has shown about shapes and times.
    pub(super) fn learn(&self, stage: &mut Stage, means: Means, trial: Option<Trial>) {
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
        if let Mode::Measuring(Measurements { least, n_runs, .. }) = &mut state.mode {
            least.resize(stage.nanoseconds.len(), u32::MAX);
            for (least, measured) in least.iter_mut().zip(&stage.nanoseconds) {
                let measured = measured.load(Ordering::Relaxed).saturating_sub(CLOCK_NS);
                *least = measured.min(*least);
            }
            *n_runs += 1;
            if *n_runs >= N_MEASURED {
                let costs = std::mem::take(least);
                state.mode = Mode::trying(crews_worth_trying(&state.compiled, &costs, means));
                state.compile(&stage.program, costs);
                return;
            }
        }
        if let Some(trial) = trial {
            state.mode.add_trial(trial);
            return;
        }
        if is_new {
            state.compile(&stage.program, Vec::new());
        }
    }

    /// After a trial that ran out of time.
    pub(super) fn time_out(&self, trial: Trial) {
        lock(&self.state).mode.add_trial(trial);
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

/// The caller alone, and what may be faster.
fn crews_worth_trying(compiled: &Compiled, costs: &[u32], means: Means) -> Crews {
    let mut crews = Crews::from_slice(&[Crew::Caller]);
    if means.may_attend && costs.iter().any(|&cost| cost >= ATTENDED_NS) {
        crews.push(Crew::Attended);
    }
    if means.n_threads > 1 && sharing_pays(compiled, costs, means.n_threads) {
        crews.push(Crew::Shared);
    }
    crews
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

    /// Trials of a crew, and all its runs meanwhile.
    const TRIALS: u32 = N_TRIALS as u32;
    const N: u32 = N_UNTIMED as u32 + TRIALS;

    /// How long a run takes, in us.
    fn took(crew: Crew, [caller, attended, shared]: [u64; 3]) -> Duration {
        Duration::from_micros(match crew {
            Crew::Caller => caller,
            Crew::Attended => attended,
            Crew::Shared => shared,
        })
    }

    /// Lets a plan whose runs take so long go through `n_runs` runs; how many went by each crew,
    /// and were trials.
    fn go(mode: &mut Mode, n_runs: u32, us: [u64; 3]) -> ([u32; 3], u32) {
        let (mut n_by, mut n_trials) = ([0; 3], 0);
        for _ in 0..n_runs {
            let way = mode.next_way();
            n_by[way.crew as usize] += 1;
            n_trials += u32::from(way.trial.is_some());
            if let Some(round) = way.trial {
                mode.add_trial(Trial {
                    round,
                    crew: way.crew,
                    duration: took(way.crew, us),
                    is_deserted: false,
                });
            }
        }
        (n_by, n_trials)
    }

    fn trying(crews: &[Crew]) -> Mode {
        Mode::trying(Crews::from_slice(crews))
    }

    const ALL: [Crew; 3] = [Crew::Caller, Crew::Attended, Crew::Shared];

    #[test]
    fn the_fastest_crew_is_taken_and_all_are_tried_again_ever_more_rarely() {
        for (us, winner) in [
            ([100, 90, 50], Crew::Shared),
            ([100, 50, 90], Crew::Attended),
            ([50, 100, 90], Crew::Caller),
            // Not by enough.
            ([100, 92, 96], Crew::Caller),
            ([100, 70, 72], Crew::Shared),
        ] {
            let mut mode = trying(&ALL);
            for n_settled in [N_SETTLED_MIN, 2 * N_SETTLED_MIN, 4 * N_SETTLED_MIN] {
                assert_eq!(go(&mut mode, 3 * N, us), ([N; 3], 3 * TRIALS));
                let mut n_by = [0; 3];
                n_by[winner as usize] = n_settled;
                assert_eq!(go(&mut mode, n_settled, us), (n_by, 0));
            }
            assert!(mode.is_for_threads());
        }
    }

    #[test]
    fn what_cannot_be_faster_is_not_tried() {
        let mut mode = trying(&[Crew::Caller, Crew::Attended]);
        assert!(!mode.is_for_threads());
        let n_runs = 2 * N + N_SETTLED_MIN;
        let n_by = [N + N_SETTLED_MIN, N, 0];
        assert_eq!(go(&mut mode, n_runs, [50, 100, 1]), (n_by, 2 * TRIALS));
        assert!(!mode.is_for_threads());
        assert_eq!(
            go(&mut trying(&[Crew::Caller]), 1_000, [100, 1, 1]),
            ([1_000, 0, 0], 0)
        );
    }

    #[test]
    fn who_chooses_a_scheduling_gets_it() {
        let mode = |scheduling, n_threads, may_attend| {
            Mode::new(Means {
                scheduling,
                n_threads,
                may_attend,
            })
        };
        for may_attend in [false, true] {
            let mut serial = mode(Scheduling::Serial, 4, may_attend);
            assert_eq!(serial.next_way().crew, Crew::Caller);
            assert!(!serial.is_for_threads());
            let mut shared = mode(Scheduling::Shared, 1, may_attend);
            assert_eq!(shared.next_way().crew, Crew::Shared);
            assert!(shared.is_for_threads());
            assert!(mode(Scheduling::Measured, 2, may_attend).is_for_threads());
            // One thread keeps the order of steps.
            let mut alone = mode(Scheduling::Measured, 1, may_attend);
            assert_eq!(alone.next_way().crew, Crew::Caller);
            assert_eq!(matches!(alone, Mode::Measuring(_)), may_attend);
            assert!(!alone.is_for_threads());
        }
    }

    #[test]
    fn a_verdict_changes_with_the_machine_and_holds_for_a_while_at_most() {
        let two = [Crew::Caller, Crew::Shared];
        let mut mode = trying(&two);
        go(&mut mode, 2 * N, [50, 0, 100]);
        let (slow, fast) = ([N_SETTLED_MIN, 0, 0], [0, 0, N_SETTLED_MIN]);
        assert_eq!(go(&mut mode, N_SETTLED_MIN, [100, 0, 50]), (slow, 0));
        go(&mut mode, 2 * N, [100, 0, 50]);
        assert_eq!(go(&mut mode, N_SETTLED_MIN, [100, 0, 50]), (fast, 0));
        let mut mode = Mode::Trying(Trials::new(0, Crews::from_slice(&two), N_SETTLED_MAX));
        go(&mut mode, 2 * N + N_SETTLED_MAX + 2 * N, [100, 0, 50]);
        assert_eq!(go(&mut mode, N_SETTLED_MAX + N, [100, 0, 50]).1, TRIALS);
    }

    #[test]
    fn one_lucky_run_wins_nothing_and_a_late_trial_changes_nothing() {
        let mut mode = trying(&ALL);
        let lucky = Trial {
            round: 0,
            crew: Crew::Shared,
            duration: Duration::from_micros(1),
            is_deserted: false,
        };
        mode.add_trial(lucky);
        go(&mut mode, 3 * N, [50, 100, 100]);
        let is_settled =
            |mode: &Mode| matches!(mode, Mode::Settled(verdict) if verdict.crew == Crew::Caller);
        assert!(is_settled(&mode), "{mode:?}");
        let before = format!("{mode:?}");
        mode.add_trial(lucky);
        assert_eq!(format!("{mode:?}"), before);
        // Nor in the next round, of which it is none.
        go(&mut mode, N_SETTLED_MIN + 1, [50, 100, 100]);
        let before = format!("{mode:?}");
        mode.add_trial(lucky);
        assert_eq!(format!("{mode:?}"), before);
        assert!(matches!(mode, Mode::Trying(_)));
    }

    #[test]
    fn trials_to_which_nobody_came_are_not_counted_unless_nobody_ever_comes() {
        let attended = |us, is_deserted| Trial {
            round: 0,
            crew: Crew::Attended,
            duration: Duration::from_micros(us),
            is_deserted,
        };
        for n_deserted in [N_DESERTED_MAX, 10 * N_DESERTED_MAX] {
            let mut mode = trying(&[Crew::Caller, Crew::Attended]);
            go(&mut mode, N, [100, 0, 0]);
            for _ in 0..n_deserted {
                assert_eq!(mode.next_way().crew, Crew::Attended);
                mode.add_trial(attended(100, true));
                if matches!(mode, Mode::Settled(_)) {
                    break;
                }
            }
            for _ in 0..TRIALS {
                mode.add_trial(attended(50, false));
            }
            let Mode::Settled(verdict) = mode else {
                panic!("it is settled: {mode:?}")
            };
            let is_hopeless = n_deserted > N_DESERTED_MAX;
            assert_eq!(verdict.crew == Crew::Caller, is_hopeless);
        }
    }
}
