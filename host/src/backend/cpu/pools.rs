//! The threads of CPU devices: which pool each device gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::LazyLock;
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

/// The pools of devices. A pool lives as long as one of its devices. Devices that request the same
/// number of threads on the same processors share a pool.
#[derive(Debug, Default)]
pub(super) struct SharedPools(Mutex<BTreeMap<Threads, Weak<IntraOpPool>>>);

/// The parameters of a pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Threads {
    n_threads: usize,
    /// `None` for devices that are not bound to a node.
    numa_node: Option<u32>,
    /// The processors that the threads are bound to; empty means any.
    cpus: Vec<u32>,
}

impl SharedPools {
    /// Returns the pools of this process: devices of all its sessions compete for the same cores.
    pub(super) fn of_process() -> &'static Arc<Self> {
        static POOLS: LazyLock<Arc<SharedPools>> = LazyLock::new(Arc::default);
        &POOLS
    }

    /// Returns the pool of a device on this node of `n_nodes`, or on none.
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
                        "intra_op_parallelism_threads is {wanted}, but the app's own pool has {}; set it to 0",
                        pool.n_threads()
                    )));
                }
                Ok(Arc::clone(pool))
            }
            IntraOpPools::PerDevice => Ok(Arc::new(Threads::new(wanted, node, n_nodes).start())),
            IntraOpPools::Shared => {
                let threads = Threads::new(wanted, node, n_nodes);
                let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(pool) = pools.get(&threads).and_then(Weak::upgrade) {
                    return Ok(pool);
                }
                pools.retain(|_, pool| pool.strong_count() > 0);
                let pool = Arc::new(threads.start());
                pools.insert(threads, Arc::downgrade(&pool));
                Ok(pool)
            }
        }
    }
}

impl Threads {
    /// `n_threads` of 0 means one per core, or per core of the node.
    fn new(n_threads: usize, node: Option<&NumaNode>, n_nodes: usize) -> Self {
        let n_threads = match n_threads {
            0 => {
                let n_cores = thread::available_parallelism().map_or(1, usize::from);
                (n_cores / n_nodes.max(1)).max(1)
            }
            n => n,
        };
        let mut cpus = Vec::new();
        if let Some(node) = node {
            // The system rejects processors that this process may not use.
            let allowed = schedulable_cpus();
            cpus.extend(node.cpus.iter().filter(|cpu| allowed.contains(cpu)));
            if cpus.is_empty() {
                info!(
                    target: targets::DEVICE,
                    numa_node = node.id,
                    "this process may not use any processor of the NUMA node; threads of its devices run on any processor"
                );
            }
        }
        Self {
            n_threads,
            numa_node: node.map(|node| node.id),
            cpus,
        }
    }

    fn start(&self) -> IntraOpPool {
        IntraOpPool::new(self.n_threads).with_cpus(&self.cpus)
    }
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
    fn devices_with_equal_requests_share_a_pool_while_one_lives() {
        let shared = SharedPools::default();
        let pool = |n| {
            shared
                .pool(&options(n, IntraOpPools::Shared), None, 0)
                .unwrap()
        };
        let n_cores = thread::available_parallelism().map_or(1, usize::from);
        let first = pool(n_cores + 1);
        assert!(Arc::ptr_eq(&first, &pool(n_cores + 1)));
        let (all, other) = (pool(0), pool(n_cores));
        assert!(Arc::ptr_eq(&all, &other) && !Arc::ptr_eq(&all, &first));
        let gone = Arc::downgrade(&first);
        drop(first);
        assert!(gone.upgrade().is_none());
        assert_eq!(pool(n_cores + 1).n_threads(), n_cores + 1);
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
        assert!(pools[1].cpus().is_empty(), "nonexistent processors");
    }
}
