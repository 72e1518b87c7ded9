//! Models of the executor's lock-free parts, and of the queue of a SYCL device's commands. They
//! compile the host's own sources with the atomics and locks of a model checker, which runs each
//! model once per order of steps that the memory model allows.
//!
//! A model is a function that panics if an order violates its assertions; `tests/models.rs` calls
//! the models. Not modelled are the thread pools (queues and lists under a mutex, and one flag per
//! part of a loop), and the frame's cells, except for the countdown of their readers.

#![allow(dead_code, reason = "models use a part of what they include")]
#![expect(
    unsafe_code,
    reason = "the checker's cells are read and written through pointers; it panics where two threads do so at once"
)]

#[path = "../../../host/src/backend/opencl/command_counter.rs"]
mod command_counter;
#[path = "../../../host/src/execute/countdown.rs"]
mod countdown;
#[path = "../../../host/src/execute/gate.rs"]
mod gate;
#[path = "../../../host/src/backend/opencl/lane.rs"]
mod lane;
mod lanes;
#[path = "../../../host/src/device/intra_op/lease.rs"]
mod lease;
#[path = "../../../host/src/execute/ready.rs"]
mod ready;
mod sync;

use std::time::Duration;
use std::time::Instant;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::Relaxed;
use loom::sync::atomic::Ordering::SeqCst;
use loom::thread;

use crate::countdown::Countdown;
use crate::gate::Gate;
use crate::lease::Lease;
use crate::ready::ReadySet;

pub use crate::lanes::a_command_executed_at_once_overtakes_nothing;
pub use crate::lanes::a_command_that_is_waited_for_comes_after_earlier_ones;
pub use crate::lanes::devices_that_copy_from_each_other_end;
pub use crate::lanes::what_an_assistant_leaves_is_executed_by_the_thread;
pub use crate::lanes::what_an_assistant_leaves_is_executed_in_order;

/// Maximum number of preemptions in one execution. Two find nearly all bugs in practice, and each
/// further one multiplies the number of executions; with three, the models of this file take about
/// a second.
const N_PREEMPTIONS_MAX: usize = 3;

/// Runs a model in every order.
fn check(model: impl Fn() + Sync + Send + 'static) {
    check_up_to(N_PREEMPTIONS_MAX, model);
}

/// The same with another maximum number of preemptions.
fn check_up_to(n_preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(n_preemptions);
    builder.check(model);
}

/// A number in another integer of the bitmap than 1, so that the set has an upper bitmap.
const FAR: u32 = 70;
const BOUND: usize = 128;

/// Two threads insert and pop: each number is popped once, and none is lost.
pub fn every_number_is_taken_once() {
    check(|| {
        let set = Arc::new(ReadySet::new(BOUND));
        set.insert(1);
        let other = {
            let set = Arc::clone(&set);
            thread::spawn(move || {
                set.insert(FAR);
                set.pop()
            })
        };
        let mine = set.pop();
        let both = [mine, other.join().unwrap()];
        let mut taken: Vec<u32> = both.into_iter().flatten().collect();
        taken.extend(std::iter::from_fn(|| set.pop()));
        taken.sort_unstable();
        assert_eq!(taken, [1, FAR]);
        assert!(set.is_empty());
    });
}

/// One thread empties an integer of the bitmap while another one inserts a number into it: the
/// number is found.
pub fn an_integer_emptied_and_filled_concurrently_is_not_lost() {
    check(|| {
        let set = Arc::new(ReadySet::new(BOUND));
        set.insert(FAR);
        let other = {
            let set = Arc::clone(&set);
            thread::spawn(move || set.insert(FAR + 1))
        };
        assert!(set.pop().is_some_and(|number| number >= FAR));
        other.join().unwrap();
        assert!(!set.is_empty());
        assert!(set.pop().is_some_and(|number| number >= FAR));
        assert_eq!(set.pop(), None);
    });
}

