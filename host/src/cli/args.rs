//! The flags that `run` and `place` share, parsed and checked as far as one flag alone can be.

use std::path::PathBuf;

use clap::Args;
use clap::ValueHint;
use clap::builder::PossibleValuesParser;

use super::sandbox::SandboxArgs;
use super::units::parse_bytes;
use crate::optimize::Pass;
use crate::saved_model::SavedModelOptions;

/// Which devices there are, and what they may use.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct DeviceArgs {
    /// Number of devices of a type, such as CPU=4. Repeatable, or CPU=4,SYCL=0.
    ///
    /// Exact for CPU and SYCL, an upper limit for GPU. By default one CPU device and every SYCL
    /// and GPU device of the machine. 0 leaves a type out.
    #[arg(long, value_name = "TYPE=N", value_delimiter = ',', value_parser = parse_device_count, help_heading = "Devices")]
    pub(super) device_count: Vec<(String, u32)>,
    /// Memory that placements may use on a device, such as CPU:0=512MiB, or on each device of a
    /// type, such as CPU=512MiB. Repeatable, or separated by commas.
    ///
    /// In bytes or with a unit: KiB, MiB, GiB, TiB are binary, KB, MB, GB, TB decimal. A placement
    /// that does not fit is refused. By default the memory of the device; CPU devices share the
    /// memory of the machine equally.
    #[arg(long, value_name = "DEVICE=BYTES", value_delimiter = ',', value_parser = parse_device_memory, help_heading = "Devices")]
    pub(super) memory: Vec<(String, u64)>,
    /// Create only devices of the type of this name, such as /device:GPU:*, and CPU devices.
    /// Repeatable.
    #[arg(long, value_name = "NAME", help_heading = "Devices")]
    pub(super) device_filter: Vec<String>,
    /// Plan with the default rates of devices, not with those that `devices --calibrate` measured,
    /// nor with times of kernels that `run --learn` measured.
    #[arg(long, help_heading = "Devices")]
    pub(super) no_calibration: bool,
    /// Distribute CPU devices over NUMA nodes, and keep their threads there.
    #[arg(long, help_heading = "Devices")]
    pub(super) numa_affinity: bool,
    /// Sets both --inter-op-threads (ops that run at one time) and --intra-op-threads (loops inside
    /// kernels). 0 means one per core.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=4096), help_heading = "Execution")]
    pub(super) threads: u32,
    /// Threads of loops inside kernels, instead of --threads; 0 means one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=4096), help_heading = "Execution")]
    pub(super) intra_op_threads: Option<u32>,
    /// Ids of the GPUs to use, in this order, such as 3,1; by default all.
    #[arg(
        long,
        value_name = "IDS",
        default_value = "",
        hide_default_value = true,
        help_heading = "GPU"
    )]
    pub(super) visible_gpus: String,
    /// Fraction of a GPU's memory that its device may take; 1 is all of it.
    ///
    /// 0 means all but a reserve. A fraction above 1, at most 100, uses unified memory, which is
    /// paged to and from the host.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_memory_fraction, help_heading = "GPU")]
    pub(super) gpu_memory_fraction: f64,
    /// Use unified memory: what does not fit on the GPU is paged to the host's memory.
    #[arg(long, help_heading = "GPU")]
    pub(super) gpu_unified_memory: bool,
    /// Allocate memory of a GPU as it is needed, instead of the device's whole share at once.
    #[arg(long, help_heading = "GPU")]
    pub(super) gpu_allow_growth: bool,
    /// Streams that the kernels of a GPU are distributed over; with several, kernels of
    /// independent branches overlap.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "GPU")]
    pub(super) gpu_streams: u32,
    /// Wait for each kernel of a GPU, so that an error on the GPU names its node.
    #[arg(long, help_heading = "GPU")]
    pub(super) sync_every_op: bool,
    /// Allow f32 matmuls and convolutions on GPUs to round their operands to TensorFloat-32, for
    /// speed.
    #[arg(long, help_heading = "GPU")]
    pub(super) gpu_allow_tf32: bool,
}

impl DeviceArgs {
    pub(super) fn intra_op_threads(&self) -> usize {
        self.intra_op_threads.unwrap_or(self.threads) as usize
    }
}

