//! A GPU that is open: its driver, whether it still answers, its events and programs. One for each
//! GPU, whatever devices stand for it.

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

/// What entries of the cache are called.
const CACHE_KIND: &str = "cubin";

/// How errors go on to say whose work it may have been.
const AT_WORK: &str = "; at work was ";

/// A GPU that is open.
pub(super) struct OpenGpu {
    id: u32,
    facts: GpuFacts,
    driver: Arc<dyn Gpu>,
    /// Set once it does not answer any more, and why.
    is_lost: AtomicBool,
    lost: Mutex<Option<DriverError>>,
    /// For errors of all.
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// Events that nobody has.
    events: Mutex<Vec<EventHandle>>,
    /// Each behind a lock of its own: several are compiled at one time, and none twice.
    modules: Mutex<HashMap<ProgramSource, Arc<Mutex<Option<ModuleHandle>>>>>,
    /// GPUs whose memory its work may use.
    peers: Mutex<Vec<u32>>,
    /// One for all GPUs of a driver; held while one is started anew, when nothing of it must be
    /// called.
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

    /// Its number among the driver's.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn facts(&self) -> &GpuFacts {
        &self.facts
    }

    /// The driver, for what may be done with a GPU that is lost, too.
    pub(super) fn driver(&self) -> &dyn Gpu {
        &*self.driver
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Notes that it does not answer any more. Whoever calls it hears why, as it was said last.
    pub(super) fn lose(&self, error: &DriverError) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        *lost = Some(error.clone());
        self.is_lost.store(true, Ordering::Release);
    }

    /// What others hear that need something of it, and are not lost themselves.
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

    /// Has a stream of this GPU wait for an event, which may be another's.
    ///
    /// # Errors
    /// What the driver says. Of the other GPU's being lost, this one is not.
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
                // Whose it is, is heard at the next call of each.
                DriverErrorKind::Lost => DriverError {
                    kind: DriverErrorKind::Refused,
                    ..error
                },
                _ => error,
            })
    }

    /// Calls the driver, unless the GPU is lost. Not from within another call.
    ///
    /// # Errors
    /// What the driver says, or said when the GPU was lost.
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

    /// Notes one of its streams.
    pub(super) fn has_lane(&self, lane: &Arc<Lane>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    /// An error, and if the GPU is lost, with whose work was under way: the driver does not say
    /// whose has failed.
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

    /// An event.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn take_event(&self) -> Result<EventHandle, DriverError> {
        let free = {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            events.pop()
        };
        free.map_or_else(|| self.call(|driver| driver.new_event()), Ok)
    }

    /// An event that nobody asks for any more. Streams that wait for it do so as it was recorded
    /// when they were told.
    pub(super) fn give_event_back(&self, event: EventHandle) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(event);
    }

    /// Whether both are GPUs of one driver.
    pub(super) fn is_of_driver_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.reset, &other.reset)
    }

    fn peers(&self) -> MutexGuard<'_, Vec<u32>> {
        // Nothing panics under the lock.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets its work use the memory of those of these GPUs that it can reach. What is possible and
    /// cannot be had is a way through the host.
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

    /// The same for one that it has reached, and that was started anew since.
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

    /// Whether work of this GPU may use memory of the other.
    pub(super) fn reaches(&self, other: &Self) -> bool {
        self.is_of_driver_of(other) && (self.id == other.id || self.peers().contains(&other.id))
    }

    /// Function `name` of a program, which is compiled when it is first asked for.
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
            .map_err(|error| refused(format!("function `{name}` cannot be had: {error}")))
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
                    "the driver does not take a cached program, which is compiled again"
                ),
            }
        }
        let image = self.driver.compile(source).map_err(|e| e.to_string())?;
        let module = self.call(|driver| driver.load(&image));
        let module = module
            .map_err(|error| format!("the driver does not load what was compiled: {error}"))?;
        if let Some(Err(problem)) = cache.map(|cache| cache.write(&key, &image)) {
            warn!(
                target: targets::DEVICE,
                device,
                program = %source,
                %problem,
                "a compiled program is not kept"
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

/// An error of the driver as one of a device, and of a node whose work it was.
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