/// The last of three threads to count down sees what the others wrote, and has exclusive access:
/// like readers of a value, or edges to an operation.
pub fn the_last_to_count_has_exclusive_access() {
    check(|| {
        let shared = Arc::new((Countdown::new(), UnsafeCell::new(0)));
        shared.0.set(3);
        let count = |shared: &(Countdown, UnsafeCell<u32>)| {
            shared.1.with(|value| {
                // SAFETY: the checker panics on a concurrent write.
                assert_eq!(unsafe { *value }, 0);
            });
            if shared.0.count() {
                // SAFETY: as above.
                shared.1.with_mut(|value| unsafe { *value = 1 });
                true
            } else {
                false
            }
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || count(&shared))
            })
            .collect();
        let mut n_last = usize::from(count(&shared));
        for other in others {
            n_last += usize::from(other.join().unwrap());
        }
        assert_eq!(n_last, 1);
    });
}

/// The owner of a value writes it, shares it with two threads, and closes the gate. Then nobody
/// uses it any more, and the owner sees all writes. A later borrower is rejected.
pub fn a_lent_value_is_returned() {
    check(|| {
        let shared = Arc::new((
            Lease::new(),
            UnsafeCell::new(0),
            [(); 2].map(|()| UnsafeCell::new(0)),
        ));
        // SAFETY: no other thread has it yet; the checker panics otherwise.
        shared.1.with_mut(|lent| unsafe { *lent = 1 });
        let helpers: Vec<_> = (0..2)
            .map(|helper| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (lease, lent, written) = &*shared;
                    if lease.enter() {
                        // SAFETY: the checker panics if the owner writes concurrently.
                        let lent = lent.with(|lent| unsafe { *lent });
                        assert_eq!(lent, 1, "borrowers see the owner's write");
                        // SAFETY: as above.
                        written[helper].with_mut(|written| unsafe { *written = lent });
                        lease.leave();
                    }
                })
            })
            .collect();
        shared.0.close();
        // SAFETY: as above.
        shared.1.with_mut(|lent| unsafe { *lent = 2 });
        // SAFETY: as above.
        let written = shared
            .2
            .each_ref()
            .map(|written| written.with(|written| unsafe { *written }));
        assert!(!shared.0.enter(), "the gate is closed");
        for helper in helpers {
            helper.join().unwrap();
        }
        for (before, written) in written.into_iter().zip(&shared.2) {
            // SAFETY: as above.
            let after = written.with(|written| unsafe { *written });
            assert_eq!(before, after, "the owner sees all writes");
        }
    });
}

/// A run of operations that wait for each other, like `Run` in the host: the code of
/// `execute/run.rs` between the included parts, without kernels, without deadlines that expire, and
/// without a pool.
struct ModelRun {
    gate: Gate,
    ready: ReadySet,
    /// Per operation, the number of edges into it, and the countdown of those that are left.
    waits: Vec<(usize, Countdown)>,
    successors: &'static [&'static [u32]],
    /// Per operation, the number of executions, and the value that they write.
    executed: Vec<(AtomicUsize, UnsafeCell<u32>)>,
    fails_at: Option<u32>,
}

