//! One run: which thread executes which operation when.

mod later;

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::Weak;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Instant;

use self::later::Started;
use super::compile::Compiled;
use super::countdown::Countdown;
use super::error::ExecuteError;
use super::flow;
use super::flow::{Begun, FlowState};
use super::gate::Gate;
use super::listeners::Listeners;
use super::load::Load;
use super::offered::Offered;
use super::offered::WORTH_WAKING_NS;
use super::options::RunOptions;
use super::pool;
use super::prepare::Program;
use super::ready::ReadySet;
use super::step;
use super::sync::spin_until;
use super::values::RunValues;
use crate::device::CancelToken;
use crate::device::DeviceError;
use crate::device::DeviceRun;
use crate::device::Help;
use crate::device::Interrupt;
use crate::device::Interrupts;
use crate::device::IntraOpPool;
use crate::device::OnCancel;
use crate::device::RunNumber;
use crate::device::panic_message;
use crate::names::DeviceId;
use crate::tensor::Tensor;
use crate::trace::EventKind;
use crate::trace::Recorder;

/// The reusable state of one run: values and counters. Only one run uses it at a time.
#[derive(Debug)]
pub(super) struct RunState {
    pub(super) program: Arc<Program>,
    pub(super) compiled: Arc<Compiled>,
    values: RunValues,
    /// Per operation the number of remaining incoming edges.
    waits: Box<[Countdown]>,
    /// Ready operations that the thread which takes them computes.
    ready: ReadySet,
    /// Ready operations that the thread which takes them only submits to their device.
    submittable: ReadySet,
    /// Per device the resources of the run; `None` for devices that take no part in it.
    steps: Box<[Option<Arc<DeviceRun>>]>,
    /// Per operation its duration in ns; empty if durations are not measured.
    pub(super) nanoseconds: Box<[AtomicU32]>,
    /// Whether tensors have places in arenas.
    pub(super) has_arenas: bool,
    /// Why there are no arenas, if so.
    pub(super) out_of_memory: Option<ExecuteError>,
    /// The state of branches and loops.
    pub(super) flow: FlowState,
}

/// The parameters of one run.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) feeds: Vec<Tensor>,
    pub(super) options: RunOptions,
    pub(super) listeners: Listeners,
    /// The busy threads of the executor's runs.
    pub(super) load: Arc<Load>,
    /// Whether workers of the devices' intra-op pools spin.
    pub(super) has_spinning_workers: bool,
    /// What may end the run early.
    pub(super) interrupts: Interrupts,
    /// Cancelled when the run no longer waits for its asynchronous kernels.
    pub(super) async_cancel: CancelToken,
}

/// A run in progress.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) state: RunState,
    pub(super) request: Request,
    gate: Gate,
    failure: Mutex<Option<ExecuteError>>,
    /// For asynchronous operations, which may end after the run.
    own: Weak<Self>,
    /// The helper pool, for asynchronous operations: their end may make steps ready for helpers.
    helpers: Option<Arc<pool::Shared>>,
}

impl RunState {
    pub(super) fn new(
        program: &Arc<Program>,
        compiled: &Arc<Compiled>,
        is_timed: bool,
    ) -> Result<Self, ExecuteError> {
        Self::with(program, compiled, is_timed, None)
    }

    /// Creates a run state without arenas, because of `out_of_memory`: each tensor is allocated
    /// when it is produced.
    pub(super) fn without_arenas(
        program: &Arc<Program>,
        compiled: &Arc<Compiled>,
        is_timed: bool,
        out_of_memory: ExecuteError,
    ) -> Result<Self, ExecuteError> {
        Self::with(program, compiled, is_timed, Some(out_of_memory))
    }

    fn with(
        program: &Arc<Program>,
        compiled: &Arc<Compiled>,
        is_timed: bool,
        out_of_memory: Option<ExecuteError>,
    ) -> Result<Self, ExecuteError> {
        let plan = &program.plan;
        let n_operations = compiled.operations.len();
        let n_timed = if is_timed { n_operations } else { 0 };
        let mut steps = vec![None; program.devices.len()];
        for partition in plan.partitions() {
            steps[partition.device.index()] = Some(Arc::default());
        }
        Ok(Self {
            has_arenas: out_of_memory.is_none(),
            steps: steps.into(),
            values: RunValues::new(
                compiled,
                plan.transfers().len(),
                plan.fetches().len(),
                &program.devices,
                out_of_memory.is_none(),
            )?,
            out_of_memory,
            flow: FlowState::new(program),
            waits: compiled.n_waits.iter().map(|_| Countdown::new()).collect(),
            ready: ReadySet::new(n_operations),
            submittable: ReadySet::new(n_operations),
            nanoseconds: (0..n_timed).map(|_| AtomicU32::new(u32::MAX)).collect(),
            program: Arc::clone(program),
            compiled: Arc::clone(compiled),
        })
    }