/// Which part of a SavedModel, and how its variables are treated.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ModelArgs {
    /// The signature of a SavedModel: what is fed, fetched and placed.
    ///
    /// By default `serving_default`, or the only one. `inspect` lists signatures.
    #[arg(long, value_name = "NAME", help_heading = "SavedModel")]
    pub(super) signature: Option<String>,
    /// Tags of the graph of a SavedModel, separated by commas; by default `serve`.
    #[arg(
        long,
        value_name = "TAGS",
        value_delimiter = ',',
        help_heading = "SavedModel"
    )]
    pub(super) tag_set: Vec<String>,
    /// Leave variables of a SavedModel variables, which the first run restores.
    ///
    /// By default variables that the signature only reads are constants, whose kernels are faster.
    #[arg(long, help_heading = "SavedModel")]
    pub(super) keep_variables: bool,
}

impl ModelArgs {
    /// Returns the first flag that is set.
    pub(super) fn first_flag(&self) -> Option<&'static str> {
        let flags = [
            ("--signature", self.signature.is_some()),
            ("--tag-set", !self.tag_set.is_empty()),
            ("--keep-variables", self.keep_variables),
        ];
        flags
            .into_iter()
            .find(|(_, is_set)| *is_set)
            .map(|(flag, _)| flag)
    }

    pub(super) fn to_options(&self) -> SavedModelOptions {
        let options = SavedModelOptions::default()
            .with_tags(self.tag_set.iter().cloned())
            .with_keep_variables(self.keep_variables);
        match &self.signature {
            Some(signature) => options.with_signature(signature),
            None => options,
        }
    }
}

