//! Emulated GPUs, which check the order of a backend's commands.
//!
//! The emulator implements `Driver` and `Gpu`, and reports *violations*: memory that is used after
//! it is freed, work that does not wait for what it needs, host memory that changes during a copy,
//! invalid spans. Memory is the host's, and a SYCL device executes kernels in the forms that GPUs
//! get. Streams do their work as late, and as interleaved, as events allow, in an order that a seed
//! decides. This is evidence about the order of commands only. Nothing here runs on a GPU, and
//! nothing shows that anything does.
//!
//! | file | what |
//! |---|---|
//! | `gpu.rs` | the calls of an open GPU |
//! | `state.rs` | what was given and is not done: streams, events |
//! | `check.rs` | what is wrong with it |
//! | `schedule.rs` | doing it |
//! | `order.rs` | what is ordered after what |
//! | `memory.rs`, `pinned.rs` | bytes |
//! | `programs.rs` | kernels |
//! | `routines.rs` | matmuls and convolutions |
//! | `random.rs` | numbers from the seed |
//!
//! Not emulated: time, copies that go at once where CUDA's would, memory that a launch shares out,
//! alignment that an element type needs, and what several kernels do at the same time to the same
//! bytes (they are violations, also where both write the same). What the host reads of pinned
//! memory too early is no violation, but garbage. Shared by suites with `#[path]`.

#![allow(
    dead_code,
    reason = "each suite that includes this file uses a part of it"
)]

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::Weak;

use placewright::backend::cuda::driver::Driver;
use placewright::backend::cuda::driver::DriverError;
use placewright::backend::cuda::driver::DriverErrorKind;
use placewright::backend::cuda::driver::Gpu;
use placewright::backend::cuda::driver::GpuFacts;
use placewright::backend::cuda::driver::Span;
use placewright::device::ComputeTraits;
use placewright::device::DeviceError;
use placewright::device::ProcessorKind;
use placewright::device::gpu::ComputeCapability;
use placewright::device::gpu::PhysicalGpu;

mod check;
#[expect(unsafe_code, reason = "implements a trait that has unsafe methods")]
mod gpu;
mod memory;
mod order;
#[expect(unsafe_code, reason = "memory that others reach through raw pointers")]
mod pinned;
mod programs;
mod random;
mod routines;
mod schedule;
mod state;

pub(crate) use gpu::EmulatedGpu;
use memory::Kind;
use programs::Compiler;
use programs::Executor;
use state::Context;
use state::Refusal;
use state::State;
use state::refused;

/// Maximum number of work items per group in CUDA.
const GROUP_SIZE_MAX: usize = 1024;

/// Maximum memory in bytes that a program may declare for a group on NVIDIA's GPUs.
const LOCAL_BYTES_MAX: u64 = 48 << 10;

/// The range of stream priorities.
const STREAM_PRIORITIES: RangeInclusive<i32> = -5..=0;

/// The calls that can be made to fail.
const CALLS: [&str; 20] = [
    "open",
    "allocate",
    "allocate_managed",
    "free",
    "allocate_pinned",
    "free_pinned",
    "new_stream",
    "new_event",
    "record",
    "wait",
    "has_happened",
    "synchronize",
    "copy",
    "zero",
    "launch",
    "compile",
    "load",
    "function",
    "matmul",
    "convolve",
];

/// The libraries for matmuls and convolutions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmulatedRoutines {
    /// None.
    Absent,
    /// Libraries that support nothing with an even inner size of a matmul, or an even number of
    /// channels of an image.
    Odd,
    /// The same without matmuls.
    OddConvolutions,
    /// Libraries that support everything.
    Present,
}

/// The emulated GPUs of a driver.
#[derive(Debug, Clone)]
pub(crate) struct EmulatedConfig {
    pub(crate) n_gpus: u32,
    /// Memory per GPU. Memory that is never written uses none of the host's.
    pub(crate) memory_bytes: u64,
    pub(crate) n_multiprocessors: u32,
    /// Whether each GPU can access the memory of the others.
    pub(crate) has_peers: bool,
    /// Number of NVLinks between each pair.
    pub(crate) n_nvlinks: u32,
    /// Whether GPUs page memory to and from the host on request.
    pub(crate) has_managed_memory: bool,
    /// Decides when streams do their work.
    pub(crate) seed: u64,
    /// Of a thousand calls that queue work, those that do some. With 0, all work waits until the
    /// host waits for it.
    pub(crate) early_per_mille: u32,
    /// Whether there is a compiler, without which no GPU devices are created.
    pub(crate) has_compiler: bool,
    /// Whether NVRTC, if it is present, must accept compiled programs.
    pub(crate) compiles_for_real: bool,
    pub(crate) routines: EmulatedRoutines,
}

