//! What PoCL gets wrong, and how to avoid that one of its mistakes ends the process.
//!
//! PoCL before 6.0 compiles a function once per group size, and once more for each launch that is
//! larger than those before. It counts the launches that use each result. When a launch ends, PoCL
//! looks up the result by function and group size alone, and so may count down another launch's
//! result. A count that would fall below zero is a failed assertion. Version 6.0 looks up the right
//! one (commit c9ac4c0c3).
//!
//! The lookup is right while all launches of a function and group size that are running have one
//! size. This module keeps them so, in the whole process: PoCL's results belong to the process. A
//! launch that comes after all launches of other sizes anyway does not wait for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::LazyLock;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::Weak;

use super::ffi::Progress;
use super::order::End;

/// The name of PoCL's platform.
const PLATFORM: &str = "Portable Computing Language";

/// The first version without the mistake.
const FIXED_IN: u32 = 6;

/// What a driver gets wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Quirks {
    /// Commands of one device cannot wait for events of another device. PoCL 3.1 executes a
    /// command of its `basic` device on the thread that ends the event it waits for, while holding
    /// locks that the command needs.
    pub(super) queues_are_alone: bool,
    /// Launches of one function in several sizes must not run at the same time.
    pub(super) mixes_up_sizes: bool,
    /// The driver keeps compiled programs in a folder of its own, and giving out a binary costs:
    /// PoCL then compiles each function once more, for groups of any size. PoCL before 4.0 also
    /// counts that code as in use for ever. Of 128 pieces of code that it keeps open, few are then
    /// left for launches, and each launch opens a file: 60 us.
    pub(super) keeps_programs: bool,
}

impl Quirks {
    /// Returns the quirks of a version of a driver; assumes the worst of an unknown version.
    pub(super) fn of(platform: &str, driver: &str) -> Self {
        let is_pocl = platform == PLATFORM;
        let digits = driver.split(|c: char| !c.is_ascii_digit()).next();
        let major: Option<u32> = digits.and_then(|digits| digits.parse().ok());
        Self {
            queues_are_alone: is_pocl,
            keeps_programs: is_pocl,
            mixes_up_sizes: is_pocl && major.is_none_or(|major| major < FIXED_IN),
        }
    }
}

/// The launches of a process that may be running.
#[derive(Debug, Default)]
pub(super) struct Launches {
    running: Mutex<Running>,
    /// Notified when a launch has been given to the driver, or refused.
    changed: Condvar,
}

/// By name of the function and group size. Functions of one name in several programs share an
/// entry: at worst they wait for each other.
type Running = HashMap<(String, Size), Vec<Arc<Launch>>>;

type Size = [usize; 3];

#[derive(Debug)]
struct Launch {
    global: Size,
    /// Empty until the driver has accepted the launch. The worker keeps the end until the launch
    /// is known to have ended.
    end: OnceLock<Weak<End>>,
}

impl Launches {
    /// Returns the launches of this process.
    pub(super) fn of_process() -> &'static Self {
        static LAUNCHES: LazyLock<Launches> = LazyLock::new(Launches::default);
        &LAUNCHES
    }

    /// Waits until a launch may be given to the driver. `comes_after` returns whether the launch
    /// waits for a command of its own device anyway; `flush` starts the device's commands.
    pub(super) fn begin(
        &'static self,
        function: &str,
        group: Size,
        global: Size,
        comes_after: impl Fn(&End) -> bool,
        mut flush: impl FnMut(),
    ) -> Turn {
        let key = (function.to_owned(), group);
        let mut running = self.running();
        loop {
            let launches = running.entry(key.clone()).or_default();
            launches.retain(|launch| launch.may_run());
            let other = launches.iter().find_map(|launch| {
                let end = launch.end.get().map(Weak::upgrade);
                let is_other =
                    launch.global != global && !end.iter().flatten().any(|end| comes_after(end));
                is_other.then_some(end)
            });
            match other {
                None => {
                    let launch = Arc::new(Launch {
                        global,
                        end: OnceLock::new(),
                    });
                    launches.push(Arc::clone(&launch));
                    return Turn {
                        launches: self,
                        key,
                        launch,
                    };
                }
                // Another thread is giving it to the driver.
                Some(None) => {
                    let changed = self.changed.wait(running);
                    running = changed.unwrap_or_else(PoisonError::into_inner);
                }
                Some(Some(end)) => {
                    drop(running);
                    flush();
                    if let Some(end) = end {
                        // Its own device reports a failure.
                        let _ = end.event.wait();
                    }
                    running = self.running();
                }
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // Nothing panics under the lock.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Launch {
    fn may_run(&self) -> bool {
        match self.end.get().map(Weak::upgrade) {
            None => true,
            Some(None) => false,
            Some(Some(end)) => end.event.progress() == Progress::Pending,
        }
    }
}

/// A launch that may be given to the driver. If this is dropped without [`Self::accepted`], the
/// driver has refused it.
#[derive(Debug)]
pub(super) struct Turn {
    launches: &'static Launches,
    key: (String, Size),
    launch: Arc<Launch>,
}

impl Turn {
    /// Records the end of the launch, which the driver has accepted.
    pub(super) fn accepted(self, end: &Arc<End>) {
        let _running = self.launches.running();
        let _ = self.launch.end.set(Arc::downgrade(end));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.launch.end.get().is_none() {
            let mut running = self.launches.running();
            if let Some(launches) = running.get_mut(&self.key) {
                launches.retain(|launch| !Arc::ptr_eq(launch, &self.launch));
            }
        }
        self.launches.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_the_correction_are_recognised() {
        for (driver, is_wrong) in [
            ("3.1+debian", true),
            ("5.0", true),
            ("6.0", false),
            ("7.2-RC1", false),
            ("unknown", true),
        ] {
            let quirks = Quirks::of(PLATFORM, driver);
            assert_eq!(quirks.mixes_up_sizes, is_wrong, "{driver}");
            assert!(quirks.queues_are_alone && quirks.keeps_programs);
        }
        assert_eq!(Quirks::of("NVIDIA CUDA", "580.1"), Quirks::default());
    }
}