    /// Begins the run with this number.
    pub(super) fn begin(&mut self, run: RunNumber) {
        for partition in self.program.plan.partitions() {
            if let Some(step) = &self.steps[partition.device.index()] {
                step.begin(run);
            }
        }
    }

    /// Waits for devices whose work may continue after their kernels have returned.
    pub(super) fn sync(&self, recorder: &Recorder) -> Result<(), ExecuteError> {
        for partition in self.program.plan.partitions() {
            let device = self.program.devices.get(partition.device);
            let Some(device) = device.filter(|_| self.program.is_deferred(partition.device)) else {
                continue;
            };
            let started = Instant::now();
            let run = self.device_run(partition.device).map(|run| run.number());
            let synced = catch_unwind(AssertUnwindSafe(|| match run {
                Some(run) => device.sync_run(run),
                None => device.sync(),
            }));
            let name = || device.attributes().name.clone();
            let synced = synced.unwrap_or_else(|panic| {
                Err(DeviceError::Failed {
                    device: name(),
                    message: format!("it panicked: {}", panic_message(&*panic)),
                })
            });
            synced.map_err(|source| ExecuteError::Device {
                device: name(),
                doing: "finishing the work of a run",
                source: Box::new(source),
            })?;
            if recorder.is_on() {
                let kind = EventKind::Device {
                    device: partition.device,
                    call: "sync",
                    node: None,
                    detail: "the work of the run".into(),
                };
                recorder.record_since(started, kind);
            }
        }
        Ok(())
    }

    /// Ends a run and returns its resources to the devices.
    pub(super) fn finish(&mut self, recorder: &Recorder) -> Result<(), ExecuteError> {
        let mut outcome = Ok(());
        for partition in self.program.plan.partitions() {
            let slot = &mut self.steps[partition.device.index()];
            let (Some(shared), Some(device)) = (slot, self.program.devices.get(partition.device))
            else {
                continue;
            };
            if Arc::get_mut(shared).is_none() {
                // An asynchronous kernel that is no longer waited for still holds it; its memory is
                // freed with it.
                let handed_on = Arc::new(shared.handed_on());
                let held = std::mem::replace(shared, handed_on);
                // The kernel may have released it meanwhile and left the rest to this thread.
                if let Some(held) = Arc::into_inner(held) {
                    *shared = Arc::new(held);
                }
            }
            let started = Instant::now();
            let used = shared.describe_use().filter(|_| recorder.is_on());
            let Some(step) = Arc::get_mut(shared) else {
                continue;
            };
            // Memory and resources may belong to an app and panic when they are dropped.
            let finished = catch_unwind(AssertUnwindSafe(|| step.finish(&**device)));
            for (call, detail) in used {
                let kind = EventKind::Device {
                    device: partition.device,
                    call,
                    node: None,
                    detail: detail.into(),
                };
                recorder.record_since(started, kind);
            }
            let message = match finished {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(panic) => format!("a resource panicked: {}", panic_message(&*panic)),
            };
            outcome = Err(ExecuteError::StepResources {
                device: device.attributes().name.clone(),
                message,
            });
        }
        outcome
    }

    /// Returns the resources of the run on a device.
    #[inline]
    pub(super) fn device_run(&self, device: DeviceId) -> Option<&Arc<DeviceRun>> {
        self.steps.get(device.index())?.as_ref()
    }

    pub(super) fn values(&self) -> &RunValues {
        &self.values
    }

    pub(super) fn values_mut(&mut self) -> &mut RunValues {
        &mut self.values
    }

    /// Resets the run state after a failed run.
    pub(super) fn clear(&mut self) {
        let compiled = Arc::clone(&self.compiled);
        self.values.drop_leftovers(&compiled);
        self.ready.clear();
        self.submittable.clear();
    }

