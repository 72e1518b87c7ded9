//! Our side: sessions whose nodes are all on one device, and copies into its memory and out of it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;

use super::Side;
use super::graphs::BenchGraph;
use super::graphs::LAST;
use crate::candidates::Proposal;
use crate::cli::bench::model::ModelArgs;
use crate::cli::timing::timed;
use crate::device::Device;
use crate::device::DeviceContext;

use crate::device::DeviceSet;
use crate::execute::N_RUNS_TO_SETTLE;
use crate::execute::RunOptions;
use crate::names::DeviceId;
use crate::registry::Registry;
use crate::session::Session;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Start of the devices' names.
const PREFIX: &str = "/job:localhost/replica:0/task:0";

/// Relative error of sums of which each is of a thousand others.
const TOLERANCE: f32 = 1e-4;

/// The devices, of which one is measured.
pub(super) struct Devices {
    set: Arc<DeviceSet>,
    device: DeviceId,
    cpu: DeviceId,
    inter_op_threads: usize,
}

impl Devices {
    pub(super) fn open(args: &ModelArgs, device: &str) -> Result<Self> {
        let setup = args.setup(None)?;
        let registry = Registry::default();
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
            cpu: find("CPU:0")?,
            set: Arc::new(set),
            inter_op_threads: setup.inter_op_threads,
        })
    }

    /// A session on the device that is measured.
    pub(super) fn open_run(&self, graph: &BenchGraph) -> Result<Run> {
        self.open_on(self.device, graph)
    }

    /// The same on CPU:0.
    pub(super) fn open_cpu(&self, graph: &BenchGraph) -> Result<Run> {
        self.open_on(self.cpu, graph)
    }

    fn open_on(&self, device: DeviceId, graph: &BenchGraph) -> Result<Run> {
        let n_nodes = graph.graph.n_nodes();
        let session = Session::builder()
            .with_graph(graph.graph.clone())
            .with_devices(Arc::clone(&self.set))
            .with_proposal(Proposal {
                devices: vec![device.0; n_nodes],
                ..Proposal::default()
            })
            .with_inter_op_parallelism_threads(self.inter_op_threads)
            .build()?;
        let fetched = session.run(&[], &[LAST])?;
        if let Some(expected) = graph.expected {
            let found = fetched[0].as_slice::<f32>()?;
            let is_close = |x: f32| (x - expected).abs() <= TOLERANCE * expected;
            if let Some(x) = found.iter().find(|&&x| !is_close(x)) {
                anyhow::bail!("an element of the result is {x}, expected {expected}");
            }
        }
        let run = Run { session };
        for _ in 0..N_RUNS_TO_SETTLE {
            run.run()?;
        }
        Ok(run)
    }

    fn device(&self) -> Result<&dyn Device> {
        let device = self.set.get(self.device);
        Ok(&**device.context("the device is of the set")?)
    }

    /// Copies a tensor to the device and waits for it.
    pub(super) fn copy_there(&self, len_bytes: usize) -> Result<Side<'_>> {
        let device = self.device()?;
        let context = context_of(device)?;
        Ok(Box::new(move || {
            let tensor = bytes(len_bytes)?;
            let (copied, time) = timed(|| {
                let copy = context.copy_from_host(&tensor)?;
                device.sync()?;
                anyhow::Ok(copy)
            });
            copied.map(|_| time)
        }))
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

fn context_of(device: &dyn Device) -> Result<&Arc<dyn DeviceContext>> {
    let kernels = device.as_kernel_device();
    Ok(kernels
        .context("the device runs kernels")?
        .default_context())
}

/// A session that is run again and again.
pub(super) struct Run {
    session: Session,
}

impl Run {
    /// Runs everything, fetching nothing.
    fn run(&self) -> Result<Duration> {
        let options = RunOptions::default();
        let (ran, time) = timed(|| self.session.run_with(&[], &[], &[LAST], &options));
        ran?;
        Ok(time)
    }

    pub(super) fn side(&self) -> Side<'_> {
        Box::new(|| self.run())
    }
}

fn bytes(len: usize) -> Result<Tensor> {
    let shape = Shape::new(&[len]);
    Ok(Tensor::from_values(shape, &vec![1u8; len])?)
}