impl Default for EmulatedConfig {
    fn default() -> Self {
        Self {
            n_gpus: 1,
            memory_bytes: 1 << 30,
            n_multiprocessors: 16,
            has_peers: true,
            n_nvlinks: 0,
            has_managed_memory: true,
            seed: 1,
            early_per_mille: 125,
            has_compiler: true,
            compiles_for_real: false,
            routines: EmulatedRoutines::Absent,
        }
    }
}

/// State shared by all GPUs of a driver.
#[derive(Debug)]
struct Shared {
    config: EmulatedConfig,
    traits: ComputeTraits,
    executor: Arc<Executor>,
    compiler: Compiler,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that has panicked has already failed its test.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self, gpu: u32) -> Vec<u32> {
        let all = 0..self.config.n_gpus;
        match self.config.has_peers {
            true => all.filter(|&other| other != gpu).collect(),
            false => Vec::new(),
        }
    }
}

/// A driver of emulated GPUs.
#[derive(Debug)]
pub(crate) struct EmulatedDriver {
    shared: Arc<Shared>,
    /// Per GPU: an open GPU is shared by all who open it.
    open: Mutex<Vec<Weak<EmulatedGpu>>>,
}

impl EmulatedDriver {
    /// # Errors
    /// If there is no SYCL device, whose kernels are needed.
    pub(crate) fn new(config: EmulatedConfig) -> Result<Self, DeviceError> {
        let executor = Arc::new(Executor::new()?);
        let traits = executor.traits();
        let traits = ComputeTraits {
            kind: ProcessorKind::Gpu,
            n_compute_units: config.n_multiprocessors,
            group_size_max: traits.group_size_max.min(GROUP_SIZE_MAX),
            local_memory_bytes: traits.local_memory_bytes.min(LOCAL_BYTES_MAX),
            vector_width_f32: 1,
            ..traits.clone()
        };
        let state = State::new(config.seed, config.early_per_mille, Arc::clone(&executor));
        let open = (0..config.n_gpus).map(|_| Weak::new()).collect();
        Ok(Self {
            shared: Arc::new(Shared {
                traits,
                executor,
                compiler: Compiler::new(config.compiles_for_real),
                state: Mutex::new(state),
                config,
            }),
            open: Mutex::new(open),
        })
    }

