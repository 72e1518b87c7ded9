//! `Session`: the only code that knows all stages in order.
