//! Executes the work of emulated GPUs: late, and in any order that streams and events allow. A seed
//! decides the order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use placewright::backend::cuda::driver::DriverError;
use placewright::backend::cuda::driver::Grid;
use placewright::device::DeviceFunction;

use super::memory::GARBAGE;
use super::memory::Place;
use super::order::Way;
use super::programs::Given;
use super::routines::convolve;
use super::routines::matmul;
use super::state::Instance;
use super::state::Op;
use super::state::OpArgument;
use super::state::State;
use super::state::Touch;
use super::state::Work;
use super::state::refused;

/// Maximum number of pieces of work done during another call of the host.
const STEPS_MAX: usize = 4;

impl State {
    /// Does some of the work that a GPU may do while the host queues more.
    pub(super) fn run_some_early(&mut self) {
        if self.random.happens(self.early_per_mille) {
            self.run_some();
        }
    }

    /// Does one or a few pieces of work, if there are any.
    pub(super) fn run_some(&mut self) {
        for _ in 0..=self.random.below(STEPS_MAX) {
            if !self.run_any() {
                return;
            }
        }
    }

    /// Does a piece of work of any stream that can continue; returns whether there was one.
    pub(super) fn run_any(&mut self) -> bool {
        let ready: Vec<usize> = (0..self.streams.len())
            .filter(|&idx| self.is_ready(idx))
            .collect();
        if ready.is_empty() {
            return false;
        }
        let chosen = ready[self.random.below(ready.len())];
        self.run_next(chosen);
        true
    }

    /// Does a piece of work without which an event does not happen.
    pub(super) fn run_needed(&mut self, instance: &Instance) -> Result<(), DriverError> {
        let mut stream_idx = instance.stream_idx;
        // Each wait leads to an earlier record.
        while let Some(Op {
            work: Work::Wait(before),
            ..
        }) = self.streams[stream_idx].queue.front()
            && !before.has_happened()
        {
            stream_idx = before.stream_idx;
        }
        if self.streams[stream_idx].is_held {
            return Ok(()); // Until another thread releases it.
        }
        if self.streams[stream_idx].queue.is_empty() {
            return Err(refused(
                "emulated: nothing is left to do, and the event has not happened",
            ));
        }
        self.run_next(stream_idx);
        Ok(())
    }

    fn is_ready(&self, stream_idx: usize) -> bool {
        let stream = &self.streams[stream_idx];
        match stream.queue.front() {
            None => false,
            Some(_) if stream.is_held => false,
            Some(op) => match &op.work {
                Work::Wait(instance) => instance.has_happened(),
                _ => true,
            },
        }
    }

    fn run_next(&mut self, stream_idx: usize) {
        let stream = &mut self.streams[stream_idx];
        let context_idx = stream.context_idx;
        let Some(op) = stream.queue.pop_front() else {
            return;
        };
        let text = format!("{} on stream {}", op.what, stream_idx + 1);
        if let Work::Record(instance) = &op.work {
            instance.has_happened.store(true, Ordering::Relaxed);
        }
        if !self.can_touch(&text, &op.touches) {
            return;
        }
        match &op.work {
            Work::Record(_) | Work::Wait(_) => {}
            Work::Copy => {
                if let [to, from] = &op.touches[..] {
                    let bytes = self.read(&from.place);
                    self.write(&to.place, &bytes);
                }
            }
            Work::Zero => {
                for touch in &op.touches {
                    self.write(&touch.place, &vec![0; touch.place.bytes.len()]);
                }
            }
            Work::Matmul(request) => {
                self.run_routine(&op.touches, |bytes| matmul(request, bytes));
            }
            Work::Convolve(convolution) => {
                self.run_routine(&op.touches, |bytes| convolve(convolution, bytes));
            }
            Work::Launch {
                function,
                grid,
                arguments,
            } => {
                if self.fails_now() {
                    return self.lose(context_idx);
                }
                let launched = self.launch(function, *grid, arguments, &op.touches);
                if let Err(problem) = launched {
                    self.violate(format!("{text} fails: {problem}"));
                    self.lose(context_idx);
                }
            }
        }
    }

    /// Returns whether the memory of a piece of work still exists, with unchanged contents.
    fn can_touch(&mut self, text: &str, touches: &[Touch]) -> bool {
        let mut is_there = true;
        for Touch { place, seen, .. } in touches {
            if place.is_nowhere() {
                continue;
            }
            let Some(allocation) = self.memory.of(place) else {
                self.violate(format!(
                    "{text} touches {place}, which were freed meanwhile"
                ));
                is_there = false;
                continue;
            };
            let is_changed = seen
                .as_ref()
                .is_some_and(|seen| *seen != allocation.read(place.bytes.clone()));
            if is_changed {
                self.violate(format!(
                    "the host has changed {place} before {text} was done with them"
                ));
            }
        }
        is_there
    }

