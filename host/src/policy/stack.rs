//! Checks whether a call into a guest fits on the stack of the calling thread.
//!
//! A guest may use its whole stack limit, and overflowing a thread's stack ends the process.

use std::hint::black_box;
use std::sync::OnceLock;

/// The stack of the main thread. The system reports its bounds, but not those of other threads,
/// whose stacks may share one mapping.
#[derive(Debug, Default)]
pub(super) struct MainStack {
    /// Its lowest address, `None` if unknown.
    lowest: OnceLock<Option<usize>>,
}

impl MainStack {
    /// Returns whether the caller runs on it and it has `n_bytes` left.
    pub(super) fn has_left(&self, n_bytes: usize) -> bool {
        if !is_main_thread() {
            return false;
        }
        let marker = 0_u8;
        let here = std::ptr::from_ref(black_box(&marker)).addr();
        let lowest = *self.lowest.get_or_init(lowest_of_main);
        let left = lowest.and_then(|lowest| here.checked_sub(lowest));
        left.is_some_and(|left| left >= n_bytes)
    }
}

#[cfg(target_os = "linux")]
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

#[cfg(not(target_os = "linux"))]
fn is_main_thread() -> bool {
    false
}

/// Returns the lowest address that the main thread's stack may grow to.
#[cfg(target_os = "linux")]
fn lowest_of_main() -> Option<usize> {
    use rustix::process::{Resource, getrlimit};

    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let limit = getrlimit(Resource::Stack).current;
    lowest_in(&maps, limit.and_then(|bytes| usize::try_from(bytes).ok()))
}

#[cfg(not(target_os = "linux"))]
fn lowest_of_main() -> Option<usize> {
    None
}

/// Returns the same from the system's list of mappings, such as `7ffc1000-7ffc3000 rw-p 00000000
/// 00:00 0 [stack]`.
#[cfg(any(test, target_os = "linux"))]
fn lowest_in(maps: &str, size_bytes_max: Option<usize>) -> Option<usize> {
    /// The assumed size of an unlimited stack: the default of common systems.
    const UNLIMITED_BYTES: usize = 8 << 20;
    let line = maps.lines().find(|line| line.ends_with("[stack]"))?;
    let (_, rest) = line.split_once('-')?;
    let highest = usize::from_str_radix(rest.split(' ').next()?, 16).ok()?;
    highest.checked_sub(size_bytes_max.unwrap_or(UNLIMITED_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_mappings_and_the_limit_bound_the_main_stack() {
        let maps = "\
            55d0-55d1 r--p 00000000 08:01 12  /bin/x\n\
            7ffc00100000-7ffc00121000 rw-p 00000000 00:00 0      [stack]\n\
            7ffc00200000-7ffc00202000 r-xp 00000000 00:00 0      [vdso]\n";
        assert_eq!(lowest_in(maps, Some(0x2_1000)), Some(0x7ffc_0010_0000));
        assert_eq!(lowest_in(maps, None), Some(0x7ffc_0012_1000 - (8 << 20)));
        assert_eq!(lowest_in("", Some(0x1000)), None);
    }

    /// Tests do not run on the main thread.
    #[test]
    fn nothing_is_known_of_other_threads() {
        std::thread::spawn(|| assert!(!MainStack::default().has_left(1)))
            .join()
            .unwrap();
    }
}
