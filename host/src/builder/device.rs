//! Nested device scopes.

use std::fmt;
use std::rc::Rc;

use crate::names::DeviceSpec;
use crate::names::NameError;

/// An operation that is about to be added, as a device function receives it
/// ([`super::Scope::device_function`]).
#[derive(Debug, Clone, Copy)]
pub struct NewOperation<'a> {
    pub(super) name: &'a str,
    pub(super) op: &'a str,
    pub(super) device: &'a str,
}

/// The device scopes of an operation.
///
/// Entries are stored in the order in which scopes were entered, and evaluated from the innermost
/// outwards when an operation is added, since an entry may depend on the operation.
#[derive(Debug, Clone, Default)]
pub(super) struct DeviceStack(Vec<Entry>);

#[derive(Clone)]
enum Entry {
    /// Fills in the parts that inner scopes leave open.
    Merge(DeviceSpec),
    /// Ignores outer scopes.
    Reset,
    /// Replaces the device of inner scopes by the function's result.
    Function(Rc<Function>),
}

type Function = dyn Fn(&NewOperation<'_>) -> Option<String>;

/// Why scopes yield no device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ScopeError {
    Name(NameError),
    /// A function returned `None`.
    NoDevice,
}

impl<'a> NewOperation<'a> {
    /// Returns its name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns its op.
    pub fn op(&self) -> &'a str {
        self.op
    }

    /// Returns the device that the inner scopes request; may be empty.
    pub fn device(&self) -> &'a str {
        self.device
    }
}

impl DeviceStack {
    /// Returns the stack with one more scope inside.
    pub(super) fn entered(&self, device: &str) -> Result<Self, NameError> {
        // `TYPE:INDEX` of a type that TensorFlow has no short name for.
        let is_short = device
            .split_once(':')
            .is_some_and(|(name, _)| !name.is_empty() && !name.contains('/'));
        let spec = device.parse().or_else(|error| match is_short {
            true => format!("/device:{device}").parse().map_err(|_| error),
            false => Err(error),
        });
        Ok(self.merging(spec?))
    }

    pub(super) fn merging(&self, spec: DeviceSpec) -> Self {
        self.with(Entry::Merge(spec))
    }

    pub(super) fn reset(&self) -> Self {
        self.with(Entry::Reset)
    }

    pub(super) fn replacing(
        &self,
        function: impl Fn(&NewOperation<'_>) -> Option<String> + 'static,
    ) -> Self {
        self.with(Entry::Function(Rc::new(function)))
    }

    /// Returns the scopes that a body starts with. As in TensorFlow, its operations inherit the
    /// device of the node that runs it, unless a function decides about each operation.
    pub(super) fn of_body(&self) -> Self {
        let is_function = |entry: &Entry| matches!(entry, Entry::Function(_));
        match self.0.iter().any(is_function) {
            true => self.clone(),
            false => Self::default(),
        }
    }

    fn with(&self, entry: Entry) -> Self {
        let mut stack = self.clone();
        stack.0.push(entry);
        stack
    }

    /// Returns the device that an operation in these scopes requests (TensorFlow
    /// `Graph._apply_device_functions`). The result of a function keeps its spelling until it is
    /// merged.
    pub(super) fn requested(&self, name: &str, op: &str) -> Result<String, ScopeError> {
        let mut device = String::new();
        for entry in self.0.iter().rev() {
            match entry {
                Entry::Merge(spec) if spec.is_empty() => {}
                Entry::Merge(spec) => {
                    let inner: DeviceSpec = device.parse().map_err(ScopeError::Name)?;
                    device = spec.merged(&inner).to_string();
                }
                Entry::Reset => break,
                Entry::Function(function) => {
                    let operation = NewOperation {
                        name,
                        op,
                        device: &device,
                    };
                    device = function(&operation).ok_or(ScopeError::NoDevice)?;
                }
            }
        }
        Ok(device)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Merge(spec) => write!(f, "{spec}"),
            Self::Reset => f.write_str("reset"),
            Self::Function(_) => f.write_str("function"),
        }
    }
}
