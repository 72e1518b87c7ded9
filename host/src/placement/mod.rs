//! [`crate::candidates::Proposal`] to placement: the check, and the estimate behind it.
