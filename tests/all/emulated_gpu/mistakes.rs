//! Each kind of mistake, next to the correct sequence.

use super::*;

/// A sequence of calls, either correct or with a mistake.
type Sequence = fn(&Bench, is_right: bool);

/// Checks that the mistake is found, whatever the order of the streams' work, and reported with a
/// message that contains `expected`; and that the correct sequence passes.
#[track_caller]
fn check(expected: &str, sequence: Sequence) {
    for early_per_mille in [0, 500, 1000] {
        check_with(early_per_mille, expected, sequence);
    }
}

/// Checks that the mistake is found while the streams have not done their work, whose result is
/// then wrong.
#[track_caller]
fn check_late(expected: &str, sequence: Sequence) {
    check_with(0, expected, sequence);
}

#[track_caller]
fn check_with(early_per_mille: u32, expected: &str, sequence: Sequence) {
    for (seed, is_right) in [(1, false), (1, true), (2, false), (2, true)] {
        let config = EmulatedConfig {
            n_gpus: 2,
            seed,
            early_per_mille,
            ..EmulatedConfig::default()
        };
        let bench = bench(config);
        sequence(&bench, is_right);
        bench.driver.finish();
        let violations = bench.driver.violations();
        let is_found = violations.iter().any(|text| text.contains(expected));
        assert_eq!(
            is_found, !is_right,
            "with seed {seed}, {expected}: {violations:?}"
        );
        assert!(!is_right || violations.is_empty(), "{violations:?}");
    }
}

#[test]
#[needs(Sycl)]
fn reading_while_another_stream_writes() {
    check(
        "copy on stream 2 reads 8 bytes at 0x7000000000000008, and does not wait for zero on stream 1, which writes 16 bytes at \
         0x7000000000000000",
        |Bench { gpu, .. }, is_right| {
            let (one, other) = (gpu.stream(), gpu.stream());
            let (from, to) = (gpu.memory(16), gpu.memory(8));
            gpu.zero(one, from).unwrap();
            if is_right {
                gpu.wait(other, gpu.recorded(one)).unwrap();
            }
            gpu.copy(other, to, span(from.address + 8, 8)).unwrap();
        },
    );
}

#[test]
#[needs(Sycl)]
fn writing_while_another_stream_reads() {
    check(
        "zero on stream 2 writes 8 bytes at 0x7000000000000000, and does not wait for launch of `read` on stream 1, which reads",
        |Bench { gpu, .. }, is_right| {
            let (one, other) = (gpu.stream(), gpu.stream());
            let code =
                "KERNEL void read(GLOBAL f32 *y, GLOBAL const f32 *x) { y[0] = x[0] + x[1]; }";
            let read = gpu.compiled(&ProgramSource::of_source("read.c", code), "read");
            let (from, to) = (gpu.memory(8), gpu.memory(4));
            let arguments = [Argument::Write(to), Argument::Read(from)];
            gpu.zero(one, from).unwrap();
            gpu.call(one, read, 1, &arguments).unwrap();
            if is_right {
                gpu.finish(one).unwrap();
            }
            gpu.zero(other, from).unwrap();
        },
    );
}

#[test]
#[needs(Sycl)]
fn waiting_for_an_event_that_is_recorded_too_early() {
    check(
        "does not wait for zero on stream 1",
        |Bench { gpu, .. }, is_right| {
            let (one, other) = (gpu.stream(), gpu.stream());
            let memory = gpu.memory(8);
            let event = gpu.recorded(one);
            gpu.zero(one, memory).unwrap();
            if is_right {
                gpu.record(event, one).unwrap();
            }
            gpu.wait(other, event).unwrap();
            // This is another record, for which the stream does not wait.
            gpu.record(event, one).unwrap();
            gpu.zero(other, memory).unwrap();
        },
    );
}

#[test]
#[needs(Sycl)]
fn waiting_for_a_stream_that_has_not_waited_itself() {
    check(
        "zero on stream 3 writes 8 bytes at 0x7000000000000000, and does not wait for zero on stream 1",
        |Bench { gpu, .. }, is_right| {
            let streams = [gpu.stream(), gpu.stream(), gpu.stream()];
            let memory = gpu.memory(8);
            gpu.zero(streams[0], memory).unwrap();
            let event = gpu.recorded(streams[0]);
            if is_right {
                gpu.wait(streams[1], event).unwrap();
            }
            gpu.wait(streams[2], gpu.recorded(streams[1])).unwrap();
            gpu.zero(streams[2], memory).unwrap();
        },
    );
}

#[test]
#[needs(Sycl)]
fn readers_need_not_wait_for_each_other_but_a_writer_waits_for_all() {
    check(
        "does not wait for copy on stream 1, which reads",
        |Bench { gpu, .. }, is_right| {
            let streams = [gpu.stream(), gpu.stream(), gpu.stream()];
            let from = gpu.memory(8);
            for &stream in &streams {
                gpu.copy(stream, gpu.memory(8), from).unwrap();
            }
            let first = if is_right { 0 } else { 1 };
            for &stream in &streams[first..2] {
                gpu.wait(streams[2], gpu.recorded(stream)).unwrap();
            }
            gpu.zero(streams[2], from).unwrap();
        },
    );
}

