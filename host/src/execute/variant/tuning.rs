//! Chooses the execution mode of a plan's runs by measurements: a small autotuner.

use std::time::Duration;

use smallvec::SmallVec;
use tracing::debug;

use crate::execute::options::Scheduling;
use crate::trace::targets;

/// Runs whose operations are timed before the modes to try are chosen. The first one finds cold
/// caches.
pub(super) const N_MEASURED: u32 = 3;

/// Timed runs of each mode, if several modes may be fastest.
const N_TRIALS: usize = 7;

/// Untimed runs of a mode before its timed ones: threads have to start and wake up, and the caches
/// hold data of the previous mode.
const N_UNTIMED: usize = 7;

/// Maximum number of trials that are ignored because no worker joined: on a busy machine, waking a
/// thread takes as long as many runs of a small plan.
const N_WITHOUT_WORKER_MAX: usize = 64;

/// Number of runs after which all modes are timed again, because the load of the machine changes.
/// It doubles each time, up to the maximum.
const N_SETTLED_MIN: u32 = 128;
const N_SETTLED_MAX: u32 = 8_192;

/// Number of runs of a plan, for one combination of fed shapes, after which the execution mode is
/// settled ([`Scheduling::Measured`]), provided that workers join when asked. Benchmarks measure
/// the runs after these.
pub const N_RUNS_TO_SETTLE: u32 = N_MEASURED + 3 * (N_UNTIMED + N_TRIALS) as u32;

/// How a run uses threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::execute) enum ExecutionMode {
    /// The caller's thread executes all operations. The intra-op pool is woken inside long kernels.
    Serial,
    /// The caller's thread executes all operations, while workers of the intra-op pool spin. They
    /// help inside shorter kernels, too.
    Spinning,
    /// Several threads execute operations.
    Shared,
}

pub(super) type ExecutionModes = SmallVec<[ExecutionMode; 3]>;

/// The run configuration: what a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::execute) struct RunConfig {
    pub(in crate::execute) scheduling: Scheduling,
    /// Maximum number of threads that execute operations.
    pub(in crate::execute) n_threads: usize,
    /// Whether devices have workers that may spin.
    pub(in crate::execute) may_spin: bool,
}

/// The execution mode of a run, and whether the run is timed.
#[derive(Debug, Clone, Copy)]
pub(in crate::execute) struct ModeChoice {
    pub(in crate::execute) mode: ExecutionMode,
    /// The round of trials that this run belongs to; `None` if the run is not timed.
    pub(in crate::execute) trial: Option<u32>,
}

/// The result of a run with [`ModeChoice::trial`].
#[derive(Debug, Clone, Copy)]
pub(in crate::execute) struct Trial {
    pub(in crate::execute) round: u32,
    pub(in crate::execute) mode: ExecutionMode,
    pub(in crate::execute) duration: Duration,
    /// Whether workers were asked to spin and no worker joined.
    pub(in crate::execute) no_worker_joined: bool,
}

/// The state of tuning one plan.
#[derive(Debug, Clone)]
pub(super) enum Tuner {
    Measuring(Measurements),
    /// All modes that may be fastest, one after the other.
    Trying(Box<Trials>),
    /// The mode that was fastest in the last trials.
    Settled(TuningResult),
    /// This mode, without measurements.
    Fixed(ExecutionMode),
}

/// Measured times of single operations, in runs with this mode.
#[derive(Debug, Clone)]
pub(super) struct Measurements {
    pub(super) mode: ExecutionMode,
    /// Per rank the minimum so far, in ns.
    pub(super) least: Vec<u32>,
    pub(super) n_runs: u32,
}

/// Measured times of whole runs, per mode.
#[derive(Debug, Clone)]
pub(super) struct Trials {
    /// Number of this round of trials: runs of earlier rounds may still execute.
    round: u32,
    tried: SmallVec<[Tried; 3]>,
    /// Number of runs that the result will be valid for.
    n_settled: u32,
}

/// The timed runs of one mode.
#[derive(Debug, Clone)]
struct Tried {
    mode: ExecutionMode,
    n_started: usize,
    n_without_worker: usize,
    durations: SmallVec<[Duration; N_TRIALS]>,
}

/// The result of a round of trials.
#[derive(Debug, Clone)]
pub(super) struct TuningResult {
    mode: ExecutionMode,
    round: u32,
    /// The modes that were tried and will be tried again.
    modes: ExecutionModes,
    /// Number of runs that the result remains valid for, and in total.
    n_left: u32,
    n_settled: u32,
}

impl ExecutionMode {
    /// Returns the weight of a duration, in twentieths. A mode costs the machine more than the time
    /// that the run takes, so it must be faster than serial mode by that much.
    fn weight(self) -> u32 {
        match self {
            Self::Serial => 20,
            // Workers that spin do so on cores that no run needs.
            Self::Shared | Self::Spinning => 21,
        }
    }
}

