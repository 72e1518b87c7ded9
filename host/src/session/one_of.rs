//! A value that several methods of a builder can set. Knows nothing of what it holds.

use std::collections::BTreeSet;

use crate::error::Error;

/// A value, and the methods that have set it: one may do so.
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

    /// Takes the value and forgets who has set it. `what` is for messages: `the graph`.
    ///
    /// # Errors
    /// [`Error::ConflictingCalls`] if several methods have set it.
    pub(super) fn take(&mut self, what: &'static str) -> Result<Option<T>, Error> {
        let taken = std::mem::take(self);
        if taken.methods.len() > 1 {
            let calls = taken.methods.into_iter().collect();
            return Err(Error::ConflictingCalls { what, calls });
        }
        Ok(taken.value)
    }
}
