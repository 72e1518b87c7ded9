//! An open GPU: its driver, whether it still responds, its events and programs. There is one for
//! each GPU, whatever the number of devices on it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use tracing::debug;
use tracing::warn;

use super::driver::DriverError;
use super::driver::DriverErrorKind;
use super::driver::EventHandle;
use super::driver::FunctionHandle;
use super::driver::Gpu;
use super::driver::GpuFacts;
use super::driver::ModuleHandle;
use super::driver::StreamHandle;
use super::lane::Lane;
use crate::device::DeviceError;
use crate::device::LaunchSite;
use crate::device::ProgramCode;
use crate::device::ProgramSource;
use crate::store::CacheFolder;
use crate::store::CacheKey;
use crate::trace::targets;

/// The kind of its entries in the kernel cache.
const CACHE_KIND: &str = "cubin";

/// The part of an error that names the nodes whose work was in flight.
const AT_WORK: &str = "; at work was ";

/// A GPU that is open.
pub(super) struct OpenGpu {
    id: u32,
    facts: GpuFacts,
    driver: Arc<dyn Gpu>,
    /// Set once the GPU no longer responds, with the reason.
    is_lost: AtomicBool,
    lost: Mutex<Option<DriverError>>,
    /// The streams of the GPU, for errors that concern all of them.
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// Unused events.
    events: Mutex<Vec<EventHandle>>,
    /// Each module has its own lock: several are compiled at the same time, but none twice.
    modules: Mutex<HashMap<ProgramSource, Arc<Mutex<Option<ModuleHandle>>>>>,
    /// GPUs whose memory the work of this GPU may use.
    peers: Mutex<Vec<u32>>,
    /// Shared by all GPUs of a driver. Locked exclusively while one of them is restarted, when
    /// none of the driver's functions may be called.
    reset: Arc<RwLock<()>>,
}

impl fmt::Debug for OpenGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenGpu")
            .field("id", &self.id)
            .field("name", &self.facts.physical.name)
            .field("is_lost", &self.is_lost)
            .finish_non_exhaustive()
    }
}

impl OpenGpu {
    pub(super) fn new(
        id: u32,
        facts: GpuFacts,
        driver: Arc<dyn Gpu>,
        reset: &Arc<RwLock<()>>,
    ) -> Self {
        Self {
            id,
            facts,
            driver,
            is_lost: AtomicBool::new(false),
            lost: Mutex::default(),
            lanes: Mutex::default(),
            events: Mutex::default(),
            modules: Mutex::default(),
            peers: Mutex::default(),
            reset: Arc::clone(reset),
        }
    }

