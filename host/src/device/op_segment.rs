//! Kernels that outlive the plans that use them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use super::kernel::Kernel;

/// The stateful kernels of one device, by session and node (TensorFlow `OpSegment`): their state
/// outlives the plans of a session, and the growth of its graph. Kernels without state are created
/// per graph and are not kept here.
#[derive(Default)]
pub struct OpSegment {
    sessions: Mutex<HashMap<String, Held>>,
}

#[derive(Default)]
struct Held {
    n_holds: usize,
    kernels: HashMap<String, Arc<dyn Kernel>>,
}

/// A session has no hold on the segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("session `{session}` has no hold on the device's kernels; it was closed, or never opened")]
pub struct NoSuchSession {
    /// The session's handle.
    pub session: String,
}

impl OpSegment {
    /// Keeps the kernels of a session until [`Self::remove_hold`] has been called as often as this.
    pub fn add_hold(&self, session: &str) {
        let mut sessions = self.lock();
        sessions.entry(session.to_owned()).or_default().n_holds += 1;
    }

    /// Releases one hold; with the last one the session's kernels are dropped. Does nothing for an
    /// unknown session.
    pub fn remove_hold(&self, session: &str) {
        let mut sessions = self.lock();
        let Some(held) = sessions.get_mut(session) else {
            return;
        };
        held.n_holds -= 1;
        if held.n_holds == 0 {
            let dropped = sessions.remove(session);
            drop(sessions);
            // Outside the lock: kernels are an app's code.
            drop(dropped);
        }
    }

    /// Returns the kernel of a session's node; calls `create` if there is none. `create` runs
    /// without the lock: if another thread creates the same kernel first, all threads use that one,
    /// and this one is dropped.
    ///
    /// # Errors
    /// [`NoSuchSession`] without a hold, and the errors of `create`.
    pub fn find_or_create<E: From<NoSuchSession>>(
        &self,
        session: &str,
        node: &str,
        create: impl FnOnce() -> Result<Arc<dyn Kernel>, E>,
    ) -> Result<Arc<dyn Kernel>, E> {
        let unknown = || NoSuchSession {
            session: session.to_owned(),
        };
        {
            let sessions = self.lock();
            let held = sessions.get(session).ok_or_else(unknown)?;
            if let Some(kernel) = held.kernels.get(node) {
                return Ok(Arc::clone(kernel));
            }
        }
        let made = create()?;
        let mut sessions = self.lock();
        // The hold may have ended meanwhile.
        let held = sessions.get_mut(session).ok_or_else(unknown)?;
        let (winner, lost) = match held.kernels.entry(node.to_owned()) {
            Entry::Occupied(winner) => (Arc::clone(winner.get()), Some(made)),
            Entry::Vacant(place) => (Arc::clone(place.insert(made)), None),
        };
        drop(sessions);
        // Outside the lock: kernels are an app's code.
        drop(lost);
        Ok(winner)
    }

    /// Returns the number of kernels of a session; `None` without a hold.
    pub fn n_kernels(&self, session: &str) -> Option<usize> {
        self.lock().get(session).map(|held| held.kernels.len())
    }

