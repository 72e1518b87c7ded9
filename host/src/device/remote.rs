//! Devices of other processes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use std::time::Instant;

use tracing::warn;

use super::attributes::DeviceAttributes;
use super::base::DeviceBase;
use super::error::DeviceError;
use super::manager::DeviceManager;
use super::rates::DeviceRates;
use super::renamed::RenamedDevice;
use super::set::DeviceSet;
use super::traits::AllocatorAttributes;
use super::traits::Device;
use crate::names::DeviceName;
use crate::tensor::Allocator;
use crate::tensor::HostAllocator;
use crate::trace::targets;

/// How often the log names workers that have not answered.
const SILENCE_TOLD_AFTER: Duration = Duration::from_secs(10);

/// A device of another process: graphs are placed on it and tensors are sent to it, but it executes
/// nothing here (TensorFlow `RemoteDevice`).
#[derive(Debug)]
pub struct RemoteDevice {
    base: DeviceBase,
    allocator: Arc<HostAllocator>,
    rates: DeviceRates,
}

/// The processes of a cluster, by name (TensorFlow `WorkerCacheInterface`).
pub trait WorkerCache: Send + Sync + fmt::Debug {
    /// Returns the names of all workers, `/job:J/replica:R/task:T`.
    fn list_workers(&self) -> Vec<String>;

    /// Returns the worker of this name, which exists until the reference is dropped; `None` if
    /// there is none.
    fn get_or_create_worker(&self, name: &str) -> Option<Arc<dyn Worker>>;
}

/// Another process.
pub trait Worker: Send + Sync + fmt::Debug {
    /// Asks for the worker's devices. `done` gets the answer, on any thread.
    fn get_status(&self, done: GetStatusDone);
}

/// Takes a worker's answer. Dropping it means that there is none.
pub type GetStatusDone = Once<Vec<DeviceAttributes>>;

/// A callback that is called exactly once: with the answer, or, when it is dropped, with the error
/// that there is none.
pub struct Once<T> {
    callback: Option<Callback<T>>,
    /// The name that the error has when it is dropped.
    whom: String,
}

type Callback<T> = Box<dyn FnOnce(Result<T, DeviceError>) + Send>;

impl<T> Once<T> {
    /// Creates it from a callback. `whom`: the name in the error if no answer comes.
    pub fn new(
        whom: impl Into<String>,
        callback: impl FnOnce(Result<T, DeviceError>) + Send + 'static,
    ) -> Self {
        Self {
            callback: Some(Box::new(callback)),
            whom: whom.into(),
        }
    }

    /// Passes the answer to the callback.
    pub fn call(mut self, answer: Result<T, DeviceError>) {
        if let Some(callback) = self.callback.take() {
            callback(answer);
        }
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        if let Some(callback) = self.callback.take() {
            callback(Err(DeviceError::Failed {
                device: std::mem::take(&mut self.whom),
                message: "the call ended without an answer".to_owned(),
            }));
        }
    }
}

impl<T> fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("whom", &self.whom)
            .finish_non_exhaustive()
    }
}

impl RemoteDevice {
    /// Creates a device with the attributes that its process has sent.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] unless `attributes.name` is a full device name.
    pub fn new(attributes: DeviceAttributes) -> Result<Self, DeviceError> {
        Ok(Self {
            allocator: Arc::new(HostAllocator::new(attributes.name.clone(), 0)),
            // What a device of another machine can do is not among its attributes.
            rates: DeviceRates::default_cpu(1),
            base: DeviceBase::new(attributes)?.without_resources(),
        })
    }

    /// Sets its rates.
    #[must_use]
    pub fn with_rates(mut self, rates: DeviceRates) -> Self {
        self.rates = rates;
        self
    }
}

