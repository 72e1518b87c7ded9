//! The resources of one device.

use std::any::Any;
use std::any::TypeId;
use std::any::type_name;
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::Weak;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::ThreadId;

use super::error::ResourceError;
use crate::device::DeviceContext;
use crate::device::KernelError;

/// The default container of managers that are created without another one.
const DEFAULT_CONTAINER: &str = "localhost";

/// Something that stays on a device between runs. Shared by all that hold a reference: deleting it
/// from its manager only ends its name.
pub trait Resource: Any + Send + Sync {
    /// A description for reports.
    fn describe(&self) -> String;

    /// Returns the bytes that it holds; 0 if unknown.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Returns the same for another device: `from` copies out of the memory of the device that it
    /// is on, `to` into the other one's. `None` if it cannot leave its device, which is the
    /// default.
    ///
    /// # Errors
    /// In `Some`: those of the copies.
    fn moved(
        &self,
        from: &dyn DeviceContext,
        to: &dyn DeviceContext,
    ) -> Option<Result<Arc<dyn Resource>, KernelError>> {
        let _ = (from, to);
        None
    }
}

/// A resource of any type, and its place in a manager.
pub(crate) struct Named {
    key: Key,
    type_name: &'static str,
    pub(crate) resource: Arc<dyn Resource>,
}

/// The resources of one device, by container, type and name (TensorFlow `ResourceMgr`): two
/// resources of different types may have the same name. A value behind an `Arc`; every method may
/// be called from any thread.
///
/// # Errors
/// Methods that are called on its thread while [`Self::lookup_or_create`] runs the creator return
/// [`ResourceError::CalledBack`].
pub struct ResourceManager {
    default_container: String,
    state: Mutex<State>,
    /// The thread that holds the lock to create a resource, and which one.
    creation: Mutex<Option<Creation>>,
    n_unnamed: AtomicU64,
}

#[derive(Default)]
struct State {
    containers: BTreeMap<String, BTreeMap<Key, Entry>>,
    is_finalized: bool,
}

#[derive(Debug, Clone)]
struct Creation {
    thread: ThreadId,
    container: String,
    name: String,
}

/// The name comes first, because containers list their resources by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    name: String,
    resource_type: TypeId,
}

struct Entry {
    type_name: &'static str,
    resource: Held,
}

enum Held {
    Owned(Arc<dyn Resource>),
    /// Disappears with its owner.
    Unowned(Weak<dyn Resource>),
}

/// Records that the lock is no longer held for a creation, also if the creator panics.
struct CreationGuard<'a>(&'a Mutex<Option<Creation>>);

impl Drop for CreationGuard<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl ResourceManager {
    /// Creates a manager whose default container is `localhost`.
    pub fn new() -> Self {
        Self::with_default_container(DEFAULT_CONTAINER)
    }

    /// Creates a manager with another default container; a device's is its job.
    pub fn with_default_container(container: impl Into<String>) -> Self {
        Self {
            default_container: container.into(),
            state: Mutex::default(),
            creation: Mutex::default(),
            n_unnamed: AtomicU64::new(0),
        }
    }

    /// Returns the container of resources whose creator names none.
    pub fn default_container(&self) -> &str {
        &self.default_container
    }

    /// Adds a resource; creates its container if necessary.
    ///
    /// # Errors
    /// [`ResourceError::AlreadyExists`], and the old one stays; [`ResourceError::Finalized`].
    pub fn create<R: Resource>(
        &self,
        container: &str,
        name: &str,
        resource: Arc<R>,
    ) -> Result<(), ResourceError> {
        self.insert::<R>(container, name, Held::Owned(resource))
    }

