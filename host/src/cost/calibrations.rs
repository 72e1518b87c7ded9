//! A store of measured rates, keyed by everything that the rates depend on.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;

use hashbrown::HashMap;
use tracing::warn;

use crate::cost::calibration::Calibration;
use crate::cost::source::CostSource;
use crate::cost::source::KernelCosts;
use crate::device::Device;
use crate::device::DeviceSet;
use crate::device::KernelDevice;
use crate::device::LinkRates;
use crate::names::DeviceId;
use crate::store::CacheFolder;
use crate::store::CacheKey;
use crate::store::StoreError;
use crate::trace::targets;

/// Grows when the stored format or the method of measurement changes.
const FORMAT: &[u8] = b"rates 5";

/// A store of measured rates, in memory and optionally in a folder. Clones share one store.
///
/// Entries are found by everything that the rates depend on ([`RatesKey`]), so rates of another
/// machine, driver, number of threads or build are never used for a device. Devices of other
/// processes have no entries, since this process cannot measure them.
#[derive(Clone)]
pub struct Calibrations {
    shared: Arc<Shared>,
}

struct Shared {
    /// The part of the key that all devices of this process share.
    machine: String,
    memory: Mutex<HashMap<RatesKey, Arc<Calibration>>>,
    /// Copies between two devices, by their keys, the smaller one first.
    links: Mutex<HashMap<[RatesKey; 2], LinkRates>>,
    folder: Option<CacheFolder>,
}

/// Everything that a device's rates depend on, as a string: this build, the host's processor, and
/// the device's type, index, description, chip, threads and NUMA node. Its job,
/// task and incarnation are not part of the key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RatesKey(String);