impl Device for RemoteDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    /// Returns an allocator without memory: memory of another process is unavailable here.
    fn allocator(&self, _: AllocatorAttributes) -> Arc<dyn Allocator> {
        Arc::clone(&self.allocator) as Arc<dyn Allocator>
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.attributes().memory_limit_bytes
    }

    fn rates(&self) -> DeviceRates {
        self.rates
    }

    fn is_local(&self) -> bool {
        false
    }
}

/// Asks a worker for its devices (TensorFlow `NewRemoteDevices`). Devices that it names under
/// another job, replica or task than its own are renamed to its own; its own devices keep the name
/// as it was sent, including legacy spellings. Of `options` only
/// [`DiscoveryOptions::leave_out_renamed_tpus`] applies. `done` is called once, on any thread, with
/// the devices in the order in which they were sent, or with
/// - [`DeviceError::NotFound`] if the cache has no such worker,
/// - the worker's error,
/// - [`DeviceError::InvalidArgument`] for a worker whose name lacks job, replica or task, or that
///   sends a malformed device name.
pub fn new_remote_devices(
    cache: &dyn WorkerCache,
    worker_name: &str,
    options: &DiscoveryOptions,
    done: impl FnOnce(Result<Vec<RemoteDevice>, DeviceError>) + Send + 'static,
) {
    let done = Once::new(worker_name, done);
    let Some(worker) = cache.get_or_create_worker(worker_name) else {
        done.call(Err(DeviceError::NotFound(format!(
            "worker {worker_name} is not in the cluster; check its name, or start it"
        ))));
        return;
    };
    let name = worker_name.to_owned();
    let leave_out_tpus = options.leave_out_renamed_tpus;
    // The worker is held until it has answered.
    let held = Arc::clone(&worker);
    worker.get_status(Once::new(worker_name, move |answer| {
        drop(held);
        done.call(answer.and_then(|told| remote_devices(&name, told, leave_out_tpus)));
    }));
}

fn remote_devices(
    worker: &str,
    attributes: Vec<DeviceAttributes>,
    leave_out_tpus: bool,
) -> Result<Vec<RemoteDevice>, DeviceError> {
    let task = DeviceName::parse_full(worker).map_err(|error| bad_worker(worker, &error))?;
    if task.job.is_none() || task.replica.is_none() || task.task.is_none() {
        return Err(bad_worker(worker, &"job, replica and task are needed"));
    }
    let may_rename_tpus = !leave_out_tpus || task.job.as_deref() == Some("worker");
    let mut devices = Vec::with_capacity(attributes.len());
    for mut told in attributes {
        let name = DeviceName::parse_full(&told.name).map_err(|error| {
            DeviceError::InvalidArgument(format!("a device of worker {worker}: {error}"))
        })?;
        if !name.is_same_address_space(&task) {
            let device_type = name.device_type.as_deref();
            if !may_rename_tpus && device_type.is_some_and(|name| name.contains("TPU")) {
                continue;
            }
            told.name = DeviceName {
                device_type: name.device_type,
                index: name.index,
                ..task.clone()
            }
            .to_string();
        }
        devices.push(RemoteDevice::new(told)?);
    }
    Ok(devices)
}

/// Returns the devices of a cluster whose attributes are already known, in their order (TensorFlow
/// does this for the cluster attributes with which a session is created): a device that `local` has
/// under the name is that device, which the manager keeps; any other belongs to another process.
///
/// # Errors
/// [`DeviceError::InvalidArgument`] for a name that is not a full device name.
pub fn devices_from_attributes(
    local: &DeviceManager,
    attributes: Vec<DeviceAttributes>,
) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    let devices = attributes.into_iter().map(|told| {
        Ok(match local.lookup(&told.name) {
            Ok(device) => Arc::new(RenamedDevice::new(&told.name, device)?) as Arc<dyn Device>,
            Err(_) => Arc::new(RemoteDevice::new(told)?),
        })
    });
    devices.collect()
}