#[test]
#[needs(Sycl)]
fn freeing_memory_in_use() {
    check(
        "free of 0x7000000000000000, which zero on stream 1 writes; the host does not know that this is done",
        |Bench { gpu, driver }, is_right| {
            let stream = gpu.stream();
            let memory = gpu.memory(8);
            gpu.zero(stream, memory).unwrap();
            if is_right {
                gpu.finish(stream).unwrap();
            } else {
                // The work may be done, but the host does not know it.
                driver.finish();
            }
            gpu.free(memory.address).unwrap();
        },
    );
    check_late(
        "zero on stream 1 touches 8 bytes at 0x7000000000000000, which were freed meanwhile",
        |Bench { gpu, .. }, is_right| {
            let (stream, memory) = (gpu.stream(), gpu.memory(8));
            gpu.zero(stream, memory).unwrap();
            if is_right {
                gpu.finish(stream).unwrap();
            }
            gpu.free(memory.address).unwrap();
        },
    );
}

#[test]
#[needs(Sycl)]
fn freeing_an_invalid_address_or_twice() {
    check(
        "free of 0x7000000000000000, which was freed before",
        |Bench { gpu, .. }, is_right| {
            let memory = gpu.memory(8);
            gpu.free(memory.address).unwrap();
            if !is_right {
                assert!(gpu.free(memory.address).is_err());
            }
        },
    );
    check(
        "free of 0x7000000000000004, where no allocation starts",
        |Bench { gpu, .. }, is_right| {
            let memory = gpu.memory(8);
            let freed = gpu.free(memory.address + if is_right { 0 } else { 4 });
            assert_eq!(freed.is_ok(), is_right);
        },
    );
    check(
        "which is memory of the other kind",
        |Bench { gpu, .. }, is_right| {
            let pinned = gpu.pinned(8);
            match is_right {
                true => gpu.free_pinned(pinned),
                false => drop(gpu.free(pinned.span().address).unwrap_err()),
            }
        },
    );
}

#[test]
#[needs(Sycl)]
fn accessing_invalid_memory() {
    check(
        "zero on stream 1 touches 4 bytes at 0x7000000000000004, which were freed",
        |Bench { gpu, .. }, is_right| {
            let (stream, memory) = (gpu.stream(), gpu.memory(8));
            if !is_right {
                gpu.free(memory.address).unwrap();
            }
            let part = span(memory.address + 4, 4);
            assert_eq!(gpu.zero(stream, part).is_ok(), is_right);
            // Its address is not used again.
            assert_ne!(gpu.memory(8), memory);
        },
    );
    check(
        "touches 9 bytes at 0x7000000000000000, which are not in one allocation",
        |Bench { gpu, .. }, is_right| {
            let (stream, memory) = (gpu.stream(), gpu.memory(8));
            let len_bytes = if is_right { 8 } else { 9 };
            let zeroed = gpu.zero(stream, span(memory.address, len_bytes));
            assert_eq!(zeroed.is_ok(), is_right);
        },
    );
}

#[test]
#[needs(Sycl)]
fn spans_of_different_lengths() {
    check("which overlap", |Bench { gpu, .. }, is_right| {
        let (stream, memory) = (gpu.stream(), gpu.memory(16));
        let to = span(memory.address + if is_right { 8 } else { 4 }, 8);
        gpu.copy(stream, to, span(memory.address, 8)).unwrap();
    });
    check(
        "copy on stream 1 of 8 bytes to 4 bytes",
        |Bench { gpu, .. }, is_right| {
            let (stream, memory) = (gpu.stream(), gpu.memory(16));
            let to = span(memory.address, if is_right { 8 } else { 4 });
            let from = span(memory.address + 8, 8);
            assert_eq!(gpu.copy(stream, to, from).is_ok(), is_right);
        },
    );
}

#[test]
#[needs(Sycl)]
fn changing_memory_of_the_host_while_it_is_copied() {
    check_late(
        "before copy on stream 1 was done with them",
        |Bench { gpu, .. }, is_right| {
            let stream = gpu.stream();
            let (memory, pinned) = (gpu.memory(8), gpu.pinned(8));
            pinned.write(&[1; 8]);
            gpu.copy(stream, memory, pinned.span()).unwrap();
            if is_right {
                gpu.finish(stream).unwrap();
            }
            pinned.write(&[2; 8]);
        },
    );
    check_late(
        "before copy on stream 1 was done with them",
        |Bench { gpu, .. }, is_right| {
            let stream = gpu.stream();
            let (memory, pinned) = (gpu.memory(8), gpu.pinned(8));
            gpu.copy(stream, pinned.span(), memory).unwrap();
            if is_right {
                gpu.finish(stream).unwrap();
            }
            pinned.write(&[2; 8]);
        },
    );
}