impl ModelRun {
    fn new(successors: &'static [&'static [u32]], fails_at: Option<u32>) -> Arc<Self> {
        let n_waits = |rank: u32| {
            let edges = successors.iter().flat_map(|row| row.iter());
            edges.filter(|&&successor| successor == rank).count()
        };
        let ranks = 0..u32::try_from(successors.len()).unwrap();
        let run = Self {
            gate: Gate::new(successors.len()),
            ready: ReadySet::new(successors.len()),
            waits: ranks
                .map(|rank| (n_waits(rank), Countdown::new()))
                .collect(),
            executed: successors
                .iter()
                .map(|_| (AtomicUsize::new(0), UnsafeCell::new(0)))
                .collect(),
            successors,
            fails_at,
        };
        for (rank, (n_waits, waits)) in (0..).zip(&run.waits) {
            waits.set(u32::try_from(*n_waits).unwrap());
            if *n_waits == 0 {
                run.ready.insert(rank);
            }
        }
        Arc::new(run)
    }

    /// The loop of the calling thread.
    fn drive(&self) {
        loop {
            self.work();
            if self.gate.is_over() {
                break;
            }
            self.gate
                .sleep_until(|| self.gate.is_over() || !self.ready.is_empty());
        }
        self.gate.sleep_until(|| self.gate.is_idle());
    }

    /// The same if operations may be asynchronous: nobody executes anything while they are waited
    /// for, until the run is interrupted. The checker has no clock, so only a wake-up ends a sleep.
    fn drive_async(&self, is_interrupted: impl Fn() -> bool) {
        let deadline = Instant::now().checked_add(Duration::from_secs(1 << 20));
        assert!(deadline.is_some());
        loop {
            self.work();
            if self.gate.is_over() {
                break;
            }
            let is_news = || self.gate.is_over() || !self.ready.is_empty() || is_interrupted();
            self.gate.sleep_until_deadline(is_news, deadline);
            if is_interrupted() {
                self.gate.fail();
            }
        }
        self.gate.sleep_until(|| self.gate.is_idle());
    }

    /// Ends an asynchronous operation, on a thread that executes nothing else.
    fn end_async(&self, rank: u32) {
        self.gate.enter();
        if self.gate.has_failed() {
            self.gate.leave(0);
            return;
        }
        if self.execute(rank) {
            for &successor in self.successors[rank as usize] {
                let (n_waits, waits) = &self.waits[successor as usize];
                if *n_waits == 1 || waits.count() {
                    self.ready.insert(successor);
                }
            }
        } else {
            self.gate.fail();
        }
        self.gate.leave(1);
    }

    fn work(&self) {
        self.gate.enter();
        let (mut n_ended, mut next) = (0, None);
        while !self.gate.has_failed() {
            let Some(rank) = next.take().or_else(|| self.ready.pop()) else {
                break;
            };
            n_ended += 1;
            if self.execute(rank) {
                next = self.release(rank);
            } else {
                self.gate.fail();
            }
        }
        self.gate.leave(n_ended);
    }

    /// Writes its value, which no other thread may access, and reads those of the operations
    /// before.
    fn execute(&self, rank: u32) -> bool {
        let (n_executed, value) = &self.executed[rank as usize];
        assert_eq!(
            n_executed.fetch_add(1, Relaxed),
            0,
            "{rank} is executed twice"
        );
        // SAFETY: the checker panics on concurrent access.
        value.with_mut(|value| unsafe { *value = 1 });
        for (before, successors) in self.successors.iter().enumerate() {
            if successors.contains(&rank) {
                // SAFETY: as above.
                let read = self.executed[before].1.with(|value| unsafe { *value });
                assert_eq!(read, 1, "{rank} is executed before {before}");
            }
        }
        self.fails_at != Some(rank)
    }

    fn release(&self, rank: u32) -> Option<u32> {
        let (mut next, mut n_offered) = (None, 0);
        for &successor in self.successors[rank as usize] {
            // A single edge needs no counting, as in the host.
            let (n_waits, waits) = &self.waits[successor as usize];
            if *n_waits > 1 && !waits.count() {
                continue;
            }
            if next.is_none() {
                next = Some(successor);
            } else {
                self.ready.insert(successor);
                n_offered += 1;
            }
        }
        if n_offered > 0 {
            self.gate.wake_caller();
        }
        next
    }
}

/// Runs the caller and one helper. The helper works once, as if it had been woken at the start.
fn run(successors: &'static [&'static [u32]], fails_at: Option<u32>) {
    check(move || {
        let run = ModelRun::new(successors, fails_at);
        let helper = {
            let run = Arc::clone(&run);
            thread::spawn(move || run.work())
        };
        run.drive();
        assert!(run.gate.is_over());
        for (n_executed, value) in &run.executed {
            let n_executed = n_executed.load(Relaxed);
            assert!(
                fails_at.is_some() || n_executed == 1,
                "an operation is lost"
            );
            if run.gate.is_idle() {
                // SAFETY: the checker panics if a helper is still writing.
                let written = value.with(|value| unsafe { *value });
                assert_eq!(written as usize, n_executed);
            }
        }
        helper.join().unwrap();
    });
}

