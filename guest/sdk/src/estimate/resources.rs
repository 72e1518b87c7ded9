//! What the nodes and transfers of a plan compete for.

/// No pool, chip or link.
pub(super) const NONE: u32 = u32::MAX;

/// What nodes and transfers compete for: queues, threads of chips, and links.
///
/// ```
/// use placewright_guest::estimate::Resources;
///
/// // Two devices that share a chip with one queue, and a card with two queues and a link each way.
/// let resources = Resources::new(&[0, 0, 1], &[1, 1, 2]).with_link_of(2, 0, 1);
/// # let _ = resources;
/// ```
#[derive(Debug, Clone, Default)]
pub struct Resources {
    /// Per device.
    pub(super) devices: Vec<DeviceResources>,
    /// Per queue, the pool that begins with it.
    pub(super) pools: Vec<PoolShape>,
    /// Per chip with threads, their number.
    pub(super) chip_threads: Vec<f64>,
    pub(super) n_links: u32,
    /// Per host its links to other hosts; empty if all devices are at one.
    hosts: Vec<(u32, u32)>,
    /// Links for single pairs of devices, sorted: (source, destination, link).
    pairs: Vec<(u32, u32, u32)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceResources {
    /// First queue of the pool.
    pub(super) pool: u32,
    link_out: u32,
    link_in: u32,
    /// The pool that copies between this device and others with the same pool here.
    copies: u32,
    /// Host, as an index.
    host: u32,
    /// Network of devices, and the links to and from it.
    network: u32,
    network_out: u32,
    network_in: u32,
}

/// Queues that are filled together, stored at the first one.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolShape {
    pub(super) n_queues: u32,
    /// Whether plans may assign nodes to its queues.
    pub(super) is_assignable: bool,
    /// Chip with threads, as an index.
    pub(super) chip: u32,
}

impl Resources {
    /// Creates resources of devices, by the chip and the number of queues of each. Devices of one
    /// chip share its queues, as many as its device with the most has. Nothing else is shared.
    pub fn new(chips: &[u32], queues: &[u32]) -> Self {
        let n_chips = chips.iter().max().map_or(0, |&last| last as usize + 1);
        let mut queues_of_chip = vec![0u32; n_chips];
        for (&chip, &queues) in chips.iter().zip(queues) {
            let most = &mut queues_of_chip[chip as usize];
            *most = queues.max(*most).max(1);
        }
        let mut resources = Self::default();
        let first_of_chip: Vec<u32> = queues_of_chip
            .iter()
            .map(|&n_queues| resources.add_pool(n_queues, true))
            .collect();
        let of_chip = |&chip: &u32| DeviceResources {
            pool: first_of_chip[chip as usize],
            link_out: NONE,
            link_in: NONE,
            copies: NONE,
            host: 0,
            network: NONE,
            network_out: NONE,
            network_in: NONE,
        };
        resources.devices = chips.iter().map(of_chip).collect();
        resources
    }

    fn add_pool(&mut self, n_queues: u32, is_assignable: bool) -> u32 {
        let first = to_u32(self.pools.len());
        let shape = PoolShape {
            n_queues,
            is_assignable,
            chip: NONE,
        };
        self.pools
            .resize(self.pools.len() + n_queues as usize, shape);
        first
    }

    /// Lets the host's threads execute the nodes of these devices, `n_at_once` at one time, and the
    /// copies among them and between them and `neighbours`, which are in host memory, too.
    ///
    /// # Panics
    /// If one of them does not exist.
    #[must_use]
    pub fn with_host(mut self, devices: &[u32], neighbours: &[u32], n_at_once: u32) -> Self {
        let pool = self.add_pool(n_at_once.max(1), false);
        for &device in devices {
            self.devices[device as usize].pool = pool;
        }
        for &device in devices.iter().chain(neighbours) {
            self.devices[device as usize].copies = pool;
        }
        self
    }

