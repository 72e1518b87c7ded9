//! How fields of reports are serialized that `serde` has no suitable form for.

use std::fmt::Display;
use std::time::Duration;

use serde::Serializer;

/// A value as the string that it displays as.
pub(crate) fn as_string<T: Display + ?Sized, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Such a value, or null.
pub(crate) fn as_optional_string<T: Display, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

/// A duration as whole nanoseconds.
pub(crate) fn as_ns<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
