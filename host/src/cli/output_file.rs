//! Writes the files of a command: whole or not at all, and never over a file that it reads.

use std::fs;
use std::fs::File;
use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;
use anyhow::bail;

use super::UsageError;
use super::args::PlacementArgs;
use super::args::RunArgs;
use crate::policy::PolicySource;

/// Folders and names of files that this process, or another one, has open.
const OPEN_FILES: [&str; 4] = ["/dev/fd", "/dev/stderr", "/dev/stdout", "/proc"];

/// Writes a file. An existing file stays as it is until the new one is whole; a path that is not a
/// file, such as `/dev/stdout`, is written to directly.
pub(super) fn write(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<&mut File>) -> Result<()>,
) -> Result<()> {
    let written = || -> Result<()> {
        let fill = |file: &mut File| {
            let mut writer = BufWriter::new(file);
            content(&mut writer)?;
            Ok(writer.flush()?)
        };
        // An open file already has a reader, which would not see a file that takes its name.
        let is_open = OPEN_FILES.iter().any(|folder| path.starts_with(folder));
        if is_open || fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return fill(&mut File::create(path)?);
        }
        // A link stays a link.
        let target = place_of(path);
        // A link to nothing.
        if target.is_symlink() {
            return fill(&mut File::create(&target)?);
        }
        if target.is_file() {
            // A file that must not be written must not be replaced either.
            File::options().write(true).open(&target)?;
        }
        let folder = folder_of(&target);
        let mut temporary = match temporary(folder) {
            Ok(temporary) => temporary,
            // The file may belong to this user, and its folder to another one.
            Err(_) if target.is_file() => return fill(&mut File::create(&target)?),
            Err(_) if !folder.is_dir() => bail!("there is no folder {}", folder.display()),
            // The error names the temporary file, which means nothing to the user.
            Err(error) => return Err(io::Error::from(error.kind()).into()),
        };
        if let Ok(metadata) = fs::metadata(&target) {
            temporary
                .as_file()
                .set_permissions(metadata.permissions())?;
        }
        fill(temporary.as_file_mut())?;
        if let Err(error) = temporary.persist(&target) {
            // The file may be a mount point of its own.
            if !target.is_file() {
                return Err(error.error.into());
            }
            io::copy(&mut error.file.reopen()?, &mut File::create(&target)?)?;
        }
        Ok(())
    };
    written().with_context(|| format!("writing {}", path.display()))
}

fn temporary(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".placewright-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As for any new file: what the process's umask leaves.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Refuses to write over a file that the same command reads, and to write two outputs to one file.
/// The placement of `--keep` may be overwritten.
pub(super) fn check(
    graph: &Path,
    diff: Option<&Path>,
    placement: &PlacementArgs,
    run: &RunArgs,
) -> Result<()> {
    let policy = match PolicySource::parse(&placement.policy) {
        Ok(PolicySource::File(path)) => Some(path),
        // A policy that does not exist is refused when it is read.
        Ok(_) | Err(_) => None,
    };
    let read = [
        ("the graph", Some(graph)),
        ("--policy", policy.as_deref()),
        ("--placement", placement.placement.as_deref()),
        ("--diff", diff),
        ("--profile", placement.profile.as_deref()),
        ("--check", run.check.as_deref()),
        ("--feeds", run.feeds.as_deref()),
    ];
    let written = [
        ("--save-placement", placement.save_placement.as_deref()),
        ("--trace", run.trace.as_deref()),
        ("--save-profile", run.save_profile.as_deref()),
        ("--output", run.output.as_deref()),
    ];
    let present = |(name, path): (&'static str, Option<&Path>)| Some((name, place_of(path?)));
    let mut known: Vec<(&str, PathBuf)> = read.into_iter().filter_map(present).collect();
    for (name, place) in written.into_iter().filter_map(present) {
        if let Some((other, _)) = known.iter().find(|(_, known)| *known == place) {
            return Err(UsageError(format!(
                "{name} would write over {other}: both are {}; name another file",
                place.display()
            ))
            .into());
        }
        // Several outputs may go to a terminal or to `/dev/null`.
        if !fs::metadata(&place).is_ok_and(|metadata| !metadata.is_file()) {
            known.push((name, place));
        }
    }
    Ok(())
}

/// Returns the canonical path of a file that may not exist yet.
fn place_of(path: &Path) -> PathBuf {
    // As many links as the system itself follows.
    const LINKS_MAX: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        if let Ok(place) = fs::canonicalize(&path) {
            return place;
        }
        match fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) => break,
        }
    }
    match (fs::canonicalize(folder_of(&path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path,
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    folder.unwrap_or(Path::new("."))
}
