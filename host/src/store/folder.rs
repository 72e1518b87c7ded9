//! The folder: its path, the check that it can be trusted, and reading and writing of entries.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use serde::Serialize;

use super::entry::{CacheKey, FILE_SUFFIX, HEADER_BYTES};

/// The start of the name of a file that is still being written.
const TEMPORARY_PREFIX: &str = ".writing-";
/// The file that processes lock while they update an entry. It stays empty.
const LOCK_FILE: &str = ".lock";
/// An unfinished file of this age belongs to a process that has ended, since writing takes some
/// milliseconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// Why the cache folder is not used. Placement works without it, but each load of a policy then
/// compiles it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another user could have written to it.
    #[error("cache folder {path} is not used: {reason}; {remedy}")]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// The problem.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// An operation of the system failed.
    #[error("cache folder {path}: {doing}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The error of the system.
        r#source: io::Error,
    },
}

/// The size of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CacheUsage {
    /// Number of entries.
    pub n_entries: usize,
    /// Size of the entries, in bytes.
    pub size_bytes: u64,
}

/// The cache folder, open and checked. Several processes may use one at the same time.
#[derive(Debug)]
pub struct CacheFolder {
    path: PathBuf,
    /// The open folder. All access uses it, so the folder that is used is the one that was
    /// checked.
    directory: OwnedFd,
    size_bytes_max: u64,
}

impl PartialEq for CacheFolder {
    /// The same folder.
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl CacheFolder {
    /// The default maximum size of a folder: some thousand compiled policies.
    pub const DEFAULT_SIZE_BYTES_MAX: u64 = 1 << 30;

    /// Returns the default path on this system: `$PLACEWRIGHT_CACHE_DIR`, else
    /// `$XDG_CACHE_HOME/placewright`, else `$HOME/.cache/placewright`, else `None`. An empty
    /// `PLACEWRIGHT_CACHE_DIR` means no cache.
    pub fn default_path() -> Option<PathBuf> {
        locate(|name| env::var_os(name))
    }

    /// Opens a folder. If it does not exist, creates it, readable and writable by this user only.
    ///
    /// # Errors
    /// [`StoreError::Untrusted`] if the path is relative, or if the folder is a symbolic link,
    /// belongs to another user, or is writable by others; [`StoreError::Io`] if it cannot be
    /// created or opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        // A slash or `/.` at the end would have the system look through a link.
        let path: PathBuf = path.into().components().collect();
        let io_error = |doing, source| StoreError::Io {
            path: path.clone(),
            doing,
            source,
        };
        let untrusted = |reason: String, remedy| StoreError::Untrusted {
            path: path.clone(),
            reason,
            remedy,
        };
        // Else a program started in somebody's checkout would load what lies in it.
        if path.is_relative() {
            return Err(untrusted(
                "it is relative to the working folder".to_owned(),
                "set PLACEWRIGHT_CACHE_DIR to an absolute path",
            ));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(untrusted(
                "its path has `..`, which may stand behind a symbolic link".to_owned(),
                "set PLACEWRIGHT_CACHE_DIR to a path without it",
            ));
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|source| io_error("making it", source))?;
        let link =
            fs::symlink_metadata(&path).map_err(|source| io_error("looking at it", source))?;
        if link.is_symlink() {
            return Err(untrusted(
                "it is a symbolic link".to_owned(),
                "set PLACEWRIGHT_CACHE_DIR to a folder",
            ));
        }
        let directory = rustix::fs::open(
            &path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|source| io_error("opening it", source.into()))?;
        let stat = rustix::fs::fstat(&directory)
            .map_err(|source| io_error("looking at it", source.into()))?;
        if let Err(reason) = check_owner(&stat) {
            return Err(untrusted(
                reason,
                "give it to yourself and `chmod 700` it, or set PLACEWRIGHT_CACHE_DIR to another folder",
            ));
        }
        Ok(Self {
            path,
            directory,
            size_bytes_max: Self::DEFAULT_SIZE_BYTES_MAX,
        })
    }

