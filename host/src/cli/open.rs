//! Makes a session of the flags: imports the graph, opens the devices, places the nodes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;

use super::Outcome;
use super::UsageError;
use super::args::PlacementArgs;
use super::cache;
use super::output::Output;
use super::output_file;
use super::progress::Progress;
use super::saved_model::GraphPath;
use super::summary::PlacementView;
use crate::candidates::PlacementOptions;
use crate::cluster::ClusterSpec;
use crate::comparison::Comparison;
use crate::dag::TaskGraph;
use crate::device::DeviceError;
use crate::error::Error;
use crate::execute::InterOpPool;
use crate::files;
use crate::import::ImportOptions;
use crate::names::DeviceName;
use crate::optimize::Pass;
use crate::placement::Digest;
use crate::placement::Placement;
use crate::placement::SavedPlacement;
use crate::policy::LadderError;
use crate::policy::PlaceOptions;
use crate::policy::PlacementCache;
use crate::policy::PolicyEngine;
use crate::policy::PolicyError;
use crate::policy::PolicyErrorKind;
use crate::policy::PolicyLimits;
use crate::policy::PolicyRequest;
use crate::policy::PolicySource;
use crate::policy::Rung;
use crate::policy::ShippedPolicy;
use crate::registry::Registry;
use crate::session::Session;
use crate::session::SessionBuilder;
use crate::session::SessionReport;
use crate::trace::Recorder;
use crate::trace::RunProfile;

/// The process of the program, in names of devices.
const LOCAL_TASK: &str = "/job:localhost/replica:0/task:0";

/// Bytes of a saved placement.
const SAVED_BYTES_MAX: u64 = 1 << 29;

/// Bytes of a profile.
const PROFILE_BYTES_MAX: u64 = 1 << 29;

/// A session, and the policy that was requested for it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) placement: Arc<Placement>,
    pub(super) report: Arc<SessionReport>,
    /// The requested policy, or the one that a saved placement names.
    requested: String,
    seed: u64,
    /// The options that a saved placement names.
    saved_options: BTreeMap<String, String>,
    /// The policy's part of the identity that a saved placement has.
    policy_digest: Option<Digest>,
}

/// Opens a session on the graph in a file. `explain_wanted`: the policy's reasons will be shown.
pub(super) fn open(
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    explain_wanted: bool,
    registry: &Registry,
    recorder: Recorder,
    output: &Output,
) -> Result<Opened> {
    let mut builder = with_costs(graph, args, cluster, registry, output)?.with_recorder(recorder);
    let progress = Progress::spinner(format!("placing {}", graph.display()));
    let mut saved_options = BTreeMap::new();
    let mut policy_digest = None;
    let (requested, seed) = match &args.placement {
        Some(path) => {
            let saved = read_saved(path)?;
            let of_file = (saved.policy.clone(), saved.seed);
            saved_options.clone_from(&saved.options);
            if args.placement_unverified {
                builder = builder.with_unverified_placement(saved);
            } else {
                policy_digest = saved.identity.and_then(|identity| identity.policy);
                builder = builder.with_saved_placement(saved);
            }
            of_file
        }
        None => {
            let request = request(args, explain_wanted)?;
            let requested = request.source.to_string();
            builder = builder
                .with_policy(request)
                .with_policy_engine(engine(args, output)?);
            if args.placement_cache {
                builder = builder.with_placement_cache(placement_cache(output));
            }
            if let Some(path) = &args.keep {
                builder = builder.with_kept_placement(read_saved(path)?);
            }
            (requested, args.seed)
        }
    };
    let session = builder
        .build()
        .map_err(|err| with_context(err, graph, args))?;
    drop(progress);
    let report = session.report();
    let failed = report.policy().into_iter().flat_map(|it| &it.failed);
    if let Some(failed) = failed.map(|it| &it.error).find(|err| is_not_wasm(err)) {
        return Err(UsageError(failed.to_string()).into());
    }
    for problem in &report.calibration_problems {
        output.note(problem);
    }
    Ok(Opened {
        placement: session.placement(),
        report,
        session,
        requested,
        seed,
        saved_options,
        policy_digest,
    })
}

/// A session builder with everything that does not depend on the policy.
fn with_costs(
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    registry: &Registry,
    output: &Output,
) -> Result<SessionBuilder> {
    let mut builder = builder(graph, args, cluster, registry)?;
    if cluster.is_none() && !is_task_graph(graph) {
        match cache::calibrations(&args.devices) {
            Ok(Some(calibrations)) => builder = builder.with_calibrations(calibrations),
            Ok(None) => {}
            Err(err) => output.note(format_args!("{err:#}; measured rates are not used")),
        }
        match cache::history(&args.devices) {
            Ok(Some(history)) => builder = builder.with_history(history),
            Ok(None) => {}
            Err(err) => output.note(format_args!("{err:#}; measured times are not used")),
        }
    }
    if let Some(path) = &args.profile {
        builder = builder.with_profile(read_profile(path)?);
    }
    Ok(builder
        .with_concurrent_runs(args.concurrent_runs as usize)
        .with_inter_op_parallelism_threads(
            args.inter_op_threads.unwrap_or(args.devices.threads) as usize
        )
        .with_session_inter_op_pools(inter_op_pools(args)?))
}

