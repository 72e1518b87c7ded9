//! Plans of small graphs on fake devices, run.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::fake::FakeDevice;
use super::fake::FakeWorld;
use super::fake::Sketch;
use super::*;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelError;
use crate::plan::StepKind;
use crate::tensor::Allocator;
use crate::tensor::Buffer;
use crate::tensor::DType;
use crate::tensor::Memory;
use crate::tensor::MemoryId;
use crate::tensor::Tensor;
use crate::trace::EventKind;
use crate::trace::Recorder;

mod accessed;
mod constants;
mod contexts;
mod copies;
mod fusion;
mod later;

/// A sketch on its devices, ready to run.
struct Bench {
    world: FakeWorld,
    sketch: Sketch,
    executor: Executor,
}

impl Bench {
    fn new(world: FakeWorld, sketch: Sketch, options: &ExecutorOptions) -> Self {
        let registry = Arc::new(world.registry.clone());
        let graph = Arc::clone(&sketch.graph);
        let executor = Executor::new(graph, world.device_set(), registry, options).unwrap();
        Self {
            world,
            sketch,
            executor,
        }
    }

    fn prepare(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Arc<PreparedPlan>, ExecuteError> {
        let request = self.sketch.request(feeds, fetches, targets);
        let plan = self
            .sketch
            .partition(&self.world.has_one_memory(), &request)
            .unwrap();
        self.executor.prepare(&Arc::new(plan))
    }

    fn run(
        &self,
        feeds: &[(&str, [f32; 4])],
        fetches: &[&str],
    ) -> Result<Vec<Vec<f32>>, ExecuteError> {
        let names: Vec<&str> = feeds.iter().map(|&(name, _)| name).collect();
        let prepared = self.prepare(&names, fetches, &[])?;
        self.run_prepared(&prepared, feeds, &RunOptions::default())
    }

    fn run_prepared(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: &[(&str, [f32; 4])],
        options: &RunOptions,
    ) -> Result<Vec<Vec<f32>>, ExecuteError> {
        let feeds: Vec<Tensor> = feeds
            .iter()
            .map(|(_, values)| Tensor::from_values([4], values).unwrap())
            .collect();
        let fetched = self.executor.run(prepared, &feeds, options)?;
        Ok(fetched
            .iter()
            .map(|tensor| tensor.as_slice().unwrap().to_vec())
            .collect())
    }
}

/// Several threads work together even where that does not pay.
fn threads(n_threads: usize) -> ExecutorOptions {
    ExecutorOptions::default()
        .with_inter_op_parallelism_threads(n_threads)
        .with_scheduling(Scheduling::Shared)
}

const DIAMOND: &str = "
    x = Placeholder() @ 0
    c = Const() @ 1
    a = Sum(x, c) @ 0
    b = Neg(x) @ 1
    d = Sum(a, b, c) @ 1
";

#[test]
fn tensors_reach_the_devices_that_read_them() {
    // The fake devices refuse tensors of any other memory, and the host cannot read a GPU's.
    for types in [
        ["CPU", "CPU"],
        ["CPU", "GPU"],
        ["GPU", "CPU"],
        ["GPU", "GPU"],
    ] {
        for n_threads in [1, 4] {
            let bench = Bench::new(
                FakeWorld::new(&types),
                Sketch::parse(DIAMOND),
                &threads(n_threads),
            );
            let feeds = [("x", [5.0, 6.0, 7.0, 8.0])];
            let fetched = bench.run(&feeds, &["d", "a", "x", "d"]).unwrap();
            let doubled = vec![2.0, 4.0, 6.0, 8.0];
            assert_eq!(fetched[0], doubled, "{types:?}");
            assert_eq!(fetched[1], [6.0, 8.0, 10.0, 12.0]);
            assert_eq!(fetched[2], feeds[0].1);
            assert_eq!(fetched[3], doubled);
        }
    }
}

#[test]
fn an_inner_tensor_may_be_fed_and_its_producers_do_not_run() {
    let text = "
        x = Placeholder() @ 0
        broken = Fail(x) @ 0
        y = Neg(broken) @ 1
    ";
    let bench = Bench::new(
        FakeWorld::new(&["CPU", "CPU"]),
        Sketch::parse(text),
        &threads(2),
    );
    let fetched = bench
        .run(&[("broken", [1.0; 4])], &["y", "broken"])
        .unwrap();
    assert_eq!(fetched, [[-1.0; 4], [1.0; 4]]);
}

#[test]
fn a_failing_kernel_is_named_and_the_executor_goes_on() {
    let text = "
        x = Placeholder() @ 0
        good = Neg(x) @ 0
        bad = Fail(good) @ 1
        worse = Panic(good) @ 1
    ";
    let bench = Bench::new(
        FakeWorld::new(&["CPU", "CPU"]),
        Sketch::parse(text),
        &threads(4),
    );
    let feeds = [("x", [1.0; 4])];
    let error = bench.run(&feeds, &["bad", "good"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "node `bad` (Fail) on /job:localhost/replica:0/task:0/device:CPU:1, inputs (float [4]): it is Tuesday"
    );
    let error = bench.run(&feeds, &["worse"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "node `worse` (Panic) on /job:localhost/replica:0/task:0/device:CPU:1, inputs (float [4]): the kernel panicked: out of cheese"
    );
    assert_eq!(bench.run(&feeds, &["good"]).unwrap(), [[-1.0; 4]]);
}

/// Memory that panics whenever somebody looks at it, or lets go of it.
#[derive(Debug)]
struct Cursed {
    when_dropped: bool,
}

impl Memory for Cursed {
    fn id(&self) -> MemoryId {
        MemoryId::new()
    }
    fn len_bytes(&self) -> usize {
        16
    }
    fn as_host_bytes(&self) -> Option<&[u8]> {
        assert!(self.when_dropped, "do not look");
        None
    }
    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Drop for Cursed {
    fn drop(&mut self) {
        assert!(!self.when_dropped, "do not let go");
    }
}

/// A kernel that gives a tensor in cursed memory.
struct Curse {
    when_dropped: bool,
}

impl Kernel for Curse {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let memory = Cursed {
            when_dropped: self.when_dropped,
        };
        let buffer = Buffer::new(Arc::new(memory));
        context.set_output(0, Tensor::from_buffer(DType::F32, [4].into(), buffer)?)
    }
}

#[test]
fn memory_that_panics_fails_its_run_on_whichever_thread() {
    let mut world = FakeWorld::new(&["CPU", "CPU"]);
    for (op, when_dropped) in [("CurseEyes", false), ("CurseHands", true)] {
        let def = KernelDef::new(op, "DEFAULT")
            .with_factory(move |_| Ok(Box::new(Curse { when_dropped })));
        world.registry.register(def);
    }
    let mut text = "c = Const() @ 0\n".to_owned();
    for branch in 0..8 {
        text += &format!("e{branch} = CurseEyes(c) @ 0\nr{branch} = Neg(e{branch}) @ 1\n");
        text += &format!("h{branch} = CurseHands(c) @ 0\n");
    }
    text += "good = Neg(c) @ 1";
    let bench = Bench::new(world, Sketch::parse(&text), &threads(4));
    for _ in 0..20 {
        let error = bench.run(&[], &["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"]);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("transfer of `e") && error.contains("do not look"),
            "{error}"
        );
        let key = ";0000000000000001;/job:localhost/replica:0/task:0/device:CPU:1;edge_";
        assert!(error.contains(key), "{error}");
        let error = bench.run(&[], &["e3"]).unwrap_err().to_string();
        assert!(
            error.contains("fetch `e3:0`") && error.contains("do not look"),
            "{error}"
        );
        // Nobody reads the output, so it is dropped at once.
        let targets: Vec<String> = (0..8).map(|branch| format!("h{branch}")).collect();
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let prepared = bench.prepare(&[], &[], &targets).unwrap();
        let error = bench.run_prepared(&prepared, &[], &RunOptions::default());
        let error = error.unwrap_err();
        assert!(
            matches!(&error, ExecuteError::Panic { message, .. } if message == "do not let go"),
            "{error}"
        );
        assert_eq!(
            bench.run(&[], &["good"]).unwrap(),
            [[-1.0, -2.0, -3.0, -4.0]]
        );
    }
}

#[test]
fn a_fed_tensor_is_the_callers_alone_when_the_run_is_over() {
    let mut text = "x = Placeholder() @ 0\n".to_owned();
    for branch in 0..16 {
        text += &format!("b{branch} = Neg(x) @ {}\n", branch % 2);
    }
    text += "bad = Fail(b0) @ 1";
    let world = FakeWorld::new(&["CPU", "CPU"]);
    let bench = Bench::new(world, Sketch::parse(&text), &threads(4));
    let prepare = |fetch| bench.prepare(&["x"], &["b1", "b2", "b3", "b4", fetch], &[]);
    let (good, bad) = (prepare("b5").unwrap(), prepare("bad").unwrap());
    for _ in 0..50 {
        for prepared in [&good, &bad] {
            let mut fed = [Tensor::from_values([4], &[1.0f32; 4]).unwrap()];
            let outcome = bench.executor.run(prepared, &fed, &RunOptions::default());
            assert_eq!(outcome.is_ok(), Arc::ptr_eq(prepared, &good));
            assert!(fed[0].as_bytes_mut().is_some(), "somebody else holds it");
        }
    }
}

#[test]
fn nothing_starts_after_a_run_was_cancelled() {
    let token = CancelToken::new();
    let calls = Arc::new(AtomicU64::new(0));
    let mut world = FakeWorld::new(&["CPU"]);
    let (in_kernel, counter) = (token.clone(), Arc::clone(&calls));
    world.add("Cancel", move |_, inputs| {
        in_kernel.cancel();
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(inputs[0].clone())
    });
    let text = "
        c = Const() @ 0
        a = Cancel(c) @ 0
        b = Cancel(a) @ 0
    ";
    let bench = Bench::new(world, Sketch::parse(text), &threads(2));
    let prepared = bench.prepare(&[], &["b"], &[]).unwrap();
    let options = RunOptions::default().with_cancel(token);
    let error = bench.run_prepared(&prepared, &[], &options).unwrap_err();
    assert_eq!(error, ExecuteError::Cancelled);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_run_that_takes_too_long_ends_between_two_steps() {
    let bench = Bench::new(
        FakeWorld::new(&["CPU"]),
        Sketch::parse("c = Const() @ 0\n a = Neg(c) @ 0"),
        &threads(1),
    );
    let prepared = bench.prepare(&[], &["a"], &[]).unwrap();
    let options = RunOptions::default().with_timeout(Duration::ZERO);
    let error = bench.run_prepared(&prepared, &[], &options).unwrap_err();
    assert_eq!(error, ExecuteError::TimedOut(Duration::ZERO));
    let options = RunOptions::default().with_timeout(Duration::MAX);
    assert!(bench.run_prepared(&prepared, &[], &options).is_ok());
}

#[test]
fn many_threads_run_one_plan_at_one_time() {
    let mut text = "x = Placeholder() @ 0\n".to_owned();
    for branch in 0..8 {
        text += &format!("b{branch} = Neg(x) @ {}\n", branch % 4);
    }
    text += "y = Sum(b0, b1, b2, b3, b4, b5, b6, b7) @ 3";
    let bench = Bench::new(
        FakeWorld::new(&["CPU"; 4]),
        Sketch::parse(&text),
        &threads(4),
    );
    let prepared = bench.prepare(&["x"], &["y"], &[]).unwrap();
    thread::scope(|scope| {
        for caller in 0u8..8 {
            let (bench, prepared) = (&bench, &prepared);
            scope.spawn(move || {
                for run in 0u8..50 {
                    let value = f32::from(caller) + f32::from(run);
                    let feeds = [("x", [value; 4])];
                    let fetched = bench.run_prepared(prepared, &feeds, &RunOptions::default());
                    assert_eq!(fetched.unwrap(), [[-8.0 * value; 4]]);
                }
            });
        }
    });
}

#[test]
fn kernels_that_wait_for_one_small_pool_do_not_stop_each_other() {
    let mut world = FakeWorld::new(&["CPU", "CPU"]);
    world.add("Pooled", |device: &FakeDevice, inputs| {
        use crate::device::KernelDevice;
        let pool = device.intra_op_pool().unwrap().rayon().unwrap();
        Ok(pool.install(|| rayon::join(|| inputs[0].clone(), || ()).0))
    });
    let mut text = "c = Const() @ 0\n".to_owned();
    for branch in 0..64 {
        text += &format!("b{branch} = Pooled(c) @ {}\n", branch % 2);
    }
    let bench = Bench::new(world, Sketch::parse(&text), &threads(4));
    let names: Vec<String> = (0..64).map(|branch| format!("b{branch}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fetched = bench.run(&[], &names).unwrap();
    assert!(fetched.iter().all(|values| values == &[1.0, 2.0, 3.0, 4.0]));
}

#[test]
fn a_tensor_is_gone_after_its_last_reader() {
    let mut text = "x = Placeholder() @ 0\nn0 = Neg(x) @ 0\n".to_owned();
    for node in 1..100 {
        text += &format!("n{node} = Neg(n{}) @ 0\n", node - 1);
    }
    let bench = Bench::new(FakeWorld::new(&["CPU"]), Sketch::parse(&text), &threads(1));
    let fetched = bench.run(&[("x", [3.0; 4])], &["n99"]).unwrap();
    assert_eq!(fetched, [[3.0; 4]]);
    // Two tensors at a time, and memory for two that these kernels do not use. All is freed with
    // the plan.
    let stats = bench.world.devices[0].own.stats();
    assert_eq!((stats.peak_bytes, stats.in_use_bytes), (64, 0));
}

/// Kernels that fill their outputs where the plan has them: `Twice` and, as another name for its
/// input, `Same`.
fn add_planned_kernels(world: &mut FakeWorld) {
    struct Twice;
    impl Kernel for Twice {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            let x = context.input(0)?;
            let values = x.as_slice::<f32>()?;
            context.fill_output(0, x.shape(), |out: &mut [f32]| {
                out.iter_mut()
                    .zip(values)
                    .for_each(|(out, x)| *out = 2.0 * x);
                Ok(())
            })
        }
    }
    struct Same;
    impl Kernel for Same {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            context.forward_input(0, 0, context.input(0)?.shape())
        }
        fn forwarded_input(&self) -> Option<usize> {
            Some(0)
        }
    }
    let twice = KernelDef::new("Twice", "CPU").with_factory(|_| Ok(Box::new(Twice)));
    let same = KernelDef::new("Same", "CPU").with_factory(|_| Ok(Box::new(Same)));
    world.registry.register(twice);
    world.registry.register(same);
}

/// Two devices, tensors with and without a place, several names for one, transfers, and readers at
/// different times.
const WEB: &str = "
    x = Placeholder() @ 0
    c = Const() @ 1
    a = Twice(x) @ 0
    b = Same(a) @ 0
    d = Twice(b) @ 1
    e = Same(b) @ 0
    f = Sum(e, a) @ 0
    g = Twice(f) @ 0
    h = Sum(d, c) @ 1
    i = Twice(h) @ 1
    j = Sum(g, e) @ 0
    k = Sum(i, d, c) @ 1
    l = Twice(j) @ 1
    m = Same(l) @ 1
    n = Sum(m, k) @ 1
";

fn web(x: f32) -> [Vec<f32>; 3] {
    let each = |f: &dyn Fn(f32) -> f32| [1.0, 2.0, 3.0, 4.0].map(f).to_vec();
    let k = |c: f32| 2.0 * (4.0 * x + c) + 4.0 * x + c;
    [
        each(&|c| 2.0 * (8.0 * x + 2.0 * x) + k(c)),
        each(&|_| 2.0 * x),
        each(&k),
    ]
}

#[test]
fn places_are_shared_and_results_are_not() {
    for scheduling in [Scheduling::Shared, Scheduling::Serial, Scheduling::Measured] {
        let mut world = FakeWorld::new(&["CPU", "CPU"]);
        add_planned_kernels(&mut world);
        let options = threads(3).with_scheduling(scheduling);
        let bench = Bench::new(world, Sketch::parse(WEB), &options);
        let prepared = bench.prepare(&["x"], &["n", "e", "k"], &[]).unwrap();
        thread::scope(|scope| {
            for caller in 0u8..3 {
                let (bench, prepared) = (&bench, &prepared);
                scope.spawn(move || {
                    for run in 0u8..100 {
                        let x = f32::from(caller) * 100.0 + f32::from(run);
                        let feeds = [("x", [x; 4])];
                        let options = RunOptions::default();
                        let fetched = bench.run_prepared(prepared, &feeds, &options);
                        assert_eq!(fetched.unwrap(), web(x), "{scheduling:?}");
                    }
                });
            }
        });
    }
}

#[test]
fn a_kernel_that_says_one_input_and_hands_on_another_gives_the_other() {
    struct Liar;
    impl Kernel for Liar {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            context.forward_input(1, 0, context.input(1)?.shape())
        }
        fn forwarded_input(&self) -> Option<usize> {
            Some(0)
        }
    }
    let mut world = FakeWorld::new(&["CPU"]);
    add_planned_kernels(&mut world);
    let liar = KernelDef::new("Liar", "CPU").with_factory(|_| Ok(Box::new(Liar)));
    world.registry.register(liar);
    let text = "
        x = Placeholder() @ 0
        a = Twice(x) @ 0
        b = Twice(a) @ 0
        l = Liar(a, b) @ 0
        y = Twice(l) @ 0
    ";
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let fetched = bench.run(&[("x", [1.0; 4])], &["y"]);
    assert_eq!(fetched.unwrap(), [[8.0; 4]]);
}

#[test]
fn shapes_may_change_from_run_to_run() {
    let text = "x = Placeholder() @ 0\na = Twice(x) @ 0\nb = Same(a) @ 0\ny = Twice(b) @ 0";
    let mut world = FakeWorld::new(&["CPU"]);
    add_planned_kernels(&mut world);
    let mut sketch = Sketch::parse(text);
    sketch.forget_shapes();
    let bench = Bench::new(world, sketch, &threads(2));
    let prepared = bench.prepare(&["x"], &["y", "a"], &[]).unwrap();
    for run in 0..60 {
        let values = vec![2.5f32; 1 + run % 20];
        let fed = Tensor::from_values([values.len()], &values).unwrap();
        let fetched = bench
            .executor
            .run(&prepared, &[fed], &RunOptions::default());
        let fetched = fetched.unwrap();
        assert_eq!(
            fetched[0].as_slice::<f32>().unwrap(),
            vec![10.0; values.len()]
        );
        assert_eq!(
            fetched[1].as_slice::<f32>().unwrap(),
            vec![5.0; values.len()]
        );
    }
}

#[test]
fn nothing_is_left_of_ten_thousand_runs() {
    let text = "
        x = Placeholder() @ 0
        a = Twice(x) @ 0
        b = Sum(a, x) @ 1
        c = Maybe(b) @ 0
        d = Twice(c) @ 1
        e = Sum(d, a) @ 1
    ";
    let mut world = FakeWorld::new(&["CPU", "CPU"]);
    add_planned_kernels(&mut world);
    let token = Arc::new(Mutex::new(CancelToken::new()));
    let shared = Arc::clone(&token);
    world.add("Maybe", move |_, inputs| {
        match inputs[0][0] as u32 / 3 % 10 {
            7 => Err(KernelError::invalid("not today")),
            8 => panic!("not at all"),
            9 => {
                shared.lock().unwrap().cancel();
                Ok(inputs[0].clone())
            }
            _ => Ok(inputs[0].clone()),
        }
    });
    let devices = Arc::clone(&world.devices);
    let bench = Bench::new(world, Sketch::parse(text), &threads(2));
    let prepared = bench.prepare(&["x"], &["e", "c"], &[]).unwrap();
    let in_use = || {
        devices
            .iter()
            .map(|device| device.own.stats().in_use_bytes)
            .sum::<u64>()
    };
    let mut n_failed = 0;
    let mut after_first = None;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for run in 0u16..10_000 {
        let fresh = CancelToken::new();
        *token.lock().unwrap() = fresh.clone();
        let options = RunOptions::default().with_cancel(fresh);
        let x = f32::from(run);
        match bench.run_prepared(&prepared, &[("x", [x; 4])], &options) {
            Ok(fetched) => assert_eq!(fetched, [[8.0 * x; 4], [3.0 * x; 4]]),
            Err(_) => n_failed += 1,
        }
        let expected = *after_first.get_or_insert_with(in_use);
        assert_eq!(in_use(), expected, "run {run}");
    }
    std::panic::set_hook(hook);
    assert_eq!(n_failed, 3_000);
    drop(prepared);
    assert_eq!(in_use(), 0);
}

#[test]
fn with_one_thread_the_start_order_decides() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut world = FakeWorld::new(&["CPU"]);
    for op in ["First", "Second", "Third"] {
        let log = Arc::clone(&log);
        world.add(op, move |_, inputs| {
            log.lock().unwrap().push(op);
            Ok(inputs[0].clone())
        });
    }
    let mut sketch = Sketch::parse(
        "
        c = Const() @ 0
        t = Third(c) @ 0
        f = First(c) @ 0
        s = Second(c) @ 0
    ",
    );
    sketch.start_order = Some(vec![0, 1, 3, 2]);
    let bench = Bench::new(world, sketch, &threads(1));
    bench.run(&[], &["t", "f", "s"]).unwrap();
    assert_eq!(*log.lock().unwrap(), ["First", "Second", "Third"]);
}

#[test]
fn control_edges_order_devices() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut world = FakeWorld::new(&["CPU", "CPU"]);
    for op in ["Early", "Late"] {
        let log = Arc::clone(&log);
        world.add(op, move |_, inputs| {
            log.lock().unwrap().push(op);
            Ok(inputs[0].clone())
        });
    }
    let text = "
        c = Const() @ 1
        d = Const() @ 0
        n0 = Neg(d) @ 0
        n1 = Neg(n0) @ 0
        early = Early(n1) @ 0
        late = Late(c, ^early) @ 1
    ";
    let bench = Bench::new(world, Sketch::parse(text), &threads(4));
    let prepared = bench.prepare(&[], &[], &["late"]).unwrap();
    for _ in 0..20 {
        bench
            .run_prepared(&prepared, &[], &RunOptions::default())
            .unwrap();
    }
    assert_eq!(*log.lock().unwrap(), ["Early", "Late"].repeat(20));
}

