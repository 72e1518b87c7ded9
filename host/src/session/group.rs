//! Groups of sessions that are reset together.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::Weak;

use crate::device::CancelToken;
use crate::device::DeviceManager;
use crate::device::DeviceSet;

/// Sessions that are reset together, such as all that use the same devices (in TensorFlow, all of a
/// process). An app passes a group to the builders of its sessions; clones share one group.
#[derive(Clone, Default)]
pub struct SessionGroup(Arc<Mutex<Vec<Weak<Member>>>>);

/// The part of a session that its group needs. It lives as long as the session and its callables.
#[derive(Debug)]
pub(super) struct Member {
    /// The devices of the current state.
    devices: Mutex<Arc<DeviceSet>>,
    closed: CancelToken,
}

impl Member {
    /// Creates a member that is closed when the token is cancelled.
    pub(super) fn new(devices: Arc<DeviceSet>, closed: CancelToken) -> Self {
        Self {
            devices: Mutex::new(devices),
            closed,
        }
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Drops containers on the session's devices, and closes the session.
    pub(super) fn reset(&self, containers: &[&str]) {
        self.close();
        // Outside the lock: dropped resources are an app's code.
        let devices = Arc::clone(&self.devices());
        DeviceManager::of_set(&devices).clear_containers(containers);
    }

    /// Replaces the devices, unless the session is closed. Returns whether it has done so. A reset
    /// closes first, so it either prevents this or sees the new devices.
    pub(super) fn replace_devices(&self, devices: &Arc<DeviceSet>) -> bool {
        let mut current = self.devices();
        let is_open = !self.is_closed();
        if is_open {
            let old = std::mem::replace(&mut *current, Arc::clone(devices));
            drop(current);
            drop(old);
        }
        is_open
    }

    /// Nothing that may panic runs under the lock.
    fn devices(&self) -> MutexGuard<'_, Arc<DeviceSet>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionGroup {
    /// Creates an empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drops these resource containers (each device's default container if the list is empty) on
    /// the devices of all sessions of the group, and closes the sessions (TensorFlow
    /// `Session::Reset`). Returns the number of sessions. A session that was dropped counts as long
    /// as one of its callables lives.
    pub fn reset(&self, containers: &[&str]) -> usize {
        // Outside the lock: dropped resources are an app's code.
        let members: Vec<_> = self.members().drain(..).collect();
        let members: Vec<_> = members.iter().filter_map(Weak::upgrade).collect();
        let n_open = members.iter().filter(|member| !member.is_closed()).count();
        for member in members {
            member.reset(containers);
        }
        n_open
    }

    pub(super) fn add(&self, member: &Arc<Member>) {
        let mut members = self.members();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(member));
    }

    /// Nothing that may panic runs under the lock.
    fn members(&self) -> MutexGuard<'_, Vec<Weak<Member>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SessionGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_members = self.members().len();
        f.debug_struct("SessionGroup")
            .field("n_members", &n_members)
            .finish()
    }
}
