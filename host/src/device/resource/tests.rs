//! Resources: who keeps them, who makes them, and what they are called.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::Weak;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::thread;

use super::ContainerInfo;
use super::Resource;
use super::ResourceError;
use super::ResourceManager;
use crate::graph::AttrSet;
use crate::graph::AttrValue;

#[derive(Debug, PartialEq)]
struct Table(u64);

#[derive(Debug)]
struct Queue;

impl Resource for Table {
    fn describe(&self) -> String {
        format!("a table of {}", self.0)
    }

    fn memory_bytes(&self) -> u64 {
        self.0
    }
}

impl Resource for Queue {
    fn describe(&self) -> String {
        "a queue".to_owned()
    }
}

/// Asks its manager whenever somebody asks it, and when it goes.
struct Curious(Weak<ResourceManager>);

impl Curious {
    fn ask(&self) -> usize {
        self.0.upgrade().map_or(0, |manager| {
            let found = manager.lookup_many::<Table>(&[("c", "t")]);
            found.unwrap().iter().flatten().count()
        })
    }
}

impl Resource for Curious {
    fn describe(&self) -> String {
        format!("sees {}", self.ask())
    }

    fn memory_bytes(&self) -> u64 {
        self.ask() as u64
    }
}

impl Drop for Curious {
    fn drop(&mut self) {
        self.ask();
    }
}

fn text_attrs(attrs: &[(&str, &str)]) -> AttrSet {
    let attrs = attrs.iter().map(|&(name, value)| {
        let value = AttrValue::Bytes(value.as_bytes().into());
        (name.into(), value)
    });
    AttrSet::new(attrs)
}

#[test]
fn an_unowned_resource_is_there_as_long_as_its_owner_holds_it() {
    let manager = ResourceManager::new();
    let table = Arc::new(Table(1));
    manager.create_unowned("c", "t", &table).unwrap();
    assert_eq!(*manager.lookup::<Table>("c", "t").unwrap(), Table(1));
    // The name is taken as long.
    let error = manager.create("c", "t", Arc::new(Table(2))).unwrap_err();
    assert!(
        matches!(error, ResourceError::AlreadyExists { .. }),
        "{error}"
    );
    drop(table);
    let error = manager.lookup::<Table>("c", "t").unwrap_err();
    assert!(matches!(error, ResourceError::Expired { .. }), "{error}");
    assert_eq!(manager.memory_bytes(), 0);
    assert!(
        manager.describe()[0].ends_with(": gone"),
        "{:?}",
        manager.describe()
    );
    manager.create("c", "t", Arc::new(Table(3))).unwrap();
    assert_eq!(*manager.lookup::<Table>("c", "t").unwrap(), Table(3));
}

#[test]
fn an_unowned_resource_is_deleted_by_its_owner_alone() {
    let manager = ResourceManager::new();
    let table = Arc::new(Table(1));
    manager.create_unowned("c", "t", &table).unwrap();
    let error = manager.delete::<Table>("c", "t").unwrap_err();
    assert!(matches!(error, ResourceError::NotOwned { .. }), "{error}");
    assert!(manager.lookup::<Table>("c", "t").is_ok());
    // Dropping the container ends the name; the resource is its owner's.
    manager.cleanup("c").unwrap();
    let error = manager.lookup::<Table>("c", "t").unwrap_err();
    assert!(
        matches!(error, ResourceError::NoContainer { .. }),
        "{error}"
    );
    assert_eq!(*table, Table(1));
}

#[test]
fn what_has_expired_is_made_anew() {
    let manager = ResourceManager::new();
    let table = Arc::new(Table(1));
    manager.create_unowned("c", "t", &table).unwrap();
    drop(table);
    let made = manager.lookup_or_create::<Table, ResourceError>("c", "t", || Ok(Table(2)));
    assert_eq!(*made.unwrap(), Table(2));
    let found =
        manager.lookup_or_create::<Table, ResourceError>("c", "t", || panic!("it is there"));
    assert_eq!(*found.unwrap(), Table(2));
}

