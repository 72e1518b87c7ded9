//! A model with its feeds and its expected results, ready to be run repeatedly.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use anyhow::bail;
use clap::Args;

use super::work::Work;
use crate::candidates::PlacementOptions;
use crate::cli::UsageError;
use crate::cli::allclose::Tolerance;
use crate::cli::args::DeviceArgs;
use crate::cli::args::parse_tolerance;
use crate::cli::cache;
use crate::cli::check::CheckReport;
use crate::cli::feeds::Feeds;
use crate::cli::feeds::read_expected;
use crate::cli::feeds::read_feeds;
use crate::cli::npz::NpzReader;
use crate::cli::sandbox::SandboxArgs;
use crate::cli::saved_model::GraphPath;
use crate::cli::saved_model::is_saved_model;
use crate::cli::timing::timed;
use crate::device::DeviceOptions;
use crate::execute::RunOptions;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::policy::PolicyLimits;
use crate::policy::PolicyRequest;
use crate::policy::PolicySource;
use crate::registry::Registry;
use crate::saved_model::SavedModelOptions;
use crate::session::Session;
use crate::session::SessionBuilder;
use crate::tensor::DType;
use crate::tensor::Tensor;
use crate::trace::RunProfile;

/// Endings of graph files. The archive of a graph has the same name with `.npz` instead.
const GRAPH_ENDINGS: [&str; 2] = [".skel.pb", ".pb"];

/// How models are run and checked.
#[derive(Debug, Clone, Args)]
pub(super) struct ModelArgs {
    #[command(flatten)]
    pub(super) devices: DeviceArgs,
    /// Absolute tolerance of results.
    #[arg(long, value_name = "X", default_value_t = 1e-5, value_parser = parse_tolerance)]
    pub(super) atol: f64,
    /// Tolerance of results relative to the expected value.
    #[arg(long, value_name = "X", default_value_t = 1e-5, value_parser = parse_tolerance)]
    pub(super) rtol: f64,
}

impl ModelArgs {
    /// The setup of a model. `scope`: the device of nodes that request none.
    pub(super) fn setup(&self, registry: &Registry, scope: Option<&str>) -> Result<ModelSetup> {
        let scope = scope.map(DeviceName::parse_full_or_local).transpose();
        Ok(ModelSetup {
            devices: self.devices.to_options(registry.factories())?,
            registry: registry.clone(),
            policy: None,
            inter_op_threads: self.devices.threads as usize,
            scope: scope.map_err(|err| UsageError(format!("--device: {err}")))?,
            allow_soft_placement: false,
            tolerance: Tolerance {
                atol: self.atol,
                rtol: self.rtol,
            },
        })
    }
}

/// How models are opened.
#[derive(Debug, Clone)]
pub(super) struct ModelSetup {
    /// Ops, kernels and device types.
    pub(super) registry: Registry,
    pub(super) devices: DeviceOptions,
    /// The policy that places the model; `None` means the default one.
    pub(super) policy: Option<PolicySource>,
    /// Ops of one run that execute at one time; 0 means one per core.
    pub(super) inter_op_threads: usize,
    /// The device of nodes that request none.
    pub(super) scope: Option<DeviceName>,
    /// Whether nodes that cannot run where they are requested are placed elsewhere.
    pub(super) allow_soft_placement: bool,
    pub(super) tolerance: Tolerance,
}

/// A model in a session of its own.
pub(super) struct Model {
    pub(super) name: String,
    /// Time from the file to a session that can run, without the first run.
    pub(super) load: Duration,
    session: Session,
    feeds: Feeds,
    fetches: Vec<String>,
    /// Nodes that are executed without being fetched.
    targets: Vec<String>,
    /// The results that are known of what is fetched.
    expected: Feeds,
    tolerance: Tolerance,
}

impl Model {
    /// Opens the graph in a file, with the feeds and the expected results of an archive.
    pub(super) fn open(graph: &Path, archive: &Path, setup: ModelSetup) -> Result<Self> {
        Self::open_with(graph, archive, setup, |builder| builder)
    }

