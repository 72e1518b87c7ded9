//! Devices whose work is still under way when a kernel has returned.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

use super::threads;
use crate::device::AcceleratorInfo;
use crate::device::AccessedTensors;
use crate::device::AllocatorAttributes;
use crate::device::AsyncKernel;
use crate::device::AsyncKernelContext;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceBase;
use crate::device::DeviceContext;
use crate::device::DeviceError;
use crate::device::DeviceRates;
use crate::device::DeviceSet;
use crate::device::Done;
use crate::device::EventManager;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::RenamedDevice;
use crate::device::RunNumber;
use crate::device::Stream;
use crate::execute::ExecuteError;
use crate::execute::Executor;
use crate::execute::PreparedPlan;
use crate::execute::RunOptions;
use crate::execute::fake::FakeWorld;
use crate::execute::fake::Sketch;
use crate::names::DeviceName;
use crate::tensor::Allocator;
use crate::tensor::AllocatorStats;
use crate::tensor::Buffer;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::Memory;
use crate::tensor::MemoryId;
use crate::tensor::OutOfMemory;
use crate::tensor::Tensor;

type Job = Box<dyn FnOnce() + Send>;

/// Work that a thread does in the order in which it is given, unless it is held.
#[derive(Debug)]
struct Queue {
    state: Arc<State>,
    jobs: Mutex<mpsc::Sender<Job>>,
}

#[derive(Debug, Default)]
struct State {
    n_given: AtomicU64,
    progress: Mutex<Progress>,
    changed: Condvar,
    /// Memory that went back, or was not there any more, before the queue was done with it.
    n_too_early: AtomicU64,
}

#[derive(Debug, Default)]
struct Progress {
    n_done: u64,
    is_held: bool,
    /// Threads that wait until something is done.
    n_waiting: usize,
}

impl Queue {
    fn new() -> Arc<Self> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for job in jobs {
                let progress = shared.progress.lock().unwrap();
                drop(
                    shared
                        .changed
                        .wait_while(progress, |progress| progress.is_held),
                );
                job();
                shared.progress.lock().unwrap().n_done += 1;
                shared.changed.notify_all();
            }
        });
        Arc::new(Self {
            state,
            jobs: Mutex::new(sender),
        })
    }

    fn give(&self, job: impl FnOnce() + Send + 'static) {
        let jobs = self.jobs.lock().unwrap();
        self.state.n_given.fetch_add(1, Ordering::Relaxed);
        jobs.send(Box::new(job)).unwrap();
    }

    /// `to` becomes what `f` makes of `from`, later. The queue keeps neither.
    fn give_loop(&self, from: &Tensor, to: &Tensor, f: fn(f32) -> f32) {
        let next = self.state.n_given.load(Ordering::Relaxed) + 1;
        let memories = [from, to].map(|tensor| {
            cells(&memory(tensor))
                .last_use
                .fetch_max(next, Ordering::Relaxed);
            Arc::downgrade(&memory(tensor))
        });
        let state = Arc::clone(&self.state);
        self.give(move || {
            let [Some(from), Some(to)] = memories.each_ref().map(Weak::upgrade) else {
                state.n_too_early.fetch_add(1, Ordering::Relaxed);
                return;
            };
            let made: Vec<f32> = cells(&from)
                .values
                .lock()
                .unwrap()
                .iter()
                .map(|&x| f(x))
                .collect();
            *cells(&to).values.lock().unwrap() = made;
        });
    }

    fn hold(&self, is_held: bool) {
        self.state.progress.lock().unwrap().is_held = is_held;
        self.state.changed.notify_all();
    }

    fn n_too_early(&self) -> u64 {
        self.state.n_too_early.load(Ordering::Relaxed)
    }

    fn n_waiting(&self) -> usize {
        self.state.progress.lock().unwrap().n_waiting
    }

    fn n_done(&self) -> u64 {
        self.state.progress.lock().unwrap().n_done
    }
}