/// Where nodes go, and what decides it.
#[derive(Debug, Clone, Args)]
pub(super) struct PlacementArgs {
    #[command(flatten)]
    pub(super) devices: DeviceArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Ops of one run that execute at one time, instead of --threads; 0 means one per core.
    #[arg(long, value_name = "N", help_heading = "Execution", value_parser = clap::value_parser!(u32).range(..=4096))]
    pub(super) inter_op_threads: Option<u32>,
    /// Size of a thread pool for ops, instead of the pool of --inter-op-threads. Repeatable.
    ///
    /// `run --inter-op-pool` selects one of the pools.
    #[arg(
        long,
        value_name = "N",
        help_heading = "Execution",
        conflicts_with = "inter_op_threads",
        value_parser = clap::value_parser!(u32).range(..=4096)
    )]
    pub(super) session_inter_op_pool: Vec<u32>,
    /// Concurrent runs that must fit into the memories of the devices.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Placement")]
    pub(super) concurrent_runs: u32,
    /// Device of the nodes that request none, such as /device:CPU:1.
    ///
    /// The outermost device scope: it also completes partial requests of nodes.
    #[arg(long, value_name = "NAME", help_heading = "Placement")]
    pub(super) device: Option<String>,
    /// Pin a node to a device, such as conv1=CPU:1. Repeatable.
    ///
    /// The device is a name that matches one device. A pin takes precedence over what the graph
    /// requests, and holds for the node's colocation group.
    #[arg(long, value_name = "NODE=DEVICE", value_parser = parse_pin, help_heading = "Placement")]
    pub(super) pin: Vec<(String, String)>,
    /// Place a node on another device if the requested device cannot run it.
    #[arg(long, help_heading = "Placement")]
    pub(super) soft_placement: bool,
    /// Priority of a node, such as loss=10, larger first; policies may follow it. Repeatable.
    #[arg(long, value_name = "NODE=N", value_parser = parse_priority, help_heading = "Placement")]
    pub(super) priority: Vec<(String, i32)>,
    /// Place and run the graph as it is, without the passes of the optimizer.
    #[arg(long, help_heading = "Optimizer")]
    pub(super) no_optimize: bool,
    /// Apply only this pass of the optimizer. Repeatable.
    #[arg(
        long,
        value_name = "PASS",
        value_parser = PossibleValuesParser::new(Pass::ALL.map(Pass::name)),
        conflicts_with = "no_optimize",
        help_heading = "Optimizer"
    )]
    pub(super) optimize_only: Vec<String>,
    /// Expected iterations of a loop, by the name of its frame, such as while=100. Repeatable.
    ///
    /// Other loops have the count that their condition tells, or that --profile has, or 10.
    /// `place --nodes` shows frames and counts.
    #[arg(long, value_name = "LOOP=N", value_parser = parse_trip_count, help_heading = "Placement")]
    pub(super) trip_count: Vec<(String, f64)>,
    /// Place by this profile of earlier runs of the graph, which `run --save-profile` wrote.
    #[arg(long, value_name = "F.json", value_hint = ValueHint::FilePath, help_heading = "Placement")]
    pub(super) profile: Option<PathBuf>,

    /// The policy: the name of a shipped one (see `policy list`), or a .wasm file.
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = "auto",
        help_heading = "Policy"
    )]
    pub(super) policy: String,
    /// A setting of the policy, such as insertion=false. Repeatable.
    ///
    /// Unknown keys are refused; `policy list` and `policy check` show the keys.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting, help_heading = "Policy")]
    pub(super) policy_config: Vec<(String, String)>,
    /// Fuel of each call of the policy, about one unit per wasm instruction, instead of a deadline.
    ///
    /// Where fuel ends does not depend on the machine: equal graph, devices, rates and settings
    /// give equal plans, byte for byte.
    #[arg(
        long,
        value_name = "N",
        help_heading = "Policy",
        conflicts_with = "policy_deadline_ms"
    )]
    pub(super) policy_fuel: Option<u64>,
    /// Longest time of one placement, in ms of wall-clock time [default: 30000]
    #[arg(long, value_name = "N", help_heading = "Policy", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) policy_deadline_ms: Option<u64>,
    /// Memory of the policy, such as 256MiB [default: 1GiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Policy")]
    pub(super) policy_memory: Option<u64>,
    #[command(flatten)]
    pub(super) sandbox: SandboxArgs,
    /// Fail if the policy fails, instead of asking the next policy of the ladder.
    ///
    /// The ladder: the policy, its native build if it is a shipped one, `heft`, `priority`. After
    /// a fallback the exit status is 3.
    #[arg(long, help_heading = "Policy")]
    pub(super) strict_policy: bool,
    /// Seed of the policy and of random feeds.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Policy")]
    pub(super) seed: u64,
    /// Reuse an earlier answer from the cache folder, if policy, graph, devices and options are
    /// the same.
    #[arg(long, help_heading = "Policy", requires = "policy_fuel")]
    pub(super) placement_cache: bool,

    /// Use this saved placement, made for the same graph, devices and options; no policy is asked.
    #[arg(
        long,
        value_name = "F.json",
        value_hint = ValueHint::FilePath,
        help_heading = "Placement",
        conflicts_with_all = ["policy", "policy_config", "policy_fuel", "policy_deadline_ms", "policy_memory", "strict_policy"]
    )]
    pub(super) placement: Option<PathBuf>,
    /// Use --placement even if it was made for another graph, other devices or options.
    ///
    /// Every node of the graph must be in it, on a device that exists; other entries are ignored.
    #[arg(long, requires = "placement", help_heading = "Placement")]
    pub(super) placement_unverified: bool,
    /// Keep nodes where this saved placement has them; the policy places the rest.
    ///
    /// A node moves if its device no longer exists, cannot run it or lacks memory.
    #[arg(
        long,
        value_name = "F.json",
        value_hint = ValueHint::FilePath,
        help_heading = "Placement",
        conflicts_with_all = ["placement", "placement_cache"]
    )]
    pub(super) keep: Option<PathBuf>,
    /// Save the placement to this file, for --placement, --keep and `place --diff`.
    #[arg(long, value_name = "F.json", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(super) save_placement: Option<PathBuf>,
    /// Print device descriptions and the device of every node to standard error, as TensorFlow
    /// does.
    #[arg(long, help_heading = "Output")]
    pub(super) log_device_placement: bool,
}

