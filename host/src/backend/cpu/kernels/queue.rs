//! Queues of tuples of tensors, and staging areas (`queue_base.cc`, `stage_op.cc`).
//!
//! An operation on a queue is an attempt. Attempts to add elements follow each other, and so do
//! attempts to take some: the first one that cannot proceed lets the others of its kind wait. No
//! thread waits: the call that changes the queue ends the attempts that have become possible.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use crate::device::AsyncKernelContext;
use crate::device::Done;
use crate::device::KernelError;
use crate::device::OnCancel;
use crate::device::Resource;
use crate::kernels::philox::Singles;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Tensor;

/// One element of a queue: a tensor per component.
pub(super) type Tuple = Vec<Tensor>;

/// Which element a queue gives next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The oldest.
    Fifo,
    /// The oldest; elements of one batch are padded to one shape.
    Padding,
    /// One at random, as long as more than this many remain.
    Shuffled {
        /// Elements that remain while the queue is open.
        n_kept: usize,
    },
    /// That with the smallest number as its first component; the oldest of several.
    Priority,
    /// The oldest. The elements of a staging area have no declared types.
    Staged {
        /// Bytes of all elements; 0 means no limit.
        bytes_max: usize,
    },
}

impl Order {
    /// Returns TensorFlow's name of such a queue.
    fn name(self) -> &'static str {
        match self {
            Self::Fifo => "FIFOQueue",
            Self::Padding => "PaddingFIFOQueue",
            Self::Shuffled { .. } => "RandomShuffleQueue",
            Self::Priority => "PriorityQueue",
            Self::Staged { .. } => "StagingArea",
        }
    }
}

/// What a queue holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Declaration {
    pub(super) order: Order,
    pub(super) dtypes: Vec<DType>,
    /// Per component what its shape must match; empty if it may have any shape.
    pub(super) shapes: Vec<PartialShape>,
    pub(super) capacity: usize,
}

/// A queue.
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) declaration: Declaration,
    state: Mutex<State>,
}

struct State {
    elements: VecDeque<Tuple>,
    generator: Singles,
    is_closed: bool,
    /// Attempts to add elements, and to close the queue behind them.
    adding: VecDeque<Attempt>,
    taking: VecDeque<Attempt>,
    /// Attempts to read an element, each for itself.
    peeking: VecDeque<Attempt>,
    next_id: u64,
}

/// What an attempt wants.
pub(super) enum Action {
    /// Add these elements, as many at a time as there is room for.
    Add(VecDeque<Tuple>),
    /// Close the queue.
    Close,
    /// Take elements.
    Take(Take),
    /// Read the element at this position.
    Peek(usize),
}

/// Elements that are wanted, and those that were already taken.
pub(super) struct Take {
    pub(super) n_wanted: usize,
    /// Whether a closed queue may give fewer.
    pub(super) may_be_fewer: bool,
    pub(super) taken: Vec<Tuple>,
}

/// Sets the outputs of an execution from the elements that it gets.
pub(super) type Output = fn(&Queue, &mut AsyncKernelContext, &[Tuple]) -> Result<(), KernelError>;

struct Attempt {
    id: u64,
    action: Action,
    output: Output,
    context: AsyncKernelContext,
    done: Done,
    waiting: Option<OnCancel>,
}

/// An attempt that has ended.
struct Ended(Attempt, Result<Vec<Tuple>, KernelError>);

/// How far an attempt has come.
enum Progress {
    No,
    Some,
    Ended(Result<Vec<Tuple>, KernelError>),
}

impl Resource for Queue {
    fn describe(&self) -> String {
        let state = self.lock();
        let closed = if state.is_closed { ", closed" } else { "" };
        format!(
            "{} of {} elements{closed}",
            self.declaration.order.name(),
            state.elements.len()
        )
    }

    fn memory_bytes(&self) -> u64 {
        let state = self.lock();
        let tensors = state.elements.iter().flatten();
        tensors.map(|tensor| tensor.len_bytes() as u64).sum()
    }
}

impl Queue {
    pub(super) fn new(name: String, declaration: Declaration, generator: Singles) -> Self {
        let state = State {
            elements: VecDeque::new(),
            generator,
            is_closed: false,
            adding: VecDeque::new(),
            taking: VecDeque::new(),
            peeking: VecDeque::new(),
            next_id: 0,
        };
        Self {
            name,
            declaration,
            state: Mutex::new(state),
        }
    }

