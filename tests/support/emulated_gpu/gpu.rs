//! An open emulated GPU: the calls of `Gpu`, each of which is counted, checked and queued.

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use placewright::backend::cuda::CompileError;
use placewright::backend::cuda::driver::Argument;
use placewright::backend::cuda::driver::ConvolutionForward;
use placewright::backend::cuda::driver::DriverError;
use placewright::backend::cuda::driver::DriverErrorKind;
use placewright::backend::cuda::driver::EventHandle;
use placewright::backend::cuda::driver::FunctionHandle;
use placewright::backend::cuda::driver::Gpu;
use placewright::backend::cuda::driver::Grid;
use placewright::backend::cuda::driver::Matmul;
use placewright::backend::cuda::driver::ModuleHandle;
use placewright::backend::cuda::driver::Span;
use placewright::backend::cuda::driver::StreamHandle;
use placewright::device::ProgramSource;

use super::EmulatedRoutines;
use super::Shared;
use super::memory::address_of;
use super::memory::taken_bytes;
use super::order::Clock;
use super::order::Way;
use super::programs::Program;
use super::routines::check;
use super::routines::check_convolution;
use super::state::Event;
use super::state::Function;
use super::state::Instance;
use super::state::OpArgument;
use super::state::State;
use super::state::Stream;
use super::state::Work;
use super::state::error;
use super::state::refused;

/// CUDA's limits of a grid: groups, and work items of a group, by dimension.
const GROUPS_MAX: [u32; 3] = [i32::MAX as u32, 65535, 65535];
const GROUP_SIZE_MAX: [u32; 3] = [1024, 1024, 64];

/// Of a thousand calls of `synchronize`, those that do only the necessary work: everything else is
/// then as late as possible.
const DIRECT_PER_MILLE: u32 = 500;

/// A GPU that is open.
#[derive(Debug)]
pub(crate) struct EmulatedGpu {
    pub(super) shared: Arc<Shared>,
    pub(super) context_idx: usize,
    pub(super) gpu: u32,
}

impl EmulatedGpu {
    /// Makes a call with the state of all GPUs.
    fn enter<T>(
        &self,
        call: &'static str,
        then: impl FnOnce(&mut State) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let mut state = self.shared.state();
        state.enter(call, self.context_idx)?;
        then(&mut state)
    }

    /// Returns the last record of an event, which may be a peer's.
    fn instance(
        state: &mut State,
        call: &'static str,
        event: EventHandle,
    ) -> Result<Option<Arc<Instance>>, DriverError> {
        let Event {
            context_idx,
            instance,
        } = state.event(call, event)?;
        let (context_idx, instance) = (*context_idx, instance.clone());
        state.check_alive(context_idx)?;
        Ok(instance)
    }

    /// Checks whether there is a routine for it.
    fn check_does(&self, inner: u64, what: &str) -> Result<(), DriverError> {
        let does = match self.shared.config.routines {
            EmulatedRoutines::Absent => false,
            EmulatedRoutines::Odd | EmulatedRoutines::OddConvolutions => inner % 2 == 1,
            EmulatedRoutines::Present => true,
        };
        match does {
            true => Ok(()),
            false => Err(DriverError::unsupported(what)),
        }
    }

    fn check_grid(&self, grid: Grid) -> Result<(), DriverError> {
        if grid.shared_bytes > 0 {
            return Err(refused(
                "emulated: memory that the launch shares out is not emulated; declare it in the program",
            ));
        }
        let is_within = |sizes: [u32; 3], max: [u32; 3]| {
            let mut pairs = sizes.into_iter().zip(max);
            pairs.all(|(size, max)| (1..=max).contains(&size))
        };
        let n_items: u64 = grid
            .group_size
            .iter()
            .map(|&size| u64::from(size))
            .product();
        if !is_within(grid.groups, GROUPS_MAX)
            || !is_within(grid.group_size, GROUP_SIZE_MAX)
            || n_items > self.shared.traits.group_size_max as u64
        {
            return Err(refused(format!(
                "emulated: no GPU is called with {:?} groups of {:?}",
                grid.groups, grid.group_size
            )));
        }
        Ok(())
    }
}

impl Drop for EmulatedGpu {
    fn drop(&mut self) {
        self.shared.state().close(self.context_idx);
    }
}

