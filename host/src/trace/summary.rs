//! Sums the times of a trace by op and device, and by link.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::event::EventKind;
use super::event::TransferWay;
use super::recorder::Trace;
use crate::plan::Payload;

/// Executions of one op on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KernelRow {
    /// The op.
    pub op: String,
    /// Full name of the device.
    pub device: String,
    /// Executions.
    pub n_executions: u64,
    /// Sum of their times, in ns.
    pub total_ns: u64,
    /// The longest, in ns.
    pub longest_ns: u64,
    /// Sum of the times from being ready to the start, in ns.
    pub queue_wait_ns: u64,
}

/// Transfers from one device to another that take the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransferRow {
    /// Full name of the sending device.
    pub source: String,
    /// Full name of the receiving device.
    pub destination: String,
    /// The way.
    pub way: TransferWay,
    /// Transfers of tensors.
    pub n_transfers: u64,
    /// Control signals, which carry no bytes.
    pub n_signals: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Sum of their times, in ns.
    pub total_ns: u64,
}

/// Sums over the events of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct TraceSummary {
    /// Runs that ended.
    pub n_runs: u64,
    /// Sums by op and device, the largest time first.
    pub kernels: Vec<KernelRow>,
    /// Sums by source, destination and way, the most bytes first.
    pub transfers: Vec<TransferRow>,
}

impl Trace {
    /// Sums the events by op and device, and by link.
    pub fn summary(&self) -> TraceSummary {
        let mut n_runs = 0;
        let mut kernels: BTreeMap<(&str, &str), KernelRow> = BTreeMap::new();
        let mut transfers: BTreeMap<(&str, &str, TransferWay), TransferRow> = BTreeMap::new();
        for event in &self.events {
            match event.kind {
                EventKind::Run { .. } => n_runs += 1,
                EventKind::Kernel {
                    node,
                    device,
                    queue_wait_ns,
                    ..
                } => {
                    let (op, device) = (self.names.op(node), self.names.device(device));
                    let row = kernels.entry((op, device)).or_insert_with(|| KernelRow {
                        op: op.to_owned(),
                        device: device.to_owned(),
                        n_executions: 0,
                        total_ns: 0,
                        longest_ns: 0,
                        queue_wait_ns: 0,
                    });
                    row.n_executions += 1;
                    row.total_ns += event.duration_ns;
                    row.longest_ns = row.longest_ns.max(event.duration_ns);
                    row.queue_wait_ns += queue_wait_ns;
                }
                EventKind::Transfer {
                    source,
                    destination,
                    way,
                    bytes,
                    payload,
                    ..
                } => {
                    let (source, destination) =
                        (self.names.device(source), self.names.device(destination));
                    let key = (source, destination, way);
                    let row = transfers.entry(key).or_insert_with(|| TransferRow {
                        source: source.to_owned(),
                        destination: destination.to_owned(),
                        way,
                        n_transfers: 0,
                        n_signals: 0,
                        bytes: 0,
                        total_ns: 0,
                    });
                    match payload {
                        Payload::Tensor(_) => row.n_transfers += 1,
                        Payload::Control(_) => row.n_signals += 1,
                    }
                    row.bytes += bytes;
                    row.total_ns += event.duration_ns;
                }
                _ => {}
            }
        }
        let mut kernels: Vec<_> = kernels.into_values().collect();
        let mut transfers: Vec<_> = transfers.into_values().collect();
        kernels.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
        transfers.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        TraceSummary {
            n_runs,
            kernels,
            transfers,
        }
    }
}

impl fmt::Display for TraceSummary {
    /// Writes one line per row, for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} runs", self.n_runs)?;
        for row in &self.kernels {
            writeln!(
                f,
                "{} on {}: {} executions, {} ns (longest {} ns, waited {} ns)",
                row.op,
                row.device,
                row.n_executions,
                row.total_ns,
                row.longest_ns,
                row.queue_wait_ns
            )?;
        }
        for row in &self.transfers {
            writeln!(
                f,
                "{} -> {} ({}): {} transfers, {} bytes, {} control signals, {} ns",
                row.source,
                row.destination,
                row.way,
                row.n_transfers,
                row.bytes,
                row.n_signals,
                row.total_ns
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{NodeId, TensorId};
    use crate::names::DeviceId;
    use crate::trace::{Event, TraceNames};

    #[test]
    fn executions_and_transfers_are_summed_by_where_they_ran() {
        let kernel = |device, duration_ns| Event {
            kind: EventKind::Kernel {
                run: 0,
                node: NodeId(0),
                fused: None,
                device: DeviceId(device),
                queue_wait_ns: 2,
                output_bytes: 0,
            },
            start_ns: 0,
            duration_ns,
        };
        let tensor = Payload::Tensor(TensorId(0));
        let transfer = |way, payload, bytes| Event {
            kind: EventKind::Transfer {
                run: 0,
                payload,
                edge: 0,
                source: DeviceId(0),
                destination: DeviceId(1),
                way,
                bytes,
                queue_wait_ns: 0,
                send_ns: 4,
                receive_wait_ns: 1,
            },
            start_ns: 0,
            duration_ns: 9,
        };
        let trace = Trace {
            events: vec![
                kernel(0, 5),
                kernel(1, 30),
                kernel(0, 7),
                transfer(TransferWay::Direct, tensor, 12),
                transfer(TransferWay::Staged, tensor, 12),
                transfer(TransferWay::Direct, tensor, 12),
                transfer(TransferWay::Direct, Payload::Control(NodeId(0)), 0),
            ],
            names: TraceNames {
                devices: ["CPU:0", "CPU:1"].map(String::from).into(),
                ..TraceNames::default()
            },
        };
        let summary = trace.summary();
        let rows: Vec<_> = summary
            .kernels
            .iter()
            .map(|row| {
                (
                    row.device.as_str(),
                    row.n_executions,
                    row.total_ns,
                    row.longest_ns,
                )
            })
            .collect();
        assert_eq!(rows, [("CPU:1", 1, 30, 30), ("CPU:0", 2, 12, 7)]);
        let rows: Vec<_> = summary
            .transfers
            .iter()
            .map(|row| (row.way, row.n_transfers, row.n_signals, row.bytes))
            .collect();
        assert_eq!(
            rows,
            [
                (TransferWay::Direct, 2, 1, 24),
                (TransferWay::Staged, 1, 0, 12)
            ]
        );
        let text = summary.to_string();
        let line = "CPU:0 -> CPU:1 (direct): 2 transfers, 24 bytes, 1 control signals, 27 ns";
        assert!(text.lines().any(|shown| shown == line), "{text}");
    }
}
