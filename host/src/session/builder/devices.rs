//! The devices of a session and their kernels: made by factories, or the app's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SessionBuilder;
use crate::backend;
#[cfg(feature = "cluster")]
use crate::cluster::ClusterSpec;
use crate::cost::Calibrations;
use crate::device::DeviceManager;
use crate::device::DeviceOptions;
use crate::device::DeviceSet;
use crate::device::DiscoveryOptions;
use crate::device::FactoryRegistry;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::device::WorkerCache;
use crate::device::discover_devices;
use crate::error::Error;

/// The prefix of the device names of a local session.
const LOCAL_PREFIX: &str = "/job:localhost/replica:0/task:0";

/// The devices, and the kernels that they run.
#[derive(Debug, Clone, Default)]
pub(in crate::session) struct DeviceSetup {
    factories: Option<FactoryRegistry>,
    pub(in crate::session) devices: Option<Arc<DeviceSet>>,
    options: DeviceOptions,
    /// Takes precedence over the options, as do the next two.
    count: BTreeMap<String, u32>,
    filters: Option<Vec<String>>,
    intra_op_parallelism_threads: Option<usize>,
    manager: Option<Arc<DeviceManager>>,
    /// The manager that owns the devices of a session that is built again.
    pub(in crate::session) manager_of_devices: Option<Arc<DeviceManager>>,
    workers: Option<(Arc<dyn WorkerCache>, DiscoveryOptions)>,
    calibrations: Option<Calibrations>,
    isolate_session_state: bool,
    #[cfg(feature = "cluster")]
    cluster: Option<ClusterSpec>,
    kernels: Option<Arc<KernelRegistry>>,
    more_kernels: Vec<KernelDef>,
}

/// # Devices and kernels
impl SessionBuilder {
    /// Sets the factories that make devices and bring their kernels, instead of those of
    /// [`Self::with_registry`]. The default is [`crate::backend::default_factories`], without the
    /// types that `TF_ENABLED_DEVICE_TYPES` disables. Other factories ignore the variable, unless
    /// the app calls [`FactoryRegistry::with_enabled_types_from_env`].
    #[must_use]
    pub fn with_factories(mut self, factories: FactoryRegistry) -> Self {
        self.devices.factories = Some(factories);
        self
    }

    /// Sets the options of device creation. The environment supplies those that are not set
    /// ([`DeviceOptions::completed_from_env`]).
    #[must_use]
    pub fn with_device_options(mut self, options: DeviceOptions) -> Self {
        self.devices.options = options;
        self
    }

    /// Sets the number of devices of one type, such as `CPU`; other types keep theirs
    /// ([`DeviceOptions::device_count`]). The number takes precedence over
    /// [`Self::with_device_options`].
    #[must_use]
    pub fn with_device_count(mut self, device_type: impl Into<String>, count: u32) -> Self {
        self.devices.count.insert(device_type.into(), count);
        self
    }