#[test]
fn who_deletes_ends_the_name_and_not_the_resource() {
    let manager = ResourceManager::new();
    manager.create("c", "t", Arc::new(Table(7))).unwrap();
    let held = manager.lookup::<Table>("c", "t").unwrap();
    manager.delete::<Table>("c", "t").unwrap();
    let error = manager.delete::<Table>("c", "t").unwrap_err();
    assert!(matches!(error, ResourceError::NotFound { .. }), "{error}");
    assert_eq!(*held, Table(7));
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_creator_that_calls_back_is_told_so() {
    let manager = Arc::new(ResourceManager::new());
    manager.create("c", "other", Arc::new(Table(1))).unwrap();
    let called_back = |error: &ResourceError| {
        let expected = ResourceError::CalledBack {
            container: "c".to_owned(),
            name: "t".to_owned(),
        };
        assert_eq!(*error, expected);
    };
    let outcome = manager.lookup_or_create::<Table, ResourceError>("c", "t", || {
        called_back(&manager.lookup::<Table>("c", "other").unwrap_err());
        called_back(&manager.delete::<Table>("c", "other").unwrap_err());
        called_back(&manager.cleanup("c").unwrap_err());
        called_back(&manager.clear().unwrap_err());
        called_back(&manager.finalize().unwrap_err());
        assert!(manager.describe().is_empty());
        let inner = manager.lookup_or_create::<Queue, _>("c", "q", || Ok(Queue));
        inner.map(|_: Arc<Queue>| Table(0))
    });
    called_back(&outcome.unwrap_err());
    // Nothing of it is left.
    assert!(manager.lookup::<Queue>("c", "q").is_err());
    let made = manager.lookup_or_create::<Table, ResourceError>("c", "t", || Ok(Table(2)));
    assert_eq!(*made.unwrap(), Table(2));
}

#[test]
fn another_thread_waits_for_the_creator_and_is_not_taken_for_it() {
    let manager = ResourceManager::new();
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            barrier.wait();
            manager.lookup::<Table>("c", "t")
        });
        let made = manager.lookup_or_create::<Table, ResourceError>("c", "t", || {
            barrier.wait();
            // Whether the other one asks now or later, it gets what is made.
            thread::yield_now();
            Ok(Table(5))
        });
        assert_eq!(*made.unwrap(), Table(5));
        assert_eq!(*waiting.join().unwrap().unwrap(), Table(5));
    });
}

#[test]
fn a_creator_that_panics_or_fails_leaves_nothing_behind() {
    let manager = ResourceManager::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        manager.lookup_or_create::<Table, ResourceError>("c", "t", || panic!("out of cheese"))
    }));
    assert!(panicked.is_err());
    let error = manager.lookup::<Table>("c", "t").unwrap_err();
    assert!(
        matches!(error, ResourceError::NoContainer { .. }),
        "{error}"
    );
    let failed = manager.lookup_or_create::<Table, ResourceError>("c", "t", || {
        Err(ResourceError::ReservedName("_".to_owned()))
    });
    assert_eq!(
        failed.unwrap_err(),
        ResourceError::ReservedName("_".to_owned())
    );
    let made = manager.lookup_or_create::<Table, ResourceError>("c", "t", || Ok(Table(1)));
    assert_eq!(*made.unwrap(), Table(1));
}

#[test]
fn of_many_callers_one_creates() {
    let manager = ResourceManager::new();
    let n_created = AtomicU32::new(0);
    let barrier = Barrier::new(8);
    let made: Vec<Arc<Table>> = thread::scope(|scope| {
        let threads = (0..8).map(|number| {
            let (manager, n_created, barrier) = (&manager, &n_created, &barrier);
            scope.spawn(move || {
                barrier.wait();
                manager.lookup_or_create::<Table, ResourceError>("c", "t", || {
                    n_created.fetch_add(1, Ordering::Relaxed);
                    Ok(Table(number))
                })
            })
        });
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.map(Result::unwrap).collect()
    });
    assert_eq!(n_created.load(Ordering::Relaxed), 1);
    assert!(made.iter().all(|table| Arc::ptr_eq(table, &made[0])));
}

#[test]
fn many_are_looked_up_at_once_each_in_its_place() {
    let manager = ResourceManager::new();
    manager.create("a", "t", Arc::new(Table(1))).unwrap();
    manager.create("b", "t", Arc::new(Table(2))).unwrap();
    manager.create("b", "q", Arc::new(Queue)).unwrap();
    let keys = [("b", "t"), ("b", "q"), ("x", "t"), ("a", "t"), ("a", "t")];
    let found = manager.lookup_many::<Table>(&keys).unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|held| held.as_ref().map(|table| table.0))
        .collect();
    assert_eq!(found, [Some(2), None, None, Some(1), Some(1)]);
}