    /// Adds a resource that the manager does not keep alive: it exists as long as something else
    /// holds it.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_unowned<R: Resource>(
        &self,
        container: &str,
        name: &str,
        resource: &Arc<R>,
    ) -> Result<(), ResourceError> {
        let weak: Weak<R> = Arc::downgrade(resource);
        self.insert::<R>(container, name, Held::Unowned(weak))
    }

    fn insert<R: Resource>(
        &self,
        container: &str,
        name: &str,
        resource: Held,
    ) -> Result<(), ResourceError> {
        let mut resource = Some(resource);
        let outcome = self.lock()?.insert::<R>(container, name, &mut resource);
        // Outside the lock, as all that is dropped: it may ask the manager.
        drop(resource);
        outcome
    }

    /// Returns the resource of this type and name.
    ///
    /// # Errors
    /// [`ResourceError::NoContainer`], [`ResourceError::NotFound`], [`ResourceError::Expired`].
    pub fn lookup<R: Resource>(
        &self,
        container: &str,
        name: &str,
    ) -> Result<Arc<R>, ResourceError> {
        self.lock()?.find(container, name)
    }

    /// Returns per (container, name) pair the resource, if it exists.
    ///
    /// # Errors
    /// [`ResourceError::CalledBack`].
    pub fn lookup_many<R: Resource>(
        &self,
        keys: &[(&str, &str)],
    ) -> Result<Vec<Option<Arc<R>>>, ResourceError> {
        let state = self.lock()?;
        let find = |&(container, name): &(&str, &str)| state.find(container, name).ok();
        Ok(keys.iter().map(find).collect())
    }

    /// Returns the resource of this type and name, which `create` makes if it does not exist. Of
    /// several concurrent callers one creates, and the others get its result. `create` runs under
    /// the manager's lock, so it must not call the manager.
    ///
    /// # Errors
    /// The error of `create`, and nothing is stored; [`ResourceError::Finalized`] and
    /// [`ResourceError::CalledBack`].
    pub fn lookup_or_create<R: Resource, E: From<ResourceError>>(
        &self,
        container: &str,
        name: &str,
        create: impl FnOnce() -> Result<R, E>,
    ) -> Result<Arc<R>, E> {
        let mut state = self.lock()?;
        if let Ok(found) = state.find(container, name) {
            return Ok(found);
        }
        state.check_open::<R>(container, name)?;
        *self.creation() = Some(Creation {
            thread: thread::current().id(),
            container: container.to_owned(),
            name: name.to_owned(),
        });
        let guard = CreationGuard(&self.creation);
        let created = create();
        drop(guard);
        let resource = Arc::new(created?);
        // What has expired makes room.
        state.remove_expired::<R>(container, name);
        let mut held = Some(Held::Owned(Arc::clone(&resource) as _));
        state.insert::<R>(container, name, &mut held)?;
        Ok(resource)
    }

    /// Returns the resources of this name, of any type.
    ///
    /// # Errors
    /// [`ResourceError::CalledBack`].
    pub(crate) fn of_name(&self, container: &str, name: &str) -> Result<Vec<Named>, ResourceError> {
        let state = self.lock()?;
        let entries = state.containers.get(container).into_iter().flatten();
        let of_name = entries.filter(|(key, _)| key.name == name);
        let named = of_name.filter_map(|(key, entry)| {
            Some(Named {
                key: key.clone(),
                type_name: entry.type_name,
                resource: entry.resource.get()?,
            })
        });
        Ok(named.collect())
    }

    /// Takes over what another manager has under this name, instead of what this one may have.
    ///
    /// # Errors
    /// [`ResourceError::Finalized`], [`ResourceError::CalledBack`].
    pub(crate) fn adopt(&self, container: &str, named: Named) -> Result<(), ResourceError> {
        let mut state = self.lock()?;
        if state.is_finalized {
            return Err(ResourceError::Finalized {
                container: container.to_owned(),
                name: named.key.name,
                type_name: named.type_name,
            });
        }
        let entries = state.containers.entry(container.to_owned()).or_default();
        let entry = Entry {
            type_name: named.type_name,
            resource: Held::Owned(named.resource),
        };
        let replaced = entries.insert(named.key, entry);
        // Outside the lock, as all that is dropped: it may ask the manager.
        drop(state);
        drop(replaced);
        Ok(())
    }

    /// Removes a resource from the manager. Its holders keep it.
    ///
    /// # Errors
    /// [`ResourceError::NoContainer`], [`ResourceError::NotFound`], and [`ResourceError::NotOwned`]
    /// for one that was created unowned.
    pub fn delete<R: Resource>(&self, container: &str, name: &str) -> Result<(), ResourceError> {
        let dropped = self.lock()?.remove::<R>(container, name)?;
        // Outside the lock: what is dropped may hold handles of its own.
        drop(dropped);
        Ok(())
    }

    /// Drops a container with all its resources; does nothing if it does not exist.
    ///
    /// # Errors
    /// [`ResourceError::CalledBack`].
    pub fn cleanup(&self, container: &str) -> Result<(), ResourceError> {
        let dropped = self.lock()?.containers.remove(container);
        drop(dropped);
        Ok(())
    }

    /// Drops all containers.
    ///
    /// # Errors
    /// [`ResourceError::CalledBack`].
    pub fn clear(&self) -> Result<(), ResourceError> {
        let dropped = std::mem::take(&mut self.lock()?.containers);
        drop(dropped);
        Ok(())
    }

    /// Prevents the creation of further resources; existing ones stay.
    ///
    /// # Errors
    /// [`ResourceError::CalledBack`].
    pub fn finalize(&self) -> Result<(), ResourceError> {
        self.lock()?.is_finalized = true;
        Ok(())
    }

    /// Returns one line per resource: `CONTAINER/NAME TYPE: DESCRIPTION`, sorted. Empty while this
    /// thread creates a resource.
    pub fn describe(&self) -> Vec<String> {
        let listed = self.listed().into_iter();
        let lines = listed.map(|(label, resource)| {
            let said = resource.map_or_else(|| "gone".to_owned(), |held| held.describe());
            format!("{label}: {said}")
        });
        lines.collect()
    }

    /// Returns the bytes that the resources hold, as far as known.
    pub fn memory_bytes(&self) -> u64 {
        let resources = self.listed().into_iter();
        resources
            .filter_map(|(_, resource)| resource)
            .map(|resource| resource.memory_bytes())
            .fold(0, u64::saturating_add)
    }

    /// Returns the resources with `CONTAINER/NAME TYPE`. They are held, so that they can be called,
    /// and dropped, without the lock.
    fn listed(&self) -> Vec<(String, Option<Arc<dyn Resource>>)> {
        let Ok(state) = self.lock() else {
            return Vec::new();
        };
        let containers = state.containers.iter();
        let listed = containers.flat_map(|(container, entries)| {
            entries.iter().map(move |(key, entry)| {
                let label = format!("{container}/{} {}", key.name, entry.type_name);
                (label, entry.resource.get())
            })
        });
        listed.collect()
    }

    /// Numbers the resources without a name, from 0.
    pub(super) fn next_unnamed(&self) -> u64 {
        self.n_unnamed.fetch_add(1, Ordering::Relaxed)
    }

    fn creation(&self) -> MutexGuard<'_, Option<Creation>> {
        self.creation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, ResourceError> {
        // A creator that calls back would wait for itself. Only this thread can have written its
        // own id, so what another one writes meanwhile does not matter.
        if let Some(creation) = &*self.creation()
            && creation.thread == thread::current().id()
        {
            return Err(ResourceError::CalledBack {
                container: creation.container.clone(),
                name: creation.name.clone(),
            });
        }
        // A creator that panics has stored nothing.
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for ResourceManager {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ResourceManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceManager")
            .field("default_container", &self.default_container)
            .finish_non_exhaustive()
    }
}