    /// Sets the maximum size of the folder. Beyond it, the entries used longest ago are removed.
    #[must_use]
    pub fn with_size_bytes_max(mut self, size_bytes_max: u64) -> Self {
        self.size_bytes_max = size_bytes_max;
        self
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes stored under a key; `None` if there are none, if they are damaged, or if
    /// another user could have written them.
    pub fn read(&self, key: &CacheKey) -> Option<Vec<u8>> {
        let file = rustix::fs::openat(
            &self.directory,
            key.file_name(),
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || check_owner(&stat).is_err()
        {
            return None;
        }
        // A larger one is none of ours: it would not have stayed.
        let size_bytes = u64::try_from(stat.st_size).ok()?;
        if size_bytes > self.size_bytes_max.saturating_add(HEADER_BYTES as u64) {
            return None;
        }
        let mut sealed = Vec::new();
        let file = File::from(file);
        (&file).take(size_bytes).read_to_end(&mut sealed).ok()?;
        let payload = key.open(sealed)?;
        // The time of last use decides what goes first; where it cannot be set, the entry only goes
        // earlier.
        let _ = file.set_modified(std::time::SystemTime::now());
        Some(payload)
    }

    /// Returns whether there is an entry under a key, readable or not.
    pub fn has(&self, key: &CacheKey) -> bool {
        let name = key.file_name();
        rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Stores bytes under a key, and replaces an earlier entry. Readers see the old entry or the
    /// new one, never a part.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the entry cannot be written.
    pub fn write(&self, key: &CacheKey, payload: &[u8]) -> Result<(), StoreError> {
        let unique = getrandom::u64()
            .map_err(|error| self.io_error("naming an entry", io::Error::other(error)))?;
        let temporary = format!("{TEMPORARY_PREFIX}{unique:016x}");
        let written = self
            .write_new(&temporary, &key.seal(payload))
            .and_then(|()| {
                rustix::fs::renameat(
                    &self.directory,
                    &temporary,
                    &self.directory,
                    key.file_name(),
                )
                .map_err(io::Error::from)
            });
        if let Err(source) = written {
            let _ = rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
            return Err(self.io_error("writing an entry", source));
        }
        // The entry is there; that the folder is still too large is no reason to say otherwise. The
        // next write tries again.
        let _ = self.evict();
        Ok(())
    }

    /// Replaces the bytes under a key by what `change` makes of them; `None` stands for no entry,
    /// or a damaged one. Processes that do this for one key take turns, so that none loses what
    /// another has added. Returns what `change` returns beside the bytes.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the entry cannot be written.
    pub fn update<T>(
        &self,
        key: &CacheKey,
        change: impl FnOnce(Option<Vec<u8>>) -> (Vec<u8>, T),
    ) -> Result<T, StoreError> {
        // Not the entry itself, which each write replaces by another file.
        let lock = rustix::fs::openat(
            &self.directory,
            LOCK_FILE,
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )
        .and_then(|file| {
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        })
        .map_err(|source| self.io_error("locking it", source.into()))?;
        let (bytes, result) = change(self.read(key));
        let written = self.write(key, &bytes);
        // Closing the file releases the lock.
        drop(lock);
        written.map(|()| result)
    }

    /// Removes every entry, and returns their number and size. Files that other processes are
    /// writing remain.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the folder cannot be read or an entry cannot be removed.
    pub fn clear(&self) -> Result<CacheUsage, StoreError> {
        let mut removed = CacheUsage::default();
        let now = SystemTime::now();
        for file in self.files()? {
            if !file.is_temporary {
                self.remove(&file.name)?;
                removed.n_entries += 1;
                removed.size_bytes += file.size_bytes;
            } else if file.is_abandoned(now) {
                self.remove(&file.name)?;
            }
        }
        Ok(removed)
    }

    /// Returns the number and size of all entries.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the folder cannot be read.
    pub fn usage(&self) -> Result<CacheUsage, StoreError> {
        let mut usage = CacheUsage::default();
        for file in self.files()?.iter().filter(|file| !file.is_temporary) {
            usage.n_entries += 1;
            usage.size_bytes += file.size_bytes;
        }
        Ok(usage)
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = rustix::fs::openat(
            &self.directory,
            name,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )?;
        File::from(file).write_all(bytes)
    }

    /// Removes unfinished files of processes that were killed, then the entries used longest ago
    /// until the rest fits.
    fn evict(&self) -> Result<(), StoreError> {
        let now = SystemTime::now();
        let (temporaries, mut entries): (Vec<_>, Vec<_>) = self
            .files()?
            .into_iter()
            .partition(|file| file.is_temporary);
        // A fresh one is about to be renamed by another process, whose write would fail.
        for file in temporaries.iter().filter(|file| file.is_abandoned(now)) {
            self.remove(&file.name)?;
        }
        let mut size_bytes: u64 = entries.iter().map(|file| file.size_bytes).sum();
        entries.sort_by_key(|file| file.used);
        for file in entries {
            if size_bytes <= self.size_bytes_max {
                break;
            }
            self.remove(&file.name)?;
            size_bytes -= file.size_bytes;
        }
        Ok(())
    }

    /// Returns the files of the cache in the folder, without other files.
    fn files(&self) -> Result<Vec<CacheFile>, StoreError> {
        let mut files = Vec::new();
        let directory = Dir::read_from(&self.directory)
            .map_err(|source| self.io_error("listing it", source.into()))?;
        for item in directory {
            let item = item.map_err(|source| self.io_error("listing it", source.into()))?;
            let Ok(name) = item.file_name().to_str() else {
                continue;
            };
            let is_temporary = name.starts_with(TEMPORARY_PREFIX);
            if !is_temporary && !name.ends_with(FILE_SUFFIX) {
                continue;
            }
            // An entry that another process removed in the meantime is none.
            let Ok(stat) = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            files.push(CacheFile {
                name: name.to_owned(),
                is_temporary,
                size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
                used: (stat.st_mtime, stat.st_mtime_nsec),
            });
        }
        Ok(files)
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        match rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(source) => Err(self.io_error("removing an entry", source.into())),
        }
    }

    fn io_error(&self, doing: &'static str, source: io::Error) -> StoreError {
        StoreError::Io {
            path: self.path.clone(),
            doing,
            source,
        }
    }
}

/// A file of the cache in the folder.
#[derive(Debug)]
struct CacheFile {
    name: String,
    is_temporary: bool,
    size_bytes: u64,
    /// Time of the last use: seconds and nanoseconds.
    used: (i64, u64),
}

impl CacheFile {
    /// Whether it is unfinished and no process writes to it any more.
    fn is_abandoned(&self, now: SystemTime) -> bool {
        let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let written_s = u64::try_from(self.used.0).unwrap_or(0);
        self.is_temporary && now_s.saturating_sub(written_s) > ABANDONED_AFTER.as_secs()
    }
}

/// [`CacheFolder::default_path`] for any environment.
fn locate(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(chosen) = variable("PLACEWRIGHT_CACHE_DIR") {
        return (!chosen.is_empty()).then(|| PathBuf::from(chosen));
    }
    // The XDG specification: relative paths are to be ignored.
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("placewright"))
}

/// Checks that only this user could have written to a file or folder; returns the reason if not.
fn check_owner(stat: &Stat) -> Result<(), String> {
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Err(format!("it belongs to user {}, not to {user}", stat.st_uid));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(format!(
            "others may write to it (mode {:03o})",
            stat.st_mode & 0o777
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn folder() -> (tempfile::TempDir, CacheFolder) {
        let parent = tempfile::tempdir().unwrap();
        let folder = CacheFolder::open(parent.path().join("nested/cache")).unwrap();
        (parent, folder)
    }

    fn key(name: &str) -> CacheKey {
        CacheKey::new("test", &[name.as_bytes()])
    }

    #[test]
    fn concurrent_updates_lose_nothing() {
        let (_parent, folder) = folder();
        let path = folder.path().to_owned();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // As another process would: with a folder of its own.
                    let folder = CacheFolder::open(&path).unwrap();
                    for _ in 0..25 {
                        let add = |old: Option<Vec<u8>>| {
                            let mut bytes = old.unwrap_or_default();
                            bytes.push(1);
                            (bytes, ())
                        };
                        folder.update(&key("a"), add).unwrap();
                    }
                });
            }
        });
        assert_eq!(folder.read(&key("a")).unwrap(), [1; 100]);
    }

    #[test]
    fn what_was_written_is_read_until_cleared() {
        let (_parent, folder) = folder();
        assert_eq!(folder.read(&key("a")), None);
        folder.write(&key("a"), b"first").unwrap();
        folder.write(&key("a"), b"second").unwrap();
        folder.write(&key("b"), b"other").unwrap();
        assert_eq!(folder.read(&key("a")).as_deref(), Some(&b"second"[..]));
        assert_eq!(folder.usage().unwrap().n_entries, 2);
        assert_eq!(folder.clear().unwrap().n_entries, 2);
        assert_eq!(folder.read(&key("a")), None);
        assert_eq!(folder.usage().unwrap(), CacheUsage::default());
    }

    #[test]
    fn new_folders_and_entries_are_private() {
        let (_parent, folder) = folder();
        folder.write(&key("a"), b"x").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(folder.path()), 0o700);
        assert_eq!(mode(&folder.path().join(key("a").file_name())), 0o600);
    }

    #[test]
    fn damaged_entries_are_ignored_and_replaced() {
        let (_parent, folder) = folder();
        folder.write(&key("a"), b"payload").unwrap();
        let path = folder.path().join(key("a").file_name());
        let whole = fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], b"", b"not an entry at all"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(folder.read(&key("a")), None);
        }
        folder.write(&key("a"), b"payload").unwrap();
        assert_eq!(folder.read(&key("a")).as_deref(), Some(&b"payload"[..]));
    }

    #[test]
    fn entries_that_others_may_write_are_not_read() {
        let (_parent, folder) = folder();
        folder.write(&key("a"), b"payload").unwrap();
        let path = folder.path().join(key("a").file_name());
        for mode in [0o620, 0o602, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(folder.read(&key("a")), None, "mode {mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(folder.read(&key("a")).is_some());
    }

    #[test]
    fn entries_larger_than_the_folder_are_not_read() {
        let (_parent, folder) = folder();
        folder.write(&key("a"), b"payload").unwrap();
        let path = folder.path().join(key("a").file_name());
        let file = File::options().write(true).open(&path).unwrap();
        // Reading it would take all memory.
        file.set_len(1 << 43).unwrap();
        assert_eq!(folder.read(&key("a")), None);
        folder.write(&key("a"), b"payload").unwrap();
        assert!(folder.read(&key("a")).is_some());
    }

    #[test]
    fn linked_entries_are_not_followed() {
        let (parent, folder) = folder();
        let elsewhere = parent.path().join("elsewhere");
        fs::write(&elsewhere, key("a").seal(b"payload")).unwrap();
        symlink(&elsewhere, folder.path().join(key("a").file_name())).unwrap();
        assert_eq!(folder.read(&key("a")), None);
        folder.write(&key("a"), b"ours").unwrap();
        assert_eq!(folder.read(&key("a")).as_deref(), Some(&b"ours"[..]));
        assert_eq!(fs::read(&elsewhere).unwrap(), key("a").seal(b"payload"));
    }

    #[test]
    fn folders_that_others_may_write_are_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("cache");
        fs::create_dir(&path).unwrap();
        for mode in [0o770, 0o707, 0o777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = CacheFolder::open(&path).unwrap_err();
            assert!(matches!(error, StoreError::Untrusted { .. }), "{error}");
            assert!(error.to_string().contains("chmod 700"), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        CacheFolder::open(&path).unwrap();
    }

    #[test]
    fn a_linked_folder_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let (target, link) = (parent.path().join("target"), parent.path().join("link"));
        fs::create_dir(&target).unwrap();
        symlink(&target, &link).unwrap();
        for end in ["", "/", "//", "/.", "/./", "/../link/", "/../target"] {
            let path = format!("{}{end}", link.display());
            let error = CacheFolder::open(path).unwrap_err();
            assert!(
                matches!(error, StoreError::Untrusted { .. }),
                "`{end}`: {error}"
            );
        }
        CacheFolder::open(format!("{}/./", target.display())).unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(
            CacheFolder::open(&file),
            Err(StoreError::Io { .. })
        ));
    }

    #[test]
    fn the_entries_used_longest_ago_go_first() {
        let (_parent, folder) = folder();
        let folder = folder.with_size_bytes_max(3 * 1024);
        let payload = [7; 900];
        for (name, age_s) in [("old", 300), ("older", 400), ("new", 100)] {
            folder.write(&key(name), &payload).unwrap();
            let used = std::time::SystemTime::now() - std::time::Duration::from_secs(age_s);
            File::open(folder.path().join(key(name).file_name()))
                .unwrap()
                .set_modified(used)
                .unwrap();
        }
        // Reading makes the oldest the newest, so the next oldest goes.
        assert!(folder.read(&key("older")).is_some());
        folder.write(&key("newest"), &payload).unwrap();
        assert!(folder.read(&key("old")).is_none());
        for name in ["older", "new", "newest"] {
            assert!(folder.read(&key(name)).is_some(), "{name}");
        }
    }

    #[test]
    fn what_killed_processes_left_is_removed_and_what_others_write_is_not() {
        let (_parent, folder) = folder();
        let folder = folder.with_size_bytes_max(2000);
        let temporary = |name: &str, age_s| {
            let path = folder.path().join(format!("{TEMPORARY_PREFIX}{name}"));
            fs::write(&path, [0; 5000]).unwrap();
            let written = SystemTime::now() - Duration::from_secs(age_s);
            File::open(&path).unwrap().set_modified(written).unwrap();
            path
        };
        let (abandoned, fresh) = (temporary("a", 7200), temporary("b", 60));
        folder.write(&key("entry"), b"payload").unwrap();
        assert!(!abandoned.exists());
        assert!(fresh.exists());
        // A file that is no entry yet takes no entry's place.
        assert!(folder.read(&key("entry")).is_some());
        let abandoned = temporary("a", 7200);
        assert_eq!(folder.clear().unwrap().n_entries, 1);
        assert!(!abandoned.exists());
        assert!(fresh.exists());
    }

    #[test]
    fn a_relative_folder_is_not_used() {
        let error = CacheFolder::open("relative/cache").unwrap_err();
        assert!(error.to_string().contains("absolute path"), "{error}");
        assert!(!Path::new("relative").exists());
    }

    #[test]
    fn strangers_in_the_folder_are_left_alone() {
        let (_parent, folder) = folder();
        let stranger = folder.path().join("notes.txt");
        fs::write(&stranger, "mine").unwrap();
        let folder = folder.with_size_bytes_max(0);
        folder.write(&key("a"), b"payload").unwrap();
        assert_eq!(folder.read(&key("a")), None);
        folder.clear().unwrap();
        assert_eq!(fs::read_to_string(&stranger).unwrap(), "mine");
    }

    #[test]
    fn writers_at_the_same_time_leave_one_whole_entry() {
        let (_parent, folder) = folder();
        let folder = &folder;
        std::thread::scope(|scope| {
            for writer in 0..8_u8 {
                scope.spawn(move || {
                    for round in 0..50_usize {
                        folder
                            .write(&key("shared"), &vec![writer; 1000 + round])
                            .unwrap();
                        let read = folder.read(&key("shared")).unwrap();
                        assert!(read.iter().all(|&byte| byte == read[0]));
                    }
                });
            }
        });
        assert_eq!(folder.usage().unwrap().n_entries, 1);
    }

    #[test]
    fn the_environment_names_the_folder() {
        let at = |variables: &[(&str, &str)]| {
            locate(|name| {
                let (_, value) = variables.iter().find(|(key, _)| *key == name)?;
                Some(OsString::from(value))
            })
        };
        let home = ("HOME", "/home/u");
        assert_eq!(at(&[]), None);
        assert_eq!(at(&[home]), Some("/home/u/.cache/placewright".into()));
        assert_eq!(
            at(&[home, ("XDG_CACHE_HOME", "/x")]),
            Some("/x/placewright".into())
        );
        assert_eq!(
            at(&[home, ("XDG_CACHE_HOME", "relative")]),
            Some("/home/u/.cache/placewright".into())
        );
        assert_eq!(
            at(&[home, ("PLACEWRIGHT_CACHE_DIR", "/own")]),
            Some("/own".into())
        );
        assert_eq!(at(&[home, ("PLACEWRIGHT_CACHE_DIR", "")]), None);
    }
}
