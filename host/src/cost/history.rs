//! Measured times of kernels, kept for later placements.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use hashbrown::HashMap;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde::Serialize;
use tracing::warn;

use super::calibrations::machine;
use super::source::CostSource;
use super::source::KernelCosts;
use super::source::NodeWork;
use super::source::Prediction;
use super::source::WorkKeys;
use crate::device::Device;
use crate::device::DeviceSet;
use crate::device::KernelDevice;
use crate::graph::Graph;
use crate::store::CacheFolder;
use crate::store::CacheKey;
use crate::store::StoreError;
use crate::trace::RunProfile;
use crate::trace::targets;

/// Grows when the stored format, the key of work or the method of measurement changes.
const FORMAT: &[u8] = b"history 1";

/// Older measurements count as at most this many: kernels and machines change.
const SAMPLES_MAX: u32 = 256;

/// Measured times of kernels, by the device and by the work of a node ([`super::WorkKey`]). In
/// memory, and optionally in a folder that several processes share. Clones share one history.
///
/// Entries belong to one build, machine, kind of device and number of threads; others are never
/// used. `SessionBuilder::with_history` places by it, and `SessionBuilder::with_learning` adds the
/// times of a session's runs to it.
#[derive(Clone)]
pub struct History {
    shared: Arc<Shared>,
}

struct Shared {
    machine: String,
    memory: Mutex<HashMap<String, Arc<KernelTimes>>>,
    folder: Option<CacheFolder>,
}

/// What is known of the kernels of one kind of device.
#[derive(Debug, Clone, PartialEq, Default)]
struct KernelTimes {
    by_work: FxHashMap<u64, Measured>,
}

/// The measurements of one kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Measured {
    count: u32,
    mean_ns: f64,
    spread_ns: f64,
}

/// The stored form: work, then its measurements.
type Stored = Vec<(u64, Measured)>;

impl History {
    /// Creates a history in memory only.
    pub fn new() -> Self {
        Self::of(None)
    }

    /// Creates a history that is also kept in a folder.
    pub fn in_folder(folder: CacheFolder) -> Self {
        Self::of(Some(folder))
    }

    fn of(folder: Option<CacheFolder>) -> Self {
        Self {
            shared: Arc::new(Shared {
                machine: machine(),
                memory: Mutex::default(),
                folder,
            }),
        }
    }

    /// Adds the times of a profile, for the nodes of `graph` on `devices`. Nodes, devices and
    /// transfers that do not exist there are left out. Returns the number of nodes whose times were
    /// added.
    ///
    /// # Errors
    /// [`StoreError`] if the times cannot be written to the folder; they are in memory then.
    pub fn learn(
        &self,
        profile: &RunProfile,
        graph: &Graph,
        devices: &DeviceSet,
    ) -> Result<usize, StoreError> {
        let mut keys = WorkKeys::of(graph);
        let mut found: BTreeMap<String, BTreeMap<u64, Measured>> = BTreeMap::new();
        let mut n_learned = 0;
        let measured = profile.nodes.iter().filter(|times| times.samples > 0);
        for times in measured {
            let device = devices.find_by_name(&times.device);
            let device = device.and_then(|id| devices.get(id));
            let (Some(node), Some(device)) = (graph.find_node(&times.node), device) else {
                continue;
            };
            let Some(device) = self.kind_of(&**device) else {
                continue;
            };
            let measured = Measured {
                count: times.samples.clamp(1, SAMPLES_MAX),
                mean_ns: times.ns,
                spread_ns: times.spread_ns,
            };
            let of_device = found.entry(device).or_default();
            let key = keys.work(node).key().0;
            let merged = of_device
                .get(&key)
                .map_or(measured, |known| known.with(measured));
            of_device.insert(key, merged);
            n_learned += 1;
        }
        let mut outcome = Ok(());
        for (device, found) in found {
            // What is in the folder and was not read yet counts, too.
            let _ = self.times(&device);
            let stored = match &self.shared.folder {
                None => Ok(None),
                Some(folder) => folder
                    .update(&entry(&device), |old| {
                        let mut all = old.and_then(|bytes| parse(&bytes)).unwrap_or_default();
                        all.add(&found);
                        (all.to_bytes(), all)
                    })
                    .map(Some),
            };
            let mut memory = self.lock();
            let times = match stored {
                Ok(Some(all)) => all,
                other => {
                    let known = memory.get(&device).map(|known| KernelTimes::clone(known));
                    let mut all = known.unwrap_or_default();
                    all.add(&found);
                    outcome = outcome.and(other.map(drop));
                    all
                }
            };
            memory.insert(device, Arc::new(times));
        }
        outcome.map(|()| n_learned)
    }

    /// Returns what is known of the devices of a kind.
    fn times(&self, device: &str) -> Option<Arc<KernelTimes>> {
        if let Some(known) = self.lock().get(device) {
            return Some(Arc::clone(known));
        }
        let folder = self.shared.folder.as_ref()?;
        let key = entry(device);
        let Some(times) = folder.read(&key).and_then(|bytes| parse(&bytes)) else {
            if folder.has(&key) {
                warn!(
                    target: targets::DEVICE,
                    device,
                    "the history of kernels in the cache folder is damaged, and not used; \
                     the next learned run replaces it"
                );
            }
            return None;
        };
        let times = Arc::new(times);
        self.lock().insert(device.to_owned(), Arc::clone(&times));
        Some(times)
    }

