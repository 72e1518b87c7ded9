//! Tests the emulated GPUs, which check the order of a GPU device's commands: each mistake is
//! found, and correct sequences pass.

#![expect(
    unsafe_code,
    reason = "the calls under test are unsafe where a GPU trusts its caller; the emulator does not"
)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use placewright::backend::cuda::CompileError;
use placewright::backend::cuda::driver::Argument;
use placewright::backend::cuda::driver::Driver;
use placewright::backend::cuda::driver::DriverError;
use placewright::backend::cuda::driver::DriverErrorKind;
use placewright::backend::cuda::driver::EventHandle;
use placewright::backend::cuda::driver::FunctionHandle;
use placewright::backend::cuda::driver::Gpu;
use placewright::backend::cuda::driver::Grid;
use placewright::backend::cuda::driver::Span;
use placewright::backend::cuda::driver::StreamHandle;
use placewright::device::ProcessorKind;
use placewright::device::ProgramSource;

use crate::emulated::EmulatedConfig;
use crate::emulated::EmulatedDriver;

mod faults;
mod mistakes;

const GARBAGE: u8 = 0xa5;

/// A driver and its first GPU.
struct Bench {
    driver: EmulatedDriver,
    gpu: Arc<dyn Gpu>,
}

/// Creates a bench for tests that need an OpenCL device, which computes for the GPUs.
fn bench(config: EmulatedConfig) -> Bench {
    let driver = EmulatedDriver::new(config).unwrap();
    let gpu = driver.open(0).unwrap();
    Bench { driver, gpu }
}

/// GPUs that do no work until they must.
fn lazy() -> EmulatedConfig {
    EmulatedConfig {
        early_per_mille: 0,
        ..EmulatedConfig::default()
    }
}

fn span(address: u64, len_bytes: usize) -> Span {
    Span { address, len_bytes }
}

/// Pinned memory, and its address for a GPU.
#[derive(Clone, Copy)]
struct Pinned {
    start: NonNull<u8>,
    len_bytes: usize,
}

impl Pinned {
    fn span(self) -> Span {
        span(self.start.addr().get() as u64, self.len_bytes)
    }

    fn write(self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len_bytes);
        // SAFETY: it is long enough, and mapped until the driver is dropped; no test has a second
        // thread.
        unsafe {
            self.start
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
    }

    fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len_bytes];
        // SAFETY: as above.
        unsafe {
            self.start
                .copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), self.len_bytes);
        }
        bytes
    }
}

/// Calls of a GPU without `unsafe` at each call.
trait Calls {
    fn gpu(&self) -> &dyn Gpu;

    fn copy(&self, stream: StreamHandle, to: Span, from: Span) -> Result<(), DriverError> {
        // SAFETY: the emulator accesses only memory that exists.
        unsafe { self.gpu().copy(stream, to, from) }
    }

    fn zero(&self, stream: StreamHandle, span: Span) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { self.gpu().zero(stream, span) }
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { self.gpu().free(address) }
    }

    fn free_pinned(&self, pinned: Pinned) {
        // SAFETY: as above; the memory stays mapped for a while.
        unsafe { self.gpu().free_pinned(pinned.start, pinned.len_bytes) }
    }

    fn call(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        n_groups: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError> {
        let grid = Grid {
            groups: [n_groups, 1, 1],
            group_size: [1, 1, 1],
            shared_bytes: 0,
        };
        // SAFETY: as above; the tests pass the arguments that the functions take.
        unsafe { self.gpu().launch(stream, function, grid, arguments) }
    }

    fn memory(&self, len_bytes: usize) -> Span {
        span(self.gpu().allocate(len_bytes).unwrap(), len_bytes)
    }

    fn pinned(&self, len_bytes: usize) -> Pinned {
        Pinned {
            start: self.gpu().allocate_pinned(len_bytes).unwrap(),
            len_bytes,
        }
    }

    fn stream(&self) -> StreamHandle {
        self.gpu().new_stream(0).unwrap()
    }

    /// Returns an event that has just been recorded.
    fn recorded(&self, stream: StreamHandle) -> EventHandle {
        let event = self.gpu().new_event().unwrap();
        self.gpu().record(event, stream).unwrap();
        event
    }

    /// Waits until a stream has done all of its work.
    fn finish(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.gpu().synchronize(self.recorded(stream))
    }

    fn compiled(&self, source: &ProgramSource, name: &str) -> FunctionHandle {
        let image = self.gpu().compile(source).unwrap();
        let module = self.gpu().load(&image).unwrap();
        self.gpu().function(module, name).unwrap()
    }
}