    /// Adds an operation that has become ready.
    fn add_ready(&self, rank: u32) {
        match self.compiled.submitted_to(rank) {
            0 => self.ready.insert(rank),
            _ => self.submittable.insert(rank),
        }
    }

    /// Takes the ready operation that a thread executes next. It submits before it computes: other
    /// devices do not wait for its kernels. Both in the order of ranks, so one branch does not wait
    /// for all of another.
    fn take_ready(&self) -> Option<u32> {
        self.submittable.pop().or_else(|| self.ready.pop())
    }

    fn has_ready(&self) -> bool {
        !self.submittable.is_empty() || !self.ready.is_empty()
    }
}

impl Request {
    /// Returns which threads may help inside the next kernel: none if they would compete with other
    /// kernels.
    #[inline]
    pub(super) fn help(&self) -> Help {
        match (self.load.has_free_core(), self.has_spinning_workers) {
            (false, _) => Help::None,
            (true, false) => Help::Pool,
            (true, true) => Help::Spinning,
        }
    }

    /// Asks workers of the program's devices to spin, as far as cores are idle.
    fn start_spinning(&self, program: &Program) {
        if !self.load.has_free_core() {
            return;
        }
        for pool in pools(program) {
            pool.start_spinning(|| {
                let load = Arc::clone(&self.load);
                move |n_spinning| load.has_core_for(n_spinning)
            });
        }
    }

    #[inline]
    pub(super) fn check_interrupts(&self) -> Result<(), ExecuteError> {
        match self.interrupts.due() {
            None => Ok(()),
            Some(Interrupt::Cancelled) => Err(ExecuteError::Cancelled),
            Some(Interrupt::Closed) => Err(ExecuteError::Closed),
            Some(Interrupt::TimedOut) => Err(ExecuteError::TimedOut(
                self.options.timeout.unwrap_or_default(),
            )),
        }
    }
}

/// Returns the intra-op pools of a program's devices; a pool that several devices share is returned
/// several times.
pub(super) fn pools(program: &Program) -> impl Iterator<Item = &IntraOpPool> {
    program.plan.partitions().iter().filter_map(|partition| {
        let device = program.devices.get(partition.device)?;
        device.as_kernel_device()?.intra_op_pool()
    })
}

/// Executes all operations on this thread, in the order of their ranks.
pub(super) fn run_serially(state: &RunState, request: &Request) -> Result<(), ExecuteError> {
    let _busy = request.load.enter();
    if request.has_spinning_workers {
        request.start_spinning(&state.program);
    }
    let n_operations = state.compiled.operations.len();
    let mut events = request.listeners.event_buffer(n_operations);
    let mut outcome = Ok(());
    if let Some(flow) = &state.compiled.flow {
        outcome = flow::run(state, request, flow, &mut events);
    } else {
        for rank in 0..to_u32(n_operations) {
            outcome = request
                .check_interrupts()
                .and_then(|()| step::execute(state, request, rank, &mut events));
            if outcome.is_err() {
                break;
            }
        }
    }
    request.listeners.hand_on(events);
    // A run that has failed may leave submitted work, which holds memory.
    outcome.and(state.program.flush())
}

/// Executes all operations on this thread and on the helpers that join. Returns the run state when
/// no thread uses it any more.
pub(super) fn run_with_helpers(
    state: RunState,
    request: Request,
    helpers: &Arc<pool::Shared>,
) -> (RunState, Result<(), ExecuteError>) {
    let run = Arc::new_cyclic(|own| Run {
        gate: Gate::new(state.compiled.operations.len()),
        failure: Mutex::default(),
        own: Weak::clone(own),
        helpers: state.program.is_async.then(|| Arc::clone(helpers)),
        state,
        request,
    });
    run.start();
    let waits = run.wake_on_interrupts();
    let mut ready = Offered::default();
    for (rank, &n_waits) in (0..).zip(&run.state.compiled.n_waits) {
        if n_waits == 0 {
            ready.add(&run.state.compiled, rank);
        }
    }
    let n_others = ready.n_threads().saturating_sub(1);
    run.ask(helpers, helpers.n_threads().min(n_others));
    run.drive(helpers);
    drop(waits);
    // A helper that joins now finds that the run is over and leaves. When it has left, the caller's
    // tensors are released.
    let mut run = run;
    let run = loop {
        match Arc::try_unwrap(run) {
            Ok(run) => break run,
            Err(shared) => run = shared,
        }
        thread::yield_now();
    };
    let failure = run
        .failure
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    (run.state, failure.map_or(Ok(()), Err))
}

