//! Kernels that end later.

use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Bench;
use super::threads;
use crate::device::AsyncKernel;
use crate::device::AsyncKernelContext;
use crate::device::CancelToken;
use crate::device::Device;
use crate::device::Done;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelError;
use crate::device::Resource;
use crate::execute::ExecuteError;
use crate::execute::RunOptions;
use crate::execute::fake::FakeWorld;
use crate::execute::fake::Sketch;
use crate::trace::EventKind;
use crate::trace::Recorder;

type Start = dyn Fn(AsyncKernelContext, Done) + Send + Sync;

struct Later(Arc<Start>);

impl Kernel for Later {
    fn compute(&self, _: &mut KernelContext<'_>) -> Result<(), KernelError> {
        Err(KernelError::invalid("called as if it were none"))
    }

    fn as_async(&self) -> Option<&dyn AsyncKernel> {
        Some(self)
    }
}

impl AsyncKernel for Later {
    fn compute_async(&self, context: AsyncKernelContext, done: Done) {
        (self.0)(context, done);
    }
}

fn world(start: impl Fn(AsyncKernelContext, Done) + Send + Sync + 'static) -> FakeWorld {
    let mut world = FakeWorld::new(&["CPU"]);
    add(&mut world, "Later", start);
    world
}

fn add(
    world: &mut FakeWorld,
    op: &str,
    start: impl Fn(AsyncKernelContext, Done) + Send + Sync + 'static,
) {
    let start: Arc<Start> = Arc::new(start);
    let def = KernelDef::new(op, "CPU");
    let def = def.with_factory(move |_| Ok(Box::new(Later(Arc::clone(&start)))));
    world.registry.register(def);
}

/// Hands on the first input, times ten.
fn finish(mut context: AsyncKernelContext, done: Done) {
    let computed = multiply(&context.kernel_context());
    done.call(context, computed);
}

fn multiply(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let values: Vec<f32> = input.as_slice::<f32>()?.to_vec();
    context.fill_output(0, input.shape(), |output: &mut [f32]| {
        for (output, value) in output.iter_mut().zip(values) {
            *output = value * 10.0;
        }
        Ok(())
    })
}

fn ones() -> (&'static str, [f32; 4]) {
    ("x", [1.0; 4])
}

#[test]
fn what_ends_on_another_thread_goes_on_here() {
    for n_threads in [1, 2] {
        let world = world(|context, done| {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(2));
                finish(context, done);
            });
        });
        let text = "
            x = Neg() @ 0
            n = Neg(x) @ 0
            l = Later(n) @ 0
            s = Sum(l, x) @ 0
        ";
        let bench = Bench::new(world, Sketch::parse(text), &threads(n_threads));
        let prepared = bench.prepare(&["x"], &["s"], &[]).unwrap();
        for _ in 0..20 {
            let fetched = bench.run_prepared(&prepared, &[ones()], &RunOptions::default());
            assert_eq!(fetched.unwrap()[0], [-9.0; 4]);
        }
    }
}

#[test]
fn no_thread_waits_for_one_that_has_not_ended() {
    // Each ends when the other has started; with one thread that thread must start both.
    for n_threads in [1, 2] {
        let waiting: Arc<Mutex<Vec<(AsyncKernelContext, Done)>>> = Arc::default();
        let world = world(move |context, done| {
            let mut waiting = waiting.lock().unwrap();
            waiting.push((context, done));
            if waiting.len() == 2 {
                for (context, done) in waiting.drain(..) {
                    finish(context, done);
                }
            }
        });
        let text = "
            x = Neg() @ 0
            a = Later(x) @ 0
            b = Later(x) @ 0
            s = Sum(a, b) @ 0
        ";
        let bench = Bench::new(world, Sketch::parse(text), &threads(n_threads));
        let prepared = bench.prepare(&["x"], &["s"], &[]).unwrap();
        for _ in 0..5 {
            let fetched = bench.run_prepared(&prepared, &[ones()], &RunOptions::default());
            assert_eq!(fetched.unwrap()[0], [20.0; 4]);
        }
    }
}

/// One that never ends, and says when the run does not wait for it any more.
fn never() -> (FakeWorld, Arc<AtomicBool>) {
    let was_told = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&was_told);
    let kept = Mutex::new(Vec::new());
    let world = world(move |context, done| {
        let told = Arc::clone(&told);
        let waiting = context.cancel_token().on_cancel(move || {
            told.store(true, Ordering::Relaxed);
        });
        kept.lock().unwrap().push((context, done, waiting));
    });
    (world, was_told)
}