impl Held {
    fn get(&self) -> Option<Arc<dyn Resource>> {
        match self {
            Self::Owned(resource) => Some(Arc::clone(resource)),
            Self::Unowned(resource) => resource.upgrade(),
        }
    }

    /// Checks this without holding the resource, which could make this the last holder.
    fn is_gone(&self) -> bool {
        match self {
            Self::Owned(_) => false,
            Self::Unowned(resource) => resource.strong_count() == 0,
        }
    }
}

fn key<R: Resource>(name: &str) -> Key {
    Key {
        name: name.to_owned(),
        resource_type: TypeId::of::<R>(),
    }
}

impl State {
    fn check_open<R: Resource>(&self, container: &str, name: &str) -> Result<(), ResourceError> {
        if !self.is_finalized {
            return Ok(());
        }
        Err(ResourceError::Finalized {
            container: container.to_owned(),
            name: name.to_owned(),
            type_name: type_name::<R>(),
        })
    }

    fn insert<R: Resource>(
        &mut self,
        container: &str,
        name: &str,
        resource: &mut Option<Held>,
    ) -> Result<(), ResourceError> {
        self.check_open::<R>(container, name)?;
        self.remove_expired::<R>(container, name);
        let entries = self.containers.entry(container.to_owned()).or_default();
        match entries.entry(key::<R>(name)) {
            btree_map::Entry::Occupied(_) => Err(ResourceError::AlreadyExists {
                container: container.to_owned(),
                name: name.to_owned(),
                type_name: type_name::<R>(),
            }),
            btree_map::Entry::Vacant(vacant) => {
                vacant.insert(Entry {
                    type_name: type_name::<R>(),
                    resource: resource.take().expect("it is handed in"),
                });
                Ok(())
            }
        }
    }