impl Gpu for EmulatedGpu {
    fn allocate(&self, len_bytes: usize) -> Result<u64, DriverError> {
        self.enter("allocate", |state| {
            if len_bytes == 0 {
                return Err(refused("emulated: an allocation of no bytes"));
            }
            let total = self.shared.config.memory_bytes;
            let free = state.free_bytes(self.gpu, total);
            if len_bytes > state.allocation_bytes_max
                || len_bytes as u64 > total
                || taken_bytes(len_bytes) > free
            {
                return Err(error(
                    DriverErrorKind::OutOfMemory,
                    format!("emulated: no memory for {len_bytes} bytes, {free} are free"),
                ));
            }
            Ok(state.memory.allocate(self.gpu, self.context_idx, len_bytes))
        })
    }

    fn allocate_managed(&self, len_bytes: usize) -> Result<u64, DriverError> {
        self.enter("allocate_managed", |state| {
            if len_bytes == 0 {
                return Err(refused("emulated: an allocation of no bytes"));
            }
            if !self.shared.config.has_managed_memory {
                return Err(refused("emulated: this GPU does not page"));
            }
            let (gpu, context_idx) = (self.gpu, self.context_idx);
            Ok(state.memory.allocate_managed(gpu, context_idx, len_bytes))
        })
    }

    unsafe fn free(&self, address: u64) -> Result<(), DriverError> {
        self.enter("free", |state| {
            state.free(self.context_idx, "free", address, false)
        })
    }

    fn allocate_pinned(&self, len_bytes: usize) -> Result<NonNull<u8>, DriverError> {
        self.enter("allocate_pinned", |state| {
            if len_bytes == 0 {
                return Err(refused("emulated: an allocation of no bytes"));
            }
            let start = state.memory.allocate_pinned(self.context_idx, len_bytes);
            start.ok_or_else(|| {
                error(
                    DriverErrorKind::OutOfMemory,
                    format!("emulated: the host has no {len_bytes} bytes"),
                )
            })
        })
    }

    unsafe fn free_pinned(&self, start: NonNull<u8>, _len_bytes: usize) {
        // Also for a lost GPU; an invalid free is a violation.
        let mut state = self.shared.state();
        let _ = state.count("free_pinned");
        state.check_current("free_pinned", self.context_idx);
        let _ = state.free(self.context_idx, "free_pinned", address_of(start), true);
    }

    fn stream_priorities(&self) -> Result<RangeInclusive<i32>, DriverError> {
        self.enter("stream_priorities", |_| Ok(super::STREAM_PRIORITIES))
    }

    fn new_stream(&self, _priority: i32) -> Result<StreamHandle, DriverError> {
        self.enter("new_stream", |state| {
            state.streams.push(Stream {
                context_idx: self.context_idx,
                queue: Default::default(),
                clock: Clock::default(),
                is_dropped: false,
                is_held: false,
            });
            Ok(StreamHandle(state.streams.len() as u64))
        })
    }

    fn drop_stream(&self, stream: StreamHandle) {
        let mut state = self.shared.state();
        // Errors are not reported.
        let _ = state.count("drop_stream");
        state.check_current("drop_stream", self.context_idx);
        let context_idx = self.context_idx;
        let found = usize::try_from(stream.0)
            .ok()
            .and_then(|number| state.streams.get_mut(number.checked_sub(1)?))
            .filter(|stream| stream.context_idx == context_idx && !stream.is_dropped);
        match found {
            Some(stream) => stream.is_dropped = true,
            None => state.violate(format!(
                "drop_stream of stream {}, which this GPU does not have",
                stream.0
            )),
        }
    }

    fn new_event(&self) -> Result<EventHandle, DriverError> {
        self.enter("new_event", |state| {
            state.n_events += 1;
            let handle = EventHandle(state.n_events);
            let event = Event {
                context_idx: self.context_idx,
                instance: None,
            };
            state.events.insert(handle, event);
            Ok(handle)
        })
    }

    fn drop_event(&self, event: EventHandle) {
        let mut state = self.shared.state();
        // Errors are not reported.
        let _ = state.count("drop_event");
        state.check_current("drop_event", self.context_idx);
        let removed = state.events.remove(&event);
        if removed.is_none_or(|event| event.context_idx != self.context_idx) {
            state.violate(format!(
                "drop_event of event {}, which this GPU does not have",
                event.0
            ));
        }
    }

    fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        self.enter("record", |state| {
            state.record(self.context_idx, event, stream)
        })
    }

    fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        self.enter("wait", |state| state.wait(self.context_idx, stream, event))
    }

    fn has_happened(&self, event: EventHandle) -> Result<bool, DriverError> {
        self.enter("has_happened", |state| {
            state.run_some();
            state.check_alive(self.context_idx)?;
            let Some(instance) = Self::instance(state, "has_happened", event)? else {
                return Ok(true);
            };
            let has_happened = instance.has_happened();
            if has_happened {
                state.host.join(&instance.clock);
            }
            Ok(has_happened)
        })
    }

    fn synchronize(&self, event: EventHandle) -> Result<(), DriverError> {
        let (instance, is_direct) = self.enter("synchronize", |state| {
            let instance = Self::instance(state, "synchronize", event)?;
            Ok((instance, state.random.happens(DIRECT_PER_MILLE)))
        })?;
        let Some(instance) = instance else {
            return Ok(());
        };
        loop {
            // Other threads may queue work meanwhile, as with a real GPU.
            thread::yield_now();
            let mut state = self.shared.state();
            state.check_alive(self.context_idx)?;
            let owner = state.streams[instance.stream_idx].context_idx;
            state.check_alive(owner)?;
            if instance.has_happened() {
                state.host.join(&instance.clock);
                return Ok(());
            }
            if is_direct || !state.run_any() {
                state.run_needed(&instance)?;
            }
        }
    }

    unsafe fn copy(&self, stream: StreamHandle, to: Span, from: Span) -> Result<(), DriverError> {
        self.enter("copy", |state| {
            if to.len_bytes != from.len_bytes {
                return Err(state.refuse(format!(
                    "copy on stream {} of {} bytes to {} bytes",
                    stream.0, from.len_bytes, to.len_bytes
                )));
            }
            let spans = [(to, Way::Write), (from, Way::Read)];
            state.give(self.context_idx, "copy", stream, Work::Copy, &spans)
        })
    }

    unsafe fn zero(&self, stream: StreamHandle, span: Span) -> Result<(), DriverError> {
        self.enter("zero", |state| {
            let place = state.memory.find(span);
            let allocation = place.and_then(|place| state.memory.of(&place));
            let is_foreign = allocation.is_some_and(|allocation| {
                allocation.is_pinned() || allocation.context_idx != self.context_idx
            });
            if is_foreign {
                return Err(state.refuse(format!(
                    "zero on stream {} of memory that is not this GPU's",
                    stream.0
                )));
            }
            let spans = [(span, Way::Write)];
            state.give(self.context_idx, "zero", stream, Work::Zero, &spans)
        })
    }

    unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError> {
        self.enter("launch", |state| {
            let found = usize::try_from(function.0)
                .ok()
                .and_then(|idx| state.functions.get(idx).cloned())
                .filter(|function| function.context_idx == self.context_idx);
            let Some(Function { function, .. }) = found else {
                return Err(state.refuse(format!(
                    "launch of function {}, which this GPU does not have",
                    function.0
                )));
            };
            self.check_grid(grid)?;
            let mut spans = Vec::new();
            let mut given = Vec::new();
            for argument in arguments {
                given.push(match *argument {
                    Argument::Value([]) => return Err(refused("emulated: a value of no bytes")),
                    Argument::Value(bytes) => OpArgument::Value(bytes.into()),
                    Argument::Read(span) => {
                        spans.push((span, Way::Read));
                        OpArgument::Touch(spans.len() - 1)
                    }
                    Argument::Write(span) => {
                        spans.push((span, Way::Write));
                        OpArgument::Touch(spans.len() - 1)
                    }
                });
            }
            let what = format!("launch of `{}`", function.name());
            let work = Work::Launch {
                function,
                grid,
                arguments: given,
            };
            state.give(self.context_idx, &what, stream, work, &spans)
        })
    }

    fn compile(&self, source: &ProgramSource) -> Result<Vec<u8>, CompileError> {
        // Compiling needs no GPU, so it works even if the GPU is lost.
        let counted = self.shared.state().count("compile");
        counted.map_err(|error| CompileError::Failed {
            program: source.to_string(),
            doing: "compiling",
            code: error.to_string(),
        })?;
        self.shared.compiler.compile(source)
    }

    fn load(&self, image: &[u8]) -> Result<ModuleHandle, DriverError> {
        self.enter("load", |state| {
            let program = Program::of_image(image);
            let program =
                program.ok_or_else(|| refused("emulated: this is no image of a program"))?;
            state.programs.push((self.context_idx, program));
            Ok(ModuleHandle(state.programs.len() as u64 - 1))
        })
    }

    fn function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle, DriverError> {
        let program = self.enter("function", |state| {
            let found = usize::try_from(module.0)
                .ok()
                .and_then(|idx| state.programs.get(idx))
                .filter(|(context_idx, _)| *context_idx == self.context_idx);
            match found {
                Some((_, program)) => Ok(program.clone()),
                None => Err(state.refuse(format!(
                    "function `{name}` of module {}, which this GPU does not have",
                    module.0
                ))),
            }
        })?;
        if !program.may_have(name) {
            return Err(refused(format!(
                "emulated: the cubin of {} has no `{name}`",
                program.source
            )));
        }
        // The state is not locked: compiling takes time.
        let function = self.shared.executor.function(&program.source, name);
        let function = function.map_err(|error| refused(format!("emulated: {error}")))?;
        let mut state = self.shared.state();
        state.functions.push(Function {
            context_idx: self.context_idx,
            function,
        });
        Ok(FunctionHandle(state.functions.len() as u64 - 1))
    }

    fn enable_peer(&self, peer: u32) -> Result<(), DriverError> {
        self.enter("enable_peer", |state| {
            if !self.shared.peers(self.gpu).contains(&peer) {
                return Err(refused(format!(
                    "emulated: GPU {} cannot reach GPU {peer}",
                    self.gpu
                )));
            }
            state.contexts[self.context_idx].peers.insert(peer);
            Ok(())
        })
    }

    fn memory_bytes(&self) -> Result<(u64, u64), DriverError> {
        self.enter("memory_bytes", |state| {
            let total = self.shared.config.memory_bytes;
            Ok((state.free_bytes(self.gpu, total), total))
        })
    }

    fn can_matmul(&self) -> bool {
        matches!(
            self.shared.config.routines,
            EmulatedRoutines::Odd | EmulatedRoutines::Present
        )
    }

    unsafe fn matmul(
        &self,
        stream: StreamHandle,
        matmul: &Matmul,
        workspace: Span,
    ) -> Result<(), DriverError> {
        let inner = match matmul.left.is_transposed {
            true => matmul.left.rows,
            false => matmul.left.columns,
        };
        self.enter("matmul", |state| {
            self.check_does(inner, "matmuls")?;
            if let Err(problem) = check(matmul) {
                return Err(state.refuse(format!("matmul on stream {}: {problem}", stream.0)));
            }
            let Matmul {
                left,
                right,
                out,
                bias,
                ..
            } = matmul;
            let spans = touched(out.span, &[left.span, right.span], *bias, workspace);
            let work = Work::Matmul(*matmul);
            state.give(self.context_idx, "matmul", stream, work, &spans)
        })
    }

    fn can_convolve(&self) -> bool {
        self.shared.config.routines != EmulatedRoutines::Absent
    }

    unsafe fn convolve(
        &self,
        stream: StreamHandle,
        convolution: &ConvolutionForward,
        workspace: Span,
    ) -> Result<(), DriverError> {
        self.enter("convolve", |state| {
            self.check_does(u64::from(convolution.channels[0]), "convolutions")?;
            if let Err(problem) = check_convolution(convolution) {
                return Err(state.refuse(format!("convolve on stream {}: {problem}", stream.0)));
            }
            let ConvolutionForward {
                input,
                filter,
                out,
                bias,
                ..
            } = convolution;
            let spans = touched(*out, &[*input, *filter], *bias, workspace);
            let work = Work::Convolve(*convolution);
            state.give(self.context_idx, "convolve", stream, work, &spans)
        })
    }
}

/// Returns what a routine accesses, in the order of [`Work::Multiply`].
fn touched(out: Span, sides: &[Span], bias: Option<Span>, workspace: Span) -> Vec<(Span, Way)> {
    let read = sides.iter().copied().chain(bias);
    let mut spans = vec![(out, Way::Write)];
    spans.extend(read.map(|span| (span, Way::Read)));
    if workspace.len_bytes > 0 {
        spans.push((workspace, Way::Write));
    }
    spans
}