    /// Returns everything that the times of a device's kernels depend on, as text; `None` for
    /// devices of other processes. Devices that are alike have one text, whatever their number and
    /// the devices that share their threads.
    pub(super) fn kind_of(&self, device: &dyn Device) -> Option<String> {
        if !device.is_local() {
            return None;
        }
        let pool = device.as_kernel_device();
        let pool = pool.and_then(KernelDevice::intra_op_pool);
        let n_threads = pool.map_or(1, crate::device::IntraOpPool::n_threads);
        let attributes = device.attributes();
        Some(format!(
            "{}; device of type {:?}, {:?}, {n_threads} threads",
            self.shared.machine, attributes.device_type, attributes.physical_description,
        ))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<KernelTimes>>> {
        // A panic cannot leave a partial entry.
        let memory = self.shared.memory.lock();
        memory.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History")
            .field("machine", &self.shared.machine)
            .field("n_in_memory", &self.lock().len())
            .field("folder", &self.shared.folder)
            .finish()
    }
}

impl CostSource for History {
    fn name(&self) -> &'static str {
        "history"
    }

    fn of_device(&self, device: &dyn Device) -> Option<Arc<dyn KernelCosts>> {
        let times = self.times(&self.kind_of(device)?)?;
        Some(times)
    }
}

impl KernelCosts for KernelTimes {
    fn predict(&self, work: &NodeWork<'_>) -> Option<Prediction> {
        let measured = self.by_work.get(&work.key().0)?;
        Some(Prediction {
            ns: measured.mean_ns,
            spread_ns: measured.spread_ns,
            samples: measured.count,
        })
    }
}

impl KernelTimes {
    fn add(&mut self, found: &BTreeMap<u64, Measured>) {
        for (&key, &measured) in found {
            let entry = self.by_work.entry(key);
            entry
                .and_modify(|known| *known = known.with(measured))
                .or_insert(measured);
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut entries: Stored = self
            .by_work
            .iter()
            .map(|(&key, &times)| (key, times))
            .collect();
        entries.sort_unstable_by_key(|&(key, _)| key);
        serde_json::to_vec(&entries).expect("sound times are JSON numbers")
    }
}

impl Measured {
    /// Returns both measurements together; of the older ones, only so many count.
    fn with(self, newer: Self) -> Self {
        let (old, new) = (f64::from(self.count), f64::from(newer.count));
        let all = old + new;
        let mean_ns = (old * self.mean_ns + new * newer.mean_ns) / all;
        let variance = |times: Self| {
            let offset = times.mean_ns - mean_ns;
            times.spread_ns * times.spread_ns + offset * offset
        };
        Self {
            count: (self.count + newer.count).min(SAMPLES_MAX),
            mean_ns,
            spread_ns: ((old * variance(self) + new * variance(newer)) / all).sqrt(),
        }
    }

    fn is_sound(&self) -> bool {
        let is_time = |ns: f64| ns.is_finite() && ns >= 0.0;
        (1..=SAMPLES_MAX).contains(&self.count) && is_time(self.mean_ns) && is_time(self.spread_ns)
    }
}

fn entry(device: &str) -> CacheKey {
    CacheKey::new("history", &[FORMAT, device.as_bytes()])
}

/// Reads what [`KernelTimes::to_bytes`] wrote; `None` if an entry is impossible.
fn parse(bytes: &[u8]) -> Option<KernelTimes> {
    let entries: Stored = serde_json::from_slice(bytes).ok()?;
    let is_sound = entries.iter().all(|(_, measured)| measured.is_sound());
    is_sound.then(|| KernelTimes {
        by_work: entries.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(count: u32, mean_ns: f64, spread_ns: f64) -> Measured {
        Measured {
            count,
            mean_ns,
            spread_ns,
        }
    }

    #[test]
    fn measurements_add_up_and_old_ones_fade() {
        let both = measured(1, 10.0, 0.0).with(measured(3, 14.0, 0.0));
        assert_eq!((both.count, both.mean_ns), (4, 13.0));
        assert!((both.spread_ns - 3.0f64.sqrt()).abs() < 1e-12);
        let mut times = measured(SAMPLES_MAX, 100.0, 0.0);
        for _ in 0..8 {
            times = times.with(measured(SAMPLES_MAX, 50.0, 0.0));
        }
        assert_eq!(times.count, SAMPLES_MAX);
        assert!(times.mean_ns < 51.0, "{times:?}");
    }

    #[test]
    fn stored_times_are_read_and_impossible_ones_are_not() {
        let mut times = KernelTimes::default();
        times.add(&BTreeMap::from([(u64::MAX, measured(3, 1.5, 0.25))]));
        assert_eq!(parse(&times.to_bytes()), Some(times));
        for text in [
            "",
            "[[1,{\"count\":0,\"mean_ns\":1.0,\"spread_ns\":0.0}]]",
            "[[1,{\"count\":1,\"mean_ns\":-1.0,\"spread_ns\":0.0}]]",
            "[[-1,{\"count\":1,\"mean_ns\":1.0,\"spread_ns\":0.0}]]",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