/// Operation 0, then 1 and 2 on any thread, then 3: the caller does not sleep forever, and sees all
/// writes when it returns.
pub fn a_run_ends_and_the_caller_sees_it() {
    run(&[&[1, 2], &[3], &[3], &[]], None);
}

/// Two operations that may start at the same time.
pub fn independent_operations_are_shared() {
    run(&[&[], &[]], None);
}

/// A failure ends the run, whichever thread is waiting.
pub fn a_run_that_fails_ends() {
    run(&[&[1, 2], &[3], &[3], &[]], Some(1));
}

/// A caller that waits for an asynchronous operation with a deadline is woken by its end, continues
/// with the operations that are then ready, and sees all writes when it returns, even if the
/// operation fails.
pub fn a_caller_with_a_deadline_sees_what_ends_later() {
    for fails_at in [None, Some(0)] {
        check(move || {
            let run = ModelRun::new(&[&[1], &[]], fails_at);
            // Already started: the caller has taken it.
            assert_eq!(run.ready.pop(), Some(0));
            let kernel = {
                let run = Arc::clone(&run);
                thread::spawn(move || run.end_async(0))
            };
            run.drive_async(|| false);
            assert!(run.gate.is_over() && run.gate.is_idle());
            let counts = [1, usize::from(fails_at.is_none())];
            for ((n_executed, value), expected) in run.executed.iter().zip(counts) {
                assert_eq!(n_executed.load(Relaxed), expected);
                // SAFETY: the checker panics if a thread is still writing.
                let written = value.with(|value| unsafe { *value });
                assert_eq!(written as usize, expected);
            }
            kernel.join().unwrap();
        });
    }
}

/// Two asynchronous operations are in flight and end on two threads. The operation that waits for
/// both is executed once, by the caller, whichever of them ends last.
pub fn a_successor_of_two_asynchronous_operations_is_executed_once() {
    check(|| {
        let run = ModelRun::new(&[&[2], &[2], &[]], None);
        // Both are already started: the caller waits for both.
        assert_eq!((run.ready.pop(), run.ready.pop()), (Some(0), Some(1)));
        let copies = [0, 1].map(|rank| {
            let run = Arc::clone(&run);
            thread::spawn(move || run.end_async(rank))
        });
        run.drive_async(|| false);
        assert!(run.gate.is_over() && run.gate.is_idle());
        for (n_executed, value) in &run.executed {
            assert_eq!(n_executed.load(Relaxed), 1);
            // SAFETY: the checker panics if a thread is still writing.
            assert_eq!(value.with(|value| unsafe { *value }), 1);
        }
        for copy in copies {
            copy.join().unwrap();
        }
    });
}

/// A caller that waits for an asynchronous operation is woken by an interrupt, whether the
/// operation ends meanwhile or not. Nothing starts after the caller has returned.
pub fn a_caller_with_a_deadline_sees_an_interrupt() {
    for ends in [false, true] {
        check(move || {
            let run = ModelRun::new(&[&[1], &[]], None);
            assert_eq!(run.ready.pop(), Some(0));
            let is_interrupted = Arc::new(AtomicBool::new(false));
            let interrupter = {
                let (run, is_interrupted) = (Arc::clone(&run), Arc::clone(&is_interrupted));
                thread::spawn(move || {
                    is_interrupted.store(true, SeqCst);
                    run.gate.wake_caller();
                })
            };
            let kernel = ends.then(|| {
                let run = Arc::clone(&run);
                thread::spawn(move || run.end_async(0))
            });
            run.drive_async(|| is_interrupted.load(SeqCst));
            let n_executed = |rank: usize| run.executed[rank].0.load(Relaxed);
            let is_complete = n_executed(1) == 1;
            assert!(is_complete || run.gate.has_failed());
            interrupter.join().unwrap();
            if let Some(kernel) = kernel {
                kernel.join().unwrap();
            } else {
                // After all other threads.
                run.end_async(0);
                assert_eq!(n_executed(0), 0);
            }
            assert_eq!(n_executed(1) == 1, is_complete);
        });
    }
}
