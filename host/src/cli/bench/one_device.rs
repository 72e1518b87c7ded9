//! Sessions whose nodes are all on one device, and copies to its memory and from it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;
use serde::Deserialize;

use super::graphs::BenchGraph;
use super::graphs::Expected;
use super::graphs::LAST;
use super::model::Model;
use super::model::ModelSetup;
use super::model::archive_beside;
use super::turns::Other;
use super::turns::Row;
use super::turns::Side;
use super::turns::Turns;
use super::turns::Unit;
use super::work::Work;
use super::work::settle;
use crate::candidates::Proposal;
use crate::cli::timing::timed;
use crate::device::Device;
use crate::device::DeviceContext;
use crate::device::DeviceSet;
use crate::execute::N_RUNS_TO_SETTLE;
use crate::execute::RunOptions;
use crate::names::DeviceId;
use crate::registry::Registry;
use crate::session::Session;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Start of the devices' names.
const PREFIX: &str = "/job:localhost/replica:0/task:0";

/// The devices; one of them is measured.
pub(super) struct Devices {
    set: Arc<DeviceSet>,
    device: DeviceId,
    #[cfg(feature = "opencl")]
    cpu: DeviceId,
    registry: Registry,
    inter_op_threads: usize,
}

impl Devices {
    pub(super) fn open(setup: &ModelSetup, device: &str) -> Result<Self> {
        let registry = setup.registry.clone();
        let set = registry
            .factories()
            .create_devices(&setup.devices, PREFIX)?;
        let find = |name: &str| {
            let name = format!("{PREFIX}/device:{name}");
            set.find_by_name(&name)
                .with_context(|| format!("there is no {name}; see `placewright devices`"))
        };
        Ok(Self {
            device: find(device)?,
            #[cfg(feature = "opencl")]
            cpu: find("CPU:0")?,
            set: Arc::new(set),
            registry,
            inter_op_threads: setup.inter_op_threads,
        })
    }

    /// Opens a session on the measured device.
    pub(super) fn open_run(&self, graph: &BenchGraph) -> Result<Run> {
        self.open_on(self.device, graph)
    }

    /// Opens a session on CPU:0.
    #[cfg(feature = "opencl")]
    pub(super) fn open_cpu(&self, graph: &BenchGraph) -> Result<Run> {
        self.open_on(self.cpu, graph)
    }

    fn open_on(&self, device: DeviceId, graph: &BenchGraph) -> Result<Run> {
        let n_nodes = graph.graph.n_nodes();
        let session = Session::builder()
            .with_graph(graph.graph.clone())
            .with_registry(self.registry.clone())
            .with_devices(Arc::clone(&self.set))
            .with_proposal(Proposal {
                devices: vec![device.0; n_nodes],
                ..Proposal::default()
            })
            .with_inter_op_parallelism_threads(self.inter_op_threads)
            .build()?;
        let fetched = session.run(&[], &[LAST])?;
        if let Some(expected) = graph.expected {
            check(&fetched[0], expected)?;
        }
        Ok(Run { session })
    }

    pub(super) fn device(&self) -> Result<&dyn Device> {
        let device = self.set.get(self.device);
        Ok(&**device.context("the device is of the set")?)
    }

    /// Copies fresh tensors to the device and waits for them.
    pub(super) fn copy_there(&self, len_bytes: usize) -> Result<Side<'_>> {
        let device = self.device()?;
        let context = context_of(device)?;
        Ok(Box::new(move || {
            copied(device, context, &bytes(len_bytes)?)
        }))
    }

    /// Copies one pinned tensor to the device, and waits for it.
    #[cfg(feature = "cuda")]
    pub(super) fn copy_pinned_there(&self, len_bytes: usize) -> Result<Side<'_>> {
        let device = self.device()?;
        let context = context_of(device)?;
        let pinned = self.pinned(&bytes(len_bytes)?)?;
        Ok(Box::new(move || copied(device, context, &pinned)))
    }

    /// Copies a tensor to pinned memory of the host, which the device copies without staging.
    pub(super) fn pinned(&self, tensor: &Tensor) -> Result<Tensor> {
        let context = context_of(self.device()?)?;
        Ok(context.copy_to_host(&context.copy_from_host(tensor)?)?)
    }

    /// Copies one of the device's tensors to the host and waits for it.
    pub(super) fn copy_back(&self, len_bytes: usize) -> Result<Side<'_>> {
        let device = self.device()?;
        let context = context_of(device)?;
        let tensor = context.copy_from_host(&bytes(len_bytes)?)?;
        device.sync()?;
        Ok(Box::new(move || {
            let (copied, time) = timed(|| context.copy_to_host(&tensor));
            copied?;
            Ok(time)
        }))
    }
}

