//! A value that several methods of a builder can set. Independent of the type of the value.

use std::collections::BTreeSet;

use crate::error::Error;

/// A value, and the methods that have set it. Only one method may.
#[derive(Debug, Clone)]
pub(super) struct OneOf<T> {
    value: Option<T>,
    methods: BTreeSet<&'static str>,
}

impl<T> Default for OneOf<T> {
    fn default() -> Self {
        Self {
            value: None,
            methods: BTreeSet::new(),
        }
    }
}

impl<T> OneOf<T> {
    /// Sets the value. Of two calls of one method, the later one counts.
    pub(super) fn set(&mut self, method: &'static str, value: T) {
        self.value = Some(value);
        self.methods.insert(method);
    }

    pub(super) fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// Takes the value and forgets which methods have set it.
    pub(super) fn take(&mut self) -> Option<T> {
        std::mem::take(self).value
    }

    /// Checks that only one method has set the value. `what` is for messages: `the graph`.
    ///
    /// # Errors
    /// [`Error::ConflictingCalls`] if several methods have set it.
    pub(super) fn check(&self, what: &'static str) -> Result<(), Error> {
        if self.methods.len() > 1 {
            let calls = self.methods.iter().copied().collect();
            return Err(Error::ConflictingCalls { what, calls });
        }
        Ok(())
    }
}
