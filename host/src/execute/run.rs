//! One run: counters, values, and the queue of steps that may start.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::error::ExecuteError;
use super::options::RunOptions;
use super::pool;
use super::prepare::PreparedPlan;
use super::step;
use crate::plan::{StepId, TransferId, ValueId};
use crate::tensor::Tensor;
use crate::trace::{Event, Recorder};

/// Everything about one run. Shared by the threads that work on it.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) prepared: Arc<PreparedPlan>,
    /// Number of the run in its executor.
    pub(super) number: u64,
    pub(super) recorder: Recorder,
    /// Empty once the run is over.
    feeds: Mutex<Vec<Tensor>>,
    options: RunOptions,
    deadline: Option<Instant>,
    /// Per step the edges that still lead to it.
    waits: Box<[AtomicU32]>,
    values: Box<[Mutex<Slot>]>,
    /// Per transfer what was sent and not yet received.
    in_transit: Box<[Mutex<Option<InTransit>>]>,
    fetched: Box<[Mutex<Option<Tensor>>]>,
    queue: Mutex<Queue>,
    /// Tells the caller that there is a step for it, or that all is over.
    progress: Condvar,
    helpers: Arc<pool::Shared>,
    /// Most helpers at one time.
    n_helpers_max: usize,
}

/// A tensor between its send and its receive.
#[derive(Debug)]
pub(super) struct InTransit {
    /// `None` for control.
    pub(super) tensor: Option<Tensor>,
    pub(super) sent_at: Option<Instant>,
}

/// A step that may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ready {
    priority: i32,
    pub(super) step: Reverse<StepId>,
    /// Since when; only while somebody records.
    pub(super) since: Option<Instant>,
}

#[derive(Debug, Default)]
struct Slot {
    tensor: Option<Tensor>,
    n_readers_left: u32,
}

#[derive(Debug, Default)]
struct Queue {
    ready: BinaryHeap<Ready>,
    n_executing: usize,
    /// Helpers asked for and not yet gone.
    n_helpers: usize,
    caller_waits: bool,
    n_steps_left: usize,
    failure: Option<ExecuteError>,
}

impl Run {
    pub(super) fn new(
        prepared: &Arc<PreparedPlan>,
        feeds: Vec<Tensor>,
        options: &RunOptions,
        recorder: &Recorder,
        number: u64,
        helpers: &Arc<pool::Shared>,
        n_helpers_max: usize,
    ) -> Self {
        let plan = &prepared.plan;
        let since = recorder.is_on().then(Instant::now);
        let ready = plan
            .step_ids()
            .map(StepId)
            .filter(|&id| plan.step(id).n_waits == 0)
            .map(|id| Ready {
                priority: plan.step(id).priority,
                step: Reverse(id),
                since,
            })
            .collect();
        Self {
            number,
            recorder: recorder.clone(),
            feeds: Mutex::new(feeds),
            options: options.clone(),
            deadline: options
                .timeout
                .and_then(|timeout| Instant::now().checked_add(timeout)),
            waits: plan
                .steps()
                .iter()
                .map(|step| AtomicU32::new(step.n_waits))
                .collect(),
            values: plan
                .values()
                .iter()
                .map(|value| {
                    Mutex::new(Slot {
                        tensor: None,
                        n_readers_left: value.n_readers,
                    })
                })
                .collect(),
            in_transit: plan.transfers().iter().map(|_| Mutex::default()).collect(),
            fetched: plan.fetches().iter().map(|_| Mutex::default()).collect(),
            queue: Mutex::new(Queue {
                ready,
                n_steps_left: plan.steps().len(),
                ..Queue::default()
            }),
            progress: Condvar::new(),
            helpers: Arc::clone(helpers),
            n_helpers_max,
            prepared: Arc::clone(prepared),
        }
    }

    /// Works until the run is over; called once, by the thread that wants the result.
    pub(super) fn drive(self: &Arc<Self>) -> Result<(), ExecuteError> {
        let outcome = self.work_until_over();
        // A helper may still be on its way out of the run; the caller's tensors need not wait for it.
        drop(std::mem::take(&mut *lock(&self.feeds)));
        if outcome.is_err() {
            self.drop_values();
        }
        outcome
    }