    /// No code that may panic runs under the lock, so poisoning has no meaning.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for OpSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sessions = self.lock();
        let counts = sessions
            .iter()
            .map(|(session, held)| (session, held.kernels.len()));
        f.debug_map().entries(counts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::KernelContext;
    use crate::device::KernelError;

    struct Numbered(u32);

    impl Kernel for Numbered {
        fn compute(&self, _: &mut KernelContext<'_>) -> Result<(), KernelError> {
            Err(KernelError::invalid(self.0.to_string()))
        }
    }

    fn make(number: u32) -> Result<Arc<dyn Kernel>, NoSuchSession> {
        Ok(Arc::new(Numbered(number)))
    }

    fn fail() -> Result<Arc<dyn Kernel>, NoSuchSession> {
        panic!("an existing kernel is reused");
    }

    #[test]
    fn a_session_without_hold_is_not_known() {
        let segment = OpSegment::default();
        let error = segment.find_or_create("s1", "v", fail).err().unwrap();
        assert_eq!(error.session, "s1");
        segment.remove_hold("s1");
        assert_eq!(segment.n_kernels("s1"), None);
    }

    #[test]
    fn a_kernel_is_made_once_per_session_and_node() {
        let segment = OpSegment::default();
        segment.add_hold("s1");
        segment.add_hold("s2");
        let first = segment.find_or_create("s1", "v", || make(1)).unwrap();
        let again = segment.find_or_create("s1", "v", fail).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let other_session = segment.find_or_create("s2", "v", || make(2)).unwrap();
        let other_node = segment.find_or_create("s1", "w", || make(3)).unwrap();
        assert!(!Arc::ptr_eq(&first, &other_session));
        assert!(!Arc::ptr_eq(&first, &other_node));
        assert_eq!(segment.n_kernels("s1"), Some(2));
    }

    #[test]
    fn kernels_go_with_the_last_hold() {
        let segment = OpSegment::default();
        segment.add_hold("s1");
        segment.add_hold("s1");
        let kernel = segment.find_or_create("s1", "v", || make(1)).unwrap();
        segment.remove_hold("s1");
        assert_eq!(segment.n_kernels("s1"), Some(1));
        assert_eq!(Arc::strong_count(&kernel), 2);
        segment.remove_hold("s1");
        assert_eq!(segment.n_kernels("s1"), None);
        assert_eq!(Arc::strong_count(&kernel), 1);
    }

    #[test]
    fn who_is_first_wins_and_the_other_kernel_goes() {
        let segment = OpSegment::default();
        segment.add_hold("s1");
        let lost = Arc::new(Numbered(2));
        let found = segment
            .find_or_create("s1", "v", || {
                // Another thread is faster.
                segment.find_or_create("s1", "v", || make(1))?;
                Ok::<_, NoSuchSession>(Arc::clone(&lost) as Arc<dyn Kernel>)
            })
            .unwrap();
        let winner = segment.find_or_create("s1", "v", fail).unwrap();
        assert!(Arc::ptr_eq(&found, &winner));
        assert_eq!(Arc::strong_count(&lost), 1);
    }

    /// Looks at its segment when it goes, as an app's kernel may.
    struct Nosy {
        segment: Arc<OpSegment>,
        seen: Arc<Mutex<Option<usize>>>,
    }

    impl Kernel for Nosy {
        fn compute(&self, _: &mut KernelContext<'_>) -> Result<(), KernelError> {
            Ok(())
        }
    }

    impl Drop for Nosy {
        fn drop(&mut self) {
            // To fail rather than to wait forever.
            if self.segment.sessions.try_lock().is_ok() {
                *self.seen.lock().unwrap() = self.segment.n_kernels("s1");
            }
        }
    }

    #[test]
    fn a_kernel_that_is_not_used_may_look_at_the_segment_when_it_goes() {
        let segment = Arc::new(OpSegment::default());
        segment.add_hold("s1");
        let seen = Arc::default();
        segment
            .find_or_create("s1", "v", || {
                segment.find_or_create("s1", "v", || make(1))?;
                let lost = Nosy {
                    segment: Arc::clone(&segment),
                    seen: Arc::clone(&seen),
                };
                Ok::<_, NoSuchSession>(Arc::new(lost) as Arc<dyn Kernel>)
            })
            .unwrap();
        assert_eq!(*seen.lock().unwrap(), Some(1));
    }

    #[test]
    fn a_hold_that_ends_during_creation_leaves_nothing_behind() {
        let segment = OpSegment::default();
        segment.add_hold("s1");
        let result = segment.find_or_create("s1", "v", || {
            segment.remove_hold("s1");
            make(1)
        });
        assert_eq!(result.err().unwrap().session, "s1");
    }

    #[test]
    fn many_threads_get_one_kernel() {
        let segment = OpSegment::default();
        segment.add_hold("s1");
        let barrier = std::sync::Barrier::new(8);
        let kernels: Vec<Arc<dyn Kernel>> = std::thread::scope(|scope| {
            let threads = (0..8).map(|number| {
                let (segment, barrier) = (&segment, &barrier);
                scope.spawn(move || {
                    segment.find_or_create("s1", "v", || {
                        // All of them have found none.
                        barrier.wait();
                        make(number)
                    })
                })
            });
            let threads: Vec<_> = threads.collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap().unwrap())
                .collect()
        });
        assert!(
            kernels
                .iter()
                .all(|kernel| Arc::ptr_eq(kernel, &kernels[0]))
        );
        assert_eq!(segment.n_kernels("s1"), Some(1));
    }
}
