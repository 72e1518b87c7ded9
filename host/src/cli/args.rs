//! The flags that `run` and `place` share, parsed and checked as far as one flag alone can be.

use std::path::PathBuf;

use clap::Args;
use clap::ValueHint;

use super::sandbox::SandboxArgs;
use super::units::parse_bytes;

/// Which devices there are.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Devices")]
pub(super) struct DeviceArgs {
    /// Devices of a type: exact for CPU and SYCL, at most for GPU. Repeatable.
    #[arg(long, value_name = "TYPE=N", value_parser = parse_device_count)]
    pub(super) device_count: Vec<(String, u32)>,
    /// What plans may use of a device's memory, such as CPU:0=512MiB. Repeatable.
    #[arg(long, value_name = "DEVICE=BYTES", value_parser = parse_device_memory)]
    pub(super) memory: Vec<(String, u64)>,
    /// Threads: steps of one run at one time, and loops inside kernels; 0 = one per core.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=4096))]
    pub(super) threads: u32,
    /// Threads of loops inside kernels, if not --threads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=4096))]
    pub(super) intra_op_threads: Option<u32>,
    /// Only devices of the types that these names say, besides CPU devices, such as /device:GPU:*.
    /// Repeatable.
    #[arg(long, value_name = "NAME")]
    pub(super) device_filter: Vec<String>,
    /// Plan with the rates that devices state, not with those that `devices --calibrate` has
    /// measured.
    #[arg(long)]
    pub(super) no_calibration: bool,
    /// Deal CPU devices out to NUMA nodes, and keep their threads there.
    #[arg(long)]
    pub(super) numa_affinity: bool,
    /// Ids of the GPUs that may be used, in this order, such as 3,1; by default all.
    #[arg(
        long,
        value_name = "IDS",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) visible_gpus: String,
    /// Share of a GPU's memory that its device may take; 0 = all but a reserve, more than 1 =
    /// beyond what there is, by unified memory.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_memory_fraction)]
    pub(super) gpu_memory_fraction: f64,
    /// Page memory of GPUs in and out of the host's, which holds what does not fit.
    #[arg(long)]
    pub(super) gpu_unified_memory: bool,
    /// Take memory of a GPU as it is needed, instead of all that its device may have at once.
    #[arg(long)]
    pub(super) gpu_allow_growth: bool,
    /// Streams that the kernels of a GPU are dealt out to.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) gpu_streams: u32,
    /// Wait for each kernel of a GPU, so that an error on it names its node.
    #[arg(long)]
    pub(super) sync_every_op: bool,
    /// Let products and convolutions of float on GPUs round their factors to TensorFloat-32, for
    /// speed.
    #[arg(long)]
    pub(super) gpu_allow_tf32: bool,
}

impl DeviceArgs {
    pub(super) fn intra_op_threads(&self) -> usize {
        self.intra_op_threads.unwrap_or(self.threads) as usize
    }
}

/// Where nodes go, and who decides.
#[derive(Debug, Clone, Args)]
pub(super) struct PlacementArgs {
    #[command(flatten)]
    pub(super) devices: DeviceArgs,
    /// Steps of one run at one time, if not --threads.
    #[arg(long, value_name = "N", help_heading = "Devices", value_parser = clap::value_parser!(u32).range(..=4096))]
    pub(super) inter_op_threads: Option<u32>,
    /// A pool of threads for steps of runs, of this size, instead of the one of
    /// --inter-op-threads. Repeatable: `run --inter-op-pool` chooses.
    #[arg(
        long,
        value_name = "N",
        help_heading = "Devices",
        conflicts_with = "inter_op_threads",
        value_parser = clap::value_parser!(u32).range(..=4096)
    )]
    pub(super) session_inter_op_pool: Vec<u32>,
    /// Runs at one time that the devices' memories must suffice for.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Devices")]
    pub(super) concurrent_runs: u32,
    /// The outermost device scope: nodes without a request get this one, partial requests are
    /// completed by it.
    #[arg(long, value_name = "NAME", help_heading = "Devices")]
    pub(super) device: Option<String>,
    /// Place a node elsewhere when the device that it asks for cannot run it.
    #[arg(long, help_heading = "Devices")]
    pub(super) soft_placement: bool,

    /// A shipped policy (see `policy list`) or a .wasm file.
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = "priority",
        help_heading = "Policy"
    )]
    pub(super) policy: String,
    /// One setting of the policy. Repeatable; unknown keys are refused.
    #[arg(long, value_name = "K=V", value_parser = parse_setting, help_heading = "Policy")]
    pub(super) policy_config: Vec<(String, String)>,
    /// Fuel for one placement instead of a deadline: where it ends does not depend on the machine,
    /// so plans are equal byte for byte where graph, devices, their rates and all settings
    /// are.
    #[arg(
        long,
        value_name = "N",
        help_heading = "Policy",
        conflicts_with = "policy_deadline_ms"
    )]
    pub(super) policy_fuel: Option<u64>,
    /// Wall-clock time for one placement, in ms.
    #[arg(long, value_name = "N", help_heading = "Policy", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) policy_deadline_ms: Option<u64>,
    /// Memory of the policy, such as 256MiB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Policy")]
    pub(super) policy_memory: Option<u64>,
    #[command(flatten)]
    pub(super) sandbox: SandboxArgs,
    /// Fail when the policy fails, instead of going on with the next one of the ladder.
    #[arg(long, help_heading = "Policy")]
    pub(super) strict_policy: bool,
    /// Seed of the policy and of random feeds.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Policy")]
    pub(super) seed: u64,

    /// Take the answer of before where policy, graph, devices and options are the same, from the
    /// cache folder.
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
    /// Use --placement whatever it was made for, as far as its names fit.
    #[arg(long, requires = "placement", help_heading = "Placement")]
    pub(super) placement_unverified: bool,
    /// Keep what this saved placement has where it can stay; the policy places only the rest.
    #[arg(
        long,
        value_name = "F.json",
        value_hint = ValueHint::FilePath,
        help_heading = "Placement",
        conflicts_with_all = ["placement", "placement_cache"]
    )]
    pub(super) keep: Option<PathBuf>,
    /// Save the placement.
    #[arg(long, value_name = "F.json", value_hint = ValueHint::FilePath, help_heading = "Placement")]
    pub(super) save_placement: Option<PathBuf>,
    /// Print the devices that describe themselves, and the device of every node, as TensorFlow
    /// does.
    #[arg(long, help_heading = "Placement")]
    pub(super) log_device_placement: bool,
}