    fn work_until_over(self: &Arc<Self>) -> Result<(), ExecuteError> {
        loop {
            self.work(false);
            let mut queue = lock(&self.queue);
            while queue.ready.is_empty() && queue.n_executing > 0 {
                queue.caller_waits = true;
                queue = self
                    .progress
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            queue.caller_waits = false;
            if queue.ready.is_empty() {
                if let Some(failure) = queue.failure.take() {
                    return Err(failure);
                }
                assert_eq!(queue.n_steps_left, 0, "a plan has no cycle");
                return Ok(());
            }
        }
    }

    /// Works while steps are ready; called by helpers.
    pub(super) fn help(self: &Arc<Self>) {
        self.work(true);
    }

    fn work(self: &Arc<Self>, is_helper: bool) {
        let mut events: Vec<Event> = Vec::new();
        let mut released: Vec<Ready> = Vec::new();
        let mut queue = lock(&self.queue);
        while let Some(ready) = queue.ready.pop() {
            queue.n_executing += 1;
            self.ask_for_help(&mut queue);
            drop(queue);
            let outcome = self
                .check_interrupts()
                .and_then(|()| step::execute(self, ready, &mut events));
            if outcome.is_ok() {
                self.release(ready.step.0, &mut released);
            }
            queue = lock(&self.queue);
            queue.n_executing -= 1;
            queue.n_steps_left -= 1;
            if let Err(failure) = outcome {
                queue.failure.get_or_insert(failure);
            }
            if queue.failure.is_none() {
                queue.ready.extend(released.drain(..));
            } else {
                queue.ready.clear();
                released.clear();
            }
        }
        if is_helper {
            queue.n_helpers -= 1;
        }
        if queue.caller_waits && queue.n_executing == 0 {
            self.progress.notify_one();
        }
        // Recorded before the lock is free: when the caller sees the end of the run, it sees all its events.
        self.recorder.extend(events);
        drop(queue);
    }

    /// Wakes as many threads as there are steps beyond the one that this thread took.
    fn ask_for_help(self: &Arc<Self>, queue: &mut MutexGuard<'_, Queue>) {
        let mut n_steps = queue.ready.len();
        if n_steps > 0 && queue.caller_waits {
            queue.caller_waits = false;
            n_steps -= 1;
            self.progress.notify_one();
        }
        let n_asked = n_steps.min(self.n_helpers_max - queue.n_helpers);
        if n_asked > 0 {
            queue.n_helpers += n_asked;
            self.helpers.ask(self, n_asked);
        }
    }

    fn check_interrupts(&self) -> Result<(), ExecuteError> {
        if let Some(token) = &self.options.cancel
            && token.is_cancelled()
        {
            return Err(ExecuteError::Cancelled);
        }
        match (self.deadline, self.options.timeout) {
            (Some(deadline), Some(timeout)) if Instant::now() >= deadline => {
                Err(ExecuteError::TimedOut(timeout))
            }
            _ => Ok(()),
        }
    }

    /// Counts the edges from a step that has ended.
    fn release(&self, step: StepId, released: &mut Vec<Ready>) {
        let plan = &self.prepared.plan;
        let since = self.recorder.is_on().then(Instant::now);
        for &successor in plan.successors().row(step.index()) {
            let id = StepId(successor);
            // Release and acquire: who sees the count at zero sees everything that the counted steps wrote.
            if self.waits[id.index()].fetch_sub(1, Ordering::AcqRel) == 1 {
                released.push(Ready {
                    priority: plan.step(id).priority,
                    step: Reverse(id),
                    since,
                });
            }
        }
    }

    /// A read of a value: the tensor itself for the last reader, a share of it for others.
    pub(super) fn take(&self, value: ValueId) -> Tensor {
        let mut slot = lock(&self.values[value.index()]);
        slot.n_readers_left -= 1;
        let tensor = if slot.n_readers_left == 0 {
            slot.tensor.take()
        } else {
            slot.tensor.clone()
        };
        tensor.expect("a value is written before it is read")
    }

    /// The write of a value; dropped at once if nobody reads it.
    pub(super) fn put(&self, value: ValueId, tensor: Tensor) {
        let mut slot = lock(&self.values[value.index()]);
        if slot.n_readers_left > 0 {
            slot.tensor = Some(tensor);
        }
    }

    pub(super) fn send(&self, transfer: TransferId, sent: InTransit) {
        *lock(&self.in_transit[transfer.index()]) = Some(sent);
    }

    pub(super) fn receive(&self, transfer: TransferId) -> InTransit {
        lock(&self.in_transit[transfer.index()])
            .take()
            .expect("a receive waits for its send")
    }

    /// A tensor that the caller gave.
    pub(super) fn feed(&self, feed: u32) -> Tensor {
        lock(&self.feeds)[feed as usize].clone()
    }

    pub(super) fn set_fetched(&self, fetch: u32, tensor: Tensor) {
        *lock(&self.fetched[fetch as usize]) = Some(tensor);
    }

    /// What a fetch step handed out.
    pub(super) fn fetched(&self, fetch: usize) -> Tensor {
        lock(&self.fetched[fetch])
            .take()
            .expect("every fetch step has run")
    }

    /// After a failure, when steps that would have read them did not run.
    fn drop_values(&self) {
        for slot in &self.values {
            lock(slot).tensor = None;
        }
        for slot in &self.in_transit {
            *lock(slot) = None;
        }
        for slot in &self.fetched {
            *lock(slot) = None;
        }
    }
}

/// No code that may panic runs under these locks, so poisoning carries no news.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