    /// Does the same, with a session that has further options.
    pub(super) fn open_with(
        graph: &Path,
        archive: &Path,
        setup: ModelSetup,
        complete: impl FnOnce(SessionBuilder) -> SessionBuilder,
    ) -> Result<Self> {
        let path = GraphPath::of(graph)?;
        let mut placement =
            PlacementOptions::default().with_soft_placement(setup.allow_soft_placement);
        if let Some(scope) = setup.scope {
            placement = placement.with_device_scope(scope);
        }
        // As `run` does. A cache that cannot be used costs time, not the run.
        let cache = cache::open().unwrap_or(None);
        let engine = SandboxArgs::default().engine(PolicyLimits::default(), cache)?;
        // What is measured is the requested policy, never another one of the ladder.
        let request = setup
            .policy
            .map(|policy| PolicyRequest::new(policy).with_strict(true));
        let (session, load) = timed(|| {
            let builder = Session::builder().with_policy_engine(engine);
            let builder = match request {
                Some(request) => builder.with_policy(request),
                None => builder,
            };
            let builder = builder.with_registry(setup.registry);
            let builder = match &path {
                GraphPath::GraphDef => builder.with_graph_def_file(graph),
                GraphPath::SavedModel(folder) => {
                    builder.with_saved_model(folder, SavedModelOptions::default())
                }
            };
            let builder = builder
                .with_device_options(setup.devices)
                .with_placement_options(placement)
                .with_inter_op_parallelism_threads(setup.inter_op_threads);
            complete(builder).build()
        });
        let session = session.with_context(|| graph.display().to_string())?;
        let mut reader = NpzReader::open(archive)?;
        let context = || archive.display().to_string();
        let feeds = read_feeds(&mut reader, &session.graph()).with_context(context)?;
        let expected = read_expected(&mut reader, &session.graph()).with_context(context)?;
        Ok(Self {
            name: model_name(graph),
            load,
            session,
            feeds,
            fetches: expected.keys().cloned().collect(),
            targets: Vec::new(),
            expected,
            tolerance: setup.tolerance,
        })
    }

    /// Runs the whole graph, as estimates assume: fetches what no node reads, and executes the
    /// other nodes that no node waits for.
    pub(super) fn whole(mut self) -> Self {
        let shared = self.session.graph();
        let graph = &*shared;
        let last = || {
            let nodes = graph.nodes();
            nodes.filter(|&node| graph.successors().row(node.index()).is_empty())
        };
        let runs_once =
            |&node: &NodeId| !graph.is_placeholder(node) && graph.has_one_value_per_run(node);
        self.fetches = last()
            .filter(runs_once)
            .flat_map(|node| {
                let n_outputs = graph.output_range(node).len();
                (0..n_outputs).filter_map(move |slot| graph.output(node, slot))
            })
            .map(|tensor| graph.tensor_name(tensor))
            .collect();
        self.targets = last()
            .filter(runs_once)
            .filter(|&node| graph.output_range(node).is_empty())
            .map(|node| graph.node_name(node).to_owned())
            .collect();
        self
    }

