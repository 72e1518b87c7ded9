//! The streams, memory and watcher thread of one GPU device, shared by all sessions that use it
//! (TensorFlow's stream groups and allocators also belong to the process, by the device's number).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::Weak;

use super::DEVICE_TYPE;
use super::bfc;
use super::driver::Driver;
use super::driver::GpuFacts;
use super::faults::Faults;
use super::faults::SLOTS;
use super::lane::Lane;
use super::memory::Backing;
use super::memory::GpuAllocator;
use super::open_gpu::OpenGpu;
use super::open_gpu::device_error;
use super::pinned::PinnedAllocator;
use super::watcher::Watcher;
use crate::device::DeviceError;
use crate::device::KernelError;
use crate::device::gpu::PlannedGpu;
use crate::tensor::Buffer;
use crate::tensor::TensorError;

/// Scratch memory of a stream's matmuls and convolutions: NVIDIA's recommendation, but at most this
/// fraction of a small device's memory.
const SCRATCH_BYTES_HOPPER: u64 = 32 << 20;
const SCRATCH_BYTES: u64 = 8 << 20;
const SCRATCH_PART: u64 = 32;

/// Returns the kind of memory of a device.
fn backing_of(planned: &PlannedGpu) -> Backing {
    match planned.uses_unified_memory {
        true => Backing::Managed,
        false => Backing::Own,
    }
}

/// Streams, memory and the rest of one GPU device.
#[derive(Debug)]
pub(super) struct Group {
    /// The planned device that it was created for.
    planned: PlannedGpu,
    pub(super) gpu: Arc<OpenGpu>,
    /// The streams of kernels: one, unless nodes are distributed over several.
    pub(super) compute: Vec<Arc<Lane>>,
    /// One per compute stream, allocated at first use; `None` if memory was short.
    scratch: Vec<OnceLock<Option<Buffer>>>,
    pub(super) from_host: Arc<Lane>,
    pub(super) to_host: Arc<Lane>,
    /// Streams for copies from other devices, used round-robin.
    pub(super) from_devices: Vec<Arc<Lane>>,
    pub(super) memory: Arc<GpuAllocator>,
    /// For copies, and for results on the host.
    pub(super) pinned: Arc<PinnedAllocator>,
    pub(super) faults: Faults,
    pub(super) watcher: Watcher,
}

impl Group {
    fn new(
        gpu: &Arc<OpenGpu>,
        planned: &PlannedGpu,
        n_compute: u32,
        allow_growth: bool,
    ) -> Result<Self, DeviceError> {
        let name = format!("{DEVICE_TYPE}:{}", planned.index);
        let lane = |what: &'static str| {
            Lane::new(gpu, what, planned.stream_priority)
                .map_err(|error| device_error(&name, None, "making a stream", &error))
        };
        let compute: Vec<_> = (0..n_compute)
            .map(|_| lane("compute"))
            .collect::<Result<_, _>>()?;
        let from_devices = (0..planned.n_copy_streams.max(1)).map(|_| lane("from devices"));
        let backing = backing_of(planned);
        if backing == Backing::Managed && !gpu.facts().has_managed_memory {
            return Err(DeviceError::InvalidArgument(format!(
                "{name}: unified memory is requested, but GPU {} ({}) cannot page memory between itself and the host; unset \
                 use_unified_memory and set a memory fraction of at most 1",
                planned.gpu,
                gpu.facts().physical.name
            )));
        }
        let options = bfc::Options {
            limit_bytes: planned.memory_limit_bytes,
            allow_growth,
            region_bytes_max: usize::MAX,
        };
        let pinned = PinnedAllocator::new(format!("{name} (pinned)"), gpu, u64::MAX);
        let flags = pinned.uninitialized(SLOTS * 4).map(|mut flags| {
            flags.bytes_mut().fill(0);
            flags
        })?;
        let watcher = Watcher::start(&name).map_err(|error| DeviceError::Failed {
            device: name.clone(),
            message: format!("cannot start the thread that watches its copies: {error}"),
        })?;
        Ok(Self {
            planned: planned.clone(),
            gpu: Arc::clone(gpu),
            from_host: lane("from host")?,
            to_host: lane("to host")?,
            from_devices: from_devices.collect::<Result<_, _>>()?,
            // TensorFlow's name.
            memory: Arc::new(GpuAllocator::new(
                format!("GPU_{}_bfc", planned.index),
                &compute[0],
                backing,
                options,
            )),
            scratch: compute.iter().map(|_| OnceLock::new()).collect(),
            compute,
            pinned: Arc::new(pinned),
            faults: Faults::new(flags),
            watcher,
        })
    }

    /// Describes the existing device, for errors.
    fn text(planned: &PlannedGpu, n_compute: usize) -> String {
        let memory = match backing_of(planned) {
            Backing::Own => "its own memory",
            Backing::Managed => "unified memory",
        };
        format!("GPU {} with {n_compute} streams and {memory}", planned.gpu)
    }

    /// Allocates uninitialised memory.
    ///
    /// # Errors
    /// If there is not enough memory, or the GPU is lost.
    pub(super) fn uninitialized(
        &self,
        device: &str,
        len_bytes: usize,
    ) -> Result<Buffer, KernelError> {
        self.memory
            .uninitialized(len_bytes)
            .map_err(|full| match self.gpu.call(|_| Ok(())) {
                Ok(()) => TensorError::from(full).into(),
                Err(lost) => device_error(device, None, "asking for memory", &lost).into(),
            })
    }

    /// Returns scratch memory for the work of a compute stream, whose kernels run one after the
    /// other.
    pub(super) fn scratch(&self, compute: usize) -> Option<&Buffer> {
        let physical = &self.gpu.facts().physical;
        let advised = match physical.compute_capability {
            Some(capability) if capability.major >= 9 => SCRATCH_BYTES_HOPPER,
            _ => SCRATCH_BYTES,
        };
        let len_bytes = advised.min(self.memory.limit_bytes() / SCRATCH_PART);
        let scratch = self.scratch[compute].get_or_init(|| {
            let len_bytes = usize::try_from(len_bytes).ok().filter(|&len| len > 0)?;
            self.memory.uninitialized(len_bytes).ok()
        });
        scratch.as_ref()
    }

    /// Iterates over all streams.
    pub(super) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        [&self.from_host, &self.to_host]
            .into_iter()
            .chain(&self.from_devices)
            .chain(&self.compute)
    }
}

