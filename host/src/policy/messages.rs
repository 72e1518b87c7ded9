//! The messages that a policy logs: kept up to a limit, the rest counted.

use std::fmt;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use placewright_guest::source::{LogLevel, LogSink};

use serde::{Serialize, Serializer};

use super::limits::PolicyLimits;

/// The end of a truncated message.
const TRUNCATED: &str = " [truncated]";

/// One message of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Message {
    /// Severity.
    #[serde(serialize_with = "level_name")]
    pub level: LogLevel,
    /// The message, truncated to the limit.
    pub text: String,
    /// Whether it was longer.
    pub is_truncated: bool,
}

/// The messages that a policy logged in one call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Messages {
    /// The first ones, in order.
    pub kept: Vec<Message>,
    /// How many more there were.
    pub dropped: u64,
    /// How many of the kept ones were truncated.
    pub truncated: u64,
    /// The last message of level error, kept even if earlier messages reached the limit: the SDK
    /// logs panics this way.
    pub last_error: Option<String>,
}

impl Messages {
    /// Returns whether the policy logged nothing.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.dropped == 0
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", name_of(self.level), self.text)?;
        if self.is_truncated {
            f.write_str(TRUNCATED)?;
        }
        Ok(())
    }
}

fn name_of(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Trace => "trace",
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    }
}

fn level_name<S: Serializer>(level: &LogLevel, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name_of(*level))
}

/// Collects messages. Shared by the store, or the native policy, and the reporter.
#[derive(Debug)]
pub(super) struct MessageBook {
    threshold: LogLevel,
    n_messages_max: usize,
    message_bytes_max: usize,
    messages: Mutex<Messages>,
}

impl MessageBook {
    pub(super) fn new(limits: &PolicyLimits) -> Self {
        Self {
            threshold: limits.log_level,
            n_messages_max: limits.log_messages,
            message_bytes_max: limits.log_message_bytes,
            messages: Mutex::default(),
        }
    }

    /// Returns the messages since the last call, and removes them.
    pub(super) fn take(&self) -> Messages {
        std::mem::take(&mut *self.lock())
    }

    /// Truncates another string of the guest (a name, a reason) to the length of a message.
    pub(super) fn cut(&self, mut text: String) -> String {
        let n_bytes = truncate(&text, self.message_bytes_max).len();
        if n_bytes < text.len() {
            text.truncate(n_bytes);
            text.push_str(TRUNCATED);
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, Messages> {
        // Messages are consistent after every statement that changes them.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogSink for MessageBook {
    fn threshold(&self) -> LogLevel {
        self.threshold
    }

    fn emit(&self, level: LogLevel, message: &str) {
        if level < self.threshold {
            return;
        }
        let text = truncate(message, self.message_bytes_max);
        let mut messages = self.lock();
        if level == LogLevel::Error {
            messages.last_error = Some(text.to_owned());
        }
        if messages.kept.len() == self.n_messages_max {
            messages.dropped += 1;
            return;
        }
        let is_truncated = text.len() < message.len();
        messages.truncated += u64::from(is_truncated);
        messages.kept.push(Message {
            level,
            text: text.to_owned(),
            is_truncated,
        });
    }
}

/// Returns the longest prefix that fits, cut between characters.
pub(super) fn truncate(text: &str, n_bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(n_bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted_and_its_last_error_kept() {
        let mut limits = PolicyLimits::default().with_log_messages(2);
        limits.log_message_bytes = 5;
        let book = MessageBook::new(&limits);
        book.emit(LogLevel::Debug, "below the threshold");
        book.emit(LogLevel::Info, "short");
        book.emit(LogLevel::Warn, "ab\u{20ac}\u{20ac}");
        book.emit(LogLevel::Info, "third");
        book.emit(LogLevel::Error, "panic");
        let messages = book.take();
        let shown: Vec<_> = messages.kept.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["info: short", "warn: ab\u{20ac} [truncated]"]);
        assert_eq!((messages.dropped, messages.truncated), (2, 1));
        assert_eq!(messages.last_error.as_deref(), Some("panic"));
        assert!(book.take().is_empty());
        assert_eq!(
            book.cut("ab\u{20ac}\u{20ac}".to_owned()),
            "ab\u{20ac} [truncated]"
        );
        assert_eq!(book.cut("short".to_owned()), "short");
    }
}