fn bad_worker(worker: &str, problem: &dyn fmt::Display) -> DeviceError {
    DeviceError::InvalidArgument(format!("worker `{worker}`: {problem}"))
}

/// If set to anything, TPUs are left out ([`DiscoveryOptions::leave_out_renamed_tpus`]).
/// TensorFlow's variable.
pub const LEAVE_OUT_TPUS_VARIABLE: &str = "TPU_NO_POPULATE_DEVICE_LIST_FROM_CLUSTER_SPEC";

/// Options of the discovery of a cluster's devices.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DiscoveryOptions {
    /// Device names, possibly partial; devices that match none of them are left out. Empty means
    /// all.
    pub device_filters: Vec<String>,
    /// How long to wait for the slowest worker; `None` means forever, as in TensorFlow.
    pub timeout: Option<Duration>,
    /// Whether to leave out devices with `TPU` in their type that a worker names under another task
    /// than its own, unless its job is `worker`.
    pub leave_out_renamed_tpus: bool,
}

impl DiscoveryOptions {
    /// Sets [`Self::device_filters`].
    #[must_use]
    pub fn with_device_filters<S: Into<String>>(
        mut self,
        filters: impl IntoIterator<Item = S>,
    ) -> Self {
        self.device_filters = filters.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`Self::timeout`].
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets [`Self::leave_out_renamed_tpus`].
    #[must_use]
    pub fn with_renamed_tpus_left_out(mut self, is_wanted: bool) -> Self {
        self.leave_out_renamed_tpus = is_wanted;
        self
    }

    /// Completes the options from [`LEAVE_OUT_TPUS_VARIABLE`], as far as they are not set.
    #[must_use]
    pub fn completed_from_env(mut self) -> Self {
        self.leave_out_renamed_tpus |= std::env::var_os(LEAVE_OUT_TPUS_VARIABLE).is_some();
        self
    }
}

/// Returns the devices that a session of a cluster may use (TensorFlow `MasterSession` discovery):
/// those of other processes in the order in which they answered, then `local`, whose first device
/// is the client device. All workers that pass the filters are asked at one time; those that have
/// not answered are logged every 10 s.
///
/// # Errors
/// [`DeviceError::InvalidArgument`] for a filter that is not a device name; the error of the first
/// worker that fails; [`DeviceError::Failed`] with the workers that did not answer in time.
pub fn discover_devices(
    cache: &dyn WorkerCache,
    local: &DeviceSet,
    options: &DiscoveryOptions,
) -> Result<DeviceSet, DeviceError> {
    let filters = options.device_filters.iter().map(|filter| {
        DeviceName::parse_full(filter).map_err(|error| {
            DeviceError::InvalidArgument(format!("`DiscoveryOptions::device_filters`: {error}"))
        })
    });
    let filters: Vec<DeviceName> = filters.collect::<Result<_, _>>()?;
    let own_task = local
        .iter()
        .next()
        .map(|(_, device)| device.name().address_space());
    let is_wanted = |name: &DeviceName| {
        filters.is_empty() || filters.iter().any(|filter| filter.is_compatible_with(name))
    };
    let mut silent = BTreeSet::new();
    let (sender, answers) = mpsc::channel();
    for worker in cache.list_workers() {
        let name = DeviceName::parse_full(&worker).map_err(|error| bad_worker(&worker, &error))?;
        let is_own = own_task.as_ref() == Some(&name);
        if is_own || !is_wanted(&name) || !silent.insert(worker.clone()) {
            continue;
        }
        let sender = sender.clone();
        let told_as = worker.clone();
        new_remote_devices(cache, &worker, options, move |devices| {
            // Nobody listens any more once another worker has failed.
            let _ = sender.send((told_as, devices));
        });
    }
    drop(sender);
    let mut found = DeviceSet::new([]);
    // A time beyond the clock's range is as good as none.
    let deadline = options
        .timeout
        .and_then(|timeout| Instant::now().checked_add(timeout));
    while !silent.is_empty() {
        let (worker, devices) = next_answer(&answers, &silent, deadline)?;
        silent.remove(&worker);
        for device in devices? {
            let name = &device.attributes().name;
            if local.find_by_name(name).is_none() && is_wanted(device.name()) {
                found.add(Arc::new(device));
            }
        }
    }
    let first_local = found.add_all(local);
    let client = found.get(first_local).map(|_| first_local);
    let found = found.with_type_priorities_of(local);
    Ok(match client {
        Some(client) => found.with_client_device(client),
        None => found,
    })
}

