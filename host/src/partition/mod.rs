//! Cuts a placed graph into per-device parts and transfers.
