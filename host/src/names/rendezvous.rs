//! Keys of transfers, under which one device sends a tensor and another receives it (TensorFlow
//! `Rendezvous`).
//!
//! A key consists of names only, so it is in this module. Plans, traces and errors identify
//! transfers by their keys.

use std::fmt;
use std::str::FromStr;

use crate::names::name::DeviceName;
use crate::names::name::NameError;

/// Identifies one execution of an edge: the frame of a loop, and the iteration in it. Both are 0
/// outside of loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FrameIteration {
    /// The frame.
    pub frame_id: u64,
    /// The iteration in the frame.
    pub iteration: i64,
}

impl fmt::Display for FrameIteration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.frame_id, self.iteration)
    }
}

/// The key of one transfer: `SOURCE;INCARNATION;DESTINATION;EDGE;FRAME:ITERATION`.
///
/// The incarnation is that of the source device, in hexadecimal. It distinguishes the device from
/// one that had the same name before a restart. The key and its parts keep their spelling: two
/// spellings of one device make two keys, as in TensorFlow.
///
/// ```
/// use placewright::names::RendezvousKey;
///
/// let key = RendezvousKey::parse("/job:a/gpu:0;1f;/job:a/cpu:0;edge_5_x;0:0")?;
/// assert_eq!((key.source(), key.source_incarnation()), ("/job:a/gpu:0", 0x1f));
/// assert_eq!(key.edge_name(), "edge_5_x");
/// # Ok::<(), placewright::names::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RendezvousKey {
    /// Five parts and the semicolons between them. Only [`Self::parse`] creates it.
    text: Box<str>,
    source_incarnation: u64,
}

impl RendezvousKey {
    /// Creates the key of an edge between two devices, whose names may be partial. The incarnation
    /// is written with 16 digits.
    ///
    /// # Errors
    /// As [`Self::parse`]: the devices must be names, and the edge's name must be non-empty and
    /// without semicolons.
    pub fn new(
        source: &str,
        source_incarnation: u64,
        destination: &str,
        edge_name: &str,
        when: FrameIteration,
    ) -> Result<Self, NameError> {
        Self::parse(&format!(
            "{source};{source_incarnation:016x};{destination};{edge_name};{when}"
        ))
    }

    /// Parses a key. The devices may be partial names, the incarnation has 1 to 16 hexadecimal
    /// digits, and the last part may be any non-empty string. One semicolon may follow the last
    /// part, as in TensorFlow.
    ///
    /// # Errors
    /// [`NameError::Key`], with the key and the invalid part.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let fault = |reason| {
            Err(NameError::Key {
                key: text.to_owned(),
                reason,
            })
        };
        let parts = text.strip_suffix(';').unwrap_or(text);
        let mut parts = parts.split(';');
        let (Some(source), Some(digits), Some(destination), Some(edge_name), Some(when), None) = (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) else {
            return fault("it has not five parts");
        };
        if DeviceName::parse_full(source).is_err() {
            return fault("part 1, the source, is no full device name");
        }
        let Some(source_incarnation) = hexadecimal(digits) else {
            return fault("part 2, the incarnation, has not 1 to 16 hexadecimal digits");
        };
        if DeviceName::parse_full(destination).is_err() {
            return fault("part 3, the destination, is no full device name");
        }
        if edge_name.is_empty() {
            return fault("part 4, the edge, is empty");
        }
        if when.is_empty() {
            return fault("part 5, frame and iteration, is empty");
        }
        Ok(Self {
            text: text.into(),
            source_incarnation,
        })
    }

    /// Returns the key as a string.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the sending device, as spelled in the key. It parses as a [`DeviceName`].
    pub fn source(&self) -> &str {
        self.part(0)
    }

    /// Returns the incarnation of the sending device.
    pub fn source_incarnation(&self) -> u64 {
        self.source_incarnation
    }

    /// Returns the receiving device, as spelled in the key. It parses as a [`DeviceName`].
    pub fn destination(&self) -> &str {
        self.part(2)
    }

    /// Returns the name of the edge: by convention `edge_ID_NODE`.
    pub fn edge_name(&self) -> &str {
        self.part(3)
    }

    /// Returns which execution of the edge the key is for, as spelled in the key. A key made by
    /// [`Self::new`] has a [`FrameIteration`] here.
    pub fn frame_iteration(&self) -> &str {
        self.part(4)
    }

    fn part(&self, index: usize) -> &str {
        let part = self.text.split(';').nth(index);
        part.expect("a key has five parts")
    }
}

