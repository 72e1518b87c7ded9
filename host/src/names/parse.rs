//! The grammars of device names.
//!
//! ```text
//! full  = "" | "/" | part+
//! part  = "/job:" ( "*" | identifier ) | "/replica:" ( "*" | digits ) | "/task:" ( "*" | digits )
//!       | "/device:" ( "*" | identifier ) [ ":" ( "*" | digits ) ]
//!       | ( "/cpu:" | "/CPU:" | "/gpu:" | "/GPU:" ) ( "*" | digits )
//! local = identifier ":" digits
//! ```
//! An identifier is an ASCII letter followed by letters, digits and underscores. If a part occurs
//! more than once, the last one counts.

use std::sync::Arc;

use crate::names::name::{DeviceName, NameError};

impl DeviceName {
    /// Parses a full name, possibly partial: `/job:worker/task:0/device:GPU:*`. The empty string
    /// and `/` match anything.
    ///
    /// # Errors
    /// [`NameError::Malformed`].
    pub fn parse_full(text: &str) -> Result<Self, NameError> {
        Self::full_grammar(text).ok_or_else(|| NameError::Malformed(text.to_owned()))
    }

    /// Parses `TYPE:INDEX`.
    ///
    /// # Errors
    /// [`NameError::Malformed`]. Wildcards and slashes belong to the full grammar.
    pub fn parse_local(text: &str) -> Result<Self, NameError> {
        Self::local_grammar(text).ok_or_else(|| NameError::Malformed(text.to_owned()))
    }

    /// Parses a full name or, if that fails, a local one.
    ///
    /// # Errors
    /// [`NameError::Malformed`].
    pub fn parse_full_or_local(text: &str) -> Result<Self, NameError> {
        Self::full_grammar(text)
            .or_else(|| Self::local_grammar(text))
            .ok_or_else(|| NameError::Malformed(text.to_owned()))
    }

    /// Parses a local or full name and fills its unset parts from `base_name`.
    ///
    /// # Errors
    /// If either name does not parse, or `base_name` is not fully specified.
    pub fn canonicalize(text: &str, base_name: &str) -> Result<Self, NameError> {
        let base = Self::parse_full(base_name)?;
        if !base.is_fully_specified() {
            return Err(NameError::NotFull(base_name.to_owned()));
        }
        // TensorFlow also tries the local grammar first; no string belongs to both.
        let mut name = Self::parse_local(text).or_else(|_| Self::parse_full(text))?;
        name.merge_unset(&base);
        Ok(name)
    }

    /// Returns CPU 0 of the task of a full name.
    ///
    /// # Errors
    /// [`NameError::MalformedDevice`].
    pub fn host_cpu_of(text: &str) -> Result<Self, NameError> {
        let name =
            Self::full_grammar(text).ok_or_else(|| NameError::MalformedDevice(text.to_owned()))?;
        Ok(name.host_cpu())
    }

    fn full_grammar(text: &str) -> Option<Self> {
        let mut name = Self::default();
        if text == "/" {
            return Some(name);
        }
        let mut rest = text;
        while !rest.is_empty() {
            let part = rest.strip_prefix('/')?;
            let end = part.find('/').unwrap_or(part.len());
            let (part, after) = part.split_at(end);
            name.set_part(part)?;
            rest = after;
        }
        Some(name)
    }

    fn set_part(&mut self, part: &str) -> Option<()> {
        let (keyword, value) = part.split_once(':')?;
        match keyword {
            "job" => self.job = wildcard_or(value, identifier)?,
            "replica" => self.replica = wildcard_or(value, number)?,
            "task" => self.task = wildcard_or(value, number)?,
            "device" => {
                let (device_type, index) = match value.split_once(':') {
                    Some((device_type, index)) => (device_type, wildcard_or(index, number)?),
                    None => (value, None),
                };
                self.device_type = wildcard_or(device_type, identifier)?;
                self.index = index;
            }
            "cpu" | "CPU" => self.set_legacy("CPU", value)?,
            "gpu" | "GPU" => self.set_legacy("GPU", value)?,
            _ => return None,
        }
        Some(())
    }

