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
use crate::execute::PreparedPlan;
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

/// Runs the nodes of `text`, the last of which is `s`, time after time, each after `begin`: its
/// values are these each time.
fn check(world: FakeWorld, text: &str, n_threads: usize, begin: impl Fn(), expected: f32) {
    let bench = Bench::new(world, Sketch::parse(text), &threads(n_threads));
    let prepared = bench.prepare(&["x"], &["s"], &[]).unwrap();
    for _ in 0..20 {
        begin();
        let fetched = bench.run_prepared(&prepared, &[ones()], &RunOptions::default());
        assert_eq!(fetched.unwrap(), [[expected; 4]]);
    }
}

/// One `Later` behind what is fed.
struct Single {
    bench: Bench,
    prepared: Arc<PreparedPlan>,
}

impl Single {
    fn new(world: FakeWorld, n_threads: usize) -> Self {
        let sketch = Sketch::parse("x = Neg() @ 0\n l = Later(x) @ 0");
        let bench = Bench::new(world, sketch, &threads(n_threads));
        let prepared = bench.prepare(&["x"], &["l"], &[]).unwrap();
        Self { bench, prepared }
    }

    fn run(&self, x: [f32; 4], options: &RunOptions) -> Result<Vec<Vec<f32>>, ExecuteError> {
        self.bench
            .run_prepared(&self.prepared, &[("x", x)], options)
    }

    /// A run fails, and names the node.
    fn check_failure(&self, said: &str) {
        let outcome = self.run([1.0; 4], &RunOptions::default());
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.contains("`l` (Later)") && error.contains(said),
            "{error}"
        );
    }
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
        check(world, text, n_threads, || (), -9.0);
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
        check(world, text, n_threads, || (), 20.0);
    }
}

/// A kernel that never ends, and records when the run no longer waits for it.
fn never() -> (FakeWorld, Arc<AtomicBool>) {
    let was_cancelled = Arc::new(AtomicBool::new(false));
    let cancelled = Arc::clone(&was_cancelled);
    let kept = Mutex::new(Vec::new());
    let world = world(move |context, done| {
        let cancelled = Arc::clone(&cancelled);
        let waiting = context.cancel_token().on_cancel(move || {
            cancelled.store(true, Ordering::Relaxed);
        });
        kept.lock().unwrap().push((context, done, waiting));
    });
    (world, was_cancelled)
}

#[test]
fn a_cancelled_run_does_not_wait_for_them() {
    for is_short_of_memory in [false, true] {
        let (world, was_cancelled) = never();
        if is_short_of_memory {
            world.devices[0].be_short_of_memory();
        }
        let single = Single::new(world, 1);
        let token = CancelToken::new();
        let options = RunOptions::default().with_cancel(token.clone());
        let canceller = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            token.cancel();
        });
        let error = single.run([1.0; 4], &options);
        assert_eq!(error.unwrap_err(), ExecuteError::Cancelled);
        assert!(was_cancelled.load(Ordering::Relaxed));
        canceller.join().unwrap();
    }
}

#[test]
fn without_arenas_no_operation_overtakes_one_that_ends_later() {
    for n_threads in [1, 2] {
        let (is_next_executed, was_overtaken) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (executed, overtaken) = (Arc::clone(&is_next_executed), Arc::clone(&was_overtaken));
        let mut world = world(move |context, done| {
            let (executed, overtaken) = (Arc::clone(&executed), Arc::clone(&overtaken));
            thread::spawn(move || {
                // Long enough for the next operation to start, if it may.
                thread::sleep(Duration::from_millis(5));
                overtaken.fetch_or(executed.load(Ordering::SeqCst), Ordering::SeqCst);
                finish(context, done);
            });
        });
        let executed = Arc::clone(&is_next_executed);
        world.add("Next", move |_, inputs| {
            executed.store(true, Ordering::SeqCst);
            Ok(inputs[0].clone())
        });
        world.devices[0].be_short_of_memory();
        let text = "
            x = Neg() @ 0
            l = Later(x) @ 0
            n = Next(x) @ 0
            s = Sum(l, n) @ 0
        ";
        let begin = || is_next_executed.store(false, Ordering::SeqCst);
        check(world, text, n_threads, begin, 11.0);
        assert!(is_next_executed.load(Ordering::SeqCst));
        assert!(!was_overtaken.load(Ordering::SeqCst));
    }
}