impl Stream for Queue {
    fn synchronize(&self) -> Result<(), DeviceError> {
        let n_given = self.state.n_given.load(Ordering::Relaxed);
        let mut progress = self.state.progress.lock().unwrap();
        progress.n_waiting += 1;
        let is_under_way = |progress: &mut Progress| progress.n_done < n_given;
        let progress = self.state.changed.wait_while(progress, is_under_way);
        progress.unwrap().n_waiting -= 1;
        Ok(())
    }
}

/// Events are jobs of the queue that they watch.
#[derive(Debug)]
struct Events(Arc<Queue>);

impl EventManager for Events {
    fn then_execute(&self, _: &Arc<dyn Stream>, callback: Job) -> Result<(), DeviceError> {
        self.0.give(callback);
        Ok(())
    }
}

/// Numbers that the device's context alone reads and writes.
#[derive(Debug)]
struct Cells {
    id: MemoryId,
    values: Mutex<Vec<f32>>,
    /// What the host sees of them, if it sees them: NaN, as none of the device's work has reached
    /// it.
    stale: Option<Box<[u8]>>,
    len_bytes: usize,
    last_use: AtomicU64,
    state: Arc<State>,
    in_use_bytes: Arc<AtomicU64>,
}

impl Memory for Cells {
    fn id(&self) -> MemoryId {
        self.id
    }
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
    fn as_host_bytes(&self) -> Option<&[u8]> {
        self.stale.as_deref()
    }
    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.stale.as_deref_mut()
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        let n_done = self.state.progress.lock().unwrap().n_done;
        if n_done < self.last_use.load(Ordering::Relaxed) {
            self.state.n_too_early.fetch_add(1, Ordering::Relaxed);
        }
        self.in_use_bytes
            .fetch_sub(self.len_bytes as u64, Ordering::Relaxed);
    }
}

fn memory(tensor: &Tensor) -> Arc<dyn Memory> {
    Arc::clone(tensor.buffer().unwrap().memory().unwrap())
}

fn cells(memory: &Arc<dyn Memory>) -> &Cells {
    let memory: &dyn Any = &**memory;
    memory.downcast_ref().expect("the device's own memory")
}

/// Whether the host sees the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    Hidden,
    Visible,
}

#[derive(Debug)]
struct CellAllocator {
    id: MemoryId,
    sight: Sight,
    state: Arc<State>,
    in_use_bytes: Arc<AtomicU64>,
}

impl Allocator for CellAllocator {
    fn name(&self) -> &str {
        "cells"
    }
    fn memory_id(&self) -> MemoryId {
        self.id
    }
    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.in_use_bytes
            .fetch_add(len_bytes as u64, Ordering::Relaxed);
        Ok(Buffer::new(Arc::new(Cells {
            id: self.id,
            values: Mutex::new(vec![0.0; len_bytes / 4]),
            stale: (self.sight == Sight::Visible).then(|| vec![0xFF; len_bytes].into()),
            len_bytes,
            last_use: AtomicU64::new(0),
            state: Arc::clone(&self.state),
            in_use_bytes: Arc::clone(&self.in_use_bytes),
        })))
    }
    fn stats(&self) -> AllocatorStats {
        AllocatorStats {
            in_use_bytes: self.in_use_bytes.load(Ordering::Relaxed),
            ..AllocatorStats::default()
        }
    }
}

/// Copies that the host waits for.
#[derive(Debug)]
struct QueueContext {
    queue: Arc<Queue>,
    own: Arc<CellAllocator>,
}

impl DeviceContext for QueueContext {
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        let copy = Tensor::zeros(&*self.own, DType::F32, tensor.shape().clone())?;
        *cells(&memory(&copy)).values.lock().unwrap() = tensor.as_slice::<f32>()?.to_vec();
        Ok(copy)
    }
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.queue.synchronize()?;
        let values = cells(&memory(tensor)).values.lock().unwrap().clone();
        Ok(Tensor::from_values(tensor.shape().clone(), &values)?)
    }
}

/// An accelerator with one queue.
#[derive(Debug)]
struct Accelerator {
    base: DeviceBase,
    queue: Arc<Queue>,
    own: Arc<CellAllocator>,
    host: Arc<HostAllocator>,
    info: AcceleratorInfo,
    /// Cannot take what kernels have used.
    is_cursed: AtomicBool,
    n_flushes: AtomicU64,
    /// Cannot be flushed.
    is_stuck: AtomicBool,
}