impl Tuner {
    pub(super) fn new(config: RunConfig) -> Self {
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

    /// Starts trials of these modes, if there are several.
    pub(super) fn trying(modes: ExecutionModes) -> Self {
        match modes[..] {
            [only] => Self::Fixed(only),
            _ => Self::Trying(Trials::new(0, modes, N_SETTLED_MIN)),
        }
    }

    /// Checks whether plans are compiled for overlapping operations. Also true if another mode is
    /// fastest at present, because shared mode will be tried again.
    pub(super) fn is_for_threads(&self) -> bool {
        match self {
            Self::Measuring(measurements) => measurements.mode == ExecutionMode::Shared,
            Self::Trying(trials) => trials.modes().contains(&ExecutionMode::Shared),
            Self::Settled(result) => result.modes.contains(&ExecutionMode::Shared),
            Self::Fixed(mode) => *mode == ExecutionMode::Shared,
        }
    }

    /// Returns the mode of the next run.
    pub(super) fn next_choice(&mut self) -> ModeChoice {
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

    /// Adds the result of a trial. A late one, of an earlier round, is ignored.
    pub(super) fn add_trial(&mut self, trial: Trial) {
        if let Self::Trying(trials) = self
            && trials.round == trial.round
        {
            trials.add(trial);
            if let Some(mode) = trials.fastest() {
                debug!(target: targets::EXECUTE, ?mode, ?trials, "an execution mode was chosen for a plan");
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

    /// Returns the mode of the next trial. All runs of one mode are started one after the other, as
    /// they will be once it is chosen, so that caches and spinning workers are in the state of that
    /// mode.
    pub(super) fn next_choice(&mut self) -> ModeChoice {
        let mut tried = self.tried.iter_mut();
        match tried.find(|tried| tried.durations.len() < N_TRIALS) {
            Some(tried) => {
                tried.n_started += 1;
                ModeChoice {
                    mode: tried.mode,
                    trial: (tried.n_started > N_UNTIMED).then_some(self.round),
                }
            }
            // The remaining trials still execute.
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

    /// Returns the fastest mode, once all have been tried often enough.
    fn fastest(&mut self) -> Option<ExecutionMode> {
        if self
            .tried
            .iter()
            .any(|tried| tried.durations.len() < N_TRIALS)
        {
            return None;
        }
        let weighed = self.tried.iter_mut().map(|tried| {
            // Medians, because the shortest run of several threads is an outlier.
            let middle = tried.durations.len() / 2;
            let median = *tried.durations.select_nth_unstable(middle).1;
            (median * tried.mode.weight(), tried.mode)
        });
        weighed
            .min_by_key(|&(weighed, _)| weighed)
            .map(|(_, mode)| mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trials of a mode, and all its runs meanwhile.
    const TRIALS: u32 = N_TRIALS as u32;
    const N: u32 = N_UNTIMED as u32 + TRIALS;

    /// Returns how long a run takes, in us.
    fn took(mode: ExecutionMode, [serial, spinning, shared]: [u64; 3]) -> Duration {
        Duration::from_micros(match mode {
            ExecutionMode::Serial => serial,
            ExecutionMode::Spinning => spinning,
            ExecutionMode::Shared => shared,
        })
    }

    /// Lets a plan whose runs take so long execute `n_runs` runs. Returns how many runs each mode
    /// had, and how many were trials.
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
    fn the_fastest_mode_is_chosen_and_all_are_tried_again_ever_more_rarely() {
        for (us, winner) in [
            ([100, 90, 50], ExecutionMode::Shared),
            ([100, 50, 90], ExecutionMode::Spinning),
            ([50, 100, 90], ExecutionMode::Serial),
            // Not by enough.
            ([100, 96, 97], ExecutionMode::Serial),
            ([100, 92, 94], ExecutionMode::Spinning),
            ([100, 72, 70], ExecutionMode::Shared),
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
    fn an_explicit_scheduling_is_used() {
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
    fn a_result_changes_with_the_machine_and_is_valid_for_a_while_at_most() {
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
        // Nor in the next round, which it does not belong to.
        go(&mut tuner, N_SETTLED_MIN + 1, [50, 100, 100]);
        let before = format!("{tuner:?}");
        tuner.add_trial(lucky);
        assert_eq!(format!("{tuner:?}"), before);
        assert!(matches!(tuner, Tuner::Trying(_)));
    }

    #[test]
    fn trials_that_no_worker_joined_are_not_counted_unless_none_ever_joins() {
        let spinning = |us, no_worker_joined| Trial {
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
                tuner.add_trial(spinning(100, true));
                if matches!(tuner, Tuner::Settled(_)) {
                    break;
                }
            }
            for _ in 0..TRIALS {
                tuner.add_trial(spinning(50, false));
            }
            let Tuner::Settled(result) = tuner else {
                panic!("not settled: {tuner:?}")
            };
            let is_hopeless = n_without_worker > N_WITHOUT_WORKER_MAX;
            assert_eq!(result.mode == ExecutionMode::Serial, is_hopeless);
        }
    }
}
