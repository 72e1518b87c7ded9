//! `lws`: locality work stealing, StarPU's scheduler of this name (StarPU handbook, "Task
//! scheduling policies"; the runtime is by Augonnet et al. 2011).
//!
//! In StarPU, a task is queued on the worker that released it, whose memory has its input. An idle
//! worker steals from its neighbours, the nearest first. No model of costs is needed.
//!
//! The contract asks once per task, when the task is ready, and nothing moves afterwards. So a
//! steal is decided at that time: a task stays at home, on the device that has most of its input,
//! unless another device has fewer tasks queued. Such a device would be idle before the home comes
//! to the task, if tasks take equal time, and would steal it. Of those with the fewest, the nearest
//! to the home takes the task. What this cannot express: the steal of a task that was queued long
//! ago, by a device that turned out to be faster.
//!
//! Queue lengths follow the completions that the host reports. If it reports none, a ready task
//! proves that its producers have ended, and a device is idle when the costs of the graph say so
//! ([`placewright_guest::schedule::fleet`]). A device that is down gets no task. For a whole graph,
//! the policy offers what it would pick in a run ([`placewright_guest::schedule::online`]).
//!
//! Beyond StarPU: devices of one chip are one worker. A group stays together. A device takes a task
//! only if it has memory for its state, unless none has. A device that cannot run a task, by its
//! cost, takes it only if no other can.

use placewright_guest::Completion;
use placewright_guest::DeviceChange;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::NONE;
use placewright_guest::OnlinePolicy;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::ReadyTask;
use placewright_guest::export_policy;
use placewright_guest::schedule::fleet::Bid;
use placewright_guest::schedule::fleet::Fleet;
use placewright_guest::schedule::fleet::offer_simulated;

/// The policy. Between calls it keeps the online runs in progress.
#[derive(Debug, Default)]
pub struct Lws {
    fleet: Fleet,
}

/// Compares devices, least first: they can run the task, have few tasks queued, are at home, or
/// near.
fn distance(bid: &Bid) -> (bool, u32, bool, f64) {
    let cannot_run = bid.work_ns == f64::INFINITY;
    (cannot_run, bid.n_queued, !bid.is_home, bid.transfer_ns)
}

impl Policy for Lws {
    const NAME: &'static str = "lws";
    const DESCRIPTION: &'static str = "locality work stealing (StarPU): each ready task \
        where its input is, unless another device has less to do";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        if devices.is_empty() {
            return Err(PlaceError::Declined("there is no device".to_owned()));
        }
        let simulated = offer_simulated(graph, devices, plan, None, distance)?;
        let offered = &simulated.offered;
        let placed = &offered.scheduled.devices;
        offered.explain_each(graph, plan, |node| {
            match (simulated.homes[node as usize], placed[node as usize]) {
                (NONE, _) => "fewest tasks queued there",
                (home, device) if home == device => "released there",
                _ => "stolen: fewer tasks queued there",
            }
        });
        Ok(())
    }
}

impl OnlinePolicy for Lws {
    fn begin(
        &mut self,
        run: u32,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        self.fleet.begin(run, graph, devices);
        Ok(())
    }

    fn pick(&mut self, task: &ReadyTask) -> Option<u32> {
        self.fleet.pick(task, distance)
    }

    fn observe(&mut self, done: &[Completion], changes: &[DeviceChange]) {
        self.fleet.observe(done, changes);
    }

    fn end(&mut self, run: u32) {
        self.fleet.end(run);
    }
}