    /// Ignores poisoning: a panic leaves elements and attempts complete.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn n_elements(&self) -> usize {
        self.lock().elements.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Drops all elements.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        let dropped = std::mem::take(&mut state.elements);
        let ended = self.proceed(&mut state);
        drop(state);
        drop(dropped);
        self.finish(ended);
    }

    /// Closes the queue, and ends the attempts to add elements.
    pub(super) fn close_and_cancel(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let attempts = std::mem::take(&mut state.adding).into_iter();
        let cancelled = || {
            Err(KernelError::Closed(
                "enqueue operation was cancelled".into(),
            ))
        };
        let mut ended: Vec<Ended> = attempts
            .map(|attempt| Ended(attempt, cancelled()))
            .collect();
        ended.append(&mut self.proceed(&mut state));
        drop(state);
        self.finish(ended);
    }

    /// Starts an attempt. It ends at once, or when the queue changes, or when its run is cancelled.
    pub(super) fn start(
        self: &Arc<Self>,
        action: Action,
        output: Output,
        context: AsyncKernelContext,
        done: Done,
    ) {
        let token = context.cancel_token().clone();
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let attempt = Attempt {
            id,
            action,
            output,
            context,
            done,
            waiting: None,
        };
        state.attempts_like(&attempt.action).push_back(attempt);
        let ended = self.proceed(&mut state);
        let has_ended = ended.iter().any(|Ended(attempt, _)| attempt.id == id);
        drop(state);
        self.finish(ended);
        if has_ended {
            return;
        }
        // Not under the lock: a token that is already cancelled calls back at once.
        let queue = Arc::downgrade(self);
        let mut waiting = Some(token.on_cancel(move || {
            if let Some(queue) = queue.upgrade() {
                queue.cancel(id);
            }
        }));
        let mut state = self.lock();
        if let Some(attempt) = state.find(id) {
            attempt.waiting = waiting.take();
        }
        drop(state);
        drop(waiting);
    }

    /// Ends an attempt whose run is cancelled. The elements that it has taken return.
    fn cancel(&self, id: u64) {
        let mut state = self.lock();
        let Some(mut attempt) = state.remove(id) else {
            return;
        };
        if let Action::Take(take) = &mut attempt.action {
            self.give_back(&mut state, &mut take.taken);
        }
        // The next attempt may be possible.
        let mut ended = self.proceed(&mut state);
        ended.push(Ended(attempt, Err(KernelError::Cancelled)));
        drop(state);
        self.finish(ended);
    }

    /// Hands the results of attempts to their runs, which may use the queue again.
    fn finish(&self, ended: Vec<Ended>) {
        for Ended(attempt, result) in ended {
            let Attempt {
                output,
                mut context,
                done,
                waiting,
                ..
            } = attempt;
            drop(waiting);
            let result = result.and_then(|elements| output(self, &mut context, &elements));
            done.call(context, result);
        }
    }

    /// Advances attempts until none can proceed, and returns those that have ended.
    fn proceed(&self, state: &mut State) -> Vec<Ended> {
        let mut ended = Vec::new();
        loop {
            let n_ended = ended.len();
            let mut is_changed = self.advance(state, |state| &mut state.adding, &mut ended);
            is_changed |= self.advance(state, |state| &mut state.taking, &mut ended);
            self.peek(state, &mut ended);
            if !is_changed && ended.len() == n_ended {
                return ended;
            }
        }
    }

    /// Advances the attempts of one kind; returns whether anything has changed.
    fn advance(
        &self,
        state: &mut State,
        attempts: fn(&mut State) -> &mut VecDeque<Attempt>,
        ended: &mut Vec<Ended>,
    ) -> bool {
        let mut is_changed = false;
        while let Some(mut attempt) = attempts(state).pop_front() {
            let progress = self.attempt(state, &mut attempt.action);
            match progress {
                Progress::Ended(result) => {
                    ended.push(Ended(attempt, result));
                    is_changed = true;
                    continue;
                }
                Progress::Some => is_changed = true,
                Progress::No => {}
            }
            attempts(state).push_front(attempt);
            break;
        }
        is_changed
    }

    fn peek(&self, state: &mut State, ended: &mut Vec<Ended>) {
        for attempt in std::mem::take(&mut state.peeking) {
            let found = match attempt.action {
                Action::Peek(index) => state.elements.get(index).cloned(),
                _ => None,
            };
            match found {
                Some(element) => ended.push(Ended(attempt, Ok(vec![element]))),
                None => state.peeking.push_back(attempt),
            }
        }
    }

    fn attempt(&self, state: &mut State, action: &mut Action) -> Progress {
        match action {
            Action::Add(new) => self.add(state, new),
            Action::Close if state.is_closed => Progress::Ended(Err(KernelError::Closed(format!(
                "queue '{}' is already closed",
                self.name
            )))),
            Action::Close => {
                state.is_closed = true;
                Progress::Ended(Ok(Vec::new()))
            }
            Action::Take(take) => self.take(state, take),
            Action::Peek(_) => Progress::No,
        }
    }

    fn add(&self, state: &mut State, new: &mut VecDeque<Tuple>) -> Progress {
        // No elements can be added to any queue.
        if state.is_closed && !new.is_empty() {
            return Progress::Ended(Err(KernelError::Closed(format!(
                "{} '{}' is closed",
                self.declaration.order.name(),
                self.name
            ))));
        }
        let mut progress = Progress::No;
        while let Some(element) = new.front() {
            if state.elements.len() >= self.declaration.capacity || !self.has_bytes(state, element)
            {
                return progress;
            }
            state.elements.extend(new.pop_front());
            progress = Progress::Some;
        }
        Progress::Ended(Ok(Vec::new()))
    }

    /// Returns whether a staging area has room for an element.
    fn has_bytes(&self, state: &State, element: &Tuple) -> bool {
        let Order::Staged { bytes_max } = self.declaration.order else {
            return true;
        };
        let tensors = state.elements.iter().flatten().chain(element);
        let held: usize = tensors.map(Tensor::len_bytes).sum();
        bytes_max == 0 || held <= bytes_max
    }

    fn take(&self, state: &mut State, take: &mut Take) -> Progress {
        let n_missing = take.n_wanted - take.taken.len();
        if state.is_closed && state.elements.len() < n_missing {
            let n_left = state.elements.len();
            self.give_back(state, &mut take.taken);
            if take.may_be_fewer && !state.elements.is_empty() {
                take.n_wanted = state.elements.len();
            } else if take.may_be_fewer && !state.adding.is_empty() {
                // Attempts that were there before the end may still add elements.
                return Progress::No;
            } else {
                return Progress::Ended(Err(KernelError::OutOfRange(format!(
                    "{} '{}' is closed and has insufficient elements (requested {n_missing}, \
                     current size {n_left})",
                    self.declaration.order.name(),
                    self.name
                ))));
            }
        }
        let n_kept = match self.declaration.order {
            Order::Shuffled { n_kept } if !state.is_closed => n_kept,
            _ => 0,
        };
        let mut progress = Progress::No;
        while take.taken.len() < take.n_wanted {
            if state.elements.len() <= n_kept {
                return progress;
            }
            take.taken.extend(self.next(state));
            progress = Progress::Some;
        }
        Progress::Ended(Ok(std::mem::take(&mut take.taken)))
    }

    /// Removes the next element.
    fn next(&self, state: &mut State) -> Option<Tuple> {
        match self.declaration.order {
            Order::Fifo | Order::Padding | Order::Staged { .. } => state.elements.pop_front(),
            Order::Shuffled { .. } => {
                let number = state.generator.number() as usize;
                let index = number.checked_rem(state.elements.len())?;
                state.elements.swap_remove_back(index)
            }
            Order::Priority => {
                let priorities = state.elements.iter().map(|element| {
                    let priority = element.first().map(Tensor::as_slice::<i64>);
                    match priority {
                        Some(Ok(&[priority])) => priority,
                        _ => i64::MAX,
                    }
                });
                let first = priorities.enumerate().min_by_key(|&(_, priority)| priority);
                let (index, _) = first?;
                state.elements.remove(index)
            }
        }
    }

    /// Returns elements to the queue, in their order.
    fn give_back(&self, state: &mut State, taken: &mut Vec<Tuple>) {
        for element in taken.drain(..).rev() {
            match self.declaration.order {
                Order::Shuffled { .. } => state.elements.push_back(element),
                _ => state.elements.push_front(element),
            }
        }
    }
}

impl State {
    /// Returns the attempts of the kind of an action.
    fn attempts_like(&mut self, action: &Action) -> &mut VecDeque<Attempt> {
        match action {
            Action::Add(_) | Action::Close => &mut self.adding,
            Action::Take(_) => &mut self.taking,
            Action::Peek(_) => &mut self.peeking,
        }
    }

    fn lists(&mut self) -> [&mut VecDeque<Attempt>; 3] {
        [&mut self.adding, &mut self.taking, &mut self.peeking]
    }

    fn find(&mut self, id: u64) -> Option<&mut Attempt> {
        let mut attempts = self.lists().into_iter().flatten();
        attempts.find(|attempt| attempt.id == id)
    }

    fn remove(&mut self, id: u64) -> Option<Attempt> {
        self.lists().into_iter().find_map(|attempts| {
            let index = attempts.iter().position(|attempt| attempt.id == id)?;
            attempts.remove(index)
        })
    }
}
