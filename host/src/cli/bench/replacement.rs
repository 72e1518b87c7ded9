//! The second table of `bench placement`: placing again after a device was lost, added or shrunk,
//! keeping nodes where they can stay.
//!
//! As in the first table, the policy is loaded and stays resident. A row includes enumerating the
//! candidates of the new devices, determining what stays, the policy in its sandbox, and the check.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use serde::Serialize;

use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
use crate::candidates::enumerate;
use crate::candidates::synthetic;
use crate::cli::output::Output;
use crate::cli::table::Table;
use crate::cli::timing::median;
use crate::cli::timing::timed;
use crate::device::Device;
use crate::device::DeviceSet;
use crate::device::SimpleDevice;
use crate::graph::Graph;
use crate::names::DeviceId;
use crate::placement::Evaluator;
use crate::placement::Kept;
use crate::placement::Placement;
use crate::placement::Replacement;
use crate::placement::check;
use crate::policy::LoadedPolicy;
use crate::policy::PlaceOptions;
use crate::policy::PolicyEngine;
use crate::policy::PolicyLimits;
use crate::policy::ShippedPolicy;

const N_NODES: u32 = 2_000;
const N_DEVICES: u32 = 8;
const POLICY: &str = "priority";

/// The device that changes: the GPU that `priority` prefers.
const CHANGED: DeviceId = DeviceId(1);

#[derive(Debug, Serialize)]
pub(super) struct Row {
    change: &'static str,
    policy: &'static str,
    nodes: u32,
    devices: usize,
    moved: usize,
    /// Time of the whole stage: the four parts below.
    ms: f64,
    enumerate_ms: f64,
    keep_ms: f64,
    policy_ms: f64,
    check_ms: f64,
}

/// The graph and the policy that are measured.
struct Subject {
    graph: Arc<Graph>,
    policy: LoadedPolicy,
}

/// Measures each change `repetitions` times, on a graph of this seed.
pub(super) fn measure(repetitions: u32, seed: u64) -> Result<Vec<Row>> {
    let engine = PolicyEngine::new(PolicyLimits::default())?;
    let shipped = ShippedPolicy::find(POLICY)?;
    let mut subject = Subject {
        graph: synthetic::graph(N_NODES, seed),
        policy: engine.load(shipped.name(), shipped.wasm(), &[])?,
    };
    let all = synthetic::devices(N_DEVICES);
    let lost = without(&all, CHANGED);
    let before = subject.place(&Arc::new(all.clone()))?;
    let held_bytes = before.summary().devices[CHANGED.index()].resident_bytes;
    // Half of its state has to move; the tensors of a run still fit.
    let mut evaluator = Evaluator::new(before.candidates());
    evaluator.set_devices(before.devices());
    let peak_bytes = evaluator.peak_bytes_per_device()[CHANGED.index()];
    let shrunk = with_memory(&all, CHANGED, peak_bytes - held_bytes / 2)?;
    let without_it = subject.place(&Arc::new(lost.clone()))?;
    [
        ("lost", &before, lost),
        ("added", &without_it, all),
        ("shrunk by half", &before, shrunk),
    ]
    .into_iter()
    .map(|(change, before, devices)| {
        subject.measure(change, before, &Arc::new(devices), repetitions)
    })
    .collect()
}

impl Subject {
    fn candidates(&self, devices: &Arc<DeviceSet>) -> Result<Candidates> {
        let options = PlacementOptions::default();
        let kernels = synthetic::kernels();
        Ok(enumerate(&self.graph, devices, &kernels, &options)?)
    }

    fn place(&mut self, devices: &Arc<DeviceSet>) -> Result<Placement> {
        let candidates = self.candidates(devices)?;
        let answer = self.policy.place(&candidates, &PlaceOptions::default())?;
        check(&candidates, answer.proposal).map_err(|violation| anyhow!("{violation}"))
    }

    /// Runs the whole stage, and returns the time of each part.
    fn replace(
        &mut self,
        before: &Placement,
        devices: &Arc<DeviceSet>,
    ) -> Result<(Replacement, [Duration; 4])> {
        let (candidates, enumerated) = timed(|| self.candidates(devices));
        let candidates = candidates?;
        let (kept, keeping) = timed(|| Kept::of_placement(&candidates, before));
        let kept = kept?;
        let options = PlaceOptions::default();
        let (answer, asked) = timed(|| self.policy.place(kept.candidates(), &options));
        let proposal = answer?.proposal;
        let (settled, checked) = timed(|| {
            let placement = check(kept.candidates(), proposal)?;
            kept.settle(placement)
        });
        let (_, replacement) = settled.map_err(|violation| anyhow!("{violation}"))?;
        Ok((replacement, [enumerated, keeping, asked, checked]))
    }

    fn measure(
        &mut self,
        change: &'static str,
        before: &Placement,
        devices: &Arc<DeviceSet>,
        repetitions: u32,
    ) -> Result<Row> {
        let mut stages: [Vec<Duration>; 4] = Default::default();
        let mut whole = Vec::new();
        let (replacement, _) = self.replace(before, devices)?;
        for _ in 0..repetitions {
            let (again, times) = self.replace(before, devices)?;
            anyhow::ensure!(
                again == replacement,
                "two repetitions placed the graph differently"
            );
            for (stage, time) in stages.iter_mut().zip(times) {
                stage.push(time);
            }
            whole.push(times.iter().sum());
        }
        let [enumerated, keeping, asked, checked] = &mut stages;
        Ok(Row {
            change,
            policy: POLICY,
            nodes: N_NODES,
            devices: devices.len(),
            moved: replacement.moved.len(),
            ms: milliseconds(median(&mut whole)),
            enumerate_ms: milliseconds(median(enumerated)),
            keep_ms: milliseconds(median(keeping)),
            policy_ms: milliseconds(median(asked)),
            check_ms: milliseconds(median(checked)),
        })
    }
}

fn without(devices: &DeviceSet, lost: DeviceId) -> DeviceSet {
    let others = devices.iter().filter(|(id, _)| *id != lost);
    let others = others.map(|(_, device)| Arc::clone(device));
    DeviceSet::new(others).with_type_priorities_of(devices)
}

fn with_memory(devices: &DeviceSet, shrunk: DeviceId, bytes: u64) -> Result<DeviceSet> {
    let old = devices.get(shrunk).context("the set has no such device")?;
    let device = SimpleDevice::new(old.attributes().clone())?
        .with_rates(devices.rates(shrunk))
        .with_memory_capacity_bytes(bytes);
    let device: Arc<dyn Device> = Arc::new(device);
    let all = devices.iter().map(|(id, other)| {
        if id == shrunk {
            Arc::clone(&device)
        } else {
            Arc::clone(other)
        }
    });
    Ok(DeviceSet::new(all).with_type_priorities_of(devices))
}

pub(super) fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    output.line("")?;
    let mut table = Table::new([
        "a device is",
        "policy",
        "nodes",
        "devices",
        "moved",
        "ms",
        "candidates",
        "keep",
        "policy",
        "check",
    ])
    .with_numbers(&[2, 3, 4, 5, 6, 7, 8, 9]);
    for row in rows {
        table.add_row([
            row.change.to_owned(),
            row.policy.to_owned(),
            row.nodes.to_string(),
            row.devices.to_string(),
            row.moved.to_string(),
            format!("{:.3}", row.ms),
            format!("{:.3}", row.enumerate_ms),
            format!("{:.3}", row.keep_ms),
            format!("{:.3}", row.policy_ms),
            format!("{:.3}", row.check_ms),
        ]);
    }
    output.table(&table)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