    fn remove_expired<R: Resource>(&mut self, container: &str, name: &str) {
        if let Some(entries) = self.containers.get_mut(container) {
            let key = key::<R>(name);
            if entries
                .get(&key)
                .is_some_and(|entry| entry.resource.is_gone())
            {
                entries.remove(&key);
            }
        }
    }

    fn container<R: Resource>(
        &self,
        container: &str,
        name: &str,
    ) -> Result<&BTreeMap<Key, Entry>, ResourceError> {
        self.containers
            .get(container)
            .ok_or_else(|| ResourceError::NoContainer {
                container: container.to_owned(),
                name: name.to_owned(),
                type_name: type_name::<R>(),
            })
    }

    fn find<R: Resource>(&self, container: &str, name: &str) -> Result<Arc<R>, ResourceError> {
        let entries = self.container::<R>(container, name)?;
        let entry = entries
            .get(&key::<R>(name))
            .ok_or_else(|| ResourceError::NotFound {
                container: container.to_owned(),
                name: name.to_owned(),
                type_name: type_name::<R>(),
            })?;
        let resource: Arc<dyn Any + Send + Sync> =
            entry.resource.get().ok_or_else(|| ResourceError::Expired {
                container: container.to_owned(),
                name: name.to_owned(),
                type_name: type_name::<R>(),
            })?;
        Ok(resource
            .downcast()
            .unwrap_or_else(|_| unreachable!("the key holds the type")))
    }

    fn remove<R: Resource>(&mut self, container: &str, name: &str) -> Result<Entry, ResourceError> {
        let key = key::<R>(name);
        let entry = self.container::<R>(container, name)?.get(&key);
        match entry.map(|entry| &entry.resource) {
            Some(Held::Unowned(_)) => Err(ResourceError::NotOwned {
                container: container.to_owned(),
                name: name.to_owned(),
                type_name: type_name::<R>(),
            }),
            Some(Held::Owned(_)) => {
                let entries = self.containers.get_mut(container);
                let removed = entries.and_then(|entries| entries.remove(&key));
                Ok(removed.expect("it was there"))
            }
            None => Err(ResourceError::NotFound {
                container: container.to_owned(),
                name: name.to_owned(),
                type_name: type_name::<R>(),
            }),
        }
    }
}