#[test]
#[needs(Sycl)]
fn a_gpu_that_changes_memory_of_the_host_is_not_the_host() {
    check_late("which was freed before", |bench, is_right| {
        let gpu = &bench.gpu;
        let stream = gpu.stream();
        let (from, pinned, to) = (gpu.memory(8), gpu.pinned(8), gpu.memory(8));
        gpu.copy(stream, to, pinned.span()).unwrap();
        gpu.zero(stream, from).unwrap();
        gpu.copy(stream, pinned.span(), from).unwrap();
        gpu.copy(stream, to, pinned.span()).unwrap();
        gpu.finish(stream).unwrap();
        assert_eq!(bench.driver.peek(to).unwrap(), [0; 8]);
        gpu.free_pinned(pinned);
        if !is_right {
            gpu.free_pinned(pinned);
        }
    });
}

#[test]
#[needs(Sycl)]
fn freeing_pinned_memory_in_use() {
    check(
        "which copy on stream 1 reads; the host does not know that this is done",
        |Bench { gpu, .. }, is_right| {
            let stream = gpu.stream();
            let (memory, pinned) = (gpu.memory(8), gpu.pinned(8));
            gpu.copy(stream, memory, pinned.span()).unwrap();
            if is_right {
                gpu.finish(stream).unwrap();
            }
            gpu.free_pinned(pinned);
        },
    );
    check(
        "the host has written byte 3 of 8 bytes of pinned memory",
        |Bench { gpu, .. }, is_right| {
            let pinned = gpu.pinned(8);
            let bytes = [0xdd, 0xdd, 0xdd, 1];
            if is_right {
                pinned.write(&bytes);
            }
            gpu.free_pinned(pinned);
            if !is_right {
                pinned.write(&bytes);
            }
        },
    );
}

#[test]
#[needs(Sycl)]
fn accessing_a_peer_that_was_not_enabled() {
    check(
        "copy on stream 1 touches 8 bytes at 0x7001000000000000, of GPU 1, to which GPU 0 has no access",
        |Bench { gpu, driver }, is_right| {
            let other = driver.open(1).unwrap();
            let (from, to) = (other.memory(8), gpu.memory(8));
            if is_right {
                gpu.enable_peer(1).unwrap();
            }
            let copied = gpu.copy(gpu.stream(), to, from);
            assert_eq!(copied.is_ok(), is_right);
            driver.finish();
        },
    );
}

#[test]
#[needs(Sycl)]
fn foreign_or_destroyed_streams_events_and_functions() {
    check(
        "zero by GPU 0 on stream 1, which is of GPU 1",
        |Bench { gpu, driver }, is_right| {
            let other = driver.open(1).unwrap();
            let (theirs, ours) = (other.stream(), gpu.stream());
            let stream = if is_right { ours } else { theirs };
            assert_eq!(gpu.zero(stream, gpu.memory(8)).is_ok(), is_right);
        },
    );
    check(
        "record on stream 1, which was destroyed",
        |Bench { gpu, driver }, is_right| {
            let (stream, memory) = (gpu.stream(), gpu.memory(8));
            let event = gpu.new_event().unwrap();
            gpu.zero(stream, memory).unwrap();
            if is_right {
                gpu.record(event, stream).unwrap();
            }
            gpu.drop_stream(stream);
            // Its work is done.
            driver.finish();
            assert_eq!(driver.peek(memory).unwrap(), [0; 8]);
            if !is_right {
                assert!(gpu.record(event, stream).is_err());
            }
        },
    );
    check(
        "wait of event 1, which does not exist",
        |Bench { gpu, driver }, is_right| {
            let (one, other) = (gpu.stream(), gpu.stream());
            let memory = gpu.memory(8);
            gpu.zero(one, memory).unwrap();
            let event = gpu.recorded(one);
            if is_right {
                gpu.wait(other, event).unwrap();
            }
            gpu.drop_event(event);
            if !is_right {
                assert!(gpu.wait(other, event).is_err());
            } else {
                gpu.zero(other, memory).unwrap();
            }
            assert_eq!((driver.n_live_events(), driver.n_live_streams()), (0, 2));
        },
    );
    check(
        "launch of function 0, which this GPU does not have",
        |Bench { gpu, driver }, is_right| {
            let other = driver.open(1).unwrap();
            let function = if is_right { gpu } else { &other }.compiled(&twice(), "twice");
            let arguments = [Argument::Write(gpu.memory(4))];
            let launched = gpu.call(gpu.stream(), function, 1, &arguments);
            assert_eq!(launched.is_ok(), is_right);
        },
    );
}

#[test]
#[needs(Sycl)]
fn calling_a_restarted_gpu() {
    check(
        "drop_stream of GPU 0 from before its restart",
        |bench, is_right| {
            let stream = bench.gpu.stream();
            bench.driver.lose(0);
            let anew = bench.driver.open(0).unwrap();
            assert!(anew.new_stream(0).is_ok());
            if !is_right {
                bench.gpu.drop_stream(stream);
            }
        },
    );
}