impl Accelerator {
    fn new(sight: Sight) -> Arc<Self> {
        let name = DeviceName::full("localhost", 0, 0, "ACC", 0);
        let queue = Queue::new();
        let own = Arc::new(CellAllocator {
            id: MemoryId::new(),
            sight,
            state: Arc::clone(&queue.state),
            in_use_bytes: Arc::default(),
        });
        let context = Arc::new(QueueContext {
            queue: Arc::clone(&queue),
            own: Arc::clone(&own),
        });
        Arc::new(Self {
            base: DeviceBase::new(DeviceAttributes::new(&name, "ACC", 1 << 28)).unwrap(),
            info: AcceleratorInfo {
                id: 0,
                stream: Arc::clone(&queue) as _,
                default_context: context,
                event_manager: Arc::new(Events(Arc::clone(&queue))),
            },
            host: Arc::new(HostAllocator::new("host", u64::MAX)),
            own,
            queue,
            is_cursed: AtomicBool::new(false),
            n_flushes: AtomicU64::new(0),
            is_stuck: AtomicBool::new(false),
        })
    }

    fn in_use_bytes(&self) -> u64 {
        self.own.stats().in_use_bytes
    }
}

impl Device for Accelerator {
    fn base(&self) -> &DeviceBase {
        &self.base
    }
    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        match attributes.on_host {
            true => Arc::clone(&self.host) as _,
            false => Arc::clone(&self.own) as _,
        }
    }
    /// Its own memory as it is: its kernels look for the type behind it.
    fn run_allocator(&self, attributes: AllocatorAttributes, _: RunNumber) -> Arc<dyn Allocator> {
        self.allocator(attributes)
    }
    fn memory_capacity_bytes(&self) -> u64 {
        1 << 40
    }
    fn rates(&self) -> DeviceRates {
        DeviceRates::default_cpu(1)
    }
    fn accelerator_info(&self) -> Option<&AcceleratorInfo> {
        Some(&self.info)
    }
    fn sync(&self) -> Result<(), DeviceError> {
        self.info.stream.synchronize()
    }
    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for Accelerator {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.info.default_context
    }
    fn records_accessed_tensors(&self) -> bool {
        true
    }
    fn flush(&self) {
        assert!(!self.is_stuck.load(Ordering::Relaxed), "the queue is stuck");
        self.n_flushes.fetch_add(1, Ordering::Relaxed);
    }
    fn consume_accessed_tensors(&self, _: &dyn DeviceContext, tensors: AccessedTensors) {
        assert!(!self.is_cursed.load(Ordering::Relaxed), "no events left");
        let drop_later = Box::new(move || drop(tensors));
        let stream = &self.info.stream;
        self.info
            .event_manager
            .then_execute(stream, drop_later)
            .unwrap();
    }
}

/// Gives work to the queue: the input, negated by way of a temporary.
struct Negate {
    queue: Arc<Queue>,
    ending: Ending,
}

/// How a kernel ends that has given its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    AtOnce,
    Fails,
    /// By its callback.
    Later,
    /// By losing its callback.
    Never,
}

impl Negate {
    fn start(&self, context: &KernelContext<'_>) -> Result<(), KernelError> {
        let input = context.input(0)?;
        let temporary = context.allocate_temporary(DType::F32, input.shape().clone())?;
        let output = context.allocate_output(0, DType::F32, input.shape().clone())?;
        self.queue.give_loop(input, &temporary, |x| -x);
        self.queue.give_loop(&temporary, &output, |x| x);
        if self.ending == Ending::Fails {
            return Err(KernelError::invalid("it is Tuesday"));
        }
        context.set_output(0, output)
    }
}

impl Kernel for Negate {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        self.start(context)
    }
    fn as_async(&self) -> Option<&dyn AsyncKernel> {
        matches!(self.ending, Ending::Later | Ending::Never).then_some(self)
    }
}