    /// Sets which devices may be used ([`DeviceOptions::device_filters`]). They take precedence
    /// over [`Self::with_device_options`].
    #[must_use]
    pub fn with_device_filters<S: Into<String>>(
        mut self,
        filters: impl IntoIterator<Item = S>,
    ) -> Self {
        self.devices.filters = Some(filters.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the threads for loops inside one kernel, per pool of the devices; 0 means one per core
    /// ([`DeviceOptions::intra_op_parallelism_threads`]). The number takes precedence over
    /// [`Self::with_device_options`].
    #[must_use]
    pub fn with_intra_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.devices.intra_op_parallelism_threads = Some(n_threads);
        self
    }

    /// Sets the devices, instead of those that factories make. Other sessions may share them. The
    /// kernels still come from the factories and [`Self::with_kernels`]. Combining it with
    /// [`Self::with_device_manager`] is an error of [`Self::build`].
    #[must_use]
    pub fn with_devices(mut self, devices: impl Into<Arc<DeviceSet>>) -> Self {
        self.devices.devices = Some(devices.into());
        self
    }

    /// Places the graph on a machine on paper: sets the devices to those of a cluster, the costs of
    /// kernels to those that it states, and the number of threads that execute nodes if it states
    /// one. A run fails. Combining it with [`Self::with_devices`] or
    /// [`Self::with_device_manager`] is an error of [`Self::build`].
    #[cfg(feature = "cluster")]
    #[must_use]
    pub fn with_cluster(mut self, cluster: &ClusterSpec) -> Self {
        self.devices.cluster = Some(cluster.clone());
        self.placement.set_cluster(cluster);
        self
    }

    /// Sets the devices to those that this manager has now, instead of those that factories make.
    /// If the manager later removes a device, the next run that uses it fails with
    /// [`ExecuteError::DeviceRemoved`](crate::execute::ExecuteError::DeviceRemoved). Combining it
    /// with [`Self::with_devices`] is an error of [`Self::build`].
    #[must_use]
    pub fn with_device_manager(mut self, manager: impl Into<Arc<DeviceManager>>) -> Self {
        self.devices.manager = Some(manager.into());
        self
    }

    /// Adds the devices of other processes. Their ids come first. Graphs can be placed on them, but
    /// a run that uses one fails today. The environment supplies the options that are not set
    /// ([`DiscoveryOptions::completed_from_env`]).
    #[must_use]
    pub fn with_workers(mut self, cache: Arc<dyn WorkerCache>, options: DiscoveryOptions) -> Self {
        self.devices.workers = Some((cache, options));
        self
    }

    /// Sets whether the session has its own variables, tables and stateful kernels on devices that
    /// it shares with other sessions (TensorFlow `isolate_session_state`); false by default.
    #[must_use]
    pub fn with_isolated_session_state(mut self, is_isolated: bool) -> Self {
        self.devices.isolate_session_state = is_isolated;
        self
    }

    /// Sets the kernels, instead of those that come with the factories.
    #[must_use]
    pub fn with_kernel_registry(mut self, kernels: KernelRegistry) -> Self {
        self.devices.kernels = Some(Arc::new(kernels));
        self
    }

    /// Adds the app's own kernels to the others.
    #[must_use]
    pub fn with_kernels(mut self, kernels: impl IntoIterator<Item = KernelDef>) -> Self {
        self.devices.more_kernels.extend(kernels);
        self
    }

    /// Sets the store of measured rates. They replace the stated rates of devices that have an
    /// entry, also of devices from [`Self::with_devices`] and of those that the session gets later.
    /// By default, stated rates count. Candidates of the app keep their rates. Unusable entries are
    /// ignored and listed in
    /// [`SessionReport::calibration_problems`](crate::session::SessionReport::calibration_problems).
    #[must_use]
    pub fn with_calibrations(mut self, calibrations: Calibrations) -> Self {
        self.devices.calibrations = Some(calibrations);
        self
    }
}

impl DeviceSetup {
    pub(in crate::session) fn calibrations(&self) -> Option<&Calibrations> {
        self.calibrations.as_ref()
    }

    /// Checks that only one method has set the devices.
    pub(in crate::session) fn check(&self) -> Result<(), Error> {
        #[cfg(feature = "cluster")]
        let has_cluster = self.cluster.is_some();
        #[cfg(not(feature = "cluster"))]
        let has_cluster = false;
        let calls = [
            ("with_cluster", has_cluster),
            ("with_device_manager", self.manager.is_some()),
            ("with_devices", self.devices.is_some()),
        ];
        let calls: Vec<_> = calls.iter().filter(|(_, is_made)| *is_made).collect();
        if calls.len() > 1 {
            return Err(Error::ConflictingCalls {
                what: "the devices",
                calls: calls.iter().map(|(call, _)| *call).collect(),
            });
        }
        Ok(())
    }

    /// Adds what a registry has and no other method has set.
    pub(in crate::session) fn complete(
        &mut self,
        factories: FactoryRegistry,
        mut kernels: Vec<KernelDef>,
    ) {
        self.factories.get_or_insert(factories);
        kernels.append(&mut self.more_kernels);
        self.more_kernels = kernels;
    }