/// What is computed.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Execution")]
pub(super) struct RunArgs {
    /// Feed the arrays in/NAME, compare the last run's fetches with the arrays out/FETCH, fail on
    /// a mismatch. NaN matches NaN at the same place.
    #[arg(long, value_name = "F.npz", value_hint = ValueHint::FilePath)]
    pub(super) check: Option<PathBuf>,
    /// Absolute tolerance of --check.
    #[arg(long, value_name = "X", default_value_t = 1e-5, value_parser = parse_tolerance, requires = "check")]
    pub(super) atol: f64,
    /// Tolerance of --check relative to the expected value.
    #[arg(long, value_name = "X", default_value_t = 1e-5, value_parser = parse_tolerance, requires = "check")]
    pub(super) rtol: f64,
    /// Feed the arrays in/NAME, also in place of those of --check. Without --check, placeholders
    /// that are not fed get seeded random values.
    #[arg(long, value_name = "F.npz", value_hint = ValueHint::FilePath)]
    pub(super) feeds: Option<PathBuf>,
    /// Compute this tensor, NODE or NODE:SLOT. Repeatable; by default every output that no node
    /// reads.
    #[arg(long, value_name = "NAME")]
    pub(super) fetch: Vec<String>,
    /// Write the fetched tensors, as arrays out/FETCH.
    #[arg(long, value_name = "F.npz", value_hint = ValueHint::FilePath)]
    pub(super) output: Option<PathBuf>,
    /// Timed runs after the first one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) repeat: u32,
    /// Runs that are not timed, between the first one and the timed ones.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) warmup: u32,
    /// Which pool of --session-inter-op-pool helps the runs, from 0; -1 = none, one thread
    /// executes everything.
    #[arg(
        long,
        value_name = "I",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(super) inter_op_pool: i32,
    /// Write a Chrome trace of stages, policy calls, kernels and transfers, for chrome://tracing
    /// and Perfetto.
    #[arg(long, value_name = "F.json", value_hint = ValueHint::FilePath)]
    pub(super) trace: Option<PathBuf>,
}

impl RunArgs {
    /// Whether a flag was given that means nothing when nothing is run.
    pub(super) fn only_matters_when_running(&self) -> bool {
        self.check.is_some()
            || self.feeds.is_some()
            || !self.fetch.is_empty()
            || self.output.is_some()
            || self.repeat > 0
            || self.warmup > 0
            || self.inter_op_pool != 0
    }
}

fn parse_device_count(text: &str) -> Result<(String, u32), String> {
    let expected = || format!("`{text}` is no device count; expected TYPE=N such as CPU=4");
    let (device_type, count) = text.split_once('=').ok_or_else(expected)?;
    if device_type.is_empty() {
        return Err(expected());
    }
    let count = count.parse().map_err(|_| expected())?;
    Ok((device_type.to_owned(), count))
}

fn parse_device_memory(text: &str) -> Result<(String, u64), String> {
    let expected =
        || format!("`{text}` is no memory size; expected DEVICE=BYTES such as CPU:0=512MiB");
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
        _ => Err(format!("`{text}` is no setting; expected KEY=VALUE")),
    }
}

/// Above 1, memory of the host's is paged in and out; a hundredfold leaves nothing of a GPU's
/// speed.
const MEMORY_FRACTION_MAX: f64 = 100.0;

fn parse_memory_fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=MEMORY_FRACTION_MAX).contains(&value) => Ok(value),
        _ => Err(format!(
            "`{text}` is no share of a GPU's memory; expected a number from 0 to {MEMORY_FRACTION_MAX} such as 0.5"
        )),
    }
}

pub(super) fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value),
        _ => Err(format!(
            "`{text}` is no tolerance; expected a number from 0 on, such as 1e-4"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_where_people_expect_it() {
        assert_eq!(parse_device_count("CPU=4"), Ok(("CPU".to_owned(), 4)));
        assert_eq!(
            parse_device_memory("/device:CPU:1=1KiB"),
            Ok(("/device:CPU:1".to_owned(), 1024))
        );
        assert_eq!(
            parse_setting("a=b=c"),
            Ok(("a".to_owned(), "b=c".to_owned()))
        );
        assert_eq!(parse_setting("a="), Ok(("a".to_owned(), String::new())));
    }

    #[test]
    fn what_is_no_pair_is_refused_with_an_example() {
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