#[test]
fn a_run_that_takes_too_long_does_not_wait_for_them() {
    let (world, was_cancelled) = never();
    let single = Single::new(world, 2);
    let timeout = Duration::from_millis(20);
    let options = RunOptions::default().with_timeout(timeout);
    let error = single.run([1.0; 4], &options);
    assert_eq!(error.unwrap_err(), ExecuteError::TimedOut(timeout));
    assert!(was_cancelled.load(Ordering::Relaxed));
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
    let container = context.run_container().unwrap();
    let manager = context.resource_manager().unwrap();
    manager.create(container, name, Arc::new(Note)).unwrap();
    context.run_number().unwrap()
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
    let single = Single::new(world, 2);
    let give_up = |given_up, x| match given_up {
        GivenUp::Cancelled => {
            let token = CancelToken::new();
            let options = RunOptions::default().with_cancel(token.clone());
            thread::scope(|scope| {
                let run = scope.spawn(|| single.run(x, &options));
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
            let error = single.run(x, &options);
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
                    let run = scope.spawn(|| single.run([1.0; 4], &RunOptions::default()));
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
        *self.n_there.lock().unwrap() += 1;
        self.changed.notify_all();
        self.wait_for(n)
    }

    /// The same of who does not count.
    fn wait_for(&self, n: usize) -> bool {
        let n_there = self.n_there.lock().unwrap();
        let are_missing = |n_there: &mut usize| *n_there < n;
        let patience = Duration::from_secs(60);
        let waited = self
            .changed
            .wait_timeout_while(n_there, patience, are_missing);
        !waited.unwrap().1.timed_out()
    }
}

/// The meeting of the current run; `Meet` hands on its input when `n` of them have come.
fn meetings(world: &mut FakeWorld, n: usize) -> Arc<Mutex<Arc<Meeting>>> {
    let meetings = Arc::<Mutex<Arc<Meeting>>>::default();
    let current = Arc::clone(&meetings);
    world.add("Meet", move |_, inputs| {
        let meeting = Arc::clone(&current.lock().unwrap());
        match meeting.meet(n) {
            true => Ok(inputs[0].clone()),
            false => Err(KernelError::invalid("alone")),
        }
    });
    meetings
}

#[test]
fn all_threads_execute_what_its_end_has_made_ready() {
    const N: usize = 3;
    let mut world = world(|context, done| {
        thread::spawn(move || finish(context, done));
    });
    // Each waits for the others, so that each wants a thread of its own.
    let meetings = meetings(&mut world, N);
    let text = "
        x = Neg() @ 0
        l = Later(x) @ 0
        a = Meet(l) @ 0
        b = Meet(l) @ 0
        c = Meet(l) @ 0
        s = Sum(a, b, c) @ 0
    ";
    let begin = || *meetings.lock().unwrap() = Arc::default();
    check(world, text, N, begin, 30.0);
}

#[test]
fn a_helper_goes_on_behind_one_that_ends_while_the_caller_is_busy() {
    let mut world = FakeWorld::new(&["CPU"]);
    let meetings = meetings(&mut world, 2);
    let current = Arc::clone(&meetings);
    add(&mut world, "Later", move |context, done| {
        let meeting = Arc::clone(&current.lock().unwrap());
        thread::spawn(move || {
            // Until somebody executes the other branch.
            meeting.wait_for(1);
            finish(context, done);
        });
    });
    let text = "
        x = Neg() @ 0
        l = Later(x) @ 0
        a = Meet(x) @ 0
        b = Meet(l) @ 0
        s = Sum(a, b) @ 0
    ";
    let begin = || *meetings.lock().unwrap() = Arc::default();
    check(world, text, 2, begin, 11.0);
}

#[test]
fn one_that_loses_its_callback_fails_the_run() {
    for is_short_of_memory in [false, true] {
        let world = world(|context, done| drop((context, done)));
        if is_short_of_memory {
            world.devices[0].be_short_of_memory();
        }
        Single::new(world, 1).check_failure("dropped its callback");
    }
}

#[test]
fn one_that_panics_fails_the_run() {
    let world = world(|_, _| panic!("out of cheese"));
    Single::new(world, 1).check_failure("panicked");
}

#[test]
fn they_are_recorded_from_start_to_end() {
    let world = world(|context, done| {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(3));
            finish(context, done);
        });
    });
    let single = Single::new(world, 1);
    let recorder = Recorder::on();
    let options = RunOptions::default().with_recorder(recorder.clone());
    single.run([1.0; 4], &options).unwrap();
    let events = recorder.events();
    let kernel = events
        .iter()
        .find(|event| matches!(event.kind, EventKind::Kernel { .. }))
        .unwrap();
    assert!(kernel.duration_ns >= 3_000_000, "{kernel:?}");
}