#[test]
fn what_cannot_run_says_why() {
    let text = "
        x = Placeholder() @ 0
        m = MissingOp(x) @ 0
        s = Switch(x) @ 0
        p = Placed(x) @ 0
    ";
    let mut world = FakeWorld::new(&["CPU"]);
    world
        .registry
        .register(crate::device::KernelDef::new("Placed", "CPU"));
    let bench = Bench::new(world, Sketch::parse(text), &threads(1));
    let message = |fetch| {
        let error = bench.prepare(&["x"], &[fetch], &[]).unwrap_err();
        error.to_string()
    };
    assert_eq!(
        message("m"),
        "node `m` (MissingOp) on /job:localhost/replica:0/task:0/device:CPU:0: no kernel for op `MissingOp` is registered for \
         device type CPU; registered:\n  <no registered kernels>"
    );
    assert_eq!(
        message("s"),
        "cannot prepare node `s` (Switch) on /job:localhost/replica:0/task:0/device:CPU:0: the \
         node has inputs: 1, outputs: 1; a Switch takes inputs: 2"
    );
    assert!(message("p").contains("registered for placement only"));
}

#[test]
fn feeds_are_held_to_the_graph() {
    let bench = Bench::new(
        FakeWorld::new(&["CPU"]),
        Sketch::parse("x = Placeholder() @ 0\ny = Neg(x) @ 0"),
        &threads(1),
    );
    let prepared = bench.prepare(&["x"], &["y"], &[]).unwrap();
    let run = |feeds: &[Tensor]| {
        let outcome = bench.executor.run(&prepared, feeds, &RunOptions::default());
        outcome.unwrap_err().to_string()
    };
    let wide = Tensor::from_values([5], &[0f32; 5]).unwrap();
    assert_eq!(
        run(&[wide]),
        "feed `x:0`: expected float [4], found float [5]"
    );
    let wrong = Tensor::from_values([4], &[0i32; 4]).unwrap();
    assert_eq!(
        run(&[wrong]),
        "feed `x:0`: expected float [4], found int32 [4]"
    );
    assert_eq!(run(&[]), "expected 1 fed tensors, found 0");
}

