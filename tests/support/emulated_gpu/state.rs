//! The queued work of emulated GPUs. This module takes calls, with the context that makes each, and
//! puts them into queues; `check.rs` checks them, and `schedule.rs` executes the queues.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use placewright::backend::cuda::driver::ConvolutionForward;
use placewright::backend::cuda::driver::DriverError;
use placewright::backend::cuda::driver::DriverErrorKind;
use placewright::backend::cuda::driver::EventHandle;
use placewright::backend::cuda::driver::Grid;
use placewright::backend::cuda::driver::Matmul;
use placewright::backend::cuda::driver::Span;
use placewright::backend::cuda::driver::StreamHandle;
use placewright::device::DeviceFunction;

use super::memory::Kind;
use super::memory::Memory;
use super::memory::Place;
use super::order::Clock;
use super::order::Way;
use super::programs::Executor;
use super::programs::Program;
use super::random::Random;

/// Maximum number of recorded violations.
const VIOLATIONS_MAX: usize = 1000;

/// A GPU from when it is opened until it is closed or lost.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) gpu: u32,
    /// GPUs whose memory it may access.
    pub(super) peers: BTreeSet<u32>,
    pub(super) is_lost: bool,
    pub(super) is_closed: bool,
    /// The GPU was lost and restarted: old handles are invalid, or refer to something else.
    pub(super) is_of_before: bool,
}

/// A stream: its queue, and the work that is known to be done before its next piece.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) context_idx: usize,
    pub(super) queue: VecDeque<Op>,
    pub(super) clock: Clock,
    pub(super) is_dropped: bool,
    /// Held: its current work takes long.
    pub(super) is_held: bool,
}

/// A record of an event, and its stream's progress at that time.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) stream_idx: usize,
    pub(super) clock: Clock,
    pub(super) has_happened: AtomicBool,
}

impl Instance {
    pub(super) fn has_happened(&self) -> bool {
        self.has_happened.load(Ordering::Relaxed)
    }
}

/// An event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) context_idx: usize,
    /// Its last record, if any.
    pub(super) instance: Option<Arc<Instance>>,
}

/// A piece of a stream's work.
#[derive(Debug)]
pub(super) struct Op {
    /// For messages.
    pub(super) what: Arc<str>,
    pub(super) work: Work,
    pub(super) touches: Vec<Touch>,
}

#[derive(Debug)]
pub(super) enum Work {
    Record(Arc<Instance>),
    Wait(Arc<Instance>),
    /// Copies the second place to the first.
    Copy,
    Zero,
    /// Writes the first place from the others: both sides, the bias if there is one; then scratch
    /// memory.
    Matmul(Matmul),
    Convolve(ConvolutionForward),
    Launch {
        function: Arc<dyn DeviceFunction>,
        grid: Grid,
        arguments: Vec<OpArgument>,
    },
}

#[derive(Debug)]
pub(super) enum OpArgument {
    /// The place with this index.
    Touch(usize),
    Value(Box<[u8]>),
}

/// Bytes that a piece of work accesses.
#[derive(Debug)]
pub(super) struct Touch {
    pub(super) place: Place,
    pub(super) way: Way,
    /// The contents when the work was queued, if they must not change until it is done.
    pub(super) seen: Option<Vec<u8>>,
}

/// A loaded function.
#[derive(Debug, Clone)]
pub(super) struct Function {
    pub(super) context_idx: usize,
    pub(super) function: Arc<dyn DeviceFunction>,
}

/// A call that should fail.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) call: &'static str,
    /// Number of successful calls before it.
    pub(super) n_before: u64,
    pub(super) kind: DriverErrorKind,
}

/// All of a driver's GPUs.
#[derive(Debug)]
pub(super) struct State {
    pub(super) random: Random,
    pub(super) early_per_mille: u32,
    pub(super) executor: Arc<Executor>,
    pub(super) memory: Memory,
    pub(super) contexts: Vec<Context>,
    /// By handle, from 1.
    pub(super) streams: Vec<Stream>,
    pub(super) events: HashMap<EventHandle, Event>,
    pub(super) n_events: u64,
    pub(super) programs: Vec<(usize, Program)>,
    pub(super) functions: Vec<Function>,
    /// What the host knows to be done.
    pub(super) host: Clock,
    pub(super) violations: Vec<String>,
    pub(super) calls: BTreeMap<&'static str, u64>,
    pub(super) refusals: Vec<Refusal>,
    /// Number of launches that succeed before one fails.
    pub(super) n_launches_before_failure: Option<u64>,
    /// Memory of each GPU that other processes use.
    pub(super) taken_bytes: HashMap<u32, u64>,
    pub(super) allocation_bytes_max: usize,
}