#[test]
fn a_cancelled_run_does_not_wait_for_them() {
    let (world, was_told) = never();
    let text = "x = Neg() @ 0\n l = Later(x) @ 0";
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let prepared = bench.prepare(&["x"], &["l"], &[]).unwrap();
    let token = CancelToken::new();
    let options = RunOptions::default().with_cancel(token.clone());
    let canceller = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        token.cancel();
    });
    let error = bench.run_prepared(&prepared, &[ones()], &options);
    assert_eq!(error.unwrap_err(), ExecuteError::Cancelled);
    assert!(was_told.load(Ordering::Relaxed));
    canceller.join().unwrap();
}

#[test]
fn a_run_that_takes_too_long_does_not_wait_for_them() {
    let (world, was_told) = never();
    let text = "x = Neg() @ 0\n l = Later(x) @ 0";
    let bench = Bench::new(world, Sketch::parse(text), &threads(2));
    let prepared = bench.prepare(&["x"], &["l"], &[]).unwrap();
    let timeout = Duration::from_millis(20);
    let options = RunOptions::default().with_timeout(timeout);
    let error = bench.run_prepared(&prepared, &[ones()], &options);
    assert_eq!(error.unwrap_err(), ExecuteError::TimedOut(timeout));
    assert!(was_told.load(Ordering::Relaxed));
}

#[test]
fn one_that_ends_when_nobody_waits_any_more_changes_nothing() {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let mut world = world(move |context, done| {
        sender.lock().unwrap().send((context, done)).unwrap();
    });
    add(&mut world, "Soon", finish);
    let text = "x = Neg() @ 0\n l = Later(x) @ 0\n f = Fail(x) @ 0\n s = Soon(x) @ 0";
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let failing = bench.prepare(&["x"], &["l", "f"], &[]).unwrap();
    let good = bench.prepare(&["x"], &["s"], &[]).unwrap();
    for _ in 0..10 {
        let error = bench.run_prepared(&failing, &[ones()], &RunOptions::default());
        assert!(error.unwrap_err().to_string().contains("Tuesday"));
        // It may not have been started.
        if let Ok((context, done)) = receiver.try_recv() {
            finish(context, done);
        }
        let fetched = bench.run_prepared(&good, &[ones()], &RunOptions::default());
        assert_eq!(fetched.unwrap()[0], [10.0; 4]);
    }
}

#[derive(Debug)]
struct Note;

impl Resource for Note {
    fn describe(&self) -> String {
        "a note".to_owned()
    }
}

/// Leaves a note of this name in the container of the execution's run; gives its number.
fn leave_note(context: &mut AsyncKernelContext, name: &str) -> u64 {
    let context = context.kernel_context();
    let container = context.step_container().unwrap();
    let manager = context.resource_manager().unwrap();
    manager.create(container, name, Arc::new(Note)).unwrap();
    context.step_number().unwrap()
}

/// How a run is given up.
#[derive(Debug, Clone, Copy)]
enum GivenUp {
    Cancelled,
    TimedOut,
}

#[test]
fn what_one_leaves_behind_after_its_run_goes_when_it_ends() {
    let (sender, started) = mpsc::channel();
    let sender = Mutex::new(sender);
    let world = world(move |mut context, done| {
        let x = context.kernel_context().input(0).unwrap().clone();
        // Its value says whether it uses its run's container before the run is given up.
        if x.as_slice::<f32>().unwrap()[0] > 0.0 {
            leave_note(&mut context, "early");
        }
        sender.lock().unwrap().send((context, done)).unwrap();
    });
    let device = Arc::clone(&world.devices[0]);
    let notes = || device.resource_manager().unwrap().describe();
    let text = "x = Neg() @ 0\n l = Later(x) @ 0";
    let bench = Bench::new(world, Sketch::parse(text), &threads(2));
    let prepared = bench.prepare(&["x"], &["l"], &[]).unwrap();
    let give_up = |given_up, x| match given_up {
        GivenUp::Cancelled => {
            let token = CancelToken::new();
            let options = RunOptions::default().with_cancel(token.clone());
            thread::scope(|scope| {
                let run = scope.spawn(|| bench.run_prepared(&prepared, &[("x", x)], &options));
                let started = started.recv().unwrap();
                token.cancel();
                let error = run.join().unwrap().unwrap_err();
                assert_eq!(error, ExecuteError::Cancelled);
                started
            })
        }
        GivenUp::TimedOut => loop {
            let timeout = Duration::from_millis(5);
            let options = RunOptions::default().with_timeout(timeout);
            let error = bench.run_prepared(&prepared, &[("x", x)], &options);
            assert_eq!(error.unwrap_err(), ExecuteError::TimedOut(timeout));
            // It may not have been started.
            if let Ok(started) = started.try_recv() {
                break started;
            }
        },
    };
    for round in 0..20 {
        for given_up in [GivenUp::Cancelled, GivenUp::TimedOut] {
            for x in [[1.0; 4], [-1.0; 4]] {
                let (mut context, done) = give_up(given_up, x);
                assert_eq!(notes(), Vec::<String>::new(), "the run's are gone");
                let number = leave_note(&mut context, "late");
                // Meanwhile the next run has a container of its own.
                thread::scope(|scope| {
                    let run = scope
                        .spawn(|| bench.run_prepared(&prepared, &[ones()], &RunOptions::default()));
                    let (mut next, next_done) = started.recv().unwrap();
                    assert_ne!(leave_note(&mut next, "late"), number);
                    let both = notes();
                    assert_eq!(both.len(), 3, "{both:?}");
                    finish(next, next_done);
                    assert_eq!(run.join().unwrap().unwrap(), [[10.0; 4]]);
                });
                let left = notes();
                let container = format!("__per_step_{number}/late ");
                assert!(
                    left.len() == 1 && left[0].starts_with(&container),
                    "{left:?}"
                );
                match round % 2 {
                    0 => finish(context, done),
                    _ => drop((context, done)),
                }
                assert_eq!(notes(), Vec::<String>::new(), "{given_up:?}, {x:?}");
            }
        }
    }
}

