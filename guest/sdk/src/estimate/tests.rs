//! The estimate against a schedule that is computed in the plainest way, and its properties where
//! the order of all nodes and transfers is fixed. (List schedules have Graham's anomalies: if
//! orders change, less work may take longer.)

use super::*;

/// A small generator of pseudorandom numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        usize::try_from(bits >> 33).unwrap() % n
    }

    fn ns(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(1000)).unwrap())
    }
}

/// A graph with a plan. All edges of a node carry one tensor.
#[derive(Clone, Default)]
struct Case {
    offsets: Vec<u32>,
    items: Vec<u32>,
    /// Per edge; control edges carry nothing.
    is_control: Vec<bool>,
    /// Per edge, whether it takes no time.
    is_free: Vec<bool>,
    n_predecessors: Vec<usize>,
    work_ns: Vec<f64>,
    /// Per device, divides the work.
    speeds: Vec<f64>,
    n_threads: Vec<f64>,
    latency_ns: f64,
    /// Per tensor.
    busy_ns: Vec<f64>,
    devices: Vec<u32>,
    order: Option<Vec<i32>>,
}

impl Durations for Case {
    fn successors(&self) -> Rows<'_> {
        Rows {
            offsets: &self.offsets,
            items: &self.items,
        }
    }

    fn n_predecessors(&self, node: u32) -> usize {
        self.n_predecessors[node as usize]
    }

    fn work_ns(&self, node: u32, device: u32) -> f64 {
        self.work_ns[node as usize] / self.speeds[device as usize]
    }

    fn n_threads(&self, node: u32, _: u32) -> f64 {
        self.n_threads.get(node as usize).copied().unwrap_or(1.0)
    }

    fn is_free(&self, position: usize) -> bool {
        self.is_free.get(position).copied().unwrap_or(false)
    }

    fn transfer(&self, position: usize, _: u32, _: u32) -> Transfer {
        let is_after = |&offset: &u32| offset as usize <= position;
        let producer = self
            .offsets
            .iter()
            .take_while(|offset| is_after(offset))
            .count()
            - 1;
        let is_control = self.is_control[position];
        Transfer {
            tensor: if is_control { NONE } else { to_u32(producer) },
            latency_ns: self.latency_ns,
            busy_ns: if is_control {
                0.0
            } else {
                self.busy_ns[producer]
            },
        }
    }
}

impl Case {
    /// Creates a case of these nodes (work, device) and edges (from, to, whether it is control).
    fn new(nodes: &[(f64, u32)], edges: &[(u32, u32, bool)]) -> Self {
        let mut case = Self {
            work_ns: nodes.iter().map(|&(work_ns, _)| work_ns).collect(),
            devices: nodes.iter().map(|&(_, device)| device).collect(),
            speeds: vec![1.0; 8],
            busy_ns: vec![0.0; nodes.len()],
            n_predecessors: vec![0; nodes.len()],
            offsets: vec![0],
            ..Self::default()
        };
        for node in 0..to_u32(nodes.len()) {
            for &(_, to, is_control) in edges.iter().filter(|&&(from, ..)| from == node) {
                case.items.push(to);
                case.is_control.push(is_control);
                case.n_predecessors[to as usize] += 1;
            }
            case.offsets.push(to_u32(case.items.len()));
        }
        case
    }

    /// Creates a random case on so many devices. With `is_ordered`, the nodes of a device follow
    /// each other in the order of their ids.
    fn random(random: &mut Random, n_devices: usize, is_ordered: bool) -> Self {
        let n_nodes = 1 + random.below(30);
        Self::random_of(random, n_nodes, n_devices, is_ordered)
    }