/// Returns the error code of CUDA.
fn code(kind: DriverErrorKind) -> i32 {
    match kind {
        DriverErrorKind::OutOfMemory => 2,
        DriverErrorKind::Lost => 719,
        DriverErrorKind::Refused => 1,
        DriverErrorKind::Unsupported => 801,
    }
}

pub(super) fn error(kind: DriverErrorKind, message: impl Into<String>) -> DriverError {
    DriverError {
        code: code(kind),
        message: message.into(),
        kind,
    }
}

pub(super) fn refused(message: impl Into<String>) -> DriverError {
    error(DriverErrorKind::Refused, message)
}

impl State {
    pub(super) fn new(seed: u64, early_per_mille: u32, executor: Arc<Executor>) -> Self {
        Self {
            random: Random::new(seed),
            early_per_mille,
            executor,
            memory: Memory::default(),
            contexts: Vec::new(),
            streams: Vec::new(),
            events: HashMap::new(),
            n_events: 0,
            programs: Vec::new(),
            functions: Vec::new(),
            host: Clock::default(),
            violations: Vec::new(),
            calls: BTreeMap::new(),
            refusals: Vec::new(),
            n_launches_before_failure: None,
            taken_bytes: HashMap::new(),
            allocation_bytes_max: usize::MAX,
        }
    }

    /// Counts a call, and makes it fail if requested.
    pub(super) fn count(&mut self, call: &'static str) -> Result<(), DriverError> {
        *self.calls.entry(call).or_default() += 1;
        let Some(idx) = self.refusals.iter().position(|it| it.call == call) else {
            return Ok(());
        };
        let refusal = &mut self.refusals[idx];
        if refusal.n_before > 0 {
            refusal.n_before -= 1;
            return Ok(());
        }
        let kind = refusal.kind;
        self.refusals.remove(idx);
        Err(error(
            kind,
            format!("emulated: this `{call}` was made to fail"),
        ))
    }

    /// Starts each call of a GPU.
    pub(super) fn enter(
        &mut self,
        call: &'static str,
        context_idx: usize,
    ) -> Result<(), DriverError> {
        let counted = self.count(call);
        self.check_current(call, context_idx);
        self.check_alive(context_idx)?;
        if let Err(error) = &counted
            && error.kind == DriverErrorKind::Lost
        {
            self.lose(context_idx);
        }
        counted
    }

    /// Reports a call of a GPU that has been restarted since.
    pub(super) fn check_current(&mut self, call: &'static str, context_idx: usize) {
        let Context {
            gpu, is_of_before, ..
        } = self.contexts[context_idx];
        if is_of_before {
            self.violate(format!("{call} of GPU {gpu} from before its restart"));
        }
    }

    pub(super) fn check_alive(&self, context_idx: usize) -> Result<(), DriverError> {
        let context = &self.contexts[context_idx];
        if context.is_lost {
            let message = format!("emulated: GPU {} is lost", context.gpu);
            return Err(error(DriverErrorKind::Lost, message));
        }
        Ok(())
    }

    pub(super) fn violate(&mut self, text: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }

    /// Records a violation that the driver itself notices.
    pub(super) fn refuse(&mut self, text: String) -> DriverError {
        let error = refused(format!("emulated: {text}"));
        self.violate(text);
        error
    }