impl AsyncKernel for Negate {
    fn compute_async(&self, mut context: AsyncKernelContext, done: Done) {
        let started = self.start(&context.kernel_context());
        if self.ending == Ending::Later {
            done.call(context, started);
        }
    }
}

struct Bench {
    device: Arc<Accelerator>,
    executor: Executor,
    sketch: Sketch,
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bench").field(&self.device).finish()
    }
}

const CHAIN: &str = "
    x = Placeholder() @ 0
    c = Const() @ 0
    a = QNeg(x) @ 0
    b = QNeg(a) @ 0
    d = QNeg(b) @ 0
    later = QLater(d) @ 0
    k = QNeg(c) @ 0
    bad = QFail(d) @ 0
    soon = QLater(x) @ 0
    lost = QLost(x) @ 0
    n = Neg(a) @ 1
    back = QNeg(n) @ 0
    s = Sum(c, n) @ 1
";

type Wrap = fn(Arc<Accelerator>) -> Arc<dyn Device>;

impl Bench {
    /// An accelerator whose memory nobody sees, and runs that do not wait for its queue, which
    /// tests may hold.
    fn new(wrap: Wrap) -> Self {
        Self::build(Sight::Hidden, wrap, false)
    }

    fn build(sight: Sight, wrap: Wrap, sync_on_finish: bool) -> Self {
        let device = Accelerator::new(sight);
        let cpu = FakeWorld::new(&["CPU"]);
        let mut registry = cpu.registry.clone();
        for (op, ending) in [
            ("QNeg", Ending::AtOnce),
            ("QFail", Ending::Fails),
            ("QLater", Ending::Later),
            ("QLost", Ending::Never),
        ] {
            let queue = Arc::clone(&device.queue);
            let def = KernelDef::new(op, "ACC").with_factory(move |_| {
                Ok(Box::new(Negate {
                    queue: Arc::clone(&queue),
                    ending,
                }))
            });
            registry.register(def);
        }
        let sketch = Sketch::parse(CHAIN);
        let devices = [wrap(Arc::clone(&device)), Arc::clone(&cpu.devices[0]) as _];
        let devices = Arc::new(DeviceSet::new(devices));
        let graph = Arc::clone(&sketch.graph);
        let options = threads(2).with_sync_on_finish(sync_on_finish);
        let executor = Executor::new(graph, devices, Arc::new(registry), &options);
        Self {
            device,
            executor: executor.unwrap(),
            sketch,
        }
    }

    fn prepare(&self, fetches: &[&str], targets: &[&str]) -> Arc<PreparedPlan> {
        let request = self.sketch.request(&["x"], fetches, targets);
        let plan = self.sketch.partition(&[false, true], &request).unwrap();
        self.executor.prepare(&Arc::new(plan)).unwrap()
    }

    fn run(&self, prepared: &Arc<PreparedPlan>, x: f32) -> Result<Vec<Vec<f32>>, ExecuteError> {
        let fed = Tensor::from_values([4], &[x; 4]).unwrap();
        let fetched = self
            .executor
            .run(prepared, &[fed], &RunOptions::default())?;
        Ok(fetched
            .iter()
            .map(|tensor| tensor.as_slice().unwrap().to_vec())
            .collect())
    }
}

fn as_it_is(device: Arc<Accelerator>) -> Arc<dyn Device> {
    device
}

fn renamed(device: Arc<Accelerator>) -> Arc<dyn Device> {
    Arc::new(RenamedDevice::new("/job:worker/replica:0/task:1", device).unwrap())
}

fn kinds() -> [(Sight, Wrap); 4] {
    [
        (Sight::Hidden, as_it_is),
        (Sight::Hidden, renamed),
        (Sight::Visible, as_it_is),
        (Sight::Visible, renamed),
    ]
}

#[test]
fn a_run_ends_when_the_queue_is_done_unless_nobody_wants_that() {
    let bench = Bench::build(Sight::Hidden, as_it_is, true);
    // Nothing is fetched, so nothing else makes the run wait.
    let prepared = bench.prepare(&[], &["d"]);
    let mut before = 0;
    for _ in 0..20 {
        bench.run(&prepared, 1.0).unwrap();
        let n_given = bench.device.queue.state.n_given.load(Ordering::Relaxed);
        assert!(n_given >= before + 3);
        assert_eq!(bench.device.queue.n_done(), n_given);
        before = n_given;
    }
}

