//! Messages to the host: the only side effect that a policy has besides its plan.
//!
//! ```
//! use placewright_guest::log::Log;
//! use placewright_guest::{debug, info};
//!
//! let log = Log::silent();
//! info!(log, "{} nodes", 3);
//! debug!(log, "formatted only if the host keeps messages of this level");
//! ```

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

pub use crate::source::LogLevel;
pub use crate::source::LogSink;

/// A handle of the host's log. Cheap to clone. The macros such as [`crate::info!`] take a `Log`, or
/// anything with a method `log()`.
#[derive(Clone)]
pub struct Log {
    sink: Option<Arc<dyn LogSink>>,
    /// The host's threshold, fetched at the first message.
    threshold: Cell<Option<LogLevel>>,
}

impl Log {
    /// Creates a log that sends messages to `sink`. Reads its threshold once per handle.
    pub fn new(sink: Arc<dyn LogSink>) -> Self {
        Self {
            sink: Some(sink),
            threshold: Cell::new(None),
        }
    }

    /// Creates a log that discards messages without formatting them.
    pub fn silent() -> Self {
        Self {
            sink: None,
            threshold: Cell::new(None),
        }
    }

    /// Returns whether the host keeps messages of this level.
    pub fn is_enabled(&self, level: LogLevel) -> bool {
        let Some(sink) = &self.sink else {
            return false;
        };
        let threshold = self.threshold.get().unwrap_or_else(|| {
            let threshold = sink.threshold();
            self.threshold.set(Some(threshold));
            threshold
        });
        level >= threshold
    }

    /// Formats a message and sends it to the host, if the host keeps messages of its level. The
    /// host truncates long messages and limits their number.
    pub fn write(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        if self.is_enabled(level)
            && let Some(sink) = &self.sink
        {
            match message.as_str() {
                Some(text) => sink.emit(level, text),
                None => sink.emit(level, &message.to_string()),
            }
        }
    }

    /// Returns itself, so that the macros take a `Log` or a type with a method `log()`.
    pub fn log(&self) -> &Self {
        self
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("sink", &self.sink).finish()
    }
}

/// Logs at a level: `log_at!(LogLevel::Info, graph, "{} nodes", n)`. Formats nothing below the
/// host's threshold.
#[macro_export]
macro_rules! log_at {
    // A `match` keeps temporaries of `$log` alive, which a `let` would not.
    ($level:expr, $log:expr, $($message:tt)+) => {
        match ($level, $log.log()) {
            (level, log) => {
                if $crate::log::Log::is_enabled(log, level) {
                    $crate::log::Log::write(log, level, ::std::format_args!($($message)+));
                }
            }
        }
    };
}

/// Logs at [`LogLevel::Trace`](crate::log::LogLevel::Trace).
#[macro_export]
macro_rules! trace {
    ($log:expr, $($message:tt)+) => { $crate::log_at!($crate::log::LogLevel::Trace, $log, $($message)+) };
}

/// Logs at [`LogLevel::Debug`](crate::log::LogLevel::Debug).
#[macro_export]
macro_rules! debug {
    ($log:expr, $($message:tt)+) => { $crate::log_at!($crate::log::LogLevel::Debug, $log, $($message)+) };
}

/// Logs at [`LogLevel::Info`](crate::log::LogLevel::Info).
#[macro_export]
macro_rules! info {
    ($log:expr, $($message:tt)+) => { $crate::log_at!($crate::log::LogLevel::Info, $log, $($message)+) };
}

/// Logs at [`LogLevel::Warn`](crate::log::LogLevel::Warn).
#[macro_export]
macro_rules! warn {
    ($log:expr, $($message:tt)+) => { $crate::log_at!($crate::log::LogLevel::Warn, $log, $($message)+) };
}

/// Logs at [`LogLevel::Error`](crate::log::LogLevel::Error).
#[macro_export]
macro_rules! error {
    ($log:expr, $($message:tt)+) => { $crate::log_at!($crate::log::LogLevel::Error, $log, $($message)+) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Debug)]
    struct Lines {
        threshold: LogLevel,
        asked: Mutex<u32>,
        lines: Mutex<Vec<String>>,
    }

    impl LogSink for Lines {
        fn threshold(&self) -> LogLevel {
            *self.asked.lock().unwrap() += 1;
            self.threshold
        }

        fn emit(&self, level: LogLevel, message: &str) {
            self.lines
                .lock()
                .unwrap()
                .push(format!("{level:?} {message}"));
        }
    }

    #[test]
    fn nothing_is_formatted_below_the_threshold_which_is_fetched_once() {
        let sink = Arc::new(Lines {
            threshold: LogLevel::Info,
            asked: Mutex::new(0),
            lines: Mutex::default(),
        });
        let log = Log::new(sink.clone());
        let formatted = Cell::new(0);
        let count = || {
            formatted.set(formatted.get() + 1);
            formatted.get()
        };
        crate::debug!(log, "message {}", count());
        crate::info!(log, "message {}", count());
        crate::error!(log, "plain");
        crate::info!(Log::silent(), "message {}", count());
        assert_eq!(formatted.get(), 1);
        assert_eq!(*sink.asked.lock().unwrap(), 1);
        assert_eq!(
            *sink.lines.lock().unwrap(),
            ["Info message 1", "Error plain"]
        );
    }
}
