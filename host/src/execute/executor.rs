//! The executor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::error::ExecuteError;
use super::options::{ExecutorOptions, RunOptions};
use super::pool::HelperPool;
use super::prepare::{PreparedPlan, Workshop};
use super::run::Run;
use crate::device::{DeviceSet, KernelRegistry};
use crate::graph::Graph;
use crate::plan::{Fetch, Plan};
use crate::tensor::Tensor;
use crate::trace::{EventKind, Recorder};

/// Runs the plans of one graph on one device set. Any number of threads may run plans at one time.
#[derive(Debug)]
pub struct Executor {
    workshop: Workshop,
    helpers: HelperPool,
    recorder: Recorder,
    n_runs: AtomicU64,
}

impl Executor {
    /// Starts the threads; makes no kernel yet.
    ///
    /// # Errors
    /// [`ExecuteError::Threads`] if the system has no threads to give.
    pub fn new(
        graph: Arc<Graph>,
        devices: Arc<DeviceSet>,
        registry: Arc<KernelRegistry>,
        options: &ExecutorOptions,
    ) -> Result<Self, ExecuteError> {
        let n_threads = match options.inter_op_parallelism_threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n_threads => n_threads,
        };
        // The thread that calls `run` is one of them.
        let helpers = HelperPool::new(n_threads - 1)
            .map_err(|error| ExecuteError::Threads(error.to_string()))?;
        Ok(Self {
            workshop: Workshop::new(graph, devices, registry),
            helpers,
            recorder: options.recorder.clone(),
            n_runs: AtomicU64::new(0),
        })
    }

    /// Makes the kernels and constants of a plan that do not exist yet.
    ///
    /// # Errors
    /// [`ExecuteError`], naming the node that cannot be executed where it was placed.
    pub fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<PreparedPlan>, ExecuteError> {
        self.workshop.prepare(plan).map(Arc::new)
    }

    /// Runs a plan to its end: `feeds` in the order of [`Plan::feeds`] in, tensors that the host can read in the order of
    /// [`Plan::fetches`] out. The calling thread works too.
    ///
    /// # Errors
    /// [`ExecuteError`]: what the first failing step said, or that the run was cancelled or took too long. The executor
    /// remains as good as before.
    pub fn run(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: &[Tensor],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>, ExecuteError> {
        self.check_feeds(prepared, feeds)?;
        let number = self.n_runs.fetch_add(1, Ordering::Relaxed);
        let recorder = options.recorder.as_ref().unwrap_or(&self.recorder);
        let started = Instant::now();
        let run = Arc::new(Run::new(
            prepared,
            feeds.to_vec(),
            options,
            recorder,
            number,
            self.helpers.shared(),
            self.helpers.n_threads(),
        ));
        let outcome = run.drive();
        recorder.record_since(started, EventKind::Run { run: number });
        outcome?;
        let fetches = prepared.plan.fetches().iter().enumerate();
        Ok(fetches
            .map(|(index, fetch)| match *fetch {
                Fetch::Step(..) => run.fetched(index),
                Fetch::Fed(_, feed) => feeds[feed as usize].clone(),
            })
            .collect())
    }

    fn check_feeds(&self, prepared: &PreparedPlan, feeds: &[Tensor]) -> Result<(), ExecuteError> {
        let graph = self.workshop.graph();
        if !Arc::ptr_eq(graph, &prepared.graph)
            || !Arc::ptr_eq(self.workshop.devices(), &prepared.devices)
        {
            return Err(ExecuteError::ForeignPlan);
        }
        let expected = prepared.plan.feeds();
        if expected.len() != feeds.len() {
            return Err(ExecuteError::FeedCount {
                expected: expected.len(),
                found: feeds.len(),
            });
        }
        for (feed, tensor) in expected.iter().zip(feeds) {
            let dtype = graph.tensor_dtypes()[feed.tensor.index()];
            let shape = graph.tensor_shape(feed.tensor);
            if tensor.dtype() != dtype || !shape.matches(tensor.shape()) {
                return Err(ExecuteError::FeedMismatch {
                    tensor: graph.tensor_name(feed.tensor),
                    expected: format!("{dtype} {shape}"),
                    found: format!("{} {}", tensor.dtype(), tensor.shape()),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::device::{AsyncKernel, Done, Kernel, KernelContext, KernelDef, KernelError};
    use crate::execute::CancelToken;
    use crate::execute::fake::{FakeDevice, FakeWorld, Sketch};
    use crate::plan::StepKind;
    use crate::tensor::{Allocator, Buffer, DType, Memory, MemoryId};

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
                .cut(&self.world.has_one_memory(), &request)
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

    fn threads(n_threads: usize) -> ExecutorOptions {
        ExecutorOptions::default().with_inter_op_parallelism_threads(n_threads)
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
    fn kernels_that_end_later_are_refused_before_the_run() {
        struct Later;
        impl Kernel for Later {
            fn compute(&self, _: &mut KernelContext<'_>) -> Result<(), KernelError> {
                Ok(())
            }
            fn as_async(&self) -> Option<&dyn AsyncKernel> {
                Some(self)
            }
        }
        impl AsyncKernel for Later {
            fn compute_async(&self, context: KernelContext<'static>, done: Done) {
                done(context, Ok(()));
            }
        }
        let mut world = FakeWorld::new(&["CPU"]);
        let def = KernelDef::new("Later", "CPU").with_factory(|_| Ok(Box::new(Later)));
        world.registry.register(def);
        let text = "c = Const() @ 0\n l = Later(c) @ 0\n n = Neg(c) @ 0";
        let bench = Bench::new(world, Sketch::parse(text), &threads(1));
        let error = bench.prepare(&[], &["l"], &[]).unwrap_err().to_string();
        assert!(
            error.contains("`l` (Later)") && error.contains("as_async"),
            "{error}"
        );
        assert!(bench.prepare(&[], &["n"], &[]).is_ok());
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
            let pool = device.intra_op_pool().unwrap();
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
        let stats = bench.world.devices[0].own.stats();
        assert_eq!((stats.peak_bytes, stats.in_use_bytes), (32, 0));
    }

    #[test]
    fn constants_are_made_once_and_shared_by_plans() {
        let text = "
            c = Const() @ 0
            a = Neg(c) @ 0
            b = Sum(c, c) @ 0
        ";
        let bench = Bench::new(FakeWorld::new(&["CPU"]), Sketch::parse(text), &threads(1));
        let first = bench.prepare(&[], &["a"], &[]).unwrap();
        let n_allocations = bench.world.devices[0].own.stats().n_allocations;
        let second = bench.prepare(&[], &["b"], &[]).unwrap();
        assert_eq!(
            bench.world.devices[0].own.stats().n_allocations,
            n_allocations
        );
        assert!(
            bench
                .run_prepared(&first, &[], &RunOptions::default())
                .is_ok()
        );
        let fetched = bench.run_prepared(&second, &[], &RunOptions::default());
        assert_eq!(fetched.unwrap(), [[2.0, 4.0, 6.0, 8.0]]);
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
            "node `m` (MissingOp) on /job:localhost/replica:0/task:0/device:CPU:0: no kernel fits; \
             registered: <no registered kernels>"
        );
        assert_eq!(
            message("s"),
            "node `s` (Switch): control flow is not implemented"
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
            "feed `x:0` takes float [4], float [5] was given"
        );
        let wrong = Tensor::from_values([4], &[0i32; 4]).unwrap();
        assert_eq!(
            run(&[wrong]),
            "feed `x:0` takes float [4], int32 [4] was given"
        );
        assert_eq!(run(&[]), "the plan takes 1 fed tensors, 0 were given");
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
        let n_nodes = plan.nodes().count();
        assert_eq!(
            count(&|kind| matches!(kind, EventKind::Kernel { .. })),
            3 * n_nodes
        );
        let moves = |kind: &EventKind| matches!(kind, EventKind::Transfer { bytes: 16, .. });
        assert_eq!(count(&moves), 3 * plan.transfers().len());
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
}