#[test]
fn nothing_goes_back_before_the_queue_is_done_with_it() {
    for (sight, wrap) in kinds() {
        let bench = Bench::build(sight, wrap, false);
        let plans = [bench.prepare(&[], &["d"]), bench.prepare(&[], &["later"])];
        for (prepared, n_kernels) in plans.iter().zip([3, 4]) {
            let before = bench.device.in_use_bytes();
            let n_done = bench.device.queue.n_done();
            bench.device.queue.hold(true);
            for _ in 0..10 {
                bench.run(prepared, 1.0).unwrap();
            }
            // The fed tensor, and a temporary and an output per kernel: all wait for the queue.
            let per_run = 16 * (1 + 2 * n_kernels);
            assert_eq!(bench.device.in_use_bytes(), before + 10 * per_run);
            assert_eq!(bench.device.queue.n_done(), n_done);
            assert_eq!(bench.device.queue.n_too_early(), 0);
            bench.device.queue.hold(false);
            bench.device.sync().unwrap();
            assert_eq!(bench.device.in_use_bytes(), before);
            assert_eq!(bench.device.queue.n_too_early(), 0);
        }
    }
}

#[test]
fn the_executor_starts_submitted_work_before_it_computes_or_waits() {
    for (sight, wrap) in kinds() {
        let bench = Bench::build(sight, wrap, false);
        let n_flushes = || bench.device.n_flushes.load(Ordering::Relaxed);
        // The CPU computes `n` and `s`; for `later`, a thread waits.
        for (fetch, n_least) in [("s", 2), ("later", 1)] {
            let prepared = bench.prepare(&[fetch], &[]);
            for _ in 0..10 {
                let before = n_flushes();
                bench.run(&prepared, 1.0).unwrap();
                assert!(n_flushes() >= before + n_least, "{fetch}");
            }
        }
        bench.device.is_stuck.store(true, Ordering::Relaxed);
        let prepared = bench.prepare(&["s"], &[]);
        let error = bench.run(&prepared, 1.0).unwrap_err().to_string();
        assert!(error.contains("starting submitted work"), "{error}");
        bench.device.is_stuck.store(false, Ordering::Relaxed);
        bench.device.sync().unwrap();
        bench.run(&prepared, 1.0).unwrap();
    }
}

#[test]
fn constants_outlive_the_plan_while_the_queue_reads_them() {
    let bench = Bench::new(as_it_is);
    let device = Arc::clone(&bench.device);
    device.queue.hold(true);
    let prepared = bench.prepare(&[], &["k"]);
    bench.run(&prepared, 0.0).unwrap();
    drop((prepared, bench));
    assert_eq!(device.in_use_bytes(), 3 * 16);
    device.queue.hold(false);
    device.sync().unwrap();
    assert_eq!(device.in_use_bytes(), 0);
    assert_eq!(device.queue.n_too_early(), 0);
}

#[test]
fn results_are_those_of_the_finished_work() {
    for (sight, wrap) in kinds() {
        let bench = Bench::build(sight, wrap, false);
        let prepared = bench.prepare(&["d", "later", "k"], &[]);
        thread::scope(|scope| {
            for caller in 0u8..3 {
                let (bench, prepared) = (&bench, &prepared);
                scope.spawn(move || {
                    for run in 0u8..50 {
                        let x = f32::from(caller) * 64.0 + f32::from(run);
                        let expected = [vec![-x; 4], vec![x; 4], vec![-1.0, -2.0, -3.0, -4.0]];
                        assert_eq!(bench.run(prepared, x).unwrap(), expected);
                    }
                });
            }
        });
        bench.device.sync().unwrap();
        assert_eq!(bench.device.queue.n_too_early(), 0);
    }
}