/// Why stored rates are not used, or rates cannot be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationsError {
    /// An entry cannot be read.
    #[error(
        "the measured rates of {device} are not used: {reason}; measure it again with `placewright devices --calibrate`"
    )]
    Unusable {
        /// Name of the device.
        device: String,
        /// The problem of the entry.
        reason: &'static str,
    },
    /// The figures cannot be rates.
    #[error(
        "the measured rates of {device} are not stored: a rate is not positive, or a time is negative or not a number"
    )]
    Unsound {
        /// Name of the device.
        device: String,
    },
    /// The device belongs to another process.
    #[error(
        "rates of {device} are not stored here because it belongs to another process; measure it in that process"
    )]
    Remote {
        /// Name of the device.
        device: String,
    },
    /// An entry cannot be written to the folder.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Calibrations {
    /// Creates a store in memory only.
    pub fn new() -> Self {
        Self::of(None)
    }

    /// Creates a store that also writes to a folder, for other processes and later ones.
    pub fn in_folder(folder: CacheFolder) -> Self {
        Self::of(Some(folder))
    }

    fn of(folder: Option<CacheFolder>) -> Self {
        Self {
            shared: Arc::new(Shared {
                machine: machine(),
                memory: Mutex::default(),
                links: Mutex::default(),
                folder,
            }),
        }
    }

    /// Returns the key of a device; `None` if it belongs to another process.
    pub fn key(&self, device: &dyn Device) -> Option<RatesKey> {
        device
            .is_local()
            .then(|| RatesKey::of(device, &self.shared.machine))
    }

    /// Returns the measured rates of a device, if it was measured.
    ///
    /// # Errors
    /// [`CalibrationsError::Unusable`] if an entry exists but cannot be used.
    pub fn find(&self, device: &dyn Device) -> Result<Option<Arc<Calibration>>, CalibrationsError> {
        let Some(key) = self.key(device) else {
            return Ok(None);
        };
        if let Some(found) = self.lock().get(&key) {
            return Ok(Some(Arc::clone(found)));
        }
        let Some(folder) = &self.shared.folder else {
            return Ok(None);
        };
        let unusable = |reason| CalibrationsError::Unusable {
            device: device.attributes().name.clone(),
            reason,
        };
        let entry = key.entry();
        let Some(bytes) = folder.read(&entry) else {
            return if folder.has(&entry) {
                Err(unusable("the entry in the cache folder is damaged"))
            } else {
                Ok(None)
            };
        };
        let found: Calibration = serde_json::from_slice(&bytes)
            .map_err(|_| unusable("the entry in the cache folder has another format"))?;
        if !found.is_sound() {
            return Err(unusable(
                "the entry in the cache folder contains invalid rates",
            ));
        }
        Ok(Some(self.remember(key, found)))
    }

    /// Stores the measured rates of a device and replaces its previous entry.
    ///
    /// # Errors
    /// [`CalibrationsError::Unsound`] and [`CalibrationsError::Remote`] if nothing is stored;
    /// [`CalibrationsError::Store`] if the rates are stored in memory only.
    pub fn keep(
        &self,
        device: &dyn Device,
        calibration: Calibration,
    ) -> Result<(), CalibrationsError> {
        let name = || device.attributes().name.clone();
        if !calibration.is_sound() {
            return Err(CalibrationsError::Unsound { device: name() });
        }
        let Some(key) = self.key(device) else {
            return Err(CalibrationsError::Remote { device: name() });
        };
        let bytes = serde_json::to_vec(&calibration).expect("sound figures are JSON numbers");
        let entry = key.entry();
        self.lock().remove(&key);
        self.remember(key, calibration);
        if let Some(folder) = &self.shared.folder {
            folder.write(&entry, &bytes)?;
        }
        Ok(())
    }

    /// Stores the cost of copies between two devices, in both directions, and replaces the previous
    /// entry.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub fn keep_link(
        &self,
        first: &dyn Device,
        second: &dyn Device,
        link: LinkRates,
    ) -> Result<(), CalibrationsError> {
        let name = |device: &dyn Device| device.attributes().name.clone();
        let remote = |device| CalibrationsError::Remote {
            device: name(device),
        };
        let first_key = self.key(first).ok_or_else(|| remote(first))?;
        let second_key = self.key(second).ok_or_else(|| remote(second))?;
        if !link.is_sound() {
            let device = name(first);
            return Err(CalibrationsError::Unsound { device });
        }
        let keys = ordered(first_key, second_key);
        let bytes = serde_json::to_vec(&link).expect("sound figures are JSON numbers");
        let entry = link_entry(&keys);
        lock(&self.shared.links).insert(keys, link);
        if let Some(folder) = &self.shared.folder {
            folder.write(&entry, &bytes)?;
        }
        Ok(())
    }

    /// Returns the measured cost of copies between two devices that do not pass through the host.
    /// An entry that cannot be read counts as none.
    pub fn find_link(&self, first: &dyn Device, second: &dyn Device) -> Option<LinkRates> {
        let keys = ordered(self.key(first)?, self.key(second)?);
        if let Some(&found) = lock(&self.shared.links).get(&keys) {
            return Some(found);
        }
        let bytes = self.shared.folder.as_ref()?.read(&link_entry(&keys))?;
        let found: LinkRates = serde_json::from_slice(&bytes).ok()?;
        if !found.is_sound() {
            return None;
        }
        lock(&self.shared.links).insert(keys, found);
        Some(found)
    }

    /// Adds a measurement to the memory. Devices with equal ones share it, and so their costs.
    fn remember(&self, key: RatesKey, calibration: Calibration) -> Arc<Calibration> {
        let mut memory = self.lock();
        let known = memory.values().find(|known| ***known == calibration);
        let shared = known.map_or_else(|| Arc::new(calibration), Arc::clone);
        memory.insert(key, Arc::clone(&shared));
        shared
    }

    /// Returns the device set with measured rates, and the problems of entries that are not used.
    /// The problems are also logged. Devices without an entry keep the rates that they have in the
    /// set.
    pub fn apply(&self, devices: &DeviceSet) -> (DeviceSet, Vec<CalibrationsError>) {
        let mut measured = devices.clone();
        let mut problems = Vec::new();
        for (id, device) in devices.iter() {
            match self.find(&**device) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    let rates = found.rates(device.rates());
                    measured = measured.with_rates(id, rates);
                }
                Err(problem) => {
                    warn!(target: targets::DEVICE, %problem, "measured rates are not used");
                    problems.push(problem);
                }
            }
        }
        for (first, second) in pairs_with_direct_copies(devices) {
            let device = |id: DeviceId| devices.get(id).expect("a pair of the set");
            if let Some(link) = self.find_link(&**device(first), &**device(second)) {
                measured = measured.with_link(first, second, link);
                measured = measured.with_link(second, first, link);
            }
        }
        (measured, problems)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RatesKey, Arc<Calibration>>> {
        lock(&self.shared.memory)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave a partial entry.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the pairs of devices between whose memories there may be copies without the host: those
/// of this process, of one type, outside of host memory. The smaller id comes first.
pub fn pairs_with_direct_copies(devices: &DeviceSet) -> Vec<(DeviceId, DeviceId)> {
    let is_outside =
        |device: &dyn Device| device.is_local() && !device.attributes().has_one_memory();
    let outside: Vec<(DeviceId, &str)> = devices
        .iter()
        .filter(|(_, device)| is_outside(&***device))
        .map(|(id, device)| (id, &*device.attributes().device_type))
        .collect();
    let mut pairs = Vec::new();
    for (index, &(first, device_type)) in outside.iter().enumerate() {
        let later = outside[index + 1..].iter();
        let alike = later.filter(|&&(_, other)| other == device_type);
        pairs.extend(alike.map(|&(second, _)| (first, second)));
    }
    pairs
}

fn ordered(first: RatesKey, second: RatesKey) -> [RatesKey; 2] {
    match first <= second {
        true => [first, second],
        false => [second, first],
    }
}

fn link_entry([first, second]: &[RatesKey; 2]) -> CacheKey {
    let parts = [FORMAT, first.0.as_bytes(), second.0.as_bytes()];
    CacheKey::new("links", &parts)
}

impl CostSource for Calibrations {
    fn name(&self) -> &'static str {
        "calibration"
    }

    /// Rates of a device come from [`Self::apply`], times of its kernels from here.
    fn of_device(&self, device: &dyn Device) -> Option<Arc<dyn KernelCosts>> {
        let found = self.find(device).ok()??;
        (!found.kernels.is_empty()).then_some(found as Arc<dyn KernelCosts>)
    }
}