export_policy!(Lws, online, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::log::Log;
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::TestDevices;
    use placewright_guest::testing::TestGraph;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;
    use placewright_guest::testing::place;

    use super::*;

    #[test]
    fn tasks_stay_where_they_are_released_and_idle_devices_steal() {
        let devices = cluster("2xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let top = graph.node("top", &[10.0]);
        let children = ["a", "b", "c"].map(|name| graph.node(name, &[20.0]));
        for child in children {
            graph.edge(top, child, 4);
        }
        let last = graph.node("last", &[10.0]);
        graph.edge(children[1], last, 4);
        let offer = place(&mut Lws::default(), &graph.build(), &devices).unwrap();
        // `a` stays, `b` is stolen and starts at 14, `c` stays: both have one. `last` is ready at
        // 34, on an idle device.
        assert_eq!(offer.devices, [0, 0, 1, 0, 1]);
        assert_eq!(offer.metric("makespan_ns"), Some(50.0));
        let reasons: Vec<_> = (0..5).map(|node| offer.reason_of(node)).collect();
        assert_eq!(
            reasons,
            [
                Some("fewest tasks queued there"),
                Some("released there"),
                Some("stolen: fewer tasks queued there"),
                Some("released there"),
                Some("released there"),
            ]
        );
    }

    #[test]
    fn costs_decide_only_whether_a_device_can_run_a_task() {
        let devices = cluster("1xA,1xB");
        let mut graph = GraphBuilder::new(&devices);
        graph.node("a", &[10.0, 1_000.0]);
        graph.node("b", &[10.0, 1_000.0]);
        graph.node("c", &[10.0, f64::INFINITY]);
        let offer = place(&mut Lws::default(), &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [0, 1, 0]);
    }

    #[test]
    fn topcuoglus_example_is_scheduled_legally_and_repeatably() {
        let (devices, graph) = papers::topcuoglu();
        let offer = place(&mut Lws::default(), &graph, &devices).unwrap();
        assert!(offer.makespan_ns <= offer.metric("makespan_ns").unwrap());
        assert_eq!(place(&mut Lws::default(), &graph, &devices).unwrap(), offer);
    }

    #[test]
    fn groups_pins_and_memory_are_respected() {
        let devices = cluster("3xA").with_memory(1, 100);
        let mut graph = GraphBuilder::new(&devices);
        let nodes: Vec<u32> = (0..6).map(|_| graph.node("", &[10.0])).collect();
        graph.group(&[nodes[0], nodes[5]]);
        graph.pin(nodes[2], 1);
        for node in [1, 3] {
            graph.resident_bytes(nodes[node], 80);
        }
        let offer = place(&mut Lws::default(), &graph.build(), &devices).unwrap();
        // The fewest tasks each time; 3 does not fit on 1, the group of 5 is on 0.
        assert_eq!(offer.devices, [0, 1, 1, 2, 0, 0]);
    }

    #[test]
    fn the_nearest_of_the_idle_devices_steals() {
        let mut devices = cluster("4xA").with_links(0.0, 1.0);
        // From the first device, the third is nearest.
        devices.links[2].ns_per_byte = 0.5;
        let mut graph = GraphBuilder::new(&devices);
        let top = graph.node("top", &[10.0]);
        for _ in 0..3 {
            let child = graph.node("", &[20.0]);
            graph.edge(top, child, 4);
        }
        let offer = place(&mut Lws::default(), &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [0, 0, 2, 1]);
    }

    /// A node, and four that read it.
    fn fan() -> (TestDevices, TestGraph) {
        let devices = cluster("3xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let top = graph.node("top", &[10.0]);
        for _ in 0..4 {
            let child = graph.node("", &[10.0]);
            graph.edge(top, child, 4);
        }
        (devices, graph.build())
    }

    fn begun(runs: &[u32]) -> Lws {
        let (devices, graph) = fan();
        let log = Log::silent();
        let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
        let mut policy = Lws::default();
        for &run in runs {
            policy.begin(run, &graph, &devices, 0).unwrap();
        }
        policy
    }

    fn task(run: u32, node: u32, home: u32, now_ns: f64) -> ReadyTask {
        ReadyTask {
            run,
            node,
            cost_row: node,
            candidate_set: 0,
            input_bytes: 4,
            home,
            now_ns,
        }
    }

    #[test]
    fn reports_shorten_queues() {
        let mut policy = begun(&[1]);
        assert_eq!(policy.pick(&task(1, 0, NONE, 0.0)), Some(0));
        let report = |node, device, finished_ns| Completion {
            run: 1,
            node,
            device,
            started_ns: 0.0,
            finished_ns,
        };
        policy.observe(&[report(0, 0, 10.0)], &[]);
        let homes = (1..4).map(|node| policy.pick(&task(1, node, 0, 10.0)));
        assert_eq!(homes.collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        // The costs say that all are idle at 500. The reports say that only one is.
        policy.observe(&[report(3, 2, 400.0)], &[]);
        assert_eq!(policy.pick(&task(1, 4, 0, 500.0)), Some(2));
    }

    #[test]
    fn without_reports_costs_say_who_is_idle() {
        let mut policy = begun(&[1]);
        assert_eq!(policy.pick(&task(1, 0, NONE, 0.0)), Some(0));
        // Its producer has ended, so the home is idle, although 10 ns are not over.
        assert_eq!(policy.pick(&task(1, 1, 0, 5.0)), Some(0));
        assert_eq!(policy.pick(&task(1, 2, 0, 5.0)), Some(1));
        assert_eq!(policy.pick(&task(1, 3, 1, 500.0)), Some(1), "all are idle");
    }

    #[test]
    fn runs_share_queues_and_devices_that_are_down_steal_nothing() {
        let mut policy = begun(&[1, 2]);
        assert_eq!(policy.pick(&task(1, 0, NONE, 0.0)), Some(0));
        assert_eq!(policy.pick(&task(2, 0, NONE, 0.0)), Some(1));
        let down = DeviceChange {
            device: 2,
            is_up: false,
            memory_free_bytes: 0,
            load: 0.0,
        };
        policy.observe(&[], &[down]);
        // Of two devices with one task each, the home.
        assert_eq!(
            policy.pick(&task(1, 3, 1, 1.0)),
            Some(0),
            "its producer ended"
        );
        assert_eq!(policy.pick(&task(1, 4, 1, 1.0)), Some(1));
        policy.end(2);
        assert_eq!(policy.pick(&task(2, 1, 0, 1.0)), None, "the run is over");
        policy.end(1);
        assert_eq!(policy.pick(&task(1, 1, 0, 1.0)), None);
    }
}