#[test]
fn a_kernel_that_fails_leaves_its_memory_to_the_queue() {
    let bench = Bench::new(as_it_is);
    let (bad, good) = (bench.prepare(&["bad"], &[]), bench.prepare(&["d"], &[]));
    let before = bench.device.in_use_bytes();
    for run in 0u8..20 {
        bench.device.queue.hold(true);
        let error = bench.run(&bad, 1.0).unwrap_err().to_string();
        assert!(
            error.contains("`bad` (QFail)") && error.contains("Tuesday"),
            "{error}"
        );
        assert!(bench.device.in_use_bytes() > before);
        bench.device.queue.hold(false);
        let x = f32::from(run);
        assert_eq!(bench.run(&good, x).unwrap(), [vec![-x; 4]]);
    }
    bench.device.sync().unwrap();
    assert_eq!(bench.device.queue.n_too_early(), 0);
    assert_eq!(bench.device.in_use_bytes(), before);
}

#[test]
fn what_the_host_sees_of_an_accelerator_is_copied_by_its_context_all_the_same() {
    for (sight, wrap) in kinds() {
        let bench = Bench::build(sight, wrap, false);
        // From the accelerator to a CPU and back, a constant, and fetches from both.
        let prepared = bench.prepare(&["n", "back", "s", "a"], &[]);
        let before = bench.device.in_use_bytes();
        for run in 0u8..50 {
            let x = f32::from(run);
            let sum = [1.0, 2.0, 3.0, 4.0].map(|c| c + x).to_vec();
            let expected = [vec![x; 4], vec![-x; 4], sum, vec![-x; 4]];
            assert_eq!(bench.run(&prepared, x).unwrap(), expected, "{sight:?}");
        }
        bench.device.sync().unwrap();
        assert_eq!(bench.device.in_use_bytes(), before);
        assert_eq!(bench.device.queue.n_too_early(), 0);
    }
}

#[test]
fn a_tensor_is_handed_out_when_the_queue_is_done_with_it() {
    for (sight, wrap) in kinds() {
        let bench = Bench::build(sight, wrap, false);
        for (fetch, expected) in [("d", -5.0), ("n", 5.0)] {
            let prepared = bench.prepare(&[fetch], &[]);
            let queue = &bench.device.queue;
            queue.hold(true);
            thread::scope(|scope| {
                let run = scope.spawn(|| bench.run(&prepared, 5.0));
                while queue.n_waiting() == 0 && !run.is_finished() {
                    thread::yield_now();
                }
                assert!(!run.is_finished(), "{fetch} was handed out too early");
                queue.hold(false);
                assert_eq!(run.join().unwrap().unwrap(), [[expected; 4]]);
            });
        }
    }
}

#[test]
fn a_device_that_panics_when_it_is_handed_tensors_fails_the_run() {
    for (wrap, device) in [
        (
            as_it_is as Wrap,
            "/job:localhost/replica:0/task:0/device:ACC:0",
        ),
        (renamed, "/job:worker/replica:0/task:1/device:ACC:0"),
    ] {
        let bench = Bench::new(wrap);
        let prepared = ["a", "soon", "lost"].map(|node| bench.prepare(&[], &[node]));
        let good = bench.prepare(&["d", "later"], &[]);
        for round in 0u8..10 {
            bench.device.is_cursed.store(true, Ordering::Relaxed);
            for (prepared, (node, said)) in prepared.iter().zip([
                ("`a` (QNeg)", "the device panicked: no events left"),
                ("`soon` (QLater)", "the device panicked: no events left"),
                // The device panics after the kernel has lost its tensors, when the error can no
                // longer be reported.
                ("`lost` (QLost)", "dropped its callback"),
            ]) {
                let error = bench.run(prepared, 1.0).unwrap_err();
                assert!(matches!(error, ExecuteError::Kernel { .. }), "{error:?}");
                let error = error.to_string();
                assert!(
                    error.starts_with(&format!("node {node} on {device},")),
                    "{error}"
                );
                assert!(error.contains(said), "{error}");
            }
            bench.device.is_cursed.store(false, Ordering::Relaxed);
            let x = f32::from(round);
            assert_eq!(bench.run(&good, x).unwrap(), [[-x; 4], [x; 4]]);
        }
    }
}
