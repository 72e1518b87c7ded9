//! Checks the calls of emulated GPUs: spans that are not valid memory or belong to others, work
//! that does not wait for what it needs, memory that is freed too early.

use std::sync::Arc;

use placewright::backend::cuda::driver::DriverError;
use placewright::backend::cuda::driver::Span;
use placewright::backend::cuda::driver::StreamHandle;

use super::memory::Place;
use super::memory::span_text;
use super::order::Access;
use super::order::Way;
use super::state::State;
use super::state::Touch;
use super::state::Work;

impl State {
    /// Returns the place of a span, if the context may access it.
    pub(super) fn place(
        &mut self,
        context_idx: usize,
        what: &str,
        stream: StreamHandle,
        span: Span,
    ) -> Result<Place, DriverError> {
        let on = format!("{what} on stream {}", stream.0);
        let text = span_text(span);
        let Some(place) = self.memory.find(span) else {
            let why = match self.memory.is_in_given_back(span.address) {
                true => "which were freed",
                false => "which are not in one allocation",
            };
            return Err(self.refuse(format!("{on} touches {text}, {why}")));
        };
        let Some(allocation) = self.memory.of(&place) else {
            return Ok(place);
        };
        let (own, other) = (
            &self.contexts[context_idx],
            &self.contexts[allocation.context_idx],
        );
        if allocation.is_pinned() || allocation.context_idx == context_idx {
            return Ok(place);
        }
        let (own_gpu, gpu) = (own.gpu, other.gpu);
        if gpu == own_gpu {
            return Err(self.refuse(format!(
                "{on} touches {text}, from before GPU {gpu} was restarted"
            )));
        }
        if !own.peers.contains(&gpu) {
            return Err(self.refuse(format!(
                "{on} touches {text}, of GPU {gpu}, to which GPU {own_gpu} has no access (`enable_peer`)"
            )));
        }
        Ok(place)
    }

    /// Checks arguments of one call that share some of their bytes. Arguments that start at the
    /// same byte may, for in-place work.
    pub(super) fn check_overlaps(
        &mut self,
        what: &str,
        stream: StreamHandle,
        work: &Work,
        touches: &[Touch],
    ) {
        for (idx, one) in touches.iter().enumerate() {
            for other in &touches[..idx] {
                let is_in_place =
                    one.place.bytes.start == other.place.bytes.start && !matches!(work, Work::Copy);
                let writes = one.way == Way::Write || other.way == Way::Write;
                if writes && one.place.overlaps(&other.place) && !is_in_place {
                    let (one, other) = (&one.place, &other.place);
                    self.violate(format!(
                        "{what} on stream {} is given {one} and {other}, which overlap",
                        stream.0
                    ));
                }
            }
        }
    }

    /// Reports what the stream should have waited for.
    pub(super) fn order(&mut self, stream_idx: usize, what: &Arc<str>, touches: &[Touch]) {
        let stream = &mut self.streams[stream_idx];
        stream.clock.join(&self.host);
        let number = stream.clock.advance(stream_idx);
        let mut races = Vec::new();
        for Touch { place, way, .. } in touches {
            let Some(allocation) = self.memory.of_mut(place) else {
                continue;
            };
            let access = Access {
                bytes: place.bytes.clone(),
                way: *way,
                stream_idx,
                number,
                what: Arc::clone(what),
            };
            let earlier = allocation
                .accesses
                .add(access, &stream.clock, &self.host)
                .into_iter();
            races.extend(earlier.map(|earlier| (place, *way, earlier)));
        }
        for (place, way, earlier) in races {
            let earlier_place = Place {
                bytes: earlier.bytes,
                ..place.clone()
            };
            let text = format!(
                "{what} on stream {} {} {place}, and does not wait for {} on stream {}, which {} {earlier_place}",
                stream_idx + 1,
                way.text(),
                earlier.what,
                earlier.stream_idx + 1,
                earlier.way.text(),
            );
            self.violate(text);
        }
    }

    /// Records the contents of pinned memory, which the host must not change from now on. Memory
    /// that will be overwritten becomes garbage until then, so that a host that reads too early is
    /// found.
    pub(super) fn see(&mut self, touch: &mut Touch, is_overwritten: bool) {
        let is_pinned = self.memory.of(&touch.place);
        if !is_pinned.is_some_and(|allocation| allocation.is_pinned()) {
            return;
        }
        let mut waiting = self.streams.iter().flat_map(|stream| &stream.queue);
        let mut others = waiting.clone().flat_map(|op| &op.touches);
        let is_touched = others.any(|other| other.place.overlaps(&touch.place));
        let is_to_be_written = waiting.any(|op| {
            let mut touches = op.touches.iter();
            touches.any(|it| it.way == Way::Write && it.place.overlaps(&touch.place))
        });
        let Some(allocation) = self.memory.of_mut(&touch.place) else {
            return;
        };
        if is_overwritten && !is_touched {
            allocation.spoil(touch.place.bytes.clone());
        }
        if !is_to_be_written {
            touch.seen = Some(allocation.read(touch.place.bytes.clone()));
        }
    }

    /// Frees memory.
    pub(super) fn free(
        &mut self,
        context_idx: usize,
        call: &'static str,
        address: u64,
        is_pinned: bool,
    ) -> Result<(), DriverError> {
        let gave_back = self.memory.was_given_back(address);
        let Some(allocation) = self.memory.starting_at(address) else {
            let why = match gave_back {
                true => "which was freed before",
                false => "where no allocation starts",
            };
            return Err(self.refuse(format!("{call} of {address:#x}, {why}")));
        };
        if allocation.is_pinned() != is_pinned {
            return Err(self.refuse(format!(
                "{call} of {address:#x}, which is memory of the other kind"
            )));
        }
        if allocation.context_idx != context_idx {
            return Err(self.refuse(format!("{call} of {address:#x}, which another GPU gave")));
        }
        let unknown = allocation.accesses.unknown_to(&self.host);
        let messages: Vec<String> = unknown
            .map(|access| {
                format!(
                    "{call} of {address:#x}, which {} on stream {} {}; the host does not know that this is done",
                    access.what,
                    access.stream_idx + 1,
                    access.way.text()
                )
            })
            .collect();
        for text in messages {
            self.violate(text);
        }
        self.memory.remove(address);
        if self.memory.has_too_much_freed() {
            self.look_at_freed();
        }
        Ok(())
    }

    /// Reports writes to pinned memory that was freed.
    pub(super) fn look_at_freed(&mut self) {
        for text in self.memory.written_after_free() {
            self.violate(text);
        }
    }
}