#[test]
fn reports_list_what_there_is_by_container_and_name() {
    let manager = ResourceManager::new();
    manager.create("b", "t", Arc::new(Table(20))).unwrap();
    manager.create("a", "z", Arc::new(Table(300))).unwrap();
    manager.create("a", "q", Arc::new(Queue)).unwrap();
    let said = manager.describe();
    let expected = [
        ("a/q ", ": a queue"),
        ("a/z ", ": a table of 300"),
        ("b/t ", ": a table of 20"),
    ];
    assert_eq!(said.len(), expected.len());
    for (line, (start, end)) in said.iter().zip(expected) {
        assert!(line.starts_with(start) && line.ends_with(end), "{line}");
    }
    assert_eq!(manager.memory_bytes(), 320);
    manager
        .create("a", "huge", Arc::new(Table(u64::MAX)))
        .unwrap();
    assert_eq!(manager.memory_bytes(), u64::MAX);
}

#[test]
fn resources_may_ask_their_manager_when_they_are_asked_or_let_go() {
    let manager = Arc::new(ResourceManager::new());
    let curious = || Arc::new(Curious(Arc::downgrade(&manager)));
    manager.create("c", "t", Arc::new(Table(1))).unwrap();
    manager.create("c", "curious", curious()).unwrap();
    assert!(manager.describe()[0].ends_with("sees 1"));
    assert_eq!(manager.memory_bytes(), 2);
    // The one that finds its name taken goes, as do those that are deleted.
    let error = manager.create("c", "curious", curious()).unwrap_err();
    assert!(
        matches!(error, ResourceError::AlreadyExists { .. }),
        "{error}"
    );
    manager.delete::<Curious>("c", "curious").unwrap();
    manager.create("d", "curious", curious()).unwrap();
    manager.cleanup("d").unwrap();
    manager.create("d", "curious", curious()).unwrap();
    manager.clear().unwrap();
    manager.finalize().unwrap();
    let error = manager.create("d", "curious", curious()).unwrap_err();
    assert!(matches!(error, ResourceError::Finalized { .. }), "{error}");
}

#[test]
fn container_and_name_come_from_the_attributes() {
    let manager = ResourceManager::with_default_container("worker");
    let resolve = |attrs: &[(&str, &str)], use_node_name| {
        ContainerInfo::resolve(&manager, "node", &text_attrs(attrs), use_node_name)
    };
    let info = |container: &str, name: &str| ContainerInfo {
        container: container.to_owned(),
        name: name.to_owned(),
        is_private_to_kernel: false,
    };
    let both = [("container", "mine.1/a-b"), ("shared_name", "shared")];
    assert_eq!(resolve(&both, false).unwrap(), info("mine.1/a-b", "shared"));
    assert_eq!(resolve(&both[1..], true).unwrap(), info("worker", "shared"));
    assert_eq!(resolve(&[], true).unwrap(), info("worker", "node"));
    let empty = [("container", ""), ("shared_name", "")];
    assert_eq!(resolve(&empty, true).unwrap(), info("worker", "node"));
}

#[test]
fn bad_containers_and_reserved_names_are_refused() {
    let manager = ResourceManager::new();
    let resolve =
        |attrs: &[(&str, &str)]| ContainerInfo::resolve(&manager, "node", &text_attrs(attrs), true);
    for container in [
        "_hidden",
        "with_underscore",
        "-dash",
        "/slash",
        "sp ace",
        "käse",
    ] {
        let error = resolve(&[("container", container)]).unwrap_err();
        assert_eq!(
            error,
            ResourceError::MalformedContainer(container.to_owned())
        );
    }
    for container in [".dot", "9", "a/", "A-.-"] {
        assert_eq!(
            resolve(&[("container", container)]).unwrap().container,
            container
        );
    }
    let error = resolve(&[("shared_name", "_t")]).unwrap_err();
    assert_eq!(error, ResourceError::ReservedName("_t".to_owned()));
    assert!(error.to_string().contains("choose another name"));
}

#[test]
fn each_private_resource_has_a_name_of_its_own() {
    let manager = ResourceManager::new();
    let resolve = || ContainerInfo::resolve(&manager, "node", &AttrSet::default(), false);
    let (first, second) = (resolve().unwrap(), resolve().unwrap());
    assert!(first.is_private_to_kernel && second.is_private_to_kernel);
    assert_ne!(first.name, second.name);
    // No `shared_name` can be the same.
    assert!(first.name.starts_with('_') && second.name.starts_with('_'));
    assert_eq!(first.container, "localhost");
}