/// What is computed.
#[derive(Debug, Clone, Args)]
pub(super) struct RunArgs {
    /// Feed the arrays in/NAME, compare the fetches of the last run with the arrays out/FETCH, and
    /// fail on a mismatch.
    ///
    /// NaN matches NaN at the same index. A value matches if |found - expected| <= atol + rtol *
    /// |expected|.
    #[arg(long, value_name = "F.npz", value_hint = ValueHint::FilePath, help_heading = "Execution")]
    pub(super) check: Option<PathBuf>,
    /// Absolute tolerance of --check.
    #[arg(long, value_name = "X", default_value_t = 1e-5, value_parser = parse_tolerance, requires = "check", help_heading = "Execution")]
    pub(super) atol: f64,
    /// Tolerance of --check, relative to the expected value.
    #[arg(long, value_name = "X", default_value_t = 1e-5, value_parser = parse_tolerance, requires = "check", help_heading = "Execution")]
    pub(super) rtol: f64,
    /// Feed the arrays in/NAME of an archive, or the values of a JSON object (F.json), also instead
    /// of those of --check.
    ///
    /// In JSON, keys are the names of feeds, and values nested lists of numbers, booleans or
    /// strings. Without --check, placeholders that are not fed get seeded random values: floats in
    /// [-1, 1), integers 0 or 1.
    #[arg(long, value_name = "F", value_hint = ValueHint::FilePath, help_heading = "Execution")]
    pub(super) feeds: Option<PathBuf>,
    /// Compute this tensor, NODE or NODE:SLOT. Repeatable.
    ///
    /// By default the outputs of the signature of a SavedModel, or every output that no node reads.
    #[arg(long, value_name = "NAME", help_heading = "Execution")]
    pub(super) fetch: Vec<String>,
    /// Timed runs after the first one.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        help_heading = "Execution"
    )]
    pub(super) repeat: u32,
    /// Runs between the first one and the timed ones; they are not timed.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        help_heading = "Execution"
    )]
    pub(super) warmup: u32,
    /// Pool of --session-inter-op-pool that executes the runs, counted from 0.
    ///
    /// -1 means none: one thread executes everything.
    #[arg(
        long,
        value_name = "I",
        default_value_t = 0,
        allow_negative_numbers = true,
        help_heading = "Execution"
    )]
    pub(super) inter_op_pool: i32,
    /// Measure some runs in addition, and keep the times of kernels in the cache folder: later
    /// placements of any graph use them.
    #[arg(long, help_heading = "Execution", conflicts_with = "no_calibration")]
    pub(super) learn: bool,
    /// Measure some runs in addition, and write what each node took to this file, for --profile.
    #[arg(long, value_name = "F.json", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(super) save_profile: Option<PathBuf>,
    /// Write the fetched tensors to this file: as arrays out/FETCH (F.npz), or as JSON (F.json).
    #[arg(long, value_name = "F", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(super) output: Option<PathBuf>,
    /// Write a trace to this file, for chrome://tracing and Perfetto.
    ///
    /// Each device has a lane of kernels, a lane of queue waits, and a lane of other device calls:
    /// constants, kernels created, fused nodes. Transfers, stages and policy calls have lanes of
    /// their own.
    #[arg(long, value_name = "F.json", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(super) trace: Option<PathBuf>,
}

impl RunArgs {
    /// Whether a flag is set that has no effect if nothing is run.
    pub(super) fn only_matters_when_running(&self) -> bool {
        self.check.is_some()
            || self.feeds.is_some()
            || !self.fetch.is_empty()
            || self.output.is_some()
            || self.repeat > 0
            || self.warmup > 0
            || self.inter_op_pool != 0
            || self.learn
            || self.save_profile.is_some()
    }
}

fn parse_device_count(text: &str) -> Result<(String, u32), String> {
    let expected = || format!("`{text}` is not a device count; expected TYPE=N such as CPU=4");
    let (device_type, count) = text.split_once('=').ok_or_else(expected)?;
    if device_type.is_empty() {
        return Err(expected());
    }
    let count = count.parse().map_err(|_| expected())?;
    Ok((device_type.to_owned(), count))
}

fn parse_device_memory(text: &str) -> Result<(String, u64), String> {
    let expected =
        || format!("`{text}` is not a memory size; expected DEVICE=BYTES such as CPU:0=512MiB");
    let (device, bytes) = text.rsplit_once('=').ok_or_else(expected)?;
    if device.is_empty() {
        return Err(expected());
    }
    let bytes = parse_bytes(bytes).map_err(|err| err.to_string())?;
    Ok((device.to_owned(), bytes))
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not a setting; expected KEY=VALUE")),
    }
}

