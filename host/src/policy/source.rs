//! Where a policy comes from.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use super::builtin::ShippedPolicy;
use super::error::{PolicyError, PolicyErrorKind};
use super::limits::PolicyLimits;
use super::messages::Messages;
use crate::files::{self, TooLarge};

/// A policy, as a user or an app specifies it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum PolicySource {
    /// A shipped policy.
    Shipped(ShippedPolicy),
    /// A .wasm file: a core module or a component.
    File(PathBuf),
    /// The bytes of a .wasm file, with a name for messages.
    Bytes(String, Vec<u8>),
}

impl PolicySource {
    /// Parses `NAME|FILE` of the command line: the name of a shipped policy, else a file that
    /// exists.
    ///
    /// # Errors
    /// [`PolicyErrorKind::NotFound`], which lists the shipped names.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        match ShippedPolicy::find(text) {
            Ok(shipped) => Ok(Self::Shipped(shipped)),
            Err(_) if Path::new(text).exists() => Ok(Self::File(text.into())),
            Err(error) => Err(error),
        }
    }

    /// Returns the bytes. A file may have up to [`PolicyLimits::wasm_bytes`].
    ///
    /// # Errors
    /// [`PolicyErrorKind::Read`], [`PolicyErrorKind::TooLarge`].
    pub fn read(&self, limits: &PolicyLimits) -> Result<Cow<'_, [u8]>, PolicyError> {
        match self {
            Self::Shipped(shipped) => Ok(shipped.wasm().into()),
            Self::Bytes(_, bytes) => Ok(bytes.into()),
            Self::File(path) => match files::read(path, limits.wasm_bytes as u64, "") {
                Ok(bytes) => Ok(bytes.into()),
                Err(source) => {
                    let kind = match TooLarge::of(&source) {
                        Some(large) => PolicyErrorKind::TooLarge {
                            what: "wasm_bytes",
                            found: usize::try_from(large.found).unwrap_or(usize::MAX),
                            limit: limits.wasm_bytes,
                        },
                        None => PolicyErrorKind::Read {
                            path: path.clone(),
                            source,
                        },
                    };
                    Err(PolicyError::new(
                        &self.to_string(),
                        kind,
                        Messages::default(),
                    ))
                }
            },
        }
    }
}

impl From<ShippedPolicy> for PolicySource {
    fn from(shipped: ShippedPolicy) -> Self {
        Self::Shipped(shipped)
    }
}

impl fmt::Display for PolicySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shipped(shipped) => f.write_str(shipped.name()),
            Self::File(path) => path.display().fmt(f),
            Self::Bytes(name, _) => f.write_str(name),
        }
    }
}