impl Calls for Arc<dyn Gpu> {
    fn gpu(&self) -> &dyn Gpu {
        &**self
    }
}

fn twice() -> ProgramSource {
    let code = "KERNEL void twice(GLOBAL f32 *x) { x[GLOBAL_ID(0)] *= 2; }";
    ProgramSource::of_source("twice.c", code)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
#[needs(Sycl)]
fn work_is_done_only_when_the_host_waits_for_it() {
    let Bench { driver, gpu } = bench(lazy());
    let stream = gpu.stream();
    let (up, down) = (gpu.pinned(8), gpu.pinned(8));
    let memory = gpu.memory(8);
    up.write(&[7; 8]);
    assert_eq!(driver.peek(memory).unwrap(), [GARBAGE; 8]);
    gpu.copy(stream, memory, up.span()).unwrap();
    // The host reads too early: it sees neither the old bytes nor the new ones.
    down.write(&[1; 8]);
    gpu.copy(stream, down.span(), memory).unwrap();
    assert_eq!(driver.n_waiting(), 2);
    assert_eq!(driver.peek(memory).unwrap(), [GARBAGE; 8]);
    assert_eq!(down.read(), [GARBAGE; 8]);
    gpu.finish(stream).unwrap();
    assert_eq!(down.read(), [7; 8]);
    assert_eq!(driver.n_waiting(), 0);
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
#[needs(Sycl)]
fn polling_an_event_succeeds_eventually() {
    let Bench { driver, gpu } = bench(lazy());
    let (one, other) = (gpu.stream(), gpu.stream());
    let never_recorded = gpu.new_event().unwrap();
    assert!(gpu.has_happened(never_recorded).unwrap());
    gpu.wait(one, never_recorded).unwrap();
    let memory = gpu.memory(4);
    for _ in 0..20 {
        gpu.zero(one, memory).unwrap();
    }
    gpu.wait(other, gpu.recorded(one)).unwrap();
    let event = gpu.recorded(other);
    let mut n_asked = 0;
    while !gpu.has_happened(event).unwrap() {
        n_asked += 1;
        assert!(n_asked < 100, "pollers make progress");
    }
    assert!(n_asked > 0);
    // If the host knows that the work has ended, no event is needed.
    gpu.free(memory.address).unwrap();
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
#[needs(Sycl)]
fn kernels_compute_with_spans_within_allocations_in_place_and_of_no_bytes() {
    let Bench { driver, gpu } = bench(EmulatedConfig::default());
    let stream = gpu.stream();
    let code = "KERNEL void add(GLOBAL f32 *y, GLOBAL const f32 *a, GLOBAL const f32 *b, f32 c, GLOBAL const f32 *none)\n\
                { const Item i = GLOBAL_ID(0); y[i] = a[i] + b[i] + c; }";
    let add = gpu.compiled(&ProgramSource::of_source("add.c", code), "add");
    let twice = gpu.compiled(&twice(), "twice");
    let host = gpu.pinned(24);
    host.write(&bytes_of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let memory = gpu.memory(24);
    let part = |first: u64| span(memory.address + 4 * first, 8);
    gpu.copy(stream, memory, host.span()).unwrap();
    // [1, 2, 3, 4, 5, 6] -> [1, 2, 3, 4, 8.5, 10.5]
    let arguments = [
        Argument::Write(part(4)),
        Argument::Read(part(4)),
        Argument::Read(part(2)),
        Argument::Value(&0.5f32.to_le_bytes()),
        Argument::Read(span(0, 0)),
    ];
    gpu.call(stream, add, 2, &arguments).unwrap();
    gpu.call(stream, twice, 2, &[Argument::Write(part(0))])
        .unwrap();
    gpu.zero(stream, part(2)).unwrap();
    gpu.copy(stream, span(0, 0), span(1, 0)).unwrap();
    gpu.copy(stream, host.span(), memory).unwrap();
    gpu.finish(stream).unwrap();
    assert_eq!(host.read(), bytes_of(&[2.0, 4.0, 0.0, 0.0, 8.5, 10.5]));
    assert_eq!(driver.violations(), Vec::<String>::new());
    // One stream needs no waits.
    let calls = driver.calls();
    assert_eq!(calls["launch"], 2);
    assert_eq!(calls["copy"], 3);
    assert!(!calls.contains_key("wait"));
}

#[test]
#[needs(Sycl)]
fn kernels_compute_in_groups_and_report_invalid_inputs() {
    let Bench { driver, gpu } = bench(EmulatedConfig::default());
    let code = "KERNEL void sum(GLOBAL i32 *y, GLOBAL const i32 *x, FAULT_PARAMETERS)\n\
                {\n\
                    SHARED i32 parts[4];\n\
                    const i32 own = x[GLOBAL_ID(0)];\n\
                    if (own < 0) FAULT();\n\
                    parts[LOCAL_ID(0)] = own;\n\
                    BARRIER();\n\
                    if (LOCAL_ID(0) == 0) y[GROUP_ID(0)] = parts[0] + parts[1] + parts[2] + parts[3];\n\
                }";
    let sum = gpu.compiled(&ProgramSource::of_source("sum.c", code), "sum");
    let stream = gpu.stream();
    let (x, y, flags, host) = (gpu.memory(32), gpu.memory(8), gpu.pinned(8), gpu.pinned(32));
    flags.write(&[0; 8]);
    let values =
        |values: &[i32]| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
    host.write(&values(&[1, 2, 3, 4, 5, -6, 7, 8]));
    gpu.copy(stream, x, host.span()).unwrap();
    let grid = Grid {
        groups: [2, 1, 1],
        group_size: [4, 1, 1],
        shared_bytes: 0,
    };
    let arguments = [
        Argument::Write(y),
        Argument::Read(x),
        Argument::Write(flags.span()),
        Argument::Value(&1u32.to_le_bytes()),
    ];
    // SAFETY: the function takes these arguments, and the memory lives.
    unsafe { gpu.launch(stream, sum, grid, &arguments) }.unwrap();
    gpu.finish(stream).unwrap();
    assert_eq!(driver.peek(y).unwrap(), values(&[10, 14]));
    assert_eq!(flags.read(), values(&[0, 1]));
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
#[needs(Sycl)]
fn a_seed_decides_the_order_of_the_streams_work() {
    let order = |seed| {
        let config = EmulatedConfig {
            seed,
            ..EmulatedConfig::default()
        };
        let Bench { driver, gpu } = bench(config);
        let mut seen = Vec::new();
        let streams = [gpu.stream(), gpu.stream(), gpu.stream()];
        let memory = streams.map(|_| gpu.memory(4));
        for _ in 0..10 {
            for (stream, memory) in streams.into_iter().zip(memory) {
                gpu.zero(stream, memory).unwrap();
                seen.push(driver.n_waiting());
            }
            seen.push(usize::from(
                gpu.has_happened(gpu.recorded(streams[0])).unwrap(),
            ));
        }
        driver.finish();
        assert_eq!(driver.n_waiting(), 0);
        assert_eq!(driver.violations(), Vec::<String>::new());
        seen
    };
    let first = order(1);
    assert_eq!(order(1), first);
    assert!((2..5).any(|seed| order(seed) != first));
}

#[test]
#[needs(Sycl)]
fn threads_share_a_gpu() {
    let Bench { driver, gpu } = bench(EmulatedConfig::default());
    let shared = gpu.memory(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (stream, own) = (gpu.stream(), gpu.memory(4));
                for _ in 0..100 {
                    gpu.zero(stream, own).unwrap();
                    gpu.copy(stream, own, shared).unwrap();
                    gpu.finish(stream).unwrap();
                }
                assert_eq!(driver.peek(own).unwrap(), [GARBAGE; 4]);
                gpu.free(own.address).unwrap();
            });
        }
    });
    gpu.free(shared.address).unwrap();
    assert_eq!(driver.live_bytes(), 0);
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
#[needs(Sycl)]
fn gpus_access_each_others_memory_once_enabled() {
    let config = EmulatedConfig {
        n_gpus: 3,
        ..EmulatedConfig::default()
    };
    let Bench { driver, gpu } = bench(config);
    let facts = driver.gpus().unwrap();
    assert_eq!(facts[1].physical.peers, [0, 2]);
    assert_eq!(facts[1].traits.kind, ProcessorKind::Gpu);
    assert_ne!(facts[0].physical.pci_bus_id, facts[1].physical.pci_bus_id);
    let other = driver.open(1).unwrap();
    assert!(driver.open(3).is_err());
    let again = driver.open(0).unwrap();
    assert!(Arc::ptr_eq(&again, &gpu), "a GPU is opened once");
    gpu.enable_peer(1).unwrap();
    gpu.enable_peer(1).unwrap();
    assert!(gpu.enable_peer(0).is_err());
    let (from, to) = (other.memory(4), gpu.memory(4));
    let (theirs, ours) = (other.stream(), gpu.stream());
    other.zero(theirs, from).unwrap();
    gpu.wait(ours, other.recorded(theirs)).unwrap();
    gpu.copy(ours, to, from).unwrap();
    gpu.finish(ours).unwrap();
    assert_eq!(driver.peek(to).unwrap(), [0; 4]);
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
#[needs(Sycl)]
fn invalid_programs_and_missing_functions_are_errors() {
    let Bench { driver, gpu } = bench(EmulatedConfig::default());
    let kind = |error: DriverError| error.kind;
    let image = gpu.compile(&twice()).unwrap();
    assert_eq!(gpu.compile(&twice()).unwrap(), image);
    assert_ne!(gpu.compile(&twice().with("N", "1")).unwrap(), image);
    let module = gpu.load(&image).unwrap();
    let error = gpu.function(module, "thrice").unwrap_err();
    assert_eq!(kind(error), DriverErrorKind::Refused);
    let wrong = ProgramSource::of_source("wrong.c", "KERNEL wrong");
    let wrong = gpu.load(&gpu.compile(&wrong).unwrap()).unwrap();
    let error = gpu.function(wrong, "wrong").unwrap_err();
    assert!(error.message.contains("wrong.c"), "{error}");
    assert_eq!(
        kind(gpu.load(b"what").unwrap_err()),
        DriverErrorKind::Refused
    );
    let module = ProgramSource::of_spirv("module", vec![0; 4]);
    let error = gpu.compile(&module).unwrap_err();
    assert!(matches!(error, CompileError::NotSource { .. }), "{error}");
    // An image is self-contained: another process's driver accepts it.
    let other = bench(EmulatedConfig::default());
    other.gpu.load(&image).unwrap();
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
#[needs(Sycl, Nvrtc)]
fn nvrtc_also_compiles_programs_if_it_is_present() {
    let config = EmulatedConfig {
        compiles_for_real: true,
        ..EmulatedConfig::default()
    };
    let Bench { driver, gpu } = bench(config);
    let driver_text = driver.gpus().unwrap()[0].driver.clone();
    assert!(driver_text.contains("NVRTC"), "{driver_text}");
    gpu.compiled(&twice(), "twice");
    // Valid OpenCL C, but not C++.
    let code = "KERNEL void vector(GLOBAL f32 *x) { x[0] = ((float2)(1, 2)).y; }";
    let error = gpu
        .compile(&ProgramSource::of_source("vector.c", code))
        .unwrap_err();
    assert!(matches!(error, CompileError::Refused { .. }), "{error}");
}
