//! The shape cache of a plan: what is compiled for each combination of fed shapes, with the state
//! of earlier runs that later runs reuse.

mod estimate;
mod tuning;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use self::estimate::modes_worth_trying;
pub use self::tuning::N_RUNS_TO_SETTLE;
pub(super) use self::tuning::{ExecutionMode, ModeChoice, RunConfig, Trial};
use self::tuning::{Measurements, N_MEASURED, Tuner};
use super::compile::Compiled;
use super::error::ExecuteError;
use super::memory::value_shapes;
use super::prepare::Program;
use super::run::RunState;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::trace::meters;

/// Maximum number of shape combinations that a plan stays compiled for.
const N_VARIANTS_MAX: usize = 16;

/// Maximum number of idle run states (with their arenas) per shape combination. There are never
/// more run states than concurrent runs.
const N_IDLE_MAX: usize = 16;

/// The time that reading the clock twice adds to a measurement.
const CLOCK_NS: u32 = 30;

/// The variants of a plan, the most recently used one first.
#[derive(Debug, Default)]
pub(super) struct Variants(Mutex<Vec<Arc<Variant>>>);

/// A plan compiled for feeds of certain shapes and for one run configuration.
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
    /// Per value the shape, as far as known.
    shapes: Vec<Option<Shape>>,
    has_learned_shapes: bool,
    idle: Vec<RunState>,
}

impl Variants {
    /// Returns the variant for the shapes of these feeds. Compiles it if it is new.
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

    /// Drops the idle run states with their arenas.
    pub(super) fn drop_idle(&self) {
        let variants: Vec<Arc<Variant>> = lock(&self.0).iter().map(Arc::clone).collect();
        for variant in variants {
            let idle = std::mem::take(&mut lock(&variant.state).idle);
            drop(idle); // Not under the lock.
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

    /// Returns a run state, and the execution mode. If there is no memory for the arenas of another
    /// one, it calls `free_idle_memory` and tries again; if that does not help, the run state has
    /// no arenas.
    pub(super) fn take_run_state(
        &self,
        program: &Arc<Program>,
        free_idle_memory: impl FnOnce(),
    ) -> Result<(RunState, ModeChoice), ExecuteError> {
        let mut state = lock(&self.state);
        let choice = state.tuner.next_choice();
        if let Some(run_state) = state.idle.pop() {
            return Ok((run_state, choice));
        }
        let compiled = Arc::clone(&state.compiled);
        let is_measured = matches!(state.tuner, Tuner::Measuring(..));
        drop(state);
        let new = || RunState::new(program, &compiled, is_measured);
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
        let run_state = match made {
            Err(out_of_memory @ ExecuteError::Arena { .. }) => {
                RunState::without_arenas(program, &compiled, is_measured, out_of_memory)?
            }
            made => made?,
        };
        Ok((run_state, choice))
    }

    /// Records what a successful run showed about shapes and durations.
    pub(super) fn learn(&self, run_state: &mut RunState, config: RunConfig, trial: Option<Trial>) {
        let is_partial = run_state.compiled.is_partial;
        if !is_partial && run_state.nanoseconds.is_empty() && trial.is_none() {
            return;
        }
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if !Arc::ptr_eq(&state.compiled, &run_state.compiled) {
            return; // Another run compiled again meanwhile.
        }
        let mut is_new = false;
        if is_partial && !state.has_learned_shapes {
            let observed = run_state.values_mut().take_observed();
            for (shape, observed) in state.shapes.iter_mut().zip(observed) {
                if shape.is_none() {
                    *shape = observed;
                }
            }
            state.has_learned_shapes = true;
            is_new = true;
        }
        if let Tuner::Measuring(Measurements { least, n_runs, .. }) = &mut state.tuner {
            least.resize(run_state.nanoseconds.len(), u32::MAX);
            for (least, measured) in least.iter_mut().zip(&run_state.nanoseconds) {
                let measured = measured.load(Ordering::Relaxed).saturating_sub(CLOCK_NS);
                *least = measured.min(*least);
            }
            *n_runs += 1;
            if *n_runs >= N_MEASURED {
                let costs = std::mem::take(least);
                state.tuner = Tuner::trying(modes_worth_trying(&state.compiled, &costs, config));
                state.compile(&run_state.program, costs);
                return;
            }
        }
        if let Some(trial) = trial {
            state.tuner.add_trial(trial);
            return;
        }
        if is_new {
            state.compile(&run_state.program, Vec::new());
        }
    }

    /// Records a trial that exceeded its time limit.
    pub(super) fn time_out(&self, trial: Trial) {
        lock(&self.state).tuner.add_trial(trial);
    }

    /// Keeps a run state for the next run.
    pub(super) fn give_back(&self, run_state: RunState) {
        let mut state = lock(&self.state);
        // A run state without arenas is dropped, because the next run may find memory for them.
        if run_state.has_arenas
            && Arc::ptr_eq(&state.compiled, &run_state.compiled)
            && state.idle.len() < N_IDLE_MAX
        {
            state.idle.push(run_state);
            return;
        }
        drop(state); // Tensors of apps must not be dropped under the lock.
    }
}

impl State {
    /// Compiles again with the new knowledge. `costs`: per rank the measured time, if measured.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
