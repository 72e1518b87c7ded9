//! Sessions that know devices of other processes: where graphs may be placed, and what is rejected.

use std::sync::Arc;

use placewright::backend::default_factories;
use placewright::builder::GraphBuilder;
use placewright::device::DeviceAttributes;
use placewright::device::DeviceManager;
use placewright::device::DeviceOptions;
use placewright::device::DiscoveryOptions;
use placewright::device::FactoryRegistry;
use placewright::device::GetStatusDone;
use placewright::device::Worker;
use placewright::device::WorkerCache;
use placewright::device::devices_from_attributes;
use placewright::graph::Graph;
use placewright::names::DeviceName;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::Tensor;

const HERE: &str = "/job:localhost/replica:0/task:0";
const THERE: &str = "/job:worker/replica:0/task:1";

/// A cluster of one process, which has two CPU devices.
#[derive(Debug)]
struct Cluster;

impl WorkerCache for Cluster {
    fn list_workers(&self) -> Vec<String> {
        vec![THERE.to_owned()]
    }

    fn get_or_create_worker(&self, name: &str) -> Option<Arc<dyn Worker>> {
        (name == THERE).then(|| Arc::new(Self) as Arc<dyn Worker>)
    }
}

impl Worker for Cluster {
    fn get_status(&self, done: GetStatusDone) {
        done.call(Ok(vec![cpu(THERE, 0), cpu(THERE, 1)]));
    }
}

fn cpu(task: &str, index: u32) -> DeviceAttributes {
    let name = DeviceName::parse_full(&format!("{task}/device:CPU:{index}")).unwrap();
    DeviceAttributes::new(&name, "CPU", 256 << 20)
}

/// `x + 1`, on a device.
fn graph(device: &str) -> Graph {
    let graph = GraphBuilder::new("add");
    let b = graph.device(device).unwrap();
    let x = b.placeholder::<f32>("x", [Some(1)]).unwrap();
    b.named("y").add(x, [1f32]).unwrap();
    graph.finish()
}

fn on(device: &str) -> SessionBuilder {
    let mut options = DeviceOptions::default();
    options.device_count.insert("SYCL".to_owned(), 0);
    options.device_count.insert("GPU".to_owned(), 0);
    Session::builder()
        .with_graph(graph(device))
        .with_device_options(options)
}

fn device_names(session: &Session) -> Vec<String> {
    let devices = session.devices();
    devices
        .iter()
        .map(|(_, device)| device.attributes().name.clone())
        .collect()
}

fn device_of(session: &Session, node: &str) -> String {
    let node = session.graph().find_node(node).unwrap();
    let devices = session.devices();
    let device = devices.get(session.placement().device(node));
    device.unwrap().attributes().name.clone()
}

fn run(session: &Session) -> Result<Vec<f32>, String> {
    let x = Tensor::from_values([1], &[2f32]).unwrap();
    match session.run(&[("x", x)], &["y"]) {
        Ok(found) => Ok(found[0].as_slice::<f32>().unwrap().to_vec()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn graphs_are_placed_on_devices_of_workers_and_not_run_there() {
    let build = |device: &str, filters: &[&str]| {
        let options = DiscoveryOptions::default().with_device_filters(filters.iter().copied());
        on(device)
            .with_workers(Arc::new(Cluster), options)
            .build()
            .map_err(Box::new)
    };
    let there = build(&format!("{THERE}/device:CPU:1"), &[]).unwrap();
    let names = [(THERE, 0), (THERE, 1), (HERE, 0)];
    let names = names.map(|(task, index)| format!("{task}/device:CPU:{index}"));
    assert_eq!(device_names(&there), names);
    assert_eq!(device_of(&there, "y"), names[1]);
    let error = run(&there).unwrap_err();
    assert!(error.contains(&names[1]), "{error}");

    // Nodes that request this process run here.
    let here = build("/job:localhost", &[]).unwrap();
    assert_eq!(device_of(&here, "y"), names[2]);
    assert_eq!(run(&here).unwrap(), [3.0]);

    // A worker that no filter matches is absent.
    let error = build(THERE, &["/job:other"]).unwrap_err().to_string();
    assert!(error.contains(THERE), "{error}");
    let error = build("", &["/jobs"]).unwrap_err().to_string();
    assert!(error.contains("/jobs"), "{error}");
}

#[test]
fn clusters_given_by_attributes_include_local_devices() {
    let factories = default_factories();
    let own = factories
        .create_cpu_devices(&DeviceOptions::default(), HERE)
        .unwrap();
    let manager = DeviceManager::new(own);
    let told = vec![cpu(HERE, 0), cpu(THERE, 0)];
    let devices = devices_from_attributes(&manager, told).unwrap();
    let build = |device: &str| {
        let devices = factories.device_set(devices.clone());
        on(device).with_devices(devices).build().unwrap()
    };
    let here = build("/job:localhost");
    assert_eq!(run(&here).unwrap(), [3.0]);
    let there = build("/job:worker");
    assert_eq!(device_of(&there, "y"), format!("{THERE}/device:CPU:0"));
    let error = run(&there).unwrap_err();
    assert!(error.contains(THERE), "{error}");

    let badly_named = DeviceAttributes {
        name: "here".to_owned(),
        ..cpu(HERE, 0)
    };
    assert!(devices_from_attributes(&manager, vec![badly_named]).is_err());
}

/// Whatever other devices exist, and as many as are requested.
#[test]
fn cpu_devices_can_be_requested_alone() {
    let factories = default_factories();
    let mut options = DeviceOptions::default();
    options.device_count.insert("CPU".to_owned(), 3);
    let devices = factories.create_cpu_devices(&options, HERE).unwrap();
    let names = devices.iter().map(|device| &*device.attributes().name);
    let expected = [0, 1, 2].map(|index| format!("{HERE}/device:CPU:{index}"));
    assert_eq!(names.collect::<Vec<_>>(), expected);
    for device in &devices {
        assert!(factories.is_remote_call_allowed(&**device));
    }
    let devices = factories.device_set(devices);
    let session = on("/device:CPU:2").with_devices(devices).build().unwrap();
    assert_eq!(device_of(&session, "y"), expected[2]);
    assert_eq!(run(&session).unwrap(), [3.0]);

    options.device_count.insert("CPU".to_owned(), 0);
    let none = factories.create_cpu_devices(&options, HERE);
    assert!(none.is_err());
    let nobody = FactoryRegistry::empty().create_cpu_devices(&DeviceOptions::default(), HERE);
    assert!(nobody.is_err());
}