#[test]
fn the_recorder_hears_every_kernel_and_transfer() {
    let recorder = Recorder::on();
    let options = threads(4).with_recorder(recorder.clone());
    let bench = Bench::new(
        FakeWorld::new(&["CPU", "CPU"]),
        Sketch::parse(DIAMOND),
        &options,
    );
    let prepared = bench.prepare(&["x"], &["d"], &[]).unwrap();
    for _ in 0..3 {
        bench
            .run_prepared(&prepared, &[("x", [1.0; 4])], &RunOptions::default())
            .unwrap();
    }
    let plan = prepared.plan();
    let events = recorder.events();
    let count = |matches: &dyn Fn(&EventKind) -> bool| {
        events.iter().filter(|event| matches(&event.kind)).count()
    };
    // All but the constant, which is where it is read before the first run.
    let n_nodes = plan.nodes().count() - 1;
    assert_eq!(
        count(&|kind| matches!(kind, EventKind::Kernel { .. })),
        3 * n_nodes
    );
    let moves = |kind: &EventKind| matches!(kind, EventKind::Transfer { bytes: 16, .. });
    assert_eq!(count(&moves), 3 * (plan.transfers().len() - 1));
    assert_eq!(plan.transfers().len(), 2);
    assert_eq!(count(&|kind| matches!(kind, EventKind::Run { .. })), 3);
    let n_feeds = plan
        .steps()
        .iter()
        .filter(|step| matches!(step.kind, StepKind::Feed(_)))
        .count();
    assert_eq!(
        count(&|kind| matches!(kind, EventKind::Feed { .. })),
        3 * n_feeds
    );
    // Every run lies around its kernels.
    for event in &events {
        if let EventKind::Kernel { run, .. } = event.kind {
            let around = events
                .iter()
                .find(|other| other.kind == EventKind::Run { run });
            let around = around.unwrap();
            assert!(around.start_ns <= event.start_ns && event.end_ns() <= around.end_ns());
        }
    }
}