    fn random_of(random: &mut Random, n_nodes: usize, n_devices: usize, is_ordered: bool) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..n_nodes {
            let work_ns = if random.below(5) == 0 {
                0.0
            } else {
                random.ns()
            };
            nodes.push((work_ns, to_u32(random.below(n_devices))));
        }
        let mut edges = Vec::new();
        for to in 1..n_nodes {
            for _ in 0..random.below(4) {
                let from = random.below(to);
                edges.push((to_u32(from), to_u32(to), random.below(6) == 0));
            }
            let before = (0..to).rev().find(|&from| nodes[from].1 == nodes[to].1);
            if let Some(before) = before.filter(|_| is_ordered) {
                edges.push((to_u32(before), to_u32(to), true));
            }
        }
        let mut case = Self::new(&nodes, &edges);
        case.latency_ns = random.ns();
        for busy_ns in &mut case.busy_ns {
            *busy_ns = random.ns();
        }
        if random.below(2) == 0 {
            let order = (0..n_nodes).map(|_| i32::try_from(random.below(5)).unwrap());
            case.order = Some(order.collect());
        }
        case
    }

    fn schedule(&self) -> Schedule<'_> {
        Schedule {
            devices: &self.devices,
            start_order: self.order.as_deref(),
            queues: None,
        }
    }

    fn makespan_ns(&self, resources: Resources) -> f64 {
        Estimate::new(self.work_ns.len(), resources).makespan_ns(self, self.schedule())
    }

    /// Returns the makespan on devices with so many queues each, without shared links and chips:
    /// step by step, over all nodes each time.
    fn plain_makespan_ns(&self, queues: &[u32]) -> f64 {
        let n_nodes = self.work_ns.len();
        let mut arrivals: Vec<Vec<f64>> = vec![Vec::new(); n_nodes];
        let mut ends: Vec<Option<f64>> = vec![None; n_nodes];
        let mut free: Vec<i64> = queues.iter().copied().map(i64::from).collect();
        let mut running: Vec<usize> = Vec::new();
        let mut started = vec![false; n_nodes];
        let mut is_sent = vec![false; n_nodes];
        let mut now_ns = 0.0f64;
        loop {
            running.retain(|&node| {
                let goes_on = ends[node].unwrap() > now_ns;
                free[self.devices[node] as usize] += i64::from(!goes_on);
                goes_on
            });
            // Nodes without work end at once, and let others end.
            loop {
                let mut has_changed = false;
                for node in 0..n_nodes {
                    let is_ready = !started[node]
                        && arrivals[node].len() == self.n_predecessors[node]
                        && arrivals[node].iter().all(|&at_ns| at_ns <= now_ns);
                    if is_ready && self.work_ns[node] == 0.0 {
                        (started[node], ends[node]) = (true, Some(now_ns));
                        has_changed = true;
                    }
                    if !is_sent[node] && ends[node].is_some_and(|end_ns| end_ns <= now_ns) {
                        (is_sent[node], has_changed) = (true, true);
                        for position in self.successors().range(to_u32(node)) {
                            let to = self.items[position] as usize;
                            let transfer = self.transfer(position, 0, 0);
                            let way_ns = match self.devices[to] == self.devices[node] {
                                true => 0.0,
                                false => transfer.latency_ns + transfer.busy_ns,
                            };
                            arrivals[to].push(now_ns + way_ns);
                        }
                    }
                }
                if !has_changed {
                    break;
                }
            }
            let mut ready: Vec<usize> = (0..n_nodes)
                .filter(|&node| {
                    !started[node]
                        && arrivals[node].len() == self.n_predecessors[node]
                        && arrivals[node].iter().all(|&at_ns| at_ns <= now_ns)
                })
                .collect();
            ready.sort_by_key(|&node| {
                let order = self.order.as_ref().map_or(0, |order| order[node]);
                (Reverse(order), node)
            });
            for node in ready {
                let device = self.devices[node] as usize;
                if free[device] > 0 {
                    free[device] -= 1;
                    started[node] = true;
                    ends[node] = Some(now_ns + self.work_ns[node]);
                    running.push(node);
                }
            }
            let times = arrivals.iter().flatten().chain(ends.iter().flatten());
            let next = times
                .copied()
                .filter(|&at_ns| at_ns > now_ns)
                .min_by(f64::total_cmp);
            match next {
                Some(next_ns) => now_ns = next_ns,
                None => return ends.iter().flatten().copied().fold(0.0, f64::max),
            }
        }
    }
}

