//! What an execution or a transfer costs.
