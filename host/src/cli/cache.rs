//! `placewright cache`: shows or clears the folder of compiled policies, compiled kernels,
//! measured rates and measured times.

use anyhow::Context;
use anyhow::Result;
use clap::Args;
use clap::ValueEnum;
use serde_json::json;

use super::Outcome;
use super::args::DeviceArgs;
use super::output::Output;
use super::units::count;
use super::units::show_bytes;
use crate::cost::Calibrations;
use crate::cost::History;
use crate::store::CacheFolder;

#[derive(Debug, Args)]
pub(super) struct CacheArgs {
    /// What to do.
    #[arg(value_enum, default_value_t = Action::Usage)]
    action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Print the path of the folder.
    Path,
    /// Remove every entry.
    Clear,
    /// Print how many files are kept, and their size.
    Usage,
}

/// Opens the cache of this user; `None` if the environment disables it or names no folder for it.
pub(super) fn open() -> Result<Option<CacheFolder>> {
    let Some(path) = CacheFolder::default_path() else {
        return Ok(None);
    };
    let context = || format!("opening the cache {}", path.display());
    Ok(Some(CacheFolder::open(&path).with_context(context)?))
}

/// Opens the measured rates in the user's cache folder; `None` if they are not wanted, or there is
/// no folder.
///
/// # Errors
/// As [`open`].
pub(super) fn calibrations(devices: &DeviceArgs) -> Result<Option<Calibrations>> {
    if devices.no_calibration {
        return Ok(None);
    }
    Ok(open()?.map(Calibrations::in_folder))
}

/// Opens the history of kernels in the user's cache folder; `None` if it is not wanted, or there
/// is no folder.
///
/// # Errors
/// As [`open`].
pub(super) fn history(devices: &DeviceArgs) -> Result<Option<History>> {
    if devices.no_calibration {
        return Ok(None);
    }
    Ok(open()?.map(History::in_folder))
}

/// Runs the command.
pub(super) fn run(args: &CacheArgs, output: &mut Output) -> Result<Outcome> {
    if args.action == Action::Path {
        let path = CacheFolder::default_path();
        match &path {
            Some(path) => output.line(path.display())?,
            None => output.line(OFF)?,
        }
        output.json(&json!({ "path": path }))?;
        return Ok(Outcome::Done);
    }
    let Some(folder) = open()? else {
        output.line(OFF)?;
        output.json(&json!({ "path": null }))?;
        return Ok(Outcome::Done);
    };
    let path = folder.path().display();
    let (key, usage) = match args.action {
        Action::Clear => ("removed", folder.clear()?),
        _ => ("kept", folder.usage()?),
    };
    output.line(format_args!(
        "{path}: {key} {}, {}",
        count(usage.n_entries, "file"),
        show_bytes(usage.size_bytes)
    ))?;
    output.json(&json!({
        "path": folder.path(),
        key: { "n_entries": usage.n_entries, "size_bytes": usage.size_bytes },
    }))?;
    Ok(Outcome::Done)
}

const OFF: &str = "no cache: PLACEWRIGHT_CACHE_DIR is empty, or there is no home folder";