    fn fails_now(&mut self) -> bool {
        match &mut self.n_launches_before_failure {
            None => false,
            Some(0) => {
                self.n_launches_before_failure = None;
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
        }
    }

    fn launch(
        &mut self,
        function: &Arc<dyn DeviceFunction>,
        grid: Grid,
        arguments: &[OpArgument],
        touches: &[Touch],
    ) -> Result<(), String> {
        // Arguments that start at the same byte are the same memory.
        let mut places: Vec<Place> = Vec::new();
        let mut given = Vec::new();
        for argument in arguments {
            given.push(match argument {
                OpArgument::Value(bytes) => Given::Value(bytes.clone()),
                OpArgument::Touch(idx) => {
                    let Touch { place, way, .. } = &touches[*idx];
                    let is_same = |other: &Place| {
                        !place.is_nowhere()
                            && other.id == place.id
                            && other.bytes.start == place.bytes.start
                    };
                    let found = places.iter().position(is_same);
                    let bytes_idx = found.unwrap_or(places.len());
                    match places.get_mut(bytes_idx) {
                        Some(same) => same.bytes.end = same.bytes.end.max(place.bytes.end),
                        None => places.push(place.clone()),
                    }
                    Given::Memory {
                        bytes_idx,
                        is_written: *way == Way::Write,
                    }
                }
            });
        }
        let mut bytes: Vec<Vec<u8>> = places
            .iter()
            .map(|place| match place.is_nowhere() {
                // OpenCL has no empty buffers.
                true => vec![0],
                false => self.read(place),
            })
            .collect();
        let executor = Arc::clone(&self.executor);
        executor
            .launch(function, grid, &given, &mut bytes)
            .map_err(|error| error.to_string())?;
        for (argument, given) in arguments.iter().zip(&given) {
            if let OpArgument::Touch(idx) = argument
                && let Given::Memory {
                    bytes_idx,
                    is_written: true,
                } = given
            {
                let place = &touches[*idx].place;
                self.write(place, &bytes[*bytes_idx][..place.bytes.len()]);
            }
        }
        Ok(())
    }

    /// Runs a routine that changes the first place based on all of them, and leaves garbage in
    /// scratch memory.
    fn run_routine(&mut self, touches: &[Touch], routine: impl FnOnce(&mut [Vec<u8>])) {
        let mut bytes: Vec<Vec<u8>> = touches
            .iter()
            .map(|touch| match touch.way {
                Way::Write if !std::ptr::eq(touch, &touches[0]) => Vec::new(),
                _ => self.read(&touch.place),
            })
            .collect();
        routine(&mut bytes);
        for (index, (touch, bytes)) in touches.iter().zip(&bytes).enumerate() {
            match touch.way {
                Way::Write if index == 0 => self.write(&touch.place, bytes),
                Way::Write => self.write(&touch.place, &[GARBAGE; 64]),
                Way::Read => {}
            }
        }
    }

    fn read(&self, place: &Place) -> Vec<u8> {
        let allocation = self.memory.of(place);
        allocation.map_or_else(Vec::new, |allocation| allocation.read(place.bytes.clone()))
    }

    fn write(&mut self, place: &Place, bytes: &[u8]) {
        let Some(allocation) = self.memory.of_mut(place) else {
            return;
        };
        // Lost memory of a peer takes no writes.
        if allocation.is_lost && !allocation.is_pinned() {
            return;
        }
        allocation.write(place.bytes.start, bytes);
        if !allocation.is_pinned() {
            return;
        }
        // The host has not written this.
        let waiting = self
            .streams
            .iter_mut()
            .flat_map(|stream| &mut stream.queue)
            .flat_map(|op| &mut op.touches);
        for touch in waiting {
            if touch.place.overlaps(place) {
                touch.seen = None;
            }
        }
    }

    /// Loses a GPU.
    pub(super) fn lose(&mut self, context_idx: usize) {
        self.contexts[context_idx].is_lost = true;
        self.memory.lose(context_idx);
        self.stop(context_idx);
    }

    /// Closes a GPU; memory that it has not freed is leaked.
    pub(super) fn close(&mut self, context_idx: usize) {
        self.contexts[context_idx].is_closed = true;
        self.stop(context_idx);
    }

    /// Stops the queued work of a GPU; nothing waits for it forever.
    fn stop(&mut self, context_idx: usize) {
        for (idx, stream) in self.streams.iter_mut().enumerate() {
            if stream.context_idx != context_idx {
                continue;
            }
            for op in stream.queue.drain(..) {
                if let Work::Record(instance) = op.work {
                    instance.has_happened.store(true, Ordering::Relaxed);
                }
            }
            self.host.raise(idx, stream.clock.of(idx));
        }
    }
}
