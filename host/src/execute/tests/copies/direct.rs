//! Copies from one device to another that do not go through the host.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::Bench;
use super::Direct;
use super::GPU;
use super::Kind;
use super::Ported;
use crate::execute::ExecuteError;
use crate::execute::RunOptions;
use crate::execute::fake::FakeWorld;
use crate::execute::tests::threads;
use crate::trace::EventKind;
use crate::trace::Recorder;
use crate::trace::TransferWay;

/// From one device to another like it, and both to the CPU.
const PEERS: &str = "
    x = Placeholder() @ 1
    a = Neg(x) @ 1
    s = Sum(a, a) @ 1
    pa = Neg(a) @ 2
    ps = Neg(s) @ 2
    sum = Sum(pa, ps) @ 2
    c = Neg(sum) @ 0
";

/// Devices of this kind and the copies to the host that they start, which end at once.
fn peers(kind: Kind, n_threads: usize) -> (Bench, Arc<AtomicU64>) {
    let n_copies = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&n_copies);
    let world = FakeWorld::new(&["CPU", "GPU", "GPU"]);
    let bench = Bench::build(&world, kind, PEERS, &threads(n_threads), move |copy| {
        counted.fetch_add(1, Ordering::Relaxed);
        copy.finish();
    });
    (bench, n_copies)
}

/// By which way what went, in a run of all of `PEERS`.
fn ways(bench: &Bench) -> Vec<(String, TransferWay)> {
    let recorder = Recorder::on();
    let options = RunOptions::default().with_recorder(recorder.clone());
    let prepared = bench.prepare(&["c"], &[]);
    bench.run(&prepared, 1.0, &options).unwrap();
    let events = recorder.events();
    let ways = events.iter().filter_map(|event| match event.kind {
        EventKind::Transfer {
            payload,
            way,
            bytes,
            ..
        } => {
            assert_eq!(bytes, 16);
            Some((payload.name(&bench.sketch.graph), way))
        }
        _ => None,
    });
    let mut ways: Vec<_> = ways.collect();
    ways.sort();
    ways
}

#[test]
fn devices_of_one_kind_copy_directly() {
    for n_threads in [1, 2] {
        let kind = Kind {
            direct: Direct::Taken,
            ..Kind::default()
        };
        let (bench, n_copies) = peers(kind, n_threads);
        bench.check(&["c"], &[-3.0]);
        // To the CPU alone.
        assert_eq!(n_copies.load(Ordering::Relaxed), 15);
        let (direct, staged) = (TransferWay::Direct, TransferWay::Staged);
        let expected = [("a:0", direct), ("s:0", direct), ("sum:0", staged)];
        assert_eq!(ways(&bench), expected.map(|(name, way)| (name.into(), way)));
        assert_eq!(bench.in_use_bytes(), 0);
    }
}

#[test]
fn devices_whose_copies_threads_wait_for_may_copy_directly_too() {
    let kind = Kind {
        direct: Direct::Taken,
        is_async: false,
        ..Kind::default()
    };
    let (bench, n_copies) = peers(kind, 1);
    let prepared = bench.prepare(&["c"], &[]);
    for n_runs in 1..5 {
        let fetched = bench.run(&prepared, 1.0, &RunOptions::default());
        assert_eq!(fetched.unwrap(), [[-3.0; 4]]);
        assert_eq!(bench.port.port.n_waited.load(Ordering::Relaxed), 0);
        assert_eq!(n_copies.load(Ordering::Relaxed), 0, "run {n_runs}");
    }
    let direct = TransferWay::Direct;
    assert_eq!(
        ways(&bench)[..2],
        [("a:0".into(), direct), ("s:0".into(), direct)]
    );
}

#[test]
fn a_copy_that_is_refused_goes_through_the_host() {
    let (bench, n_copies) = peers(Kind::default(), 1);
    bench.check(&["c"], &[-3.0]);
    assert_eq!(n_copies.load(Ordering::Relaxed), 15 * 3);
    let staged = ["a:0", "s:0", "sum:0"].map(|name| (name.into(), TransferWay::Staged));
    assert_eq!(ways(&bench), staged);
}

#[test]
fn a_context_refuses_what_comes_by_one_of_another_kind() {
    let kind = Kind {
        ported: Ported::Side,
        direct: Direct::Taken,
        ..Kind::default()
    };
    let (bench, _) = peers(kind, 2);
    bench.check(&["c"], &[-3.0]);
    let (direct, staged) = (TransferWay::Direct, TransferWay::Staged);
    let expected = [("a:0", staged), ("s:0", direct), ("sum:0", staged)];
    assert_eq!(ways(&bench), expected.map(|(name, way)| (name.into(), way)));
}

#[test]
fn a_direct_copy_that_fails_fails_the_run() {
    for (direct, said) in [
        (Direct::Fails, "no such peer"),
        (Direct::Panics, "the device panicked: out of cheese"),
    ] {
        for (is_async, n_threads) in [(true, 1), (true, 2), (false, 1)] {
            let kind = Kind {
                direct,
                is_async,
                ..Kind::default()
            };
            let (bench, n_copies) = peers(kind, n_threads);
            let error = bench.fail("pa");
            assert!(matches!(error, ExecuteError::Transfer { .. }), "{error:?}");
            let peer = GPU.replace("GPU:0", "GPU:1");
            let what = format!("transfer of `a:0` (key `{GPU};0000000000000001;{peer};edge_");
            let error = error.to_string();
            assert!(error.starts_with(&what), "{error}");
            let rest = format!(" from {GPU} to {peer}: {said}");
            assert!(error.ends_with(&rest), "{error}");
            assert_eq!(n_copies.load(Ordering::Relaxed), 0, "no other way is tried");
            assert_eq!(bench.in_use_bytes(), 0);
        }
    }
}
