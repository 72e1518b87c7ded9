//! The threads of CPU devices: which pool each device gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::Weak;
use std::thread;

use tracing::info;

use crate::device::DeviceError;
use crate::device::DeviceOptions;
use crate::device::IntraOpPool;
use crate::device::IntraOpPools;
use crate::device::NumaNode;
use crate::device::schedulable_cpus;
use crate::trace::targets;

/// The pools that devices of one factory share, by NUMA node; the one without a node is for devices that are dealt out to none.
/// They go with the last device.
#[derive(Debug, Default)]
pub(super) struct SharedPools(Mutex<BTreeMap<Option<u32>, Weak<IntraOpPool>>>);

impl SharedPools {
    /// The pool of a device on this node of `n_nodes`, or on none.
    pub(super) fn pool(
        &self,
        options: &DeviceOptions,
        node: Option<&NumaNode>,
        n_nodes: usize,
    ) -> Result<Arc<IntraOpPool>, DeviceError> {
        let wanted = options.intra_op_parallelism_threads;
        match &options.intra_op_pools {
            IntraOpPools::App(pool) => {
                if wanted != 0 && wanted != pool.n_threads() {
                    return Err(DeviceError::InvalidArgument(format!(
                        "intra_op_parallelism_threads is {wanted}, and the app's own pool has {}; leave it 0",
                        pool.n_threads()
                    )));
                }
                Ok(Arc::clone(pool))
            }
            IntraOpPools::PerDevice => Ok(Arc::new(new_pool(wanted, node, n_nodes))),
            IntraOpPools::Shared => {
                let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let kept = pools.entry(node.map(|node| node.id)).or_default();
                if let Some(pool) = kept.upgrade() {
                    if wanted != 0 && wanted != pool.n_threads() {
                        info!(
                            target: targets::DEVICE,
                            asked = wanted,
                            has = pool.n_threads(),
                            "devices share the pool of an earlier session, whose number of threads counts"
                        );
                    }
                    return Ok(pool);
                }
                let pool = Arc::new(new_pool(wanted, node, n_nodes));
                *kept = Arc::downgrade(&pool);
                Ok(pool)
            }
        }
    }
}

fn new_pool(n_threads: usize, node: Option<&NumaNode>, n_nodes: usize) -> IntraOpPool {
    let Some(node) = node else {
        return IntraOpPool::new(n_threads);
    };
    let n_threads = match n_threads {
        0 => {
            let n_cores = thread::available_parallelism().map_or(1, usize::from);
            (n_cores / n_nodes.max(1)).max(1)
        }
        n => n,
    };
    // The system refuses processors that this process may not use.
    let allowed = schedulable_cpus();
    let mut cpus = node.cpus.clone();
    cpus.retain(|cpu| allowed.contains(cpu));
    if cpus.is_empty() {
        info!(
            target: targets::DEVICE,
            numa_node = node.id,
            "this process may use no processor of the NUMA node, so threads of its devices run on any"
        );
    }
    IntraOpPool::new(n_threads).with_cpus(&cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(n_threads: usize, pools: IntraOpPools) -> DeviceOptions {
        DeviceOptions {
            intra_op_parallelism_threads: n_threads,
            intra_op_pools: pools,
            ..DeviceOptions::default()
        }
    }

    fn node(id: u32, cpus: Vec<u32>) -> NumaNode {
        NumaNode {
            id,
            cpus,
            memory_bytes: None,
            distances: Vec::new(),
        }
    }

    #[test]
    fn the_first_session_says_how_many_threads_the_shared_pool_has_while_it_lives() {
        let shared = SharedPools::default();
        let pool = |n| {
            shared
                .pool(&options(n, IntraOpPools::Shared), None, 0)
                .unwrap()
        };
        let first = pool(3);
        assert!(Arc::ptr_eq(&first, &pool(2)) && Arc::ptr_eq(&first, &pool(0)));
        drop(first);
        assert_eq!(pool(2).n_threads(), 2);
    }

    #[test]
    fn a_device_may_have_a_pool_of_its_own_or_the_apps() {
        let shared = SharedPools::default();
        let pool = |options: &DeviceOptions| shared.pool(options, None, 0).unwrap();
        let private = options(2, IntraOpPools::PerDevice);
        assert!(!Arc::ptr_eq(&pool(&private), &pool(&private)));
        let apps = Arc::new(IntraOpPool::new(3));
        let lent = options(0, IntraOpPools::App(Arc::clone(&apps)));
        assert!(Arc::ptr_eq(&pool(&lent), &apps));
        assert!(Arc::ptr_eq(
            &pool(&options(3, lent.intra_op_pools.clone())),
            &apps
        ));
        let other = options(2, lent.intra_op_pools.clone());
        let error = shared.pool(&other, None, 0).unwrap_err().to_string();
        assert!(error.contains("is 2") && error.contains("has 3"), "{error}");
    }

    #[test]
    fn each_node_has_a_pool_on_its_processors_and_a_part_of_the_cores() {
        let shared = SharedPools::default();
        let any = options(0, IntraOpPools::Shared);
        let own = schedulable_cpus();
        let nodes = [node(0, own.clone()), node(1, vec![40_000])];
        let n_cores = thread::available_parallelism().map_or(1, usize::from);
        let pools = nodes
            .each_ref()
            .map(|node| shared.pool(&any, Some(node), 2).unwrap());
        assert!(!Arc::ptr_eq(&pools[0], &pools[1]));
        assert!(Arc::ptr_eq(
            &pools[0],
            &shared.pool(&any, Some(&nodes[0]), 2).unwrap()
        ));
        assert_eq!(pools[0].n_threads(), (n_cores / 2).max(1));
        assert_eq!(pools[0].cpus(), own);
        assert!(pools[1].cpus().is_empty(), "processors that there are not");
    }
}