/// Places the graph in a file by several policies.
pub(super) fn compare(
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    explain_wanted: bool,
    registry: &Registry,
    output: &Output,
) -> Result<Comparison> {
    let policies = policies(&args.policy);
    let builder = with_costs(graph, args, cluster, registry, output)?
        .with_policy_engine(engine(args, output)?);
    let requests = policies.iter().map(|policy| {
        let args = PlacementArgs {
            policy: policy.clone(),
            ..args.clone()
        };
        request(&args, explain_wanted)
    });
    let requests: Vec<PolicyRequest> = requests.collect::<Result<_>>()?;
    let progress = Progress::spinner(format!("placing {}", graph.display()));
    let comparison = Comparison::new(&builder, requests);
    drop(progress);
    let comparison = comparison.map_err(|err| with_context(err, graph, args))?;
    for policy in &comparison.policies {
        if let Err(LadderError::Request(err)) = &policy.outcome {
            return Err(UsageError(err.to_string()).into());
        }
    }
    Ok(comparison)
}

/// Returns the policies of a list; one alone is compared with all shipped ones.
fn policies(list: &str) -> Vec<String> {
    let mut policies: Vec<String> = match Path::new(list).is_file() {
        true => vec![list.to_owned()],
        false => list.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    if let [_] = &policies[..] {
        policies.extend(ShippedPolicy::all().map(|policy| policy.name().to_owned()));
    }
    let mut seen = std::collections::BTreeSet::new();
    policies.retain(|policy| seen.insert(policy.clone()));
    policies
}

/// Reads a profile of earlier runs.
fn read_profile(path: &Path) -> Result<RunProfile> {
    let context = || format!("--profile {}", path.display());
    let remedy = "a profile of a million nodes has a fifth of that";
    let bytes = files::read(path, PROFILE_BYTES_MAX, remedy).with_context(context)?;
    RunProfile::from_json(&bytes).with_context(context)
}

/// Returns whether a file has a task graph. Other graphs are GraphDefs.
pub(super) fn is_task_graph(graph: &Path) -> bool {
    let extension = graph.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// A session builder with a task graph and the devices.
fn of_task_graph(
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    registry: &Registry,
) -> Result<SessionBuilder> {
    for (flag, is_set) in [
        ("--pin", !args.pin.is_empty()),
        ("--priority", !args.priority.is_empty()),
        ("--device", args.device.is_some()),
        ("--soft-placement", args.soft_placement),
        ("--trip-count", !args.trip_count.is_empty()),
        ("--profile", args.profile.is_some()),
        ("--signature", args.model.signature.is_some()),
        ("--tag-set", !args.model.tag_set.is_empty()),
        ("--keep-variables", args.model.keep_variables),
        ("--no-optimize", args.no_optimize),
        ("--optimize-only", !args.optimize_only.is_empty()),
    ] {
        if is_set {
            let problem = format!(
                "{flag} has no effect on a task graph, which states its constraints itself"
            );
            return Err(UsageError(problem).into());
        }
    }
    let devices = match cluster {
        Some(cluster) => Arc::clone(cluster.devices()),
        None => {
            let options = args.devices.to_options(registry.factories())?;
            let devices = registry.factories().create_devices(&options, LOCAL_TASK);
            Arc::new(devices.map_err(|err| with_context(err.into(), graph, args))?)
        }
    };
    let context = || graph.display().to_string();
    let tasks = TaskGraph::read(graph).with_context(context)?;
    let candidates = tasks.candidates(&devices).with_context(context)?;
    Ok(Session::builder()
        .with_registry(registry.clone())
        .with_candidates(candidates))
}

/// A session builder with the graph, the devices and the requests of the user.
pub(super) fn builder(
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    registry: &Registry,
) -> Result<SessionBuilder> {
    if is_task_graph(graph) {
        return of_task_graph(graph, args, cluster, registry);
    }
    let path = GraphPath::of(graph)?;
    path.check_flags(&args.model)?;
    let builder = match cluster {
        Some(cluster) => Session::builder().with_cluster(cluster),
        None => {
            let device_options = args.devices.to_options(registry.factories())?;
            Session::builder().with_device_options(device_options)
        }
    };
    let pins = args.pin.iter();
    let builder = pins.fold(builder, |builder, (node, device)| {
        builder.with_pin(node, device)
    });
    let priorities = args.priority.iter();
    let builder = priorities.fold(builder, |builder, (node, priority)| {
        builder.with_priority(node, *priority)
    });
    let trip_counts = args.trip_count.iter();
    let builder = trip_counts.fold(builder, |builder, (frame, n_iterations)| {
        builder.with_trip_count(frame, *n_iterations)
    });
    let builder = match path {
        GraphPath::GraphDef => builder.with_graph_def_file(graph),
        GraphPath::SavedModel(folder) => builder.with_saved_model(folder, args.model.to_options()),
    };
    let builder = match (args.no_optimize, &args.optimize_only[..]) {
        (false, []) => builder,
        (_, names) => builder.with_passes(names.iter().filter_map(|name| Pass::find(name))),
    };
    Ok(builder
        .with_import_options(ImportOptions::default().with_name(name_of(graph)))
        .with_registry(registry.clone())
        .with_placement_options(placement_options(args)?))
}

impl Opened {
    /// How a command ends that did all it was asked for: it says whether another policy than the
    /// requested one placed the graph.
    pub(super) fn outcome(&self) -> Outcome {
        match self.report.policy() {
            Some(report) if report.is_fallback() => Outcome::FellBack,
            _ => Outcome::Done,
        }
    }

    /// The placement as it is shown.
    pub(super) fn view(&self) -> PlacementView<'_> {
        PlacementView::new(&self.placement, &self.requested, &self.report)
    }

    /// The placement by names, with the policy and the options that made it.
    pub(super) fn to_saved(&self, args: &PlacementArgs) -> SavedPlacement {
        // What a saved placement came from stays true when it is saved again.
        let mut options = self.saved_options.clone();
        let mut add = |key: &str, value: Option<String>| {
            options.extend(value.map(|value| (key.to_owned(), value)));
        };
        add(
            "allow-soft-placement",
            args.soft_placement.then(|| "true".to_owned()),
        );
        let scope = args.device.as_deref();
        let scope = scope.map(|scope| match DeviceName::parse_full_or_local(scope) {
            Ok(name) => name.request_text(),
            Err(_) => scope.to_owned(),
        });
        add("device", scope);
        let pins = args
            .pin
            .iter()
            .map(|(node, device)| format!("{node}={device}"));
        let pins: Vec<String> = pins.collect();
        add("pin", (!pins.is_empty()).then(|| pins.join(",")));
        // The folder of a policy means nothing on another machine.
        let file = Path::new(&self.requested).file_name();
        let mut policy = file.map_or(self.requested.clone(), |file| {
            file.to_string_lossy().into_owned()
        });
        let mut policy_digest = self.policy_digest;
        if let Some(report) = self.report.policy() {
            policy_digest = report.identity;
            let is_same = report.answered_by == Rung::Sandboxed(self.requested.clone())
                || matches!(report.answered_by, Rung::Native(name) if name == self.requested);
            // Another policy than the requested one was asked without its settings.
            if is_same {
                for (key, value) in &args.policy_config {
                    add(key, Some(value.clone()));
                }
            }
            if report.is_fallback() {
                policy = report.answered_by.to_string();
            } else {
                add("policy-fuel", args.policy_fuel.map(|fuel| fuel.to_string()));
                let deadline = args.policy_deadline_ms.map(|ms| ms.to_string());
                add("policy-deadline-ms", deadline);
                let memory = args.policy_memory.map(|bytes| bytes.to_string());
                add("policy-memory", memory);
            }
        }
        SavedPlacement::new(&self.placement, &policy, self.seed, options)
            .with_policy_digest(policy_digest)
    }

    /// Carries out `--save-placement` and `--log-device-placement`.
    pub(super) fn save_and_log(&self, args: &PlacementArgs, output: &Output) -> Result<()> {
        if args.log_device_placement {
            for line in self.session.device_mapping().lines() {
                output.log(line);
            }
            for line in self.session.placement_lines() {
                output.log(line);
            }
        }
        if let Some(path) = &args.save_placement {
            let text = self.to_saved(args).to_json() + "\n";
            output_file::write(path, |file| Ok(file.write_all(text.as_bytes())?))?;
        }
        Ok(())
    }

    /// Carries out `--trace`.
    pub(super) fn write_trace(&self, path: &Path) -> Result<()> {
        output_file::write(path, |file| Ok(self.session.trace().write_chrome(file)?))
    }
}

/// Reads a saved placement from a file.
pub(super) fn read_saved(path: &Path) -> Result<SavedPlacement> {
    let context = || format!("reading {}", path.display());
    let text = files::read_text(
        path,
        SAVED_BYTES_MAX,
        "a saved placement of a million nodes has a fifth of that",
    )
    .with_context(context)?;
    SavedPlacement::from_json(&text).with_context(context)
}

fn inter_op_pools(args: &PlacementArgs) -> Result<Vec<InterOpPool>> {
    let sizes = args.session_inter_op_pool.iter();
    let pools = sizes.map(|&n_threads| InterOpPool::new(n_threads as usize));
    Ok(pools.collect::<Result<_, _>>()?)
}

fn placement_options(args: &PlacementArgs) -> Result<PlacementOptions> {
    let mut options = PlacementOptions::default().with_soft_placement(args.soft_placement);
    if let Some(device) = &args.device {
        let scope = DeviceName::parse_full_or_local(device)
            .map_err(|err| UsageError(format!("--device: {err}")))?;
        options = options.with_device_scope(scope);
    }
    Ok(options)
}

fn request(args: &PlacementArgs, explain_wanted: bool) -> Result<PolicyRequest> {
    let source =
        PolicySource::parse(&args.policy).map_err(|err| UsageError(format!("--policy: {err}")))?;
    let options = PlaceOptions::default()
        .with_seed(args.seed)
        .with_explain_wanted(explain_wanted);
    let mut request = PolicyRequest::new(source)
        .with_strict(args.strict_policy)
        .with_options(options);
    request.config.clone_from(&args.policy_config);
    Ok(request)
}

fn engine(args: &PlacementArgs, output: &Output) -> Result<PolicyEngine> {
    let mut limits = PolicyLimits::default().with_fuel(args.policy_fuel);
    if let Some(bytes) = args.policy_memory {
        limits = limits.with_memory_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    if let Some(deadline_ms) = args.policy_deadline_ms {
        limits = limits.with_place_deadline(Duration::from_millis(deadline_ms));
    }
    // A cache that cannot be used costs time, not the run.
    let cache = cache::open().unwrap_or_else(|err| {
        output.note(format_args!("{err:#}; the policy is compiled again"));
        None
    });
    Ok(args.sandbox.engine(limits, cache)?)
}

/// Earlier answers in the user's cache folder. Without such a folder, a cache in memory, which is
/// empty.
fn placement_cache(output: &Output) -> PlacementCache {
    match cache::open() {
        Ok(Some(folder)) => PlacementCache::in_folder(folder),
        Ok(None) => {
            output
                .note("there is no cache folder, so the policy is asked; see `placewright cache`");
            PlacementCache::new()
        }
        Err(err) => {
            output.note(format_args!("{err:#}; the policy is asked"));
            PlacementCache::new()
        }
    }
}

/// Adds the file to the session's error, or makes it an error of the command line.
pub(super) fn with_context(err: Error, graph: &Path, args: &PlacementArgs) -> anyhow::Error {
    match err {
        Error::Ladder(LadderError::Request(err)) if is_usage(&err) => {
            UsageError(err.to_string()).into()
        }
        Error::Ladder(LadderError::Strict(err)) if is_not_wasm(&err) => {
            UsageError(err.to_string()).into()
        }
        Error::Device(DeviceError::InvalidArgument(problem)) => UsageError(problem).into(),
        Error::Pin { .. } => UsageError(format!("--pin: {err}")).into(),
        Error::DeviceScope { .. } => {
            UsageError(format!("--device: {err} (`--soft-placement`)")).into()
        }
        Error::Import(err) => anyhow::Error::new(err).context(graph.display().to_string()),
        Error::SavedPlacement(err) => {
            let path = args.placement.as_deref().unwrap_or(Path::new(""));
            anyhow::Error::new(err).context(path.display().to_string())
        }
        Error::Keep(err) => {
            let path = args.keep.as_deref().unwrap_or(Path::new(""));
            let context = format!("keeping {}", path.display());
            anyhow::Error::new(err).context(context)
        }
        err => err.into(),
    }
}

/// A service that is given such bytes goes on with the next policy of its ladder; a user of the
/// program has passed a wrong file.
fn is_not_wasm(err: &PolicyError) -> bool {
    matches!(*err.kind, PolicyErrorKind::NotWasm { .. })
}

fn is_usage(err: &PolicyError) -> bool {
    matches!(
        *err.kind,
        PolicyErrorKind::NotFound { .. }
            | PolicyErrorKind::UnknownSetting { .. }
            | PolicyErrorKind::Config(_)
            | PolicyErrorKind::Read { .. }
    )
}

/// The file's name without its last extension: `lenet` of `tests/models/lenet.pb`.
pub(super) fn name_of(graph: &Path) -> String {
    // The name of `.` is that of the folder, and `saved_model.pb` names no model.
    let graph = std::path::absolute(graph).unwrap_or_else(|_| graph.to_owned());
    let name = match GraphPath::of(&graph) {
        // Its name may contain dots.
        Ok(GraphPath::SavedModel(folder)) => folder.file_name().map(OsStr::to_owned),
        _ => graph.file_stem().map(OsStr::to_owned),
    };
    name.map_or_else(
        || "graph".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
