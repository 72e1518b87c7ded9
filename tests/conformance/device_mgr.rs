//! Device managers, renamed devices, remote devices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;

use placewright::device::Device;
use placewright::device::DeviceAttributes;
use placewright::device::DeviceError;
use placewright::device::DeviceManager;
use placewright::device::DiscoveryOptions;
use placewright::device::GetStatusDone;
use placewright::device::RemoteDevice;
use placewright::device::RenamedDevice;
use placewright::device::Resource;
use placewright::device::Worker;
use placewright::device::WorkerCache;
use placewright::device::new_remote_devices;
use placewright::names::DeviceName;
use serde_json::Value;
use serde_json::json;

use crate::category;
use crate::equal;
use crate::fakes::FakeDevice;
use crate::mentions;
use crate::text;

struct Anything;

impl Resource for Anything {
    fn describe(&self) -> String {
        "anything".to_owned()
    }
}

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let expected = &case["expect"];
    match text(case, "op")? {
        "new_renamed_device" => return renamed(case),
        "discover_remote_devices" => return discovered(case),
        _ => {}
    }
    let manager = DeviceManager::new(devices(&case["devices"])?);
    match text(case, "op")? {
        "lookup_device" => is_device(manager.lookup(text(case, "name")?), expected),
        "host_cpu" => {
            let found = manager.host_cpu().map(|device| name(&device));
            equal("host CPU", &found.as_deref(), &expected["device"].as_str())
        }
        "num_device_type" => {
            let found = manager.n_devices_of_type(text(case, "type")?);
            equal("count", &Some(found as u64), &expected["value"].as_u64())
        }
        "num_devices" => {
            let found = manager.devices().len();
            equal("count", &Some(found as u64), &expected["value"].as_u64())
        }
        "clear_containers" => cleared(&manager, case),
        "dynamic_add" => {
            let added = case["add"].as_array().into_iter().flatten();
            let added: Result<Vec<_>, String> = added.map(|name| device(name, "CPU")).collect();
            is_done(manager.add_devices(added?), expected)
        }
        "dynamic_remove" => {
            let removed = names(&case["remove"]).into_iter();
            let removed: Result<Vec<_>, _> = removed.map(|name| manager.lookup(name)).collect();
            is_done(
                removed.and_then(|removed| manager.remove_devices(&removed)),
                expected,
            )
        }
        "dynamic_remove_by_name" => is_done(
            manager.remove_devices_by_name(&names(&case["remove"])),
            expected,
        ),
        other => Err(format!("no such operation: {other}")),
    }
}

fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).collect()
}

fn name(device: &Arc<dyn Device>) -> String {
    device.attributes().name.clone()
}

fn device(name: &Value, device_type: &str) -> Result<Arc<dyn Device>, String> {
    let name = name.as_str().ok_or("a device has no name")?;
    Ok(FakeDevice::new(name, device_type).shared())
}

fn devices(list: &Value) -> Result<Vec<Arc<dyn Device>>, String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|told| device(&told["name"], text(told, "type")?))
        .collect()
}

fn is_device(found: Result<Arc<dyn Device>, DeviceError>, expected: &Value) -> Result<(), String> {
    match (&expected["error"], found) {
        (Value::Null, Ok(found)) => equal(
            "device",
            &Some(name(&found).as_str()),
            &expected["device"].as_str(),
        ),
        (Value::Null, Err(error)) => Err(error.to_string()),
        (error, found) => is_error(found, error),
    }
}

fn is_done(found: Result<(), DeviceError>, expected: &Value) -> Result<(), String> {
    match (&expected["error"], found) {
        (Value::Null, found) => found.map_err(|error| error.to_string()),
        (error, found) => is_error(found, error),
    }
}

fn is_error<T: std::fmt::Debug>(
    found: Result<T, DeviceError>,
    error: &Value,
) -> Result<(), String> {
    if let Err(found) = &found {
        category(error, &found.code().to_string())?;
    }
    mentions(found, error)
}