/// Resources of devices with a chip and a queue each, and a link of its own for each pair.
fn apart(n_devices: usize) -> Resources {
    let chips: Vec<u32> = (0..to_u32(n_devices)).collect();
    Resources::new(&chips, &vec![1; n_devices])
}

fn with_links(n_devices: usize) -> Resources {
    let n = to_u32(n_devices);
    let pairs = (0..n).flat_map(|from| (0..n).map(move |to| (from, to)));
    pairs.fold(apart(n_devices), |resources, (from, to)| {
        resources.with_link_between(from, to, from * n + to)
    })
}

#[test]
fn without_sharing_it_is_the_plain_list_schedule() {
    let mut random = Random(1);
    for _ in 0..500 {
        let case = Case::random(&mut random, 3, false);
        let queues: Vec<u32> = (0..3).map(|_| to_u32(1 + random.below(2))).collect();
        let found = case.makespan_ns(Resources::new(&[0, 1, 2], &queues));
        assert_eq!(found, case.plain_makespan_ns(&queues));
    }
}

#[test]
fn in_a_fixed_order_less_work_and_faster_devices_and_links_never_take_longer() {
    let mut random = Random(2);
    for _ in 0..500 {
        let case = Case::random(&mut random, 4, true);
        let before_ns = case.makespan_ns(with_links(4));
        let n_nodes = case.work_ns.len();
        let mut changed = [case.clone(), case.clone(), case.clone(), case.clone()];
        changed[0].work_ns[random.below(n_nodes)] /= 2.0;
        changed[1].busy_ns[random.below(n_nodes)] /= 2.0;
        changed[2].speeds[random.below(4)] *= 2.0;
        changed[3].latency_ns /= 2.0;
        for (index, case) in changed.iter().enumerate() {
            let after_ns = case.makespan_ns(with_links(4));
            // Sums in another order.
            assert!(
                after_ns <= before_ns * (1.0 + 1e-12),
                "change {index}: {after_ns} {before_ns}"
            );
        }
    }
}

#[test]
fn after_moves_the_schedule_is_that_of_a_new_estimate() {
    let mut random = Random(4);
    let all_resources: [fn() -> Resources; 4] = [
        || apart(4),
        || with_links(4).with_link_of(0, 16, 16),
        || apart(4).with_host(&[0, 1], &[2], 2).with_chip(&[0, 1], 3.0),
        || Resources::new(&[0, 0, 1, 1], &[2, 1, 3, 1]).with_link_of(2, 0, 1),
    ];
    for resources in all_resources.into_iter().cycle().take(60) {
        let mut case = Case::random_of(&mut random, 200, 4, false);
        let by_chance = |_: usize| random.below(4) == 0;
        case.is_free = (0..case.items.len()).map(by_chance).collect();
        case.n_threads = (0..200).map(|node| f64::from(node % 3 + 1)).collect();
        let mut estimate = Estimate::new(200, resources());
        for _ in 0..50 {
            // Some evaluations cover several moves, and some moves change nothing.
            for _ in 0..1 + random.below(3) {
                let node = random.below(200);
                case.devices[node] = to_u32(random.below(4));
                estimate.invalidate_node(to_u32(node));
            }
            let mut fresh = Estimate::new(200, resources());
            let expected_ns = fresh.makespan_ns(&case, case.schedule());
            assert_eq!(estimate.makespan_ns(&case, case.schedule()), expected_ns);
            assert_eq!(estimate.starts_ns(), fresh.starts_ns());
            assert_eq!(estimate.finish_ns(), fresh.finish_ns());
        }
    }
}

#[test]
fn in_a_fixed_order_contention_never_shortens_a_plan() {
    let mut random = Random(3);
    for _ in 0..500 {
        let case = Case::random(&mut random, 4, true);
        let alone_ns = case.makespan_ns(apart(4));
        let pairs_ns = case.makespan_ns(with_links(4));
        let bus = (0..4).fold(apart(4), |resources, device| {
            resources.with_link_of(device, 0, 0)
        });
        assert!(alone_ns <= pairs_ns);
        assert!(alone_ns <= case.makespan_ns(bus));
        let one_chip = apart(4).with_chip(&[0, 1, 2, 3], 2.0);
        assert!(alone_ns <= case.makespan_ns(one_chip) * (1.0 + 1e-12));
        let work_ns: f64 = case.work_ns.iter().sum();
        let one_thread = apart(4).with_chip(&[0, 1, 2, 3], 1.0);
        assert!(work_ns <= case.makespan_ns(one_thread) * (1.0 + 1e-12));
    }
}