    /// Returns the setup of a session that is built again on the devices that this one has made.
    pub(in crate::session) fn again(
        &self,
        devices: &Arc<DeviceSet>,
        kernels: &Arc<KernelRegistry>,
    ) -> Self {
        // If the session's state is isolated, the app's manager has other devices.
        let manager = self.manager.clone();
        let manager = manager.filter(|_| !self.isolate_session_state);
        Self {
            devices: Some(Arc::clone(devices)),
            kernels: Some(Arc::clone(kernels)),
            manager_of_devices: manager.or_else(|| self.manager_of_devices.clone()),
            // The devices that these made are in the set above.
            #[cfg(feature = "cluster")]
            cluster: None,
            manager: None,
            workers: None,
            isolate_session_state: false,
            ..self.clone()
        }
    }

    /// Returns the devices and the kernels. `of_candidates` are the devices of the app's
    /// candidates; `complete` gets the others before they are isolated.
    pub(in crate::session) fn open(
        &mut self,
        of_candidates: Option<&Arc<DeviceSet>>,
        complete: impl FnOnce(Arc<DeviceSet>) -> Arc<DeviceSet>,
    ) -> Result<(Arc<DeviceSet>, Arc<KernelRegistry>), Error> {
        let factories = self
            .factories
            .take()
            .unwrap_or_else(|| backend::default_factories().with_enabled_types_from_env());
        let devices = self.devices.take().or_else(|| of_candidates.cloned());
        #[cfg(feature = "cluster")]
        let devices = devices.or_else(|| {
            let cluster = self.cluster.as_ref()?;
            Some(Arc::clone(cluster.devices()))
        });
        let mut devices = match (devices, &self.manager) {
            // Only one of the two is set, so the devices are those of candidates.
            (Some(_), Some(_)) => {
                return Err(Error::BesideCandidates {
                    part: "devices",
                    call: "with_device_manager",
                });
            }
            (Some(devices), None) => devices,
            (None, Some(manager)) => Arc::new(factories.device_set(manager.devices())),
            (None, None) => {
                self.check_types(&factories)?;
                let options = self.take_options().completed_from_env()?;
                Arc::new(factories.create_devices(&options, LOCAL_PREFIX)?)
            }
        };
        if of_candidates.is_none() {
            devices = complete(devices);
        }
        if self.isolate_session_state {
            devices = Arc::new(devices.isolated()?);
        }
        if let Some((cache, options)) = self.workers.take() {
            let options = options.completed_from_env();
            devices = Arc::new(discover_devices(&*cache, &devices, &options)?);
        }
        let mut kernels = match self.kernels.take() {
            Some(kernels) => kernels,
            None => Arc::new(factories.kernels()),
        };
        for kernel in self.more_kernels.drain(..) {
            Arc::make_mut(&mut kernels).register(kernel);
        }
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            cluster.add_kernels(Arc::make_mut(&mut kernels));
        }
        Ok((devices, kernels))
    }

    /// Checks that the types of `with_device_count` exist. (`DeviceOptions::device_count` ignores
    /// other types, as TensorFlow does.)
    fn check_types(&self, factories: &FactoryRegistry) -> Result<(), Error> {
        let mut counted = self.count.keys();
        let Some(unknown) = counted.find(|name| factories.factory(name).is_none()) else {
            return Ok(());
        };
        Err(Error::UnknownDeviceType {
            device_type: unknown.clone(),
            remedy: factories.suggest_type(unknown),
        })
    }

    fn take_options(&mut self) -> DeviceOptions {
        let mut options = std::mem::take(&mut self.options);
        options.device_count.extend(std::mem::take(&mut self.count));
        if let Some(filters) = self.filters.take() {
            options.device_filters = filters;
        }
        if let Some(n_threads) = self.intra_op_parallelism_threads {
            options.intra_op_parallelism_threads = n_threads;
        }
        options
    }

    /// Returns the devices with measured rates, and the problems of unusable entries.
    pub(in crate::session) fn calibrated(
        &self,
        devices: Arc<DeviceSet>,
    ) -> (Arc<DeviceSet>, Vec<String>) {
        match &self.calibrations {
            Some(calibrations) => {
                let (devices, problems) = calibrations.apply(&devices);
                let problems = problems.iter().map(ToString::to_string);
                (Arc::new(devices), problems.collect())
            }
            None => (devices, Vec::new()),
        }
    }
}