    /// Returns the violations of the code under test so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut state = self.shared.state();
        state.look_at_freed();
        state.violations.clone()
    }

    /// Returns the number of calls of each method, by name.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.shared.state().calls.clone()
    }

    /// Returns the number of calls of a method.
    pub(crate) fn n_calls(&self, call: &str) -> u64 {
        let state = self.shared.state();
        state.calls.get(call).copied().unwrap_or_default()
    }

    /// Returns the number of pieces of work that are queued and not done.
    pub(crate) fn n_waiting(&self) -> usize {
        let state = self.shared.state();
        state.streams.iter().map(|stream| stream.queue.len()).sum()
    }

    /// Makes the GPUs do all queued work, without the host's knowledge.
    pub(crate) fn finish(&self) {
        while self.shared.state().run_any() {}
    }

    /// Holds the streams that have work until [`Self::release`], as if it took long.
    pub(crate) fn hold_busy_streams(&self) {
        for stream in &mut self.shared.state().streams {
            stream.is_held = !stream.queue.is_empty();
        }
    }

    /// Releases the held streams.
    pub(crate) fn release(&self) {
        for stream in &mut self.shared.state().streams {
            stream.is_held = false;
        }
    }

    /// Returns the current contents of memory, whatever work is pending; `None` if it is not valid
    /// memory.
    pub(crate) fn peek(&self, span: Span) -> Option<Vec<u8>> {
        let state = self.shared.state();
        let place = state.memory.find(span)?;
        let allocation = state.memory.of(&place)?;
        Some(allocation.read(place.bytes))
    }

    /// Returns the bytes of GPU memory in use, in multiples of 256 bytes, except those of lost
    /// GPUs.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live(Kind::Device)
    }

    /// The same for paged memory.
    pub(crate) fn live_managed_bytes(&self) -> u64 {
        self.live(Kind::Managed)
    }

    /// Returns the bytes of pinned memory in use, except those of lost GPUs.
    pub(crate) fn live_pinned_bytes(&self) -> u64 {
        self.live(Kind::Pinned)
    }

    fn live(&self, kind: Kind) -> u64 {
        let state = self.shared.state();
        let contexts = 0..state.contexts.len();
        contexts.map(|idx| state.memory.live_bytes(idx, kind)).sum()
    }

    /// Returns the number of existing streams, except those of lost GPUs.
    pub(crate) fn n_live_streams(&self) -> usize {
        let state = self.shared.state();
        let streams = state.streams.iter();
        streams
            .filter(|it| !it.is_dropped && !state.contexts[it.context_idx].is_lost)
            .count()
    }

    /// Returns the number of existing events, except those of lost GPUs.
    pub(crate) fn n_live_events(&self) -> usize {
        let state = self.shared.state();
        let events = state.events.values();
        events
            .filter(|it| !state.contexts[it.context_idx].is_lost)
            .count()
    }

    /// Makes the next call of a method fail, on any GPU. With [`DriverErrorKind::Lost`], that GPU
    /// is lost.
    pub(crate) fn refuse_next(&self, call: &'static str, kind: DriverErrorKind) {
        self.refuse_after(call, 0, kind);
    }

    /// Makes a later call of a method fail, after `n_before` successful ones.
    pub(crate) fn refuse_after(&self, call: &'static str, n_before: u64, kind: DriverErrorKind) {
        assert!(
            CALLS.contains(&call),
            "`{call}` is not a call that can be made to fail"
        );
        self.shared.state().refusals.push(Refusal {
            call,
            n_before,
            kind,
        });
    }

    /// Rejects larger allocations of GPU memory from now on.
    pub(crate) fn refuse_allocations_above(&self, len_bytes: usize) {
        self.shared.state().allocation_bytes_max = len_bytes;
    }

    /// Simulates other processes that leave this much of a GPU's memory free.
    pub(crate) fn set_free_bytes(&self, gpu: u32, free_bytes: u64) {
        let mut state = self.shared.state();
        state.taken_bytes.remove(&gpu);
        let free = state.free_bytes(gpu, self.shared.config.memory_bytes);
        state
            .taken_bytes
            .insert(gpu, free.saturating_sub(free_bytes));
    }

    /// Loses a GPU: all its calls fail until it is opened again.
    pub(crate) fn lose(&self, gpu: u32) {
        let mut state = self.shared.state();
        for idx in 0..state.contexts.len() {
            let context = &state.contexts[idx];
            if context.gpu == gpu && !context.is_closed && !context.is_lost {
                state.lose(idx);
            }
        }
    }

    /// Makes a launch fail when a GPU executes it, which is then lost, after `n_before` successful
    /// ones on any GPU.
    pub(crate) fn fail_launch(&self, n_before: u64) {
        self.shared.state().n_launches_before_failure = Some(n_before);
    }

    fn facts(&self, gpu: u32) -> GpuFacts {
        let config = &self.shared.config;
        let available_bytes = self.shared.state().free_bytes(gpu, config.memory_bytes);
        GpuFacts {
            physical: PhysicalGpu {
                name: "emulated".to_owned(),
                pci_bus_id: format!("0000:{:02x}:00.0", gpu + 1),
                compute_capability: Some(ComputeCapability { major: 9, minor: 0 }),
                n_multiprocessors: config.n_multiprocessors,
                total_bytes: config.memory_bytes,
                available_bytes,
                numa_node: 0,
                peers: self.shared.peers(gpu),
                nvlinks: match config.n_nvlinks {
                    0 => Vec::new(),
                    n => (0..config.n_gpus)
                        .filter(|&other| other != gpu)
                        .map(|other| (other, n))
                        .collect(),
                },
                stream_priorities: 0..=0,
                is_tegra: false,
            },
            traits: self.shared.traits.clone(),
            architecture: programs::ARCHITECTURE.to_owned(),
            driver: self.shared.compiler.driver().to_owned(),
            memory_bytes_per_s: None,
            has_managed_memory: config.has_managed_memory,
        }
    }
}

impl Driver for EmulatedDriver {
    fn gpus(&self) -> Result<Vec<GpuFacts>, DeviceError> {
        let gpus = 0..self.shared.config.n_gpus;
        Ok(gpus.map(|gpu| self.facts(gpu)).collect())
    }

    fn can_compile(&self) -> bool {
        self.shared.config.has_compiler
    }

    fn open(&self, gpu: u32) -> Result<Arc<dyn Gpu>, DriverError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.state().count("open")?;
        let Some(slot) = open.get_mut(gpu as usize) else {
            return Err(refused(format!("emulated: there is no GPU {gpu}")));
        };
        if let Some(opened) = slot.upgrade() {
            let is_lost = self.shared.state().contexts[opened.context_idx].is_lost;
            if !is_lost {
                return Ok(opened);
            }
        }
        let mut state = self.shared.state();
        for before in &mut state.contexts {
            before.is_of_before |= before.gpu == gpu && before.is_lost;
        }
        state.contexts.push(Context {
            gpu,
            peers: BTreeSet::new(),
            is_lost: false,
            is_closed: false,
            is_of_before: false,
        });
        let opened = Arc::new(EmulatedGpu {
            shared: Arc::clone(&self.shared),
            context_idx: state.contexts.len() - 1,
            gpu,
        });
        *slot = Arc::downgrade(&opened);
        Ok(opened)
    }
}