impl Default for Calibrations {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Calibrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calibrations")
            .field("machine", &self.shared.machine)
            .field("n_in_memory", &self.lock().len())
            .field("folder", &self.shared.folder)
            .finish()
    }
}

impl RatesKey {
    fn of(device: &dyn Device, machine: &str) -> Self {
        let (attributes, name) = (device.attributes(), device.name());
        let pool = device.as_kernel_device();
        let pool = pool.and_then(KernelDevice::intra_op_pool);
        let n_threads = pool.map_or(1, crate::device::IntraOpPool::n_threads);
        Self(format!(
            "{machine}; device {}:{} of type {:?}, {:?}, chip {:?}, {n_threads} threads, NUMA node {}",
            name.device_type.as_deref().unwrap_or_default(),
            name.index.unwrap_or_default(),
            attributes.device_type,
            attributes.physical_description,
            device.chip(),
            attributes.locality.numa_node,
        ))
    }

    fn entry(&self) -> CacheKey {
        CacheKey::new("rates", &[FORMAT, self.0.as_bytes()])
    }
}

impl fmt::Display for RatesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Describes this build and the host's processor. Debug and release builds have different kernels,
/// and a container may have fewer processors than the machine.
pub(super) fn machine() -> String {
    let build = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let model = sysinfo::System::new().ok().and_then(|mut system| {
        system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
        let first = system.cpus().first();
        first.map(|processor| processor.brand().trim().to_owned())
    });
    let n_processors = thread::available_parallelism().map_or(1, usize::from);
    format!(
        "placewright {} {build}, {} {:?}, {n_processors} processors",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        model.unwrap_or_default(),
    )
}
