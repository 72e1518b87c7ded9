//! Reads files that users name, up to a size limit.
//!
//! A file may be larger than memory, even if it is sparse and takes no space on the disk.
//! `/dev/zero` has no end, and opening a pipe blocks until something writes to it. So only regular
//! files are opened, without blocking, and callers pass a limit.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

/// Opens a regular file for reading, without blocking.
///
/// # Errors
/// Those of the system, and [`io::ErrorKind::InvalidInput`] if the path is not a regular file, but
/// a device or a pipe, for example.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let what = match file_type(&file)? {
        FileType::RegularFile => return Ok(File::from(file)),
        FileType::Directory => return Err(io::Error::from(io::ErrorKind::IsADirectory)),
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "something else",
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is {what}, and only files are read; write its contents to a file first"),
    ))
}

/// Reads a file of at most `limit_bytes`. `remedy` ends the message about a larger file.
///
/// # Errors
/// As [`open`], and [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read(path: &Path, limit_bytes: u64, remedy: &str) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let size_bytes = file.metadata()?.len();
    // Files in /proc and /sys have size 0, so the bytes read are counted as well.
    let mut bytes = Vec::new();
    if size_bytes <= limit_bytes {
        let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(size)?;
        file.take(limit_bytes.saturating_add(1))
            .read_to_end(&mut bytes)?;
    }
    let found = size_bytes.max(bytes.len() as u64);
    if found > limit_bytes {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            TooLarge {
                found,
                limit_bytes,
                remedy: remedy.to_owned(),
            },
        ));
    }
    Ok(bytes)
}

/// Like [`read`], for text.
///
/// # Errors
/// As [`read`], and [`io::ErrorKind::InvalidData`] if the file is not UTF-8.
pub(crate) fn read_text(path: &Path, limit_bytes: u64, remedy: &str) -> io::Result<String> {
    let bytes = read(path, limit_bytes, remedy)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The source of an error of [`io::ErrorKind::FileTooLarge`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it has {found} bytes or more, the limit is {limit_bytes}; {remedy}")]
pub(crate) struct TooLarge {
    /// The size of the file, as far as it is known.
    pub(crate) found: u64,
    /// The limit.
    pub(crate) limit_bytes: u64,
    remedy: String,
}

impl TooLarge {
    /// Returns the sizes in an error of [`read`].
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

fn file_type(file: &impl AsFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"four").unwrap();
        assert_eq!(read(&path, 4, "").unwrap(), b"four");
        assert_eq!(read_text(&path, 9, "").unwrap(), "four");
        let error = read(&path, 3, "shorten it").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(TooLarge::of(&error).unwrap().found, 4);
        assert!(
            error.to_string().ends_with("the limit is 3; shorten it"),
            "{error}"
        );
    }

    /// It takes no place on the disk, and none in memory.
    #[test]
    fn a_sparse_file_is_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 43).unwrap();
        let error = read(file.path(), 1 << 20, "").unwrap_err();
        assert_eq!(TooLarge::of(&error).unwrap().found, 1 << 43);
    }

    /// The system says that it has no bytes.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_hides_its_size_is_counted() {
        let maps = Path::new("/proc/self/maps");
        assert_eq!(std::fs::metadata(maps).unwrap().len(), 0);
        let error = read(maps, 10, "").unwrap_err();
        assert_eq!(TooLarge::of(&error).unwrap().found, 11);
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        for (path, words) in [
            (pipe.as_path(), "a pipe"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let error = read(path, 10, "").unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = read(folder.path(), 10, "").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        let error = read(&folder.path().join("none"), 10, "").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