/// Where a given number of threads wait for each other.
#[derive(Debug, Default)]
struct Meeting {
    n_there: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    /// Whether `n` have come, in a time in which they would.
    fn meet(&self, n: usize) -> bool {
        let mut n_there = self.n_there.lock().unwrap();
        *n_there += 1;
        self.changed.notify_all();
        let are_missing = |n_there: &mut usize| *n_there < n;
        let patience = Duration::from_secs(60);
        let waited = self
            .changed
            .wait_timeout_while(n_there, patience, are_missing);
        !waited.unwrap().1.timed_out()
    }
}

#[test]
fn all_threads_execute_what_its_end_has_made_ready() {
    const N: usize = 3;
    let mut world = world(|context, done| {
        thread::spawn(move || finish(context, done));
    });
    let meeting = Arc::new(Mutex::new(Arc::new(Meeting::default())));
    let current = Arc::clone(&meeting);
    // Each waits for the others, so that each wants a thread of its own.
    world.add("Meet", move |_, inputs| {
        let meeting = Arc::clone(&current.lock().unwrap());
        match meeting.meet(N) {
            true => Ok(inputs[0].clone()),
            false => Err(KernelError::invalid("alone")),
        }
    });
    let text = "
        x = Neg() @ 0
        l = Later(x) @ 0
        a = Meet(l) @ 0
        b = Meet(l) @ 0
        c = Meet(l) @ 0
        s = Sum(a, b, c) @ 0
    ";
    let bench = Bench::new(world, Sketch::parse(text), &threads(N));
    let prepared = bench.prepare(&["x"], &["s"], &[]).unwrap();
    for _ in 0..20 {
        *meeting.lock().unwrap() = Arc::default();
        let fetched = bench.run_prepared(&prepared, &[ones()], &RunOptions::default());
        assert_eq!(fetched.unwrap(), [[30.0; 4]]);
    }
}

#[test]
fn one_that_loses_its_callback_fails_the_run() {
    let world = world(|context, done| drop((context, done)));
    let text = "x = Neg() @ 0\n l = Later(x) @ 0";
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let prepared = bench.prepare(&["x"], &["l"], &[]).unwrap();
    let error = bench.run_prepared(&prepared, &[ones()], &RunOptions::default());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("`l` (Later)") && error.contains("dropped its callback"),
        "{error}"
    );
}

#[test]
fn one_that_panics_fails_the_run() {
    let world = world(|_, _| panic!("out of cheese"));
    let text = "x = Neg() @ 0\n l = Later(x) @ 0";
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let prepared = bench.prepare(&["x"], &["l"], &[]).unwrap();
    let error = bench.run_prepared(&prepared, &[ones()], &RunOptions::default());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("`l` (Later)") && error.contains("panicked"),
        "{error}"
    );
}

#[test]
fn they_are_recorded_from_start_to_end() {
    let world = world(|context, done| {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(3));
            finish(context, done);
        });
    });
    let text = "x = Neg() @ 0\n l = Later(x) @ 0";
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let prepared = bench.prepare(&["x"], &["l"], &[]).unwrap();
    let recorder = Recorder::on();
    let options = RunOptions::default().with_recorder(recorder.clone());
    bench.run_prepared(&prepared, &[ones()], &options).unwrap();
    let events = recorder.events();
    let kernel = events
        .iter()
        .find(|event| matches!(event.kind, EventKind::Kernel { .. }))
        .unwrap();
    assert!(kernel.duration_ns >= 3_000_000, "{kernel:?}");
}
