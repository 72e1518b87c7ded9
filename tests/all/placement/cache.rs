//! The cache of placements: what it answers, what it does not store, and how it handles damaged
//! entries.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use placewright::candidates::Candidates;
use placewright::candidates::PlacementOptions;
use placewright::placement::Placement;
use placewright::policy::PlaceOptions;
use placewright::policy::PlacementCache;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright::policy::PolicyReport;
use placewright::policy::PolicyRequest;
use placewright::policy::PolicySource;
use placewright::policy::ShippedPolicy;
use placewright::store::CacheFolder;

use super::candidates;
use super::diamond;
use super::soft;

fn fuelled() -> PolicyEngine {
    PolicyEngine::new(PolicyLimits::default().with_fuel(Some(1_000_000_000))).unwrap()
}

fn request(name: &str) -> PolicyRequest {
    let options = PlaceOptions::default().with_explain_wanted(true);
    PolicyRequest::new(ShippedPolicy::find(name).unwrap()).with_options(options)
}

fn found() -> Candidates {
    candidates(&diamond(), &PlacementOptions::default()).unwrap()
}

fn place(
    cache: &PlacementCache,
    candidates: &Candidates,
    request: &PolicyRequest,
) -> (Placement, PolicyReport) {
    cache.place(&fuelled(), candidates, request).unwrap()
}

fn assert_same(a: &Placement, b: &Placement) {
    assert_eq!(a.devices(), b.devices());
    assert_eq!(a.start_order(), b.start_order());
    assert_eq!(a.queues(), b.queues());
    assert_eq!(a.explanations(), b.explanations());
    assert_eq!(a.metrics(), b.metrics());
}

#[test]
fn an_identical_placement_is_answered_without_the_policy() {
    let cache = PlacementCache::new();
    for name in ["priority", "heft", "round-robin"] {
        let (first, asked) = place(&cache, &found(), &request(name));
        assert!(!asked.is_cached && asked.load.is_some());
        // Created again, in another engine, through a clone.
        let (second, report) = place(&cache.clone(), &found(), &request(name));
        assert!(report.is_cached && report.load.is_none());
        assert!(!report.is_fallback());
        assert_eq!(report.answered_by, asked.answered_by);
        assert_eq!(report.identity, asked.identity);
        assert_eq!(report.answer.fuel_used, asked.answer.fuel_used);
        assert_eq!(report.answer.host_fuel_used, asked.answer.host_fuel_used);
        assert!(report.answer.host_fuel_used > Some(0));
        assert_eq!(report.answer.n_offers, asked.answer.n_offers);
        assert_same(&first, &second);
    }
    assert_eq!(cache.len(), 3);
    let others = [
        (
            found(),
            request("heft").with_options(PlaceOptions::default().with_seed(1)),
        ),
        (candidates(&diamond(), &soft()).unwrap(), request("heft")),
    ];
    for (candidates, request) in others {
        assert!(!place(&cache, &candidates, &request).1.is_cached);
    }
}

#[test]
fn irreproducible_answers_are_not_stored() {
    let cache = PlacementCache::new();
    // Limited by a deadline.
    let timed = PolicyEngine::new(PolicyLimits::default()).unwrap();
    for _ in 0..2 {
        let (_, report) = cache.place(&timed, &found(), &request("heft")).unwrap();
        assert!(!report.is_cached);
    }
    // From another policy than the requested one.
    let traps = placewright_fixtures::wasm("traps").to_vec();
    let traps = PolicyRequest::new(PolicySource::Bytes("traps".to_owned(), traps));
    for _ in 0..2 {
        let (_, report) = place(&cache, &found(), &traps);
        assert!(report.is_fallback() && !report.is_cached);
        assert_eq!(report.identity, None);
    }
    assert!(cache.is_empty());
}

#[test]
fn a_cache_is_bounded() {
    let cache = PlacementCache::with_size_bytes_max(1);
    for _ in 0..2 {
        assert!(!place(&cache, &found(), &request("heft")).1.is_cached);
    }
    assert!(cache.is_empty());
}

/// Returns the files of the placements in a folder.
fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .filter(|path| path.to_string_lossy().contains("placement-"))
        .collect()
}

#[test]
fn a_folder_serves_later_processes_and_damaged_entries_are_replaced() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("cache");
    let open = || PlacementCache::in_folder(CacheFolder::open(&path).unwrap());
    let (first, report) = place(&open(), &found(), &request("heft"));
    assert!(!report.is_cached && report.cache_problem.is_none());
    let (second, report) = place(&open(), &found(), &request("heft"));
    assert!(report.is_cached);
    assert_same(&first, &second);

    let entry = entries(&path).remove(0);
    let whole = fs::read(&entry).unwrap();
    for damaged in [&whole[..whole.len() - 1], &whole[..20], b""] {
        fs::write(&entry, damaged).unwrap();
        let (again, report) = place(&open(), &found(), &request("heft"));
        assert!(!report.is_cached);
        let problem = report.cache_problem.expect("a note");
        assert!(problem.contains("damaged"), "{problem}");
        assert_same(&first, &again);
        // The entry was repaired.
        assert!(place(&open(), &found(), &request("heft")).1.is_cached);
    }
}

#[test]
fn threads_may_share_a_cache() {
    let cache = PlacementCache::new();
    let engine = fuelled();
    let expected = Arc::new(place(&cache, &found(), &request("heft")).0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (placement, report) = cache.place(&engine, &found(), &request("heft")).unwrap();
                assert!(report.is_cached);
                assert_same(&placement, &expected);
            });
        }
    });
}
