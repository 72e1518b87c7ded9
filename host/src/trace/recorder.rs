//! Records events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::event::{Event, EventKind};
use crate::graph::{Graph, NodeId};
use crate::names::DeviceId;

/// Collects events from any thread. Clones share the events. Off by default: every call is then one
/// branch.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    inner: Option<Arc<Inner>>,
    /// Whether this recorder and its clones have stopped; `None` if they never stop.
    has_stopped: Option<Arc<AtomicBool>>,
}

#[derive(Debug)]
struct Inner {
    origin: Instant,
    /// In order of arrival, one vector per thread and run, or per single event: passing a vector
    /// on copies nothing.
    events: Mutex<Vec<Vec<Event>>>,
}

impl Recorder {
    /// A recorder that records nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// A recorder whose clock starts now.
    pub fn on() -> Self {
        Self {
            inner: Some(Arc::new(Inner {
                origin: Instant::now(),
                events: Mutex::default(),
            })),
            has_stopped: None,
        }
    }

    /// Returns a recorder of the same events that can be stopped apart from this one.
    pub(crate) fn stoppable(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            has_stopped: self.is_on().then(Arc::default),
        }
    }

    /// Stops a [`Self::stoppable`] recorder and its clones. Returns the time: all events that they
    /// have recorded start before it.
    pub(crate) fn stop(&self) -> u64 {
        if let Some(has_stopped) = &self.has_stopped {
            has_stopped.store(true, Ordering::SeqCst);
        }
        self.now_ns()
    }

    /// Whether it records.
    pub fn is_on(&self) -> bool {
        self.inner.is_some()
    }

    /// The current time, in ns since the recorder was made; 0 if it is off.
    pub fn now_ns(&self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// `instant`, in ns since the recorder was made; 0 if it is off, and for earlier instants.
    pub fn at_ns(&self, instant: Instant) -> u64 {
        self.inner.as_ref().map_or(0, |inner| {
            nanoseconds(instant.saturating_duration_since(inner.origin))
        })
    }

    /// Records that `kind` took from `start` until now.
    pub fn record_since(&self, start: Instant, kind: EventKind) {
        self.record(start, start.elapsed(), kind);
    }

    /// Records that `kind` took `duration` from `start`.
    pub fn record(&self, start: Instant, duration: Duration, kind: EventKind) {
        if self.is_on() {
            self.extend(std::iter::once(Event {
                kind,
                start_ns: self.at_ns(start),
                duration_ns: nanoseconds(duration),
            }));
        }
    }

    /// Records many events under one lock, for threads that collect their own events first.
    pub fn extend(&self, events: impl IntoIterator<Item = Event>) {
        if self.is_on() {
            self.append(events.into_iter().collect());
        }
    }

    /// Records events that are in a vector already.
    pub(crate) fn append(&self, events: Vec<Event>) {
        let has_stopped = |flag: &Arc<AtomicBool>| flag.load(Ordering::SeqCst);
        if let Some(inner) = &self.inner
            && !events.is_empty()
            && !self.has_stopped.as_ref().is_some_and(has_stopped)
        {
            inner.lock().push(events);
        }
    }

    /// The events so far, ordered by start; of two that start together, the longer first.
    pub fn events(&self) -> Vec<Event> {
        let mut events = self
            .inner
            .as_ref()
            .map_or_else(Vec::new, |inner| inner.lock().concat());
        events.sort_by_key(|event| (event.start_ns, std::cmp::Reverse(event.duration_ns)));
        events
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Event>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The names of the ids in events.
#[derive(Debug, Clone, Default)]
pub struct TraceNames {
    /// The graph.
    pub graph: Arc<Graph>,
    /// Full names of the devices, in the order of the device set.
    pub devices: Arc<[String]>,
}

impl TraceNames {
    /// Full name of a device.
    pub fn device(&self, device: DeviceId) -> &str {
        self.devices
            .get(device.index())
            .map_or("<no such device>", String::as_str)
    }

    /// Name of a node.
    pub fn node(&self, node: NodeId) -> &str {
        if node.index() < self.graph.n_nodes() {
            self.graph.node_name(node)
        } else {
            "<no such node>"
        }
    }

    /// Op of a node.
    pub fn op(&self, node: NodeId) -> &str {
        if node.index() < self.graph.n_nodes() {
            self.graph.op(node)
        } else {
            "<no such node>"
        }
    }
}

/// The events of a recorder, with the names of nodes and devices.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Ordered by start.
    pub events: Vec<Event>,
    /// The names of the ids.
    pub names: TraceNames,
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &'static str) -> EventKind {
        EventKind::Stage { name: name.into() }
    }

    #[test]
    fn a_recorder_that_is_off_records_nothing() {
        let recorder = Recorder::off();
        recorder.record_since(Instant::now(), stage("place"));
        assert!(!recorder.is_on());
        assert_eq!((recorder.events(), recorder.now_ns()), (vec![], 0));
    }

    #[test]
    fn clones_share_their_events_and_order_them_by_start() {
        let recorder = Recorder::on();
        let first = Instant::now();
        let second = first + Duration::from_nanos(10);
        recorder
            .clone()
            .record(second, Duration::from_nanos(3), stage("second"));
        recorder.record(first, Duration::from_nanos(30), stage("first"));
        let events = recorder.events();
        assert_eq!(events[0].kind, stage("first"));
        assert_eq!(events[1].kind, stage("second"));
        assert_eq!(events[1].start_ns - events[0].start_ns, 10);
        assert_eq!(events[1].end_ns() - events[1].start_ns, 3);
    }

    #[test]
    fn a_stopped_recorder_leaves_the_others_on() {
        let all = Recorder::on();
        let (first, second) = (all.stoppable(), all.stoppable());
        let record = |recorder: &Recorder| recorder.record_since(Instant::now(), stage("run"));
        record(&first);
        let stopped_ns = first.clone().stop();
        record(&first);
        record(&first.clone());
        assert!(matches!(&all.events()[..], [event] if event.start_ns <= stopped_ns));
        record(&second);
        record(&all);
        assert_eq!(all.events().len(), 3);
    }
}