#[test]
fn kernels_of_one_chip_share_its_threads() {
    let chip = || apart(2).with_chip(&[0, 1], 2.0);
    let mut case = Case::new(&[(100.0, 0), (100.0, 1)], &[]);
    assert_eq!(case.makespan_ns(chip()), 100.0);
    case.n_threads = vec![2.0, 2.0];
    assert_eq!(case.makespan_ns(chip()), 200.0);
    case.n_threads = vec![2.0, 1.0];
    assert_eq!(case.makespan_ns(chip()), 150.0);
    // The longer one has the chip for itself after 200 ns, in which it did half of that.
    case.n_threads = vec![2.0, 2.0];
    case.work_ns = vec![100.0, 300.0];
    assert_eq!(case.makespan_ns(chip()), 400.0);
    case.work_ns = vec![100.0, f64::INFINITY];
    assert_eq!(case.makespan_ns(chip()), f64::INFINITY);
}

#[test]
fn the_host_executes_its_nodes_and_copies_with_so_many_threads() {
    let nodes = [(100.0, 0), (100.0, 1), (100.0, 1)];
    let case = Case::new(&nodes, &[]);
    let host = |n_at_once| apart(2).with_host(&[0, 1], &[], n_at_once);
    assert_eq!(case.makespan_ns(host(1)), 300.0);
    assert_eq!(case.makespan_ns(host(2)), 200.0);
    assert_eq!(case.makespan_ns(host(3)), 100.0);
    // Two copies to two devices, and three nodes, by one thread.
    let nodes = [(100.0, 0), (100.0, 1), (100.0, 2)];
    let mut case = Case::new(&nodes, &[(0, 1, false), (0, 2, false)]);
    case.busy_ns[0] = 10.0;
    let resources = apart(3).with_host(&[0, 1], &[2], 1);
    assert_eq!(case.makespan_ns(resources), 100.0 + 10.0 + 10.0 + 100.0);
    let resources = apart(3).with_host(&[0, 1, 2], &[], 1);
    assert_eq!(case.makespan_ns(resources), 300.0 + 20.0);
}

#[test]
fn transfers_over_one_link_follow_each_other_without_their_latencies() {
    // Two tensors from one device to two others.
    let nodes = [(10.0, 0), (0.0, 0), (0.0, 1), (0.0, 2)];
    let mut case = Case::new(&nodes, &[(0, 2, false), (1, 3, false)]);
    (case.latency_ns, case.busy_ns) = (5.0, vec![100.0, 100.0, 0.0, 0.0]);
    assert_eq!(case.makespan_ns(apart(3)), 115.0);
    // The second one is produced at 10 and waits for the first until 100.
    let shared = apart(3).with_link_of(0, 0, 1);
    assert_eq!(case.makespan_ns(shared), 205.0);
    // Links in the other direction, or of pairs, are others.
    let inwards = apart(3).with_link_of(1, 0, 1).with_link_of(2, 2, 3);
    assert_eq!(case.makespan_ns(inwards), 115.0);
    let direct = apart(3).with_link_of(0, 0, 1).with_link_between(0, 2, 2);
    assert_eq!(case.makespan_ns(direct), 115.0);
}

#[test]
fn a_tensor_goes_to_a_device_once() {
    let nodes = [(10.0, 0), (1.0, 1), (1.0, 1), (1.0, 1)];
    let edges = [(0, 1, false), (0, 2, false), (0, 3, true)];
    let mut case = Case::new(&nodes, &edges);
    case.busy_ns[0] = 100.0;
    let resources = apart(2).with_link_of(1, 0, 1);
    // The node that only waits starts while the tensor is on its way.
    assert_eq!(case.makespan_ns(resources), 10.0 + 100.0 + 2.0);
}