/// Compares a model on a device with the same model on CPU:0, and checks the results of every run.
/// `setup` gives the setup for a device.
pub(super) fn against_cpu(
    turns: Turns,
    graph: &Path,
    device: &str,
    setup: impl Fn(&str) -> Result<ModelSetup>,
) -> Result<Row> {
    let archive = archive_beside(graph)?;
    let open = |device: &str| {
        let model = Model::open(graph, &archive, setup(device)?)?;
        settle(&model)?;
        anyhow::Ok(model)
    };
    let own = open(&format!("/device:{device}"))?;
    let other = open("/device:CPU:0")?;
    turns.against(
        own.name.clone(),
        Box::new(|| own.run(0)),
        Other::new("CPU:0", Box::new(|| other.run(0))),
        Unit::Turns,
    )
}

fn context_of(device: &dyn Device) -> Result<&Arc<dyn DeviceContext>> {
    let kernels = device.as_kernel_device();
    Ok(kernels
        .context("the device runs kernels")?
        .default_context())
}

fn copied(
    device: &dyn Device,
    context: &Arc<dyn DeviceContext>,
    tensor: &Tensor,
) -> Result<Duration> {
    let (copied, time) = timed(|| {
        let copy = context.copy_from_host(tensor)?;
        device.sync()?;
        anyhow::Ok(copy)
    });
    copied.map(|_| time)
}

fn check(found: &Tensor, expected: Expected) -> Result<()> {
    let Expected { value, tolerance } = expected;
    let is_close = |x: f32| (x - value).abs() <= tolerance * value;
    let wrong = match found.dtype() {
        DType::BF16 => {
            let found = found.as_slice::<half::bf16>()?.iter();
            found.map(|x| x.to_f32()).find(|&x| !is_close(x))
        }
        _ => found
            .as_slice::<f32>()?
            .iter()
            .copied()
            .find(|&x| !is_close(x)),
    };
    match wrong {
        Some(x) => anyhow::bail!("an element of the result is {x}, expected {value}"),
        None => Ok(()),
    }
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    ToDevice,
    FromDevice,
}

/// One tensor that is copied repeatedly between a device and pinned memory of the host.
pub(super) struct Copies {
    devices: Devices,
    way: Way,
    /// The source of the copies.
    tensor: Tensor,
}

impl Copies {
    pub(super) fn open(devices: Devices, len_bytes: usize, way: Way) -> Result<Self> {
        let pinned = devices.pinned(&bytes(len_bytes)?)?;
        let tensor = match way {
            Way::ToDevice => pinned,
            Way::FromDevice => context_of(devices.device()?)?.copy_from_host(&pinned)?,
        };
        Ok(Self {
            devices,
            way,
            tensor,
        })
    }
}

impl Work for Copies {
    fn run(&self, _: u64) -> Result<Duration> {
        let device = self.devices.device()?;
        let context = context_of(device)?;
        match self.way {
            Way::ToDevice => copied(device, context, &self.tensor),
            Way::FromDevice => {
                let (copied, time) = timed(|| context.copy_to_host(&self.tensor));
                copied?;
                Ok(time)
            }
        }
    }
}

impl Work for Run {
    fn run(&self, _: u64) -> Result<Duration> {
        self.run_to(&[], LAST)
    }
}

/// A session that is run repeatedly.
pub(super) struct Run {
    session: Session,
}

impl Run {
    /// Runs up to a node, fetching nothing.
    fn run_to(&self, feeds: &[(&str, Tensor)], target: &str) -> Result<Duration> {
        let options = RunOptions::default();
        let (ran, time) = timed(|| self.session.run_with(feeds, &[], &[target], &options));
        ran?;
        Ok(time)
    }

    /// Runs everything.
    pub(super) fn side(&self) -> Result<Side<'_>> {
        self.side_to(Vec::new(), LAST)
    }

    /// Runs up to a node, and what is fed with it.
    pub(super) fn side_to<'a>(
        &'a self,
        feeds: Vec<(&'a str, Tensor)>,
        target: &'a str,
    ) -> Result<Side<'a>> {
        // Earlier runs try several execution modes.
        for _ in 0..N_RUNS_TO_SETTLE {
            self.run_to(&feeds, target)?;
        }
        Ok(Box::new(move || self.run_to(&feeds, target)))
    }
}

fn bytes(len: usize) -> Result<Tensor> {
    let shape = Shape::new(&[len]);
    Ok(Tensor::from_values(shape, &vec![1u8; len])?)
}