    pub(super) fn n_nodes(&self) -> usize {
        self.session.graph().n_nodes()
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Measures so many runs.
    pub(super) fn measure(&self, n_runs: u32) -> Result<RunProfile> {
        let feeds = self.feeds.iter();
        let feeds: Vec<(&str, Tensor)> = feeds
            .map(|(name, tensor)| (name.as_str(), tensor.clone()))
            .collect();
        let fetches: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        let targets: Vec<&str> = self.targets.iter().map(String::as_str).collect();
        let measured = self.session.measure(&feeds, &fetches, &targets, n_runs);
        Ok(measured?)
    }

    /// Does what a service does for each request: copies its values to fresh tensors and runs the
    /// session.
    fn request(&self) -> Result<Vec<Tensor>> {
        let mut feeds = Vec::with_capacity(self.feeds.len());
        for (name, tensor) in &self.feeds {
            let shape = tensor.shape().clone();
            let fresh = match tensor.dtype() {
                DType::String => Tensor::from_strings(shape, tensor.as_strings()?.to_vec())?,
                dtype => Tensor::from_bytes(dtype, shape, tensor.as_bytes()?)?,
            };
            feeds.push((name.as_str(), fresh));
        }
        let fetches: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        Ok(self.session.run(&feeds, &fetches)?)
    }

    /// Runs the session once on the given feeds, and returns the time of that.
    pub(super) fn run_session(&self) -> Result<Duration> {
        let feeds = self.feeds.iter();
        let feeds: Vec<(&str, Tensor)> = feeds
            .map(|(name, tensor)| (name.as_str(), tensor.clone()))
            .collect();
        let fetches: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        let targets: Vec<&str> = self.targets.iter().map(String::as_str).collect();
        let options = RunOptions::default();
        let started = Instant::now();
        let fetched = self
            .session
            .run_with(&feeds, &fetches, &targets, &options)?;
        let time = started.elapsed();
        self.check(&fetched)?;
        Ok(time)
    }

    fn check(&self, fetched: &[Tensor]) -> Result<()> {
        let mut all_close = true;
        let known = || {
            let fetched = self.fetches.iter().zip(fetched);
            fetched.filter_map(|(name, found)| Some((name, found, self.expected.get(name)?)))
        };
        for (_, found, expected) in known() {
            all_close &= self.is_close(found, expected)?;
        }
        if all_close {
            return Ok(());
        }
        // Slower, but it says where they differ.
        let fetched: Vec<(String, Tensor)> = known()
            .map(|(name, found, _)| (name.clone(), found.clone()))
            .collect();
        let report = CheckReport::new(&fetched, &self.expected, self.tolerance)?;
        match report.first_mismatch() {
            Some(mismatch) => bail!("{}: {mismatch}", self.name),
            None => Ok(()),
        }
    }

    /// Whether f32 values are within the tolerance. `false` may be wrong for other types and for
    /// NaN; `true` is always right.
    fn is_close(&self, found: &Tensor, expected: &Tensor) -> Result<bool> {
        if found.dtype() != DType::F32
            || expected.dtype() != DType::F32
            || found.shape() != expected.shape()
        {
            return Ok(false);
        }
        // The tolerance is rounded down a little, since these sums are rounded to f32.
        #[expect(clippy::cast_possible_truncation, reason = "as the values compared")]
        let (atol, rtol) = (
            (self.tolerance.atol * 0.999) as f32,
            (self.tolerance.rtol * 0.999) as f32,
        );
        let pairs = found
            .as_slice::<f32>()?
            .iter()
            .zip(expected.as_slice::<f32>()?);
        // Without an early end, so that it is vectorized: the callers of `bench serve` check every
        // response.
        Ok(pairs.fold(true, |close, (&found, &expected)| {
            // The error is finite: to an infinite tolerance anything would be close.
            let error = (found - expected).abs();
            close & (error <= f32::MAX) & (error <= atol + rtol * expected.abs())
        }))
    }
}

impl Work for Model {
    fn run(&self, _: u64) -> Result<Duration> {
        let started = Instant::now();
        let fetched = self.request()?;
        let time = started.elapsed();
        self.check(&fetched)?;
        Ok(time)
    }
}

/// `mlp` of `tests/models/mlp.skel.pb`.
fn model_name(graph: &Path) -> String {
    let name = graph
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let stem = GRAPH_ENDINGS.iter().find_map(|end| name.strip_suffix(end));
    stem.map_or(name.clone(), str::to_owned)
}

/// Returns the archive beside a graph: `mlp.npz` beside `mlp.pb`, `mlp.skel.pb` and the folder
/// `mlp` of a SavedModel.
///
/// # Errors
/// If there is none.
pub(super) fn archive_beside(graph: &Path) -> Result<PathBuf> {
    if !graph.exists() {
        bail!(
            "{}: there is no such model; give a frozen GraphDef (M.pb or M.skel.pb), a SavedModel (a folder) or a folder of models",
            graph.display()
        );
    }
    let archive = graph.with_file_name(format!("{}.npz", model_name(graph)));
    if !archive.is_file() {
        bail!(
            "{}: expected an archive {} beside it, with arrays `in/NAME` to feed and `out/FETCH` to compare results with",
            graph.display(),
            archive.display()
        );
    }
    Ok(archive)
}

/// What `bench models` measures.
pub(super) const MODELS_WANTED: &str = "name models (M.pb, M.skel.pb or the folder M of a SavedModel, each with an archive M.npz beside it: arrays `in/NAME` to feed and `out/FETCH` to compare results with), or folders of models";

/// Returns the models in a folder that have an archive, sorted. If a model is there with and
/// without its weights, the one with weights is taken.
///
/// # Errors
/// If there are none.
pub(super) fn models_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let cannot_read = |err| anyhow!("reading {}: {err}; {MODELS_WANTED}", folder.display());
    let entries = fs::read_dir(folder).map_err(cannot_read)?;
    let mut graphs = Vec::new();
    for entry in entries {
        let path = entry.map_err(cannot_read)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let Some(name) = name.strip_suffix(".npz") else {
            continue;
        };
        let mut found = [".pb", ".skel.pb", ""]
            .map(|end| folder.join(format!("{name}{end}")))
            .into_iter()
            .filter(|graph| graph.is_file() || is_saved_model(graph));
        graphs.extend(found.next());
    }
    if graphs.is_empty() {
        bail!("{} has no model; {MODELS_WANTED}", folder.display());
    }
    graphs.sort_unstable();
    Ok(graphs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_its_file() {
        for graph in ["a/mlp.pb", "mlp.skel.pb", "mlp"] {
            assert_eq!(model_name(Path::new(graph)), "mlp");
        }
    }
}