    /// Returns the stream of a handle, if the context may use it.
    fn stream(
        &mut self,
        context_idx: usize,
        what: &str,
        stream: StreamHandle,
    ) -> Result<usize, DriverError> {
        let idx = usize::try_from(stream.0)
            .ok()
            .and_then(|number| number.checked_sub(1))
            .filter(|&idx| idx < self.streams.len());
        let Some(idx) = idx else {
            return Err(self.refuse(format!(
                "{what} on stream {}, which there never was",
                stream.0
            )));
        };
        let (is_dropped, owner) = (self.streams[idx].is_dropped, self.streams[idx].context_idx);
        if is_dropped {
            return Err(self.refuse(format!(
                "{what} on stream {}, which was destroyed",
                stream.0
            )));
        }
        if owner != context_idx {
            let (own, other) = (self.contexts[context_idx].gpu, self.contexts[owner].gpu);
            return Err(self.refuse(format!(
                "{what} by GPU {own} on stream {}, which is of GPU {other}, or of an earlier life of it",
                stream.0
            )));
        }
        Ok(idx)
    }

    /// Returns the event of a handle.
    pub(super) fn event(
        &mut self,
        what: &str,
        event: EventHandle,
    ) -> Result<&mut Event, DriverError> {
        if !self.events.contains_key(&event) {
            return Err(self.refuse(format!("{what} of event {}, which does not exist", event.0)));
        }
        Ok(self.events.get_mut(&event).expect("it has been looked up"))
    }

    pub(super) fn record(
        &mut self,
        context_idx: usize,
        event: EventHandle,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let stream_idx = self.stream(context_idx, "record", stream)?;
        let owner = self.event("record", event)?.context_idx;
        if owner != context_idx {
            return Err(self.refuse(format!(
                "record of event {} on a stream of another GPU",
                event.0
            )));
        }
        let stream = &mut self.streams[stream_idx];
        stream.clock.join(&self.host);
        stream.clock.advance(stream_idx);
        let instance = Arc::new(Instance {
            stream_idx,
            clock: stream.clock.clone(),
            has_happened: AtomicBool::new(false),
        });
        stream.queue.push_back(Op {
            what: "record".into(),
            work: Work::Record(Arc::clone(&instance)),
            touches: Vec::new(),
        });
        self.event("record", event)?.instance = Some(instance);
        self.run_some_early();
        Ok(())
    }

    pub(super) fn wait(
        &mut self,
        context_idx: usize,
        stream: StreamHandle,
        event: EventHandle,
    ) -> Result<(), DriverError> {
        let stream_idx = self.stream(context_idx, "wait", stream)?;
        let Some(instance) = self.event("wait", event)?.instance.clone() else {
            return Ok(());
        };
        let stream = &mut self.streams[stream_idx];
        stream.clock.join(&self.host);
        stream.clock.join(&instance.clock);
        stream.queue.push_back(Op {
            what: "wait".into(),
            work: Work::Wait(instance),
            touches: Vec::new(),
        });
        self.run_some_early();
        Ok(())
    }

    /// Queues work that accesses memory in a stream.
    pub(super) fn give(
        &mut self,
        context_idx: usize,
        what: &str,
        stream: StreamHandle,
        work: Work,
        spans: &[(Span, Way)],
    ) -> Result<(), DriverError> {
        let stream_idx = self.stream(context_idx, what, stream)?;
        let mut touches: Vec<Touch> = Vec::new();
        for &(span, way) in spans {
            let place = self.place(context_idx, what, stream, span)?;
            touches.push(Touch {
                place,
                way,
                seen: None,
            });
        }
        self.check_overlaps(what, stream, &work, &touches);
        let what: Arc<str> = what.into();
        self.order(stream_idx, &what, &touches);
        for touch in &mut touches {
            let is_overwritten = touch.way == Way::Write && matches!(work, Work::Copy);
            self.see(touch, is_overwritten);
        }
        self.streams[stream_idx].queue.push_back(Op {
            what,
            work,
            touches,
        });
        self.run_some_early();
        Ok(())
    }

    /// Returns the free bytes of a GPU's memory.
    pub(super) fn free_bytes(&self, gpu: u32, total_bytes: u64) -> u64 {
        let others = self.taken_bytes.get(&gpu).copied().unwrap_or_default();
        let own: u64 = (0..)
            .zip(&self.contexts)
            .filter(|(_, context)| context.gpu == gpu && !context.is_closed)
            .map(|(idx, _)| self.memory.live_bytes(idx, Kind::Device))
            .sum();
        total_bytes.saturating_sub(others + own)
    }
}