    /// Returns its index in the driver's list.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn facts(&self) -> &GpuFacts {
        &self.facts
    }

    /// Returns the driver, for calls that are also allowed on a lost GPU.
    pub(super) fn driver(&self) -> &dyn Gpu {
        &*self.driver
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Records that the GPU no longer responds. Callers receive the latest reason.
    pub(super) fn lose(&self, error: &DriverError) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        *lost = Some(error.clone());
        self.is_lost.store(true, Ordering::Release);
    }

    /// Returns the error for other GPUs that need this one and are not lost themselves.
    pub(super) fn lost_to_others(&self) -> DriverError {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let (code, why) = match &*lost {
            Some(lost) => (lost.code, lost.message.as_str()),
            None => (0, "it does not answer"),
        };
        DriverError {
            code,
            message: format!("GPU {}, which has what is needed, is lost: {why}", self.id),
            kind: DriverErrorKind::Refused,
        }
    }

    /// Makes a stream of this GPU wait for an event, which may be another GPU's.
    ///
    /// # Errors
    /// The driver's error. The loss of the other GPU does not make this one lost.
    pub(super) fn wait_for(
        &self,
        stream: StreamHandle,
        other: &Self,
        event: EventHandle,
    ) -> Result<(), DriverError> {
        if std::ptr::eq(self, other) {
            return self.call(|driver| driver.wait(stream, event));
        }
        let _no_reset = self.reset.read().unwrap_or_else(PoisonError::into_inner);
        if other.is_lost() {
            return Err(other.lost_to_others());
        }
        self.driver
            .wait(stream, event)
            .map_err(|error| match error.kind {
                // The next call of each GPU shows which one is lost.
                DriverErrorKind::Lost => DriverError {
                    kind: DriverErrorKind::Refused,
                    ..error
                },
                _ => error,
            })
    }

    /// Calls the driver, unless the GPU is lost. Must not be called from within another call.
    ///
    /// # Errors
    /// The driver's error, or the error with which the GPU was lost.
    pub(super) fn call<T>(
        &self,
        call: impl FnOnce(&dyn Gpu) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let _no_reset = self.reset.read().unwrap_or_else(PoisonError::into_inner);
        if self.is_lost() {
            let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(lost) = &*lost {
                return Err(lost.clone());
            }
        }
        let called = call(&*self.driver);
        if let Err(error) = &called
            && error.kind == DriverErrorKind::Lost
        {
            self.lose(error);
        }
        called
    }

    /// Records one of its streams.
    pub(super) fn has_lane(&self, lane: &Arc<Lane>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    /// Adds to the error of a lost GPU the nodes whose work was in flight: the driver does not
    /// report which one has failed.
    pub(super) fn with_sites(&self, mut error: DriverError) -> DriverError {
        if error.kind != DriverErrorKind::Lost || error.message.contains(AT_WORK) {
            return error;
        }
        let lanes: Vec<_> = {
            let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.iter().filter_map(Weak::upgrade).collect()
        };
        let under_way: Vec<_> = lanes.iter().filter_map(|lane| lane.under_way()).collect();
        for (index, (first, n_others)) in under_way.iter().enumerate() {
            let start = if index == 0 { AT_WORK } else { "; or " };
            error.message += &format!("{start}node `{}` (op {})", first.node, first.op);
            if *n_others > 0 {
                error.message += &format!(", or one of {n_others} after it");
            }
        }
        self.lose(&error);
        error
    }

    /// Returns an unused event.
    ///
    /// # Errors
    /// The driver's error.
    pub(super) fn take_event(&self) -> Result<EventHandle, DriverError> {
        let free = {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            events.pop()
        };
        free.map_or_else(|| self.call(|driver| driver.new_event()), Ok)
    }

    /// Returns an unused event to the pool. A stream that already waits for the event waits for the
    /// record at that time.
    pub(super) fn give_event_back(&self, event: EventHandle) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(event);
    }

    /// Returns whether both GPUs have the same driver.
    pub(super) fn is_of_driver_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.reset, &other.reset)
    }

    fn peers(&self) -> MutexGuard<'_, Vec<u32>> {
        // Nothing panics under the lock.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enables access to the memory of those of these GPUs that it can access. If that fails,
    /// copies go through the host.
    pub(super) fn reach_out(&self, gpus: &[u32]) {
        let mut peers = self.peers();
        for &peer in &self.facts.physical.peers {
            if !gpus.contains(&peer) || peers.contains(&peer) {
                continue;
            }
            match self.call(|driver| driver.enable_peer(peer)) {
                Ok(()) => peers.push(peer),
                Err(error) => warn!(
                    target: targets::DEVICE,
                    gpu = self.id, peer, %error,
                    "copies from a peer go through the host"
                ),
            }
        }
    }

    /// The same for a peer that was accessible before and has been restarted since.
    pub(super) fn reach_again(&self, gpu: u32) {
        let had_it = {
            let mut peers = self.peers();
            let before = peers.len();
            peers.retain(|&peer| peer != gpu);
            peers.len() < before
        };
        if had_it {
            self.reach_out(&[gpu]);
        }
    }

    /// Returns whether work of this GPU may use the memory of another one.
    pub(super) fn reaches(&self, other: &Self) -> bool {
        self.is_of_driver_of(other) && (self.id == other.id || self.peers().contains(&other.id))
    }

    /// Returns function `name` of a program. Compiles the program at its first use.
    ///
    /// # Errors
    /// [`DeviceError::Build`] with the compiler's messages.
    pub(super) fn function(
        &self,
        device: &str,
        cache: Option<&CacheFolder>,
        source: &ProgramSource,
        name: &str,
    ) -> Result<FunctionHandle, DeviceError> {
        let refused = |message: String| DeviceError::Build {
            device: device.to_owned(),
            program: source.to_string(),
            message,
        };
        let slot = {
            let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(modules.entry(source.clone()).or_default())
        };
        let module = {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            match *slot {
                Some(module) => module,
                None => *slot.insert(self.module(device, cache, source).map_err(refused)?),
            }
        };
        self.call(|driver| driver.function(module, name))
            .map_err(|error| refused(format!("function `{name}` is unavailable: {error}")))
    }

    fn module(
        &self,
        device: &str,
        cache: Option<&CacheFolder>,
        source: &ProgramSource,
    ) -> Result<ModuleHandle, String> {
        let key = self.key(source);
        let cached = cache.and_then(|cache| cache.read(&key));
        if let Some(image) = cached {
            match self.call(|driver| driver.load(&image)) {
                Ok(module) => return Ok(module),
                Err(error) => debug!(
                    target: targets::DEVICE,
                    device,
                    program = %source,
                    %error,
                    "the driver rejects a cached program; it is compiled again"
                ),
            }
        }
        let image = self.driver.compile(source).map_err(|e| e.to_string())?;
        let module = self.call(|driver| driver.load(&image));
        let module = module
            .map_err(|error| format!("the driver does not load the compiled program: {error}"))?;
        if let Some(Err(problem)) = cache.map(|cache| cache.write(&key, &image)) {
            warn!(
                target: targets::DEVICE,
                device,
                program = %source,
                %problem,
                "a compiled program is not cached"
            );
        }
        Ok(module)
    }

    fn key(&self, source: &ProgramSource) -> CacheKey {
        let mut identity = vec![
            self.facts.architecture.as_bytes(),
            self.facts.driver.as_bytes(),
            super::compile::head().as_bytes(),
        ];
        for (name, value) in &source.defines {
            identity.extend([name.as_bytes(), value.as_bytes()]);
        }
        identity.push(match &source.code {
            ProgramCode::Source(code) => code.as_bytes(),
            ProgramCode::SpirV(module) => module,
        });
        CacheKey::new(CACHE_KIND, &identity)
    }
}

impl Drop for OpenGpu {
    fn drop(&mut self) {
        if self.is_lost() {
            return;
        }
        let events = self.events.get_mut();
        for &event in events.unwrap_or_else(PoisonError::into_inner).iter() {
            self.driver.drop_event(event);
        }
    }
}

/// Converts a driver's error to a device error that names the node.
pub(super) fn device_error(
    device: &str,
    site: Option<&LaunchSite>,
    doing: &str,
    error: &DriverError,
) -> DeviceError {
    let message = format!("{doing}: {error}");
    match (error.kind, site) {
        (DriverErrorKind::Lost, _) => DeviceError::Lost {
            device: device.to_owned(),
            message: match site {
                Some(site) => format!("node `{}` (op {}), {message}", site.node, site.op),
                None => message,
            },
        },
        (_, Some(site)) => DeviceError::Work {
            device: device.to_owned(),
            node: site.node.clone(),
            op: site.op.clone(),
            message,
        },
        (_, None) => DeviceError::Failed {
            device: device.to_owned(),
            message,
        },
    }
}
