//! The recorder and subscriber that receive the operations of one run.
//!
//! Decided once, when a run starts: if nothing listens, an operation checks one flag. Times are ns
//! since the run started, so that a clock reading is one number.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tracing::Dispatch;
use tracing::Level;
use tracing::Span;
use tracing::dispatcher;
use tracing::dispatcher::DefaultGuard;
use tracing::field;
use tracing::span_enabled;
use tracing::trace_span;

use super::prepare::Program;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::trace::Event;
use crate::trace::Recorder;
use crate::trace::targets;

/// The listeners of one run, and its clock.
#[derive(Debug)]
pub(super) struct Listeners {
    /// Number of the run in its executor.
    pub(super) run: u64,
    recorder: Recorder,
    spans: Option<KernelSpans>,
    /// Whether anything listens to single operations.
    is_any: bool,
    /// Whether one thread executes all operations.
    is_alone: bool,
    started: Instant,
    /// `started` on the recorder's clock.
    started_ns: u64,
    /// Per rank the latest end of the operations that it depends on, as far as they have ended;
    /// empty if nothing listens.
    ready_ns: Box<[AtomicU64]>,
}

/// The subscriber of the calling thread, for the threads that help it.
#[derive(Debug)]
struct KernelSpans {
    dispatch: Dispatch,
    run: Span,
}

impl Listeners {
    /// Collects the listeners of the calling thread. `span`: the span of the run. `is_alone`: no
    /// other thread executes operations.
    pub(super) fn new(
        run: u64,
        started: Instant,
        recorder: &Recorder,
        span: &Span,
        n_operations: usize,
        is_alone: bool,
    ) -> Self {
        let spans = span_enabled!(target: targets::KERNEL, Level::TRACE).then(|| KernelSpans {
            dispatch: dispatcher::get_default(Dispatch::clone),
            run: span.clone(),
        });
        let is_any = recorder.is_on() || spans.is_some();
        let n_recorded = if is_any { n_operations } else { 0 };
        Self {
            run,
            started_ns: recorder.at_ns(started),
            recorder: recorder.clone(),
            spans,
            is_any,
            is_alone,
            started,
            ready_ns: (0..n_recorded).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.is_any
    }

    /// Whether events are recorded.
    pub(super) fn is_recorded(&self) -> bool {
        self.recorder.is_on()
    }

    /// Sets the caller's subscriber on this thread for the lifetime of the guard.
    pub(super) fn enter(&self) -> Option<DefaultGuard> {
        let spans = self.spans.as_ref()?;
        Some(dispatcher::set_default(&spans.dispatch))
    }

    /// Returns the span around one call of a kernel; disabled if nothing listens to it.
    pub(super) fn kernel_span(
        &self,
        program: &Program,
        node: NodeId,
        device: DeviceId,
        queue_wait_ns: u64,
    ) -> Span {
        let Some(spans) = &self.spans else {
            return Span::none();
        };
        trace_span!(
            target: targets::KERNEL,
            parent: &spans.run,
            "kernel",
            run = self.run,
            node = program.graph.node_name(node),
            op = program.graph.op(node),
            device = program.device_name(device),
            queue_wait_ns,
            output_bytes = field::Empty,
        )
    }

    /// Returns the time in ns since the run started.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Converts a time to the recorder's clock.
    pub(super) fn on_recorder_ns(&self, ns: u64) -> u64 {
        self.started_ns.saturating_add(ns)
    }

    /// Records the end of an operation that these successors depend on. Called before the edges are
    /// counted: a thread that sees an operation ready also sees since when it is ready.
    pub(super) fn ended(&self, at_ns: u64, successors: &[u32]) {
        if !self.is_any {
            return;
        }
        for &successor in successors {
            let ready_ns = &self.ready_ns[successor as usize];
            if self.is_alone {
                // Later than all before it.
                ready_ns.store(at_ns, Ordering::Relaxed);
            } else {
                ready_ns.fetch_max(at_ns, Ordering::Relaxed);
            }
        }
    }

    /// Returns the time since which an operation is ready.
    pub(super) fn ready_ns(&self, rank: u32) -> u64 {
        let ready = self.ready_ns.get(rank as usize);
        ready.map_or(0, |ready| ready.load(Ordering::Relaxed))
    }

    /// Returns a buffer for the events of a thread that executes so many operations.
    pub(super) fn event_buffer(&self, n_operations: usize) -> Vec<Event> {
        Vec::with_capacity(if self.is_recorded() { n_operations } else { 0 })
    }

    /// Passes the events of a thread to the recorder.
    pub(super) fn hand_on(&self, events: Vec<Event>) {
        self.recorder.append(events);
    }
}
