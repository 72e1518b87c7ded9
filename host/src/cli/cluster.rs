//! The flags of machines on paper.

use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;
use clap::Args;
use clap::ValueHint;

use super::UsageError;
use crate::cluster::Changes;
use crate::cluster::ClusterSpec;
use crate::cluster::ClusterSpecError;

/// A machine on paper instead of this one.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ClusterArgs {
    /// Use the devices of this cluster file instead of those of this machine. Nothing runs on them.
    ///
    /// `devices --export-cluster` writes such a file. Known processors and links, such as h100-sxm
    /// and pcie-4-x16, need no description. --memory sets the memory of its devices.
    #[arg(
        long,
        value_name = "F.toml",
        value_hint = ValueHint::FilePath,
        help_heading = "Cluster",
        conflicts_with_all = ["device_count", "device_filter", "numa_affinity", "visible_gpus"]
    )]
    cluster: Option<PathBuf>,
    /// Let devices take so many times as long, such as GPU:1=2. Repeatable.
    #[arg(long, value_name = "DEVICE=FACTOR", value_delimiter = ',', value_parser = parse_slow, requires = "cluster", help_heading = "Cluster")]
    slow: Vec<(String, f64)>,
    /// Leave devices out, such as GPU:3. Repeatable.
    #[arg(
        long,
        value_name = "DEVICE",
        value_delimiter = ',',
        requires = "cluster",
        help_heading = "Cluster"
    )]
    without: Vec<String>,
}

impl ClusterArgs {
    /// Reads the cluster, if there is one. `memory` are the devices and sizes of --memory.
    pub(super) fn read(&self, memory: &[(String, u64)]) -> Result<Option<ClusterSpec>> {
        let Some(path) = &self.cluster else {
            return Ok(None);
        };
        let cluster = ClusterSpec::read(path).with_context(|| path.display().to_string())?;
        let mut changes = Changes::default();
        for (devices, factor) in &self.slow {
            changes = changes.with_slower(devices, *factor);
        }
        for devices in &self.without {
            changes = changes.without(devices);
        }
        for (devices, bytes) in memory {
            changes = changes.with_memory_bytes(devices, *bytes);
        }
        match cluster.with_changes(&changes) {
            Err(ClusterSpecError::Change(problem)) => Err(UsageError(problem).into()),
            changed => Ok(Some(changed?)),
        }
    }
}

fn parse_slow(text: &str) -> Result<(String, f64), String> {
    let parsed = text.rsplit_once('=').and_then(|(devices, factor)| {
        let factor: f64 = factor.parse().ok()?;
        let is_factor = factor.is_finite() && factor > 0.0;
        (!devices.is_empty() && is_factor).then(|| (devices.to_owned(), factor))
    });
    parsed.ok_or_else(|| {
        format!("`{text}` is not a slower device; expected DEVICE=FACTOR such as GPU:1=2")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_positive_numbers() {
        assert_eq!(parse_slow("GPU:1=2"), Ok(("GPU:1".to_owned(), 2.0)));
        for text in [
            "GPU:1",
            "=2",
            "GPU:1=",
            "GPU:1=0",
            "GPU:1=-1",
            "GPU:1=inf",
            "GPU:1=x",
        ] {
            assert!(
                parse_slow(text).is_err_and(|err| err.contains("GPU:1=2")),
                "{text}"
            );
        }
    }
}