type Answer = (String, Result<Vec<RemoteDevice>, DeviceError>);

fn next_answer(
    answers: &mpsc::Receiver<Answer>,
    silent: &BTreeSet<String>,
    deadline: Option<Instant>,
) -> Result<Answer, DeviceError> {
    let names = || silent.iter().cloned().collect::<Vec<_>>().join(", ");
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let wait = left.map_or(SILENCE_TOLD_AFTER, |left| left.min(SILENCE_TOLD_AFTER));
        match answers.recv_timeout(wait) {
            Ok(answer) => return Ok(answer),
            Err(mpsc::RecvTimeoutError::Timeout) if left.is_none_or(|left| left > wait) => {
                warn!(target: targets::SESSION, workers = names(), "workers have not answered yet");
            }
            Err(_) => {
                return Err(DeviceError::Failed {
                    device: names(),
                    message: "no answer in time; check that the workers run, or leave them out with device filters".to_owned(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SimpleDevice;
    use crate::names::DeviceId;
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    /// How a worker answers.
    #[derive(Debug, Clone)]
    enum Manner {
        Tells(Vec<&'static str>),
        Fails,
        Drops,
        Silent,
    }

    #[derive(Debug)]
    struct Fake {
        manner: Manner,
        kept: Mutex<Vec<GetStatusDone>>,
    }

    impl Worker for Fake {
        fn get_status(&self, done: GetStatusDone) {
            match &self.manner {
                Manner::Tells(names) => {
                    let told = names.iter().map(|name| attributes(name));
                    done.call(Ok(told.collect()));
                }
                Manner::Fails => done.call(Err(DeviceError::NotFound("no licence".to_owned()))),
                Manner::Drops => drop(done),
                Manner::Silent => self.kept.lock().unwrap().push(done),
            }
        }
    }

    #[derive(Debug, Default)]
    struct Cluster {
        workers: BTreeMap<String, Arc<Fake>>,
        asked: Mutex<Vec<String>>,
    }

    impl WorkerCache for Cluster {
        fn list_workers(&self) -> Vec<String> {
            let names: Vec<String> = self.workers.keys().cloned().collect();
            // A list may name one twice.
            names.iter().chain(&names).cloned().collect()
        }

        fn get_or_create_worker(&self, name: &str) -> Option<Arc<dyn Worker>> {
            self.asked.lock().unwrap().push(name.to_owned());
            let worker = self.workers.get(name)?;
            Some(Arc::clone(worker) as Arc<dyn Worker>)
        }
    }

    fn attributes(name: &str) -> DeviceAttributes {
        let mut attributes = DeviceAttributes::new(&DeviceName::default(), "CPU", 1 << 20);
        name.clone_into(&mut attributes.name);
        attributes
    }

    fn task(number: u32) -> String {
        format!("/job:worker/replica:0/task:{number}")
    }

    fn cluster(manners: &[Manner]) -> Cluster {
        let workers = (0..).zip(manners).map(|(number, manner)| {
            let fake = Fake {
                manner: manner.clone(),
                kept: Mutex::default(),
            };
            (task(number), Arc::new(fake))
        });
        Cluster {
            workers: workers.collect(),
            asked: Mutex::default(),
        }
    }

    fn local(names: &[&str]) -> DeviceSet {
        let devices = names.iter().map(|name| {
            let device = SimpleDevice::new(attributes(name)).unwrap();
            Arc::new(device) as Arc<dyn Device>
        });
        DeviceSet::new(devices)
    }

    fn names(set: &DeviceSet) -> Vec<String> {
        let names = set
            .iter()
            .map(|(_, device)| device.attributes().name.clone());
        names.collect()
    }

    fn filtered(filters: &[&str]) -> DiscoveryOptions {
        DiscoveryOptions {
            device_filters: filters.iter().map(|&filter| filter.to_owned()).collect(),
            timeout: Some(Duration::from_millis(30)),
            ..DiscoveryOptions::default()
        }
    }

    const TASK_0: &str = "/job:worker/replica:0/task:0/device:CPU:0";
    const TASK_1: &str = "/job:worker/replica:0/task:1/device:CPU:0";
    const TASK_1_MORE: &str = "/job:worker/replica:0/task:1/device:CPU:1";

    #[test]
    fn devices_of_others_come_first_and_the_first_local_one_is_the_clients() {
        // The own task is not asked: it would not answer.
        let cluster = cluster(&[Manner::Silent, Manner::Tells(vec![TASK_1, TASK_1_MORE])]);
        let known = DeviceRates {
            flops_per_s: 7e9,
            ..DeviceRates::default_cpu(1)
        };
        let local = local(&[TASK_0]).with_rates(DeviceId(0), known);
        let found = discover_devices(&cluster, &local, &filtered(&[])).unwrap();
        assert_eq!(names(&found), [TASK_1, TASK_1_MORE, TASK_0]);
        // What the local set knows of its device better than the device, it knows under the new
        // number.
        assert_eq!(found.rates(DeviceId(2)), known);
        assert_ne!(found.rates(DeviceId(0)), known);
        assert_eq!(found.client_device(), found.find_by_name(TASK_0));
        assert_eq!(*cluster.asked.lock().unwrap(), [task(1)]);
        let is_local: Vec<bool> = found.iter().map(|(_, device)| device.is_local()).collect();
        assert_eq!(is_local, [false, false, true]);
    }

    #[test]
    fn filters_leave_out_devices_and_do_not_ask_workers_in_vain() {
        let tells = Manner::Tells(vec![TASK_1, TASK_1_MORE]);
        let cluster = cluster(&[Manner::Silent, tells, Manner::Silent]);
        let found =
            |filters: &[&str]| discover_devices(&cluster, &local(&[TASK_0]), &filtered(filters));
        let wanted = found(&["/job:worker/task:1"]).unwrap();
        assert_eq!(names(&wanted), [TASK_1, TASK_1_MORE, TASK_0]);
        let wanted = found(&["/job:worker/task:1/device:CPU:1", "/job:other"]).unwrap();
        assert_eq!(names(&wanted), [TASK_1_MORE, TASK_0]);
        assert_eq!(names(&found(&["/job:other"]).unwrap()), [TASK_0]);
        assert_eq!(*cluster.asked.lock().unwrap(), [task(1), task(1)]);
        let error = found(&["/jobs"]).unwrap_err().to_string();
        assert!(
            error.starts_with("`DiscoveryOptions::device_filters`: "),
            "{error}"
        );
    }

    #[test]
    fn silent_workers_are_named_when_the_time_is_over() {
        let cluster = cluster(&[Manner::Tells(vec![]), Manner::Silent, Manner::Silent]);
        let error = discover_devices(&cluster, &local(&[]), &filtered(&[])).unwrap_err();
        let DeviceError::Failed { device, message } = error else {
            panic!("{error}");
        };
        assert_eq!(device, format!("{}, {}", task(1), task(2)));
        assert!(message.contains("device filters"), "{message}");
    }

    #[test]
    fn what_a_worker_says_or_does_not_say_is_passed_on() {
        let outcome = |manner: Manner, timeout| {
            let options = DiscoveryOptions {
                timeout,
                ..DiscoveryOptions::default()
            };
            let found = discover_devices(&cluster(&[manner]), &local(&[]), &options);
            found
                .map(|found| names(&found))
                .map_err(|error| error.to_string())
        };
        assert_eq!(outcome(Manner::Fails, None).unwrap_err(), "no licence");
        let dropped = format!("{}: the call ended without an answer", task(0));
        assert_eq!(outcome(Manner::Drops, None).unwrap_err(), dropped);
        let badly_named = outcome(Manner::Tells(vec!["cpu:zero"]), None).unwrap_err();
        assert!(
            badly_named.contains(&format!("a device of worker {}", task(0))),
            "{badly_named}"
        );
        // A time that no clock reaches.
        let told = outcome(Manner::Tells(vec![TASK_0]), Some(Duration::MAX));
        assert_eq!(told.unwrap(), [TASK_0]);
    }

    #[test]
    fn what_is_known_locally_is_not_told_again() {
        let cluster = cluster(&[Manner::Silent, Manner::Tells(vec![TASK_1, TASK_1_MORE])]);
        let local = local(&[TASK_0, TASK_1]);
        let found = discover_devices(&cluster, &local, &filtered(&[])).unwrap();
        assert_eq!(names(&found), [TASK_1_MORE, TASK_0, TASK_1]);
        assert_eq!(found.client_device(), found.find_by_name(TASK_0));
    }

    #[test]
    fn renamed_tpus_are_left_out_unless_the_job_is_worker() {
        let told = ["TPU_SYSTEM:0", "CPU:0"].map(|device| {
            let (name, _) = device.split_once(':').unwrap();
            attributes(&format!("/job:other/replica:0/task:0/device:{name}:0"))
        });
        let own = attributes("/job:ps/replica:0/task:0/device:TPU:0");
        let told = [&told[..], &[own]].concat();
        let found = |worker: &str, leave_out: bool| {
            let found = remote_devices(worker, told.clone(), leave_out).unwrap();
            found.len()
        };
        assert_eq!(found("/job:ps/replica:0/task:0", false), 3);
        assert_eq!(found("/job:ps/replica:0/task:0", true), 2);
        assert_eq!(found("/job:worker/replica:0/task:0", true), 3);
        // To this worker, the TPU is another's, too.
        assert_eq!(found("/job:ps/replica:0/task:1", true), 1);
    }

    #[test]
    fn of_known_attributes_the_local_ones_are_the_devices_that_are_here() {
        let here = DeviceManager::of_set(&local(&[TASK_0]));
        let known = vec![attributes(TASK_0), attributes(TASK_1)];
        let found = devices_from_attributes(&here, known).unwrap();
        let described = |device: &Arc<dyn Device>| {
            let name = device.attributes().name.clone();
            (name, device.is_local())
        };
        let expected = [(TASK_0.to_owned(), true), (TASK_1.to_owned(), false)];
        assert_eq!(found.iter().map(described).collect::<Vec<_>>(), expected);
        // It shares the state of the device that is here.
        let own = here.lookup(TASK_0).unwrap();
        let managers = (found[0].resource_manager(), own.resource_manager());
        assert!(Arc::ptr_eq(managers.0.unwrap(), managers.1.unwrap()));
        assert!(devices_from_attributes(&here, vec![attributes("nowhere")]).is_err());
    }

    #[test]
    fn nothing_runs_on_a_device_of_another_process() {
        let device = RemoteDevice::new(attributes(TASK_1)).unwrap();
        assert!(device.as_kernel_device().is_none());
        assert!(device.resource_manager().is_err());
        let memory = device.allocator(AllocatorAttributes::default());
        assert!(memory.allocate(1).is_err());
        assert_eq!(device.memory_capacity_bytes(), 1 << 20);
        assert!(RemoteDevice::new(attributes("somewhere")).is_err());
    }
}
