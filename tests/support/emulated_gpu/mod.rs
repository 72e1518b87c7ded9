//! GPUs that are emulated, to test the order of what a backend has them do.
//!
//! In go the calls of `Driver` and `Gpu`, out come results, and *violations*: memory that is used
//! when it is free, work that does not wait for what it needs, memory of the host that changes
//! while a copy is under way, spans that are none. Memory is the host's; kernels are executed by a
//! SYCL device, in the forms that GPUs are given; streams do their work as late, and as
//! interleaved, as events allow, in an order that a seed decides. That is evidence of the order of
//! commands alone. Nothing here runs on a GPU, and nothing shows that anything does.
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

/// Work items that CUDA lets a group have.
const GROUP_SIZE_MAX: usize = 1024;

/// Memory that a program may declare for a group on NVIDIA's GPUs, in bytes.
const LOCAL_BYTES_MAX: u64 = 48 << 10;

/// Priorities that streams may have.
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

/// What libraries of matmuls and convolutions there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmulatedRoutines {
    /// None.
    Absent,
    /// Some that do nothing where the inner size of a matmul, or the channels of an image, are
    /// even.
    Odd,
    /// Such as do everything.
    Present,
}

/// Which GPUs there are.
#[derive(Debug, Clone)]
pub(crate) struct EmulatedConfig {
    pub(crate) n_gpus: u32,
    /// Memory of each. What is not written takes none of the host's.
    pub(crate) memory_bytes: u64,
    pub(crate) n_multiprocessors: u32,
    /// Whether each can reach the memory of the others.
    pub(crate) has_peers: bool,
    /// NVLinks between each two.
    pub(crate) n_nvlinks: u32,
    /// Whether memory is paged in and out of the host's where that is asked for.
    pub(crate) has_managed_memory: bool,
    /// Decides when streams do their work.
    pub(crate) seed: u64,
    /// Of a thousand calls that give work, those that have some done. With 0, all waits until the
    /// host asks for it.
    pub(crate) early_per_mille: u32,
    /// Whether there is a compiler, without which no GPU devices are made.
    pub(crate) has_compiler: bool,
    /// Whether NVRTC, where it is here, has to take what is compiled.
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

/// What all GPUs of a driver share.
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
        // A thread that has panicked has failed its test already.
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
    /// By GPU: while it is open, all who open it have the same one.
    open: Mutex<Vec<Weak<EmulatedGpu>>>,
}

impl EmulatedDriver {
    /// # Errors
    /// Without a SYCL device, whose kernels are needed.
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

    /// What the code under test has done wrong so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut state = self.shared.state();
        state.look_at_freed();
        state.violations.clone()
    }

    /// How often each method was called, by its name.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.shared.state().calls.clone()
    }

    /// How often a method was called.
    pub(crate) fn n_calls(&self, call: &str) -> u64 {
        let state = self.shared.state();
        state.calls.get(call).copied().unwrap_or_default()
    }

    /// Pieces of work that were given and are not done.
    pub(crate) fn n_waiting(&self) -> usize {
        let state = self.shared.state();
        state.streams.iter().map(|stream| stream.queue.len()).sum()
    }

    /// Has the GPUs do all that they were given, of which the host learns nothing.
    pub(crate) fn finish(&self) {
        while self.shared.state().run_any() {}
    }

    /// Streams that have something to do, do nothing until [`Self::release`]: that takes long.
    pub(crate) fn hold_busy_streams(&self) {
        for stream in &mut self.shared.state().streams {
            stream.is_held = !stream.queue.is_empty();
        }
    }

    /// The streams that are held go on.
    pub(crate) fn release(&self) {
        for stream in &mut self.shared.state().streams {
            stream.is_held = false;
        }
    }

    /// What stands in memory now, whatever is still to be done to it; nothing where that is no
    /// memory.
    pub(crate) fn peek(&self, span: Span) -> Option<Vec<u8>> {
        let state = self.shared.state();
        let place = state.memory.find(span)?;
        let allocation = state.memory.of(&place)?;
        Some(allocation.read(place.bytes))
    }

    /// Memory of GPUs that was given, multiples of 256 bytes, and not given back; that of lost GPUs
    /// does not count.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live(Kind::Device)
    }

    /// The same of memory that is paged in and out of the host's.
    pub(crate) fn live_managed_bytes(&self) -> u64 {
        self.live(Kind::Managed)
    }

    /// Pinned memory that was given and not given back; that of lost GPUs does not count.
    pub(crate) fn live_pinned_bytes(&self) -> u64 {
        self.live(Kind::Pinned)
    }

    fn live(&self, kind: Kind) -> u64 {
        let state = self.shared.state();
        let contexts = 0..state.contexts.len();
        contexts.map(|idx| state.memory.live_bytes(idx, kind)).sum()
    }

    /// Streams that were made and not let go; those of lost GPUs do not count.
    pub(crate) fn n_live_streams(&self) -> usize {
        let state = self.shared.state();
        let streams = state.streams.iter();
        streams
            .filter(|it| !it.is_dropped && !state.contexts[it.context_idx].is_lost)
            .count()
    }

    /// Events that were made and not let go; those of lost GPUs do not count.
    pub(crate) fn n_live_events(&self) -> usize {
        let state = self.shared.state();
        let events = state.events.values();
        events
            .filter(|it| !state.contexts[it.context_idx].is_lost)
            .count()
    }

    /// Has the next call of a method fail, on whichever GPU. With [`DriverErrorKind::Lost`] that
    /// GPU is lost.
    pub(crate) fn refuse_next(&self, call: &'static str, kind: DriverErrorKind) {
        self.refuse_after(call, 0, kind);
    }

    /// Has a later call of a method fail: `n_before` of them are not the one.
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

    /// From now on there is no memory for larger allocations of a GPU's memory.
    pub(crate) fn refuse_allocations_above(&self, len_bytes: usize) {
        self.shared.state().allocation_bytes_max = len_bytes;
    }

    /// Has other processes take so much of a GPU's memory that so much is free now.
    pub(crate) fn set_free_bytes(&self, gpu: u32, free_bytes: u64) {
        let mut state = self.shared.state();
        state.taken_bytes.remove(&gpu);
        let free = state.free_bytes(gpu, self.shared.config.memory_bytes);
        state
            .taken_bytes
            .insert(gpu, free.saturating_sub(free_bytes));
    }

    /// A GPU answers nothing any more, until it is opened again.
    pub(crate) fn lose(&self, gpu: u32) {
        let mut state = self.shared.state();
        for idx in 0..state.contexts.len() {
            let context = &state.contexts[idx];
            if context.gpu == gpu && !context.is_closed && !context.is_lost {
                state.lose(idx);
            }
        }
    }

    /// Has a launch fail when a GPU does it, which is then lost: the one after so many that any of
    /// them does from now on.
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
