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

/// The part of a session that its group needs.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) devices: Arc<DeviceSet>,
    pub(super) closed: CancelToken,
}

impl Member {
    /// Drops containers on the session's devices, and closes the session.
    pub(super) fn reset(&self, containers: &[&str]) {
        self.closed.cancel();
        DeviceManager::of_set(&self.devices).clear_containers(containers);
    }
}

impl SessionGroup {
    /// Creates an empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drops these resource containers (each device's default container if the list is empty) on
    /// the devices of all sessions of the group, and closes the sessions (TensorFlow
    /// `Session::Reset`). Returns the number of sessions.
    pub fn reset(&self, containers: &[&str]) -> usize {
        // Outside the lock: dropped resources are an app's code.
        let members: Vec<_> = self.members().drain(..).collect();
        let members: Vec<_> = members.iter().filter_map(Weak::upgrade).collect();
        let open = members
            .iter()
            .filter(|member| !member.closed.is_cancelled());
        let n_open = open.count();
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