fn cleared(manager: &DeviceManager, case: &Value) -> Result<(), String> {
    let manager_of = |resource: &Value| -> Result<_, String> {
        let device = manager.lookup(text(resource, "device")?);
        let device = device.map_err(|error| error.to_string())?;
        let resources = device.resource_manager().map_err(|error| error.to_string());
        Ok(Arc::clone(resources?))
    };
    let resources = case["resources"].as_array().into_iter().flatten();
    let resources: Vec<&Value> = resources.collect();
    for resource in &resources {
        manager_of(resource)?
            .create(
                text(resource, "container")?,
                text(resource, "name")?,
                Arc::new(Anything),
            )
            .map_err(|error| error.to_string())?;
    }
    manager.clear_containers(&names(&case["containers"]));
    let mut remaining = BTreeSet::new();
    for resource in resources {
        let found = manager_of(resource)?
            .lookup::<Anything>(text(resource, "container")?, text(resource, "name")?);
        if found.is_ok() {
            remaining.insert(resource.to_string());
        }
    }
    let expected = case["expect"]["remaining"].as_array().into_iter().flatten();
    equal(
        "remaining",
        &remaining,
        &expected.map(Value::to_string).collect(),
    )
}

fn renamed(case: &Value) -> Result<(), String> {
    let told = &case["underlying"];
    let underlying = device(&told["name"], text(told, "type")?)?;
    let renamed = RenamedDevice::new(text(case, "new_base")?, Arc::clone(&underlying));
    if !case["expect"]["error"].is_null() {
        return is_error(renamed.map(|_| ()), &case["expect"]["error"]);
    }
    let renamed = renamed.map_err(|error| error.to_string())?;
    let (old, new) = (underlying.attributes(), renamed.attributes());
    let expected = &case["expect"];
    equal("name", &new.name.as_str(), &text(expected, "name")?)?;
    equal(
        "type",
        &new.device_type.as_str(),
        &text(expected, "device_type")?,
    )?;
    let parsed = renamed.name();
    let parts = json!({
        "job": parsed.job.as_deref(),
        "replica": parsed.replica,
        "task": parsed.task,
        "type": parsed.device_type.as_deref(),
        "id": parsed.index,
    });
    equal("parsed", &parts, &expected["parsed"])?;
    let with_old_name = DeviceAttributes {
        name: old.name.clone(),
        ..new.clone()
    };
    equal("other attributes", &with_old_name, old)
}

/// A cluster of one worker that answers at once.
#[derive(Debug)]
struct Cluster {
    name: Option<String>,
    answer: Vec<DeviceAttributes>,
}

#[derive(Debug)]
struct Answering(Vec<DeviceAttributes>);

impl WorkerCache for Cluster {
    fn list_workers(&self) -> Vec<String> {
        self.name.iter().cloned().collect()
    }

    fn get_or_create_worker(&self, name: &str) -> Option<Arc<dyn Worker>> {
        let is_there = self.name.as_deref() == Some(name);
        is_there.then(|| Arc::new(Answering(self.answer.clone())) as Arc<dyn Worker>)
    }
}

impl Worker for Answering {
    fn get_status(&self, done: GetStatusDone) {
        done.call(Ok(self.0.clone()));
    }
}

fn discovered(case: &Value) -> Result<(), String> {
    let worker = text(case, "worker")?;
    let told = case["get_status_response"].as_array().into_iter().flatten();
    let told: Result<Vec<DeviceAttributes>, String> = told
        .map(|device| {
            let any_name = DeviceName::local("CPU", 0);
            let number = |key: &str| device[key].as_u64().unwrap_or(0);
            Ok(DeviceAttributes {
                name: text(device, "name")?.to_owned(),
                incarnation: number("incarnation"),
                ..DeviceAttributes::new(
                    &any_name,
                    text(device, "device_type")?,
                    number("memory_limit"),
                )
            })
        })
        .collect();
    let is_there = case["worker_exists"].as_bool().unwrap_or(true);
    let cluster = Cluster {
        name: is_there.then(|| worker.to_owned()),
        answer: told?,
    };
    type Found = Result<Vec<RemoteDevice>, DeviceError>;
    let answers: Arc<Mutex<Vec<Found>>> = Arc::default();
    let heard = Arc::clone(&answers);
    let options = DiscoveryOptions::default();
    new_remote_devices(&cluster, worker, &options, move |found| {
        heard.lock().expect("nobody panics under it").push(found);
    });
    let mut answers = std::mem::take(&mut *answers.lock().expect("as above"));
    equal("calls of the callback", &answers.len(), &1)?;
    let expected = &case["expect"];
    let found = answers.remove(0);
    if !expected["error"].is_null() {
        return is_error(found, &expected["error"]);
    }
    let found = found.map_err(|error| error.to_string())?;
    let found: Vec<Value> = found
        .iter()
        .map(|device| {
            let attributes = device.attributes();
            json!({
                "name": attributes.name,
                "device_type": attributes.device_type,
                "memory_limit": attributes.memory_limit_bytes,
                "incarnation": attributes.incarnation,
            })
        })
        .collect();
    equal("devices", &Some(&found), &expected["devices"].as_array())
}