impl Drop for Group {
    /// Waits for the work of its streams. Memory of other devices may refer to streams of this one,
    /// and would keep them if their work never ended.
    fn drop(&mut self) {
        for lane in self.lanes() {
            // A lost GPU does no more work.
            let _ = lane.wait_for_all();
        }
    }
}

/// The open GPUs of a driver, and the devices on them.
#[derive(Debug)]
pub(super) struct Gpus {
    pub(super) driver: Arc<dyn Driver>,
    open: Mutex<Open>,
    /// See [`OpenGpu`].
    reset: Arc<RwLock<()>>,
}

#[derive(Debug, Default)]
struct Open {
    /// Kept open: opening a GPU and compiling its programs takes long.
    gpus: HashMap<u32, Arc<OpenGpu>>,
    /// Groups by device number.
    groups: HashMap<u32, Weak<Group>>,
}

impl Gpus {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            driver,
            open: Mutex::default(),
            reset: Arc::default(),
        }
    }

    /// Returns a GPU. Opens it if necessary, and enables access to the other visible GPUs. A lost
    /// GPU is opened again; holders of the old one still receive the error that it is lost.
    ///
    /// # Errors
    /// The driver's error.
    pub(super) fn open(
        &self,
        id: u32,
        facts: &GpuFacts,
        visible: &[u32],
    ) -> Result<Arc<OpenGpu>, DeviceError> {
        let before;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = open.gpus.get(&id).filter(|gpu| !gpu.is_lost()) {
            gpu.reach_out(visible);
            return Ok(Arc::clone(gpu));
        }
        let name = format!("GPU {id} ({})", facts.physical.name);
        let failed = |doing: &str, error| device_error(&name, None, doing, &error);
        let driver = {
            let _nothing_is_called = self.reset.write().unwrap_or_else(PoisonError::into_inner);
            let opened = self.driver.open(id);
            opened.map_err(|error| failed("opening it", error))?
        };
        let mut facts = facts.clone();
        let (free, _) = driver
            .memory_bytes()
            .map_err(|error| failed("asking for its memory", error))?;
        facts.physical.available_bytes = free;
        facts.physical.stream_priorities = driver
            .stream_priorities()
            .map_err(|error| failed("asking for its streams", error))?;
        let gpu = Arc::new(OpenGpu::new(id, facts, driver, &self.reset));
        gpu.reach_out(visible);
        before = open.gpus.insert(id, Arc::clone(&gpu));
        if before.is_some() {
            for other in open.gpus.values() {
                other.reach_again(id);
            }
        }
        Ok(gpu)
    }

    /// Returns the group of a device; creates it if no session has it.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] if the process already has this device on another GPU, with
    /// another number of streams or with another kind of memory, or if the GPU has no unified
    /// memory; otherwise the driver's error. The memory limit and growth of the first session
    /// apply.
    pub(super) fn group(
        &self,
        gpu: &Arc<OpenGpu>,
        planned: &PlannedGpu,
        n_compute: u32,
        allow_growth: bool,
    ) -> Result<Arc<Group>, DeviceError> {
        // Dropped after all locks: it may be the last reference, and dropping it waits for a thread
        // that may need these locks.
        let known;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        known = open.groups.get(&planned.index).and_then(Weak::upgrade);
        if let Some(group) = known.as_ref().filter(|group| !group.gpu.is_lost()) {
            let own = &group.planned;
            let n_own = group.compute.len();
            let n_asked = n_compute as usize;
            if (own.gpu, n_own, backing_of(own)) != (planned.gpu, n_asked, backing_of(planned)) {
                let own = Group::text(own, n_own);
                let asked = Group::text(planned, n_asked);
                return Err(DeviceError::InvalidArgument(format!(
                    "another session of this process has {DEVICE_TYPE}:{} as {own}, but {asked} is requested; request the same GPUs, \
                     streams and kind of memory in all sessions, or end the other session first",
                    planned.index
                )));
            }
            return Ok(Arc::clone(group));
        }
        let group = Arc::new(Group::new(gpu, planned, n_compute, allow_growth)?);
        open.groups.insert(planned.index, Arc::downgrade(&group));
        Ok(group)
    }
}