    fn set_legacy(&mut self, device_type: &str, index: &str) -> Option<()> {
        self.index = wildcard_or(index, number)?;
        self.device_type = Some(device_type.into());
        Some(())
    }

    fn local_grammar(text: &str) -> Option<Self> {
        let (device_type, index) = text.split_once(':')?;
        Some(Self {
            device_type: Some(identifier(device_type)?),
            index: Some(number(index)?),
            ..Self::default()
        })
    }
}

/// `*` unsets a part.
fn wildcard_or<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "*" {
        Some(None)
    } else {
        parse(text).map(Some)
    }
}

fn identifier(text: &str) -> Option<Arc<str>> {
    let mut bytes = text.bytes();
    let valid = bytes.next()?.is_ascii_alphabetic()
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    valid.then(|| text.into())
}

/// Parses decimal digits only. TensorFlow stores numbers in a signed 32-bit integer; larger ones
/// are rejected here.
fn number(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse::<i32>()
        .ok()
        .and_then(|value| value.try_into().ok())
}

#[cfg(test)]
pub(in crate::names) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Option<String> {
        DeviceName::parse_full(text)
            .ok()
            .map(|name| format!("{name}{}", if name.has_details() { "" } else { "any" }))
    }

    #[test]
    fn full_names() {
        let rows = [
            ("", Some("any")),
            ("/", Some("any")),
            ("//", None),
            ("/job:a/", None),
            ("/job:a/job:b", Some("/job:b")),
            ("/job:a/job:*", Some("any")),
            ("/gpu:*/job:*/replica:4", Some("/replica:4/device:GPU:*")),
            ("/task:007", Some("/task:7")),
            ("/replica:+1", None),
            ("/replica:-1", None),
            ("/task:4294967296", None),
            ("/device:GPU", Some("/device:GPU:*")),
            ("/device:GPU:", None),
            ("/device:GPU:3/device:CPU", Some("/device:CPU:*")),
            ("/device:GPU:0:1", None),
            ("/Cpu:0", None),
            ("/cpu", None),
            ("/tpu:0", None),
            ("/device:cpu:0", Some("/device:cpu:0")),
            ("job:a", None),
            ("/Job:a", None),
            ("/job:_a", None),
            ("/job:ä", None),
        ];
        for (text, expected) in rows {
            assert_eq!(parse(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn an_index_needs_no_type() {
        let name = DeviceName::parse_full("/device:*:3").unwrap();
        assert_eq!(
            (name.device_type.clone(), name.index, name.to_string()),
            (None, Some(3), String::new())
        );
    }

    #[test]
    fn local_names() {
        for text in ["GPU:*", "/GPU:0", "abc", "abc:", " CPU:0"] {
            assert!(DeviceName::parse_local(text).is_err(), "{text:?}");
        }
        let name = DeviceName::parse_full_or_local("cpu:0").unwrap();
        assert_eq!(name.to_string(), "/device:cpu:0");
    }

    #[test]
    fn errors_quote_the_input() {
        let error = DeviceName::parse_full("/foo:bar").unwrap_err().to_string();
        assert!(error.contains("/foo:bar"), "{error}");
        let base = "/job:a/replica:0/task:0/device:CPU:0";
        let name = DeviceName::canonicalize("/gpu:3", base).unwrap();
        assert_eq!(name.to_string(), "/job:a/replica:0/task:0/device:GPU:3");
        assert_eq!(
            DeviceName::canonicalize("/gpu:3", "/job:a"),
            Err(NameError::NotFull("/job:a".to_owned()))
        );
    }

    const NUMBER_MAX: u32 = i32::MAX as u32;

    /// Names in which each part is unset or has one of the given values.
    pub(in crate::names) fn any_name_of<T: Into<Arc<str>>>(
        text: impl Strategy<Value = T> + Clone,
        number: impl Strategy<Value = u32> + Clone,
    ) -> impl Strategy<Value = DeviceName> {
        let text = || prop::option::of(text.clone());
        let number = || prop::option::of(number.clone());
        (text(), number(), number(), text(), number()).prop_map(
            |(job, replica, task, device_type, index)| DeviceName {
                job: job.map(Into::into),
                replica,
                task,
                device_type: device_type.map(Into::into),
                index,
            },
        )
    }

    fn any_name() -> impl Strategy<Value = DeviceName> {
        any_name_of(
            "[a-zA-Z][a-zA-Z0-9_]{0,6}",
            prop_oneof![0..20u32, 0..=NUMBER_MAX],
        )
    }

    proptest! {
        #[test]
        fn printed_names_parse_back(mut name in any_name()) {
            prop_assert_eq!(DeviceName::parse_full(&name.request_text()), Ok(name.clone()));
            if name.device_type.is_none() {
                // Without a type, the index would not be printed.
                name.index = None;
            }
            prop_assert_eq!(DeviceName::parse_full(&name.to_string()), Ok(name.clone()));
            prop_assert_eq!(DeviceName::parse_full_or_local(&name.to_string()), Ok(name.clone()));
            if let (Some(device_type), Some(index)) = (&name.device_type, name.index) {
                let local = DeviceName::local(device_type, index);
                prop_assert_eq!(
                    DeviceName::parse_local(&name.legacy_local_name().unwrap()),
                    Ok(local.clone())
                );
                prop_assert_eq!(DeviceName::parse_full(&name.local_name().unwrap()), Ok(local));
            }
        }

        #[test]
        fn parts_may_come_in_any_order(
            name in any_name().prop_filter("all of it is printed", |name| name.device_type.is_some()),
            seed in any::<prop::sample::Index>(),
        ) {
            let printed = name.to_string();
            let mut parts: Vec<&str> = printed.split_inclusive('/').collect();
            parts.remove(0);
            let mut parts: Vec<&str> = parts.iter().map(|part| part.trim_end_matches('/')).collect();
            let middle = seed.index(parts.len());
            parts.rotate_left(middle);
            let joined: String = parts.iter().map(|part| format!("/{part}")).collect();
            prop_assert_eq!(DeviceName::parse_full(&joined), Ok(name));
        }

        #[test]
        fn accepted_names_print_canonically(text in "(/(job|replica|task|device|cpu|GPU)?:?[a0*:_]{0,3}){0,4}") {
            if let Ok(name) = DeviceName::parse_full(&text) {
                let printed = name.to_string();
                let again = DeviceName::parse_full(&printed).unwrap();
                prop_assert_eq!(again.to_string(), printed);
                prop_assert!(name.is_specification_of(&again));
            }
        }

        #[test]
        fn parsers_never_panic(text in "\\PC{0,40}") {
            let full = DeviceName::parse_full(&text);
            let local = DeviceName::parse_local(&text);
            prop_assert!(full.is_err() || local.is_err());
            prop_assert_eq!(
                DeviceName::parse_full_or_local(&text).is_ok(),
                full.is_ok() || local.is_ok()
            );
        }

        #[test]
        fn canonicalizing_fills_the_name_and_is_idempotent(
            name in any_name(),
            base in any_name().prop_map(|name| DeviceName {
                job: name.job.or(Some("j".into())),
                replica: name.replica.or(Some(0)),
                task: name.task.or(Some(0)),
                device_type: name.device_type.or(Some("CPU".into())),
                index: name.index.or(Some(0)),
            }),
        ) {
            let base = base.to_string();
            let canonical = DeviceName::canonicalize(&name.to_string(), &base).unwrap();
            prop_assert!(canonical.is_fully_specified());
            prop_assert_eq!(DeviceName::canonicalize(&canonical.to_string(), &base), Ok(canonical));
        }
    }
}