impl fmt::Display for RendezvousKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for RendezvousKey {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

fn hexadecimal(digits: &str) -> Option<u64> {
    // `from_str_radix` would also accept a sign.
    let is_valid = digits.len() <= 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_valid.then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_keep_the_spelling_of_their_parts() {
        let text = "/job:a/cpu:0;ABcd;/gpu:*;edge 1 \n;garbage";
        let key = RendezvousKey::parse(text).unwrap();
        assert_eq!(key.as_str(), text);
        assert_eq!(key.source(), "/job:a/cpu:0");
        assert_eq!(key.source_incarnation(), 0xabcd);
        assert_eq!(key.destination(), "/gpu:*");
        assert_eq!(key.edge_name(), "edge 1 \n");
        assert_eq!(key.frame_iteration(), "garbage");
        // Devices may be empty, and a key may end in a semicolon.
        let key = RendezvousKey::parse(";0;;n;0:0;").unwrap();
        assert_eq!((key.source(), key.destination()), ("", ""));
        assert_eq!((key.edge_name(), key.frame_iteration()), ("n", "0:0"));
    }

    #[test]
    fn errors_name_the_key_and_the_invalid_part() {
        let rows = [
            ("", "five parts"),
            (";", "five parts"),
            ("/cpu:0;1;/cpu:1;n", "five parts"),
            ("/cpu:0;1;/cpu:1;n;0:0;more", "five parts"),
            ("/cpu:0;1;/cpu:1;n;0:0;;", "five parts"),
            ("CPU:0;1;/cpu:1;n;0:0", "part 1"),
            ("/cpu:0;;/cpu:1;n;0:0", "part 2"),
            ("/cpu:0;+1;/cpu:1;n;0:0", "part 2"),
            ("/cpu:0;0x1;/cpu:1;n;0:0", "part 2"),
            ("/cpu:0;00000000000000001;/cpu:1;n;0:0", "part 2"),
            ("/cpu:0;1;cpu;n;0:0", "part 3"),
            ("/cpu:0;1;/cpu:1;;0:0", "part 4"),
            ("/cpu:0;1;/cpu:1;n;", "five parts"),
            ("/cpu:0;1;/cpu:1;n;;", "part 5"),
        ];
        for (text, fault) in rows {
            let error = RendezvousKey::parse(text).unwrap_err().to_string();
            assert!(error.contains(fault), "{text}: {error}");
            assert!(error.contains(&format!("`{text}`")), "{text}: {error}");
        }
    }

    #[test]
    fn keys_that_would_not_parse_back_are_rejected() {
        let key =
            |source, edge| RendezvousKey::new(source, 1, "/cpu:0", edge, FrameIteration::default());
        assert!(key("/cpu:0", "edge_1_a").is_ok());
        assert!(key("/cpu:0", "edge_1_a;b").is_err());
        assert!(key("/cpu:0", "").is_err());
        assert!(key("/cpu:0;0", "edge_1_a").is_err());
        assert!(key("nowhere", "edge_1_a").is_err());
    }

    proptest! {
        #[test]
        fn written_keys_parse_back(
            incarnation in any::<u64>(),
            edge_name in "[^;]{1,20}",
            frame_id in any::<u64>(),
            iteration in any::<i64>(),
        ) {
            let (source, destination) = ("/job:a/replica:0/task:0/device:GPU:1", "/device:CPU:0");
            let when = FrameIteration { frame_id, iteration };
            let key =
                RendezvousKey::new(source, incarnation, destination, &edge_name, when).unwrap();
            prop_assert_eq!(RendezvousKey::parse(key.as_str()), Ok(key.clone()));
            prop_assert_eq!((key.source(), key.destination()), (source, destination));
            prop_assert_eq!(key.source_incarnation(), incarnation);
            prop_assert_eq!(key.edge_name(), edge_name);
            prop_assert_eq!(key.frame_iteration(), when.to_string());
        }

        #[test]
        fn accepted_keys_have_exactly_five_parts(text in "[;0-9a-f:/cpun]{0,30}") {
            if let Ok(key) = RendezvousKey::parse(&text) {
                let rest = text.strip_suffix(';').unwrap_or(&text);
                prop_assert_eq!(rest.matches(';').count(), 4);
                prop_assert_eq!(key.to_string(), text);
            }
        }
    }
}