impl Run {
    /// Initializes the counters and the set of ready operations.
    fn start(&self) {
        let compiled = &self.state.compiled;
        if self.is_in_order() {
            if !compiled.operations.is_empty() {
                self.state.add_ready(0);
            }
            return;
        }
        for (rank, (waits, &n_waits)) in (0..).zip(self.state.waits.iter().zip(&compiled.n_waits)) {
            waits.set(n_waits);
            if n_waits == 0 {
                self.state.add_ready(rank);
            }
        }
    }

    /// Checks whether each operation starts only when all operations of lower rank have ended.
    /// Without arenas memory is short, and the memory plan holds for this order alone: operations
    /// that overtake an asynchronous one would hold more. Ranks are a topological order, so the
    /// next operation is always ready.
    fn is_in_order(&self) -> bool {
        !self.state.has_arenas
    }

    /// Returns the operation that follows this one in the order of ranks.
    fn successor_in_order(&self, rank: u32) -> Option<u32> {
        let next = rank + 1;
        ((next as usize) < self.state.compiled.operations.len()).then_some(next)
    }

    /// Checks whether an operation is ready or the run is over.
    fn is_news(&self) -> bool {
        self.gate.is_over() || self.state.has_ready()
    }

    /// Asks helpers to join. A run in the order of ranks has nothing for them to do.
    fn ask(self: &Arc<Self>, helpers: &pool::Shared, n_helpers: usize) {
        if !self.is_in_order() {
            helpers.ask(self, n_helpers);
        }
    }

    /// The caller's part: executes ready operations, and sleeps while others execute and none is
    /// ready.
    fn drive(self: &Arc<Self>, helpers: &pool::Shared) {
        loop {
            self.work(helpers, self.state.program.is_async);
            if self.gate.is_over() {
                break;
            }
            if !self.state.program.is_async {
                self.gate.sleep_until(|| self.is_news());
                continue;
            }
            // While the run waits for asynchronous operations, no thread executes steps and checks
            // the deadline.
            let is_news = || self.is_news() || self.is_interrupted();
            if let Err(failure) = self.state.program.assist(&is_news) {
                self.fail(failure);
            }
            let deadline = self.request.interrupts.deadline();
            self.gate.sleep_until_deadline(is_news, deadline);
            if let Err(interrupt) = self.request.check_interrupts() {
                self.fail(interrupt);
            }
        }
        // A run that has failed may leave submitted work, which holds memory.
        if let Err(failure) = self.state.program.flush() {
            self.fail(failure);
        }
        self.gate.sleep_until(|| self.gate.is_idle());
        if self.state.program.is_async && self.gate.has_failed() {
            // No lock is held here: kernels that are cancelled may take the locks that they hold
            // while they end.
            self.request.async_cancel.cancel();
        }
    }

    /// Wakes the caller when the run is cancelled, because it may sleep although no thread executes
    /// steps.
    fn wake_on_interrupts(&self) -> Vec<OnCancel> {
        if !self.state.program.is_async {
            return Vec::new();
        }
        let tokens = self.request.interrupts.tokens();
        let wake = || {
            let run = Weak::clone(&self.own);
            move || {
                if let Some(run) = run.upgrade() {
                    run.gate.wake_caller();
                }
            }
        };
        tokens.map(|token| token.on_cancel(wake())).collect()
    }

    fn is_interrupted(&self) -> bool {
        self.request.interrupts.of_tokens().is_some()
    }

    fn fail(&self, failure: ExecuteError) {
        // An interrupted kernel may have stopped early, and its error is about what it left out.
        let failure = self.request.check_interrupts().err().unwrap_or(failure);
        // No code that may panic runs under the lock, so poisoning has no meaning.
        let failed = self.failure.lock();
        failed
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(failure);
        self.gate.fail();
    }

    /// Counts an edge to an operation and returns whether it was the last one.
    #[inline]
    fn counts_to_ready(&self, successor: u32) -> bool {
        self.state.compiled.n_waits[successor as usize] == 1
            || self.state.waits[successor as usize].count()
    }

