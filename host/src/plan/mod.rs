//! Partitions, transfers, plans: data only.