fn parse_pin(text: &str) -> Result<(String, String), String> {
    match text.rsplit_once('=') {
        Some((node, device)) if !node.is_empty() && !device.is_empty() => {
            Ok((node.to_owned(), device.to_owned()))
        }
        _ => Err(format!(
            "`{text}` is not a pin; expected NODE=DEVICE such as conv1=CPU:1"
        )),
    }
}

fn parse_priority(text: &str) -> Result<(String, i32), String> {
    let parsed = text.rsplit_once('=').filter(|(node, _)| !node.is_empty());
    let parsed = parsed.and_then(|(node, number)| Some((node.to_owned(), number.parse().ok()?)));
    parsed.ok_or_else(|| {
        format!("`{text}` is not a priority; expected NODE=N with a whole number, such as loss=10")
    })
}

fn parse_trip_count(text: &str) -> Result<(String, f64), String> {
    let parsed = text.rsplit_once('=').and_then(|(frame, count)| {
        let count: f64 = count.parse().ok()?;
        (!frame.is_empty() && count.is_finite() && count >= 0.0).then(|| (frame.to_owned(), count))
    });
    parsed.ok_or_else(|| format!("`{text}` is not a trip count; expected LOOP=N such as while=100"))
}

/// Above 1, memory is paged to and from the host; a hundredfold leaves nothing of a GPU's speed.
const MEMORY_FRACTION_MAX: f64 = 100.0;

fn parse_memory_fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=MEMORY_FRACTION_MAX).contains(&value) => Ok(value),
        _ => Err(format!(
            "`{text}` is not a share of a GPU's memory; expected a number from 0 to {MEMORY_FRACTION_MAX} such as 0.5"
        )),
    }
}

pub(super) fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value),
        _ => Err(format!(
            "`{text}` is not a tolerance; expected a number of at least 0, such as 1e-4"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_at_the_equals_sign() {
        assert_eq!(parse_device_count("CPU=4"), Ok(("CPU".to_owned(), 4)));
        assert_eq!(
            parse_device_memory("/device:CPU:1=1KiB"),
            Ok(("/device:CPU:1".to_owned(), 1024))
        );
        assert_eq!(
            parse_setting("a=b=c"),
            Ok(("a".to_owned(), "b=c".to_owned()))
        );
        assert_eq!(
            parse_pin("a/b=CPU:1"),
            Ok(("a/b".to_owned(), "CPU:1".to_owned()))
        );
        assert_eq!(
            parse_pin("a=/job:x/device:GPU:0"),
            Ok(("a".to_owned(), "/job:x/device:GPU:0".to_owned()))
        );
        assert_eq!(parse_setting("a="), Ok(("a".to_owned(), String::new())));
    }

    #[test]
    fn malformed_pairs_are_refused_with_an_example() {
        for text in ["CPU", "=4", "CPU=", "CPU=-1", "CPU=x", "CPU=5000000000"] {
            assert!(
                parse_device_count(text).is_err_and(|err| err.contains("CPU=4")),
                "{text}"
            );
        }
        for text in ["CPU:0", "=1GiB", "CPU:0=", "CPU:0=much"] {
            assert!(parse_device_memory(text).is_err(), "{text}");
        }
        for text in ["", "=v", "k"] {
            assert!(parse_setting(text).is_err(), "{text}");
            assert!(
                parse_pin(text).is_err_and(|err| err.contains("conv1=CPU:1")),
                "{text}"
            );
        }
        for text in [
            "-1", "nan", "-nan", "inf", "infinity", "-inf", "1e999", "x", "",
        ] {
            assert!(parse_tolerance(text).is_err(), "{text}");
            assert!(
                parse_memory_fraction(text).is_err_and(|err| err.contains("from 0 to 100")),
                "{text}"
            );
        }
        assert_eq!(parse_memory_fraction("1.5"), Ok(1.5));
        assert_eq!(parse_memory_fraction("0"), Ok(0.0));
        assert!(parse_memory_fraction("100.1").is_err());
    }
}