    /// Executes operations on a helper thread until none is ready.
    pub(super) fn help(self: &Arc<Self>, helpers: &pool::Shared) {
        loop {
            self.work(helpers, false);
            if !spin_until(|| self.is_news()) || self.gate.is_over() {
                return;
            }
        }
    }

    /// Executes ready operations until none is left.
    /// `assists`: the thread then does what it has submitted; nobody else must be woken for it.
    fn work(self: &Arc<Self>, helpers: &pool::Shared, assists: bool) {
        self.gate.enter();
        let _busy = self.request.load.enter();
        let _subscriber = self.request.listeners.enter();
        let mut events = Vec::new();
        let mut n_ended = 0;
        let mut next = None;
        while !self.gate.has_failed() {
            let Some(rank) = next.take().or_else(|| self.state.take_ready()) else {
                break;
            };
            let interrupted = self.request.check_interrupts();
            if let Some(flow) = &self.state.compiled.flow
                && flow.concerns(rank)
                && interrupted.is_ok()
            {
                match flow::begin(&self.state, &self.request, rank, &mut events) {
                    Ok(Begun::Live) => {}
                    Ok(Begun::Ended(last)) => {
                        n_ended += (last - rank) as usize + 1;
                        next = self.release(last, helpers);
                        continue;
                    }
                    Err(failure) => {
                        self.fail(failure);
                        continue;
                    }
                }
            }
            if self.state.program.is_async
                && interrupted.is_ok()
                && let Some(started) = self.start_later(rank, &mut events)
            {
                match started {
                    // It counts as ended when it has ended.
                    Ok(Started::Later) => {}
                    Ok(Started::Ended) => {
                        n_ended += 1;
                        next = self.release(rank, helpers);
                    }
                    Err(failure) => self.fail(failure),
                }
                continue;
            }
            let outcome = interrupted
                .and_then(|()| step::execute(&self.state, &self.request, rank, &mut events));
            n_ended += 1;
            match outcome {
                Ok(()) => next = self.release(rank, helpers),
                Err(failure) => self.fail(failure),
            }
        }
        if !assists && let Err(failure) = self.state.program.flush() {
            self.fail(failure);
        }
        // Recorded before the thread leaves: when the caller sees the end of the run, it sees all
        // its events.
        self.request.listeners.hand_on(events);
        self.gate.leave(n_ended);
    }

    /// Counts the outgoing edges of an operation that has ended. This thread continues with the
    /// first operation that became ready, in the order of ranks, unless it has something to submit
    /// before; the others are offered to all threads. A run in the order of ranks counts no edges.
    fn release(self: &Arc<Self>, rank: u32, helpers: &pool::Shared) -> Option<u32> {
        if self.is_in_order() {
            return self.successor_in_order(rank);
        }
        let compiled = &self.state.compiled;
        let mut next: Option<u32> = None;
        let mut offered = Offered::default();
        for &successor in compiled.successors.row(rank as usize) {
            if !self.counts_to_ready(successor) {
                continue;
            }
            let other = match next {
                None => {
                    next = Some(successor);
                    continue;
                }
                Some(first) if successor < first => {
                    next = Some(successor);
                    first
                }
                Some(_) => successor,
            };
            self.state.add_ready(other);
            offered.add(compiled, other);
        }
        // As in `RunState::take_ready`, whatever made the others ready.
        let submittable = self.state.submittable.first();
        let mut next_to = next.map_or(0, |next| compiled.submitted_to(next));
        if let (Some(first), Some(submittable)) = (next, submittable)
            && (next_to == 0 || submittable < first)
        {
            self.state.add_ready(first);
            if next_to == 0 {
                offered.add(compiled, first);
            }
            next_to = compiled.submitted_to(submittable);
            next = None;
        }
        let (mut n_offered, offered_ns) = offered.for_others(next_to);
        if n_offered > 0 {
            if self.gate.wake_caller() {
                n_offered -= 1;
            }
            let n_inside = self.gate.n_inside();
            let n_helpers_max = helpers.n_threads();
            if n_offered > 0 && n_inside <= n_helpers_max && offered_ns >= WORTH_WAKING_NS {
                self.ask(helpers, n_offered.min(n_helpers_max + 1 - n_inside));
            }
        }
        next
    }
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("ranks are 32 bits wide")
}