    /// Puts these devices on a chip with so many threads. Each has its queues for itself, except
    /// those that [`Self::with_host`] names.
    ///
    /// # Panics
    /// If one of them does not exist.
    #[must_use]
    pub fn with_chip(mut self, devices: &[u32], n_threads: f64) -> Self {
        let chip = to_u32(self.chip_threads.len());
        self.chip_threads.push(n_threads.max(1.0));
        for &device in devices {
            let first = self.devices[device as usize].pool;
            let shape = self.pools[first as usize];
            let is_taken = shape.chip != NONE;
            let pool = if shape.is_assignable && is_taken {
                // Another device of the chip has these queues.
                let pool = self.add_pool(shape.n_queues, true);
                self.devices[device as usize].pool = pool;
                pool
            } else {
                first
            };
            for queue in pool..pool + shape.n_queues {
                self.pools[queue as usize].chip = chip;
            }
        }
        self
    }

    /// Lets all transfers from and to a device take these links. Links are numbered; devices that
    /// share a bus have equal numbers.
    ///
    /// # Panics
    /// If there is no such device.
    #[must_use]
    pub fn with_link_of(mut self, device: u32, link_out: u32, link_in: u32) -> Self {
        let resources = &mut self.devices[device as usize];
        (resources.link_out, resources.link_in) = (link_out, link_in);
        self.n_links = self.n_links.max(link_out + 1).max(link_in + 1);
        self
    }

    /// Puts a device at a host with these links to other hosts. Transfers between devices of two
    /// hosts take the links of both devices and of both hosts.
    ///
    /// # Panics
    /// If there is no such device.
    #[must_use]
    pub fn with_host_of(mut self, device: u32, host: u32, link_out: u32, link_in: u32) -> Self {
        self.devices[device as usize].host = host;
        if self.hosts.len() <= host as usize {
            self.hosts.resize(host as usize + 1, (NONE, NONE));
        }
        self.hosts[host as usize] = (link_out, link_in);
        for link in [link_out, link_in] {
            self.n_links = self.n_links.max(link.wrapping_add(1));
        }
        self
    }

    /// Connects a device with the others of a network: transfers among them take these links of
    /// both devices, and no others.
    ///
    /// # Panics
    /// If there is no such device.
    #[must_use]
    pub fn with_network(mut self, device: u32, network: u32, link_out: u32, link_in: u32) -> Self {
        let resources = &mut self.devices[device as usize];
        resources.network = network;
        (resources.network_out, resources.network_in) = (link_out, link_in);
        self.n_links = self.n_links.max(link_out + 1).max(link_in + 1);
        self
    }

    /// Gives a pair of devices a link of its own, in one direction.
    #[must_use]
    pub fn with_link_between(mut self, source: u32, destination: u32, link: u32) -> Self {
        let key = (source, destination);
        let by_pair = |&(source, destination, _): &(u32, u32, u32)| (source, destination);
        match self.pairs.binary_search_by_key(&key, by_pair) {
            Ok(index) => self.pairs[index].2 = link,
            Err(index) => self.pairs.insert(index, (source, destination, link)),
        }
        self.n_links = self.n_links.max(link + 1);
        self
    }

    /// Returns what a transfer takes.
    pub(super) fn route(&self, source: u32, destination: u32) -> Route {
        let (from, to) = (
            self.devices[source as usize],
            self.devices[destination as usize],
        );
        if from.copies != NONE && from.copies == to.copies {
            return Route::Host(from.copies);
        }
        if from.network != NONE && from.network == to.network {
            return Route::Links([from.network_out, to.network_in, NONE, NONE]);
        }
        let key = (source, destination);
        let by_pair = |&(source, destination, _): &(u32, u32, u32)| (source, destination);
        if let Ok(index) = self.pairs.binary_search_by_key(&key, by_pair) {
            return Route::Links([self.pairs[index].2, NONE, NONE, NONE]);
        }
        if from.host == to.host {
            return Route::Links([from.link_out, to.link_in, NONE, NONE]);
        }
        let (out, into) = (
            self.hosts[from.host as usize].0,
            self.hosts[to.host as usize].1,
        );
        Route::Links([from.link_out, out, into, to.link_in])
    }
}

/// What a transfer takes.
pub(super) enum Route {
    /// A queue of this pool.
    Host(u32),
    /// These links; [`NONE`] is no link.
    Links([u32; 4]),
}

/// Converts a number of edges, nodes or queues. Graphs have fewer than 2^32.
pub(super) fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("graphs have fewer than 2^32 edges")
}
