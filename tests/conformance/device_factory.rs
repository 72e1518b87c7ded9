//! `device_factory.json`: registration, listing and creation.

use std::collections::BTreeSet;
use std::sync::Arc;

use placewright::backend::default_factories;
use placewright::device::DEFAULT_FACTORY_PRIORITY;
use placewright::device::DeviceError;
use placewright::device::DeviceOptions;
use placewright::device::FactoryRegistry;
use placewright::device::PhysicalDevice;
use serde_json::Value;
use serde_json::json;

use crate::category;
use crate::equal;
use crate::fakes::FakeFactory;
use crate::mentions;
use crate::text;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    if text(case, "op")? == "cpu_device_attributes" {
        return cpu_attributes(&default_factories(), case);
    }
    let mut registry = FactoryRegistry::empty();
    let cpu = FakeFactory {
        is_exact: true,
        ..FakeFactory::of("CPU", 1)
    };
    registry
        .register("CPU", 60, Arc::new(cpu))
        .map_err(|error| error.to_string())?;
    match text(case, "op")? {
        "sequence" => {
            let steps = case["steps"].as_array().ok_or("case has no steps")?;
            for (index, step) in steps.iter().enumerate() {
                run(&mut registry, step).map_err(|message| format!("step {index}: {message}"))?;
            }
            Ok(())
        }
        other => Err(format!("unknown op `{other}`")),
    }
}

fn run(registry: &mut FactoryRegistry, step: &Value) -> Result<(), String> {
    let expect = &step["expect"];
    match text(step, "call")? {
        "register" => {
            let result = register(registry, step)?;
            if expect["error"].is_object() {
                mentions(result, &expect["error"])
            } else {
                result.map_err(|error| error.to_string())
            }
        }
        "device_priority" => {
            let priority = registry.priority(text(step, "type")?);
            equal("value", &json!(priority), &expect["value"])
        }
        "is_pluggable" => {
            let pluggable = registry.is_pluggable(text(step, "type")?);
            equal("value", &json!(pluggable), &expect["value"])
        }
        "new_device" => {
            let device =
                registry.new_device(text(step, "type")?, &options(step)?, text(step, "prefix")?);
            let name = device.map(|device| device.map(|device| device.attributes().name.clone()));
            unless_refused(name, expect, |name| {
                equal("name", &json!(name), &expect["name"])
            })
        }
        "add_devices" => {
            let devices = registry.create_devices(&options(step)?, text(step, "prefix")?);
            unless_refused(devices, expect, |devices| {
                let names: Vec<_> = devices
                    .iter()
                    .map(|(_, device)| device.attributes().name.clone())
                    .collect();
                first_then_any_order(&names, expect)
            })
        }
        "list_all_physical_devices" => {
            unless_refused(registry.physical_devices(), expect, |devices| {
                first_then_any_order(&names(devices), expect)
            })
        }
        "list_pluggable_physical_devices" => {
            unless_refused(registry.pluggable_physical_devices(), expect, |devices| {
                first_then_any_order(&names(devices), expect)
            })
        }
        "get_any_device_details" => {
            let index = step["index"].as_i64().ok_or("step has no index")?;
            // Negative indices are unrepresentable.
            let found = usize::try_from(index)
                .map_err(|error| DeviceError::InvalidArgument(format!("device {index}: {error}")))
                .and_then(|index| registry.device_details(index));
            if expect["ok"] == false {
                return equal("ok", &found.is_ok(), &false);
            }
            unless_refused(found, expect, |_| Ok(()))
        }
        other => Err(format!("unknown call `{other}`")),
    }
}

fn register(
    registry: &mut FactoryRegistry,
    step: &Value,
) -> Result<Result<(), placewright::device::RegisterError>, String> {
    let device_type = text(step, "type")?;
    let n = step["physical_count"].as_u64().unwrap_or(1);
    let factory = Arc::new(FakeFactory {
        named: step["factory"].as_str().unwrap_or(device_type).to_owned(),
        ..FakeFactory::of(device_type, u32::try_from(n).map_err(|e| e.to_string())?)
    });
    let priority = match &step["priority"] {
        Value::Null => DEFAULT_FACTORY_PRIORITY,
        priority => priority
            .as_i64()
            .and_then(|priority| i32::try_from(priority).ok())
            .ok_or("priority is no number of 32 bits")?,
    };
    let result = if step["pluggable"] == true {
        registry.register_pluggable(device_type, priority, factory)
    } else {
        registry.register(device_type, priority, factory)
    };
    Ok(result.map(|_| ()))
}

fn options(step: &Value) -> Result<DeviceOptions, String> {
    let config = &step["config"];
    let mut options = DeviceOptions::default();
    for (device_type, n) in config["device_count"].as_object().into_iter().flatten() {
        let n = n.as_u64().and_then(|n| u32::try_from(n).ok());
        options
            .device_count
            .insert(device_type.clone(), n.ok_or("bad device_count")?);
    }
    for filter in config["device_filters"].as_array().into_iter().flatten() {
        let filter = filter.as_str().ok_or("bad device filter")?;
        options.device_filters.push(filter.to_owned());
    }
    Ok(options)
}

/// Checks the error, if the case expects one, or otherwise the result.
fn unless_refused<T: std::fmt::Debug>(
    found: Result<T, DeviceError>,
    expect: &Value,
    check: impl FnOnce(T) -> Result<(), String>,
) -> Result<(), String> {
    if expect["error"].is_object() {
        if let Err(error) = &found {
            category(&expect["error"], error.code().name())?;
        }
        return mentions(found, &expect["error"]);
    }
    check(found.map_err(|error| error.to_string())?)
}

fn names(devices: Vec<PhysicalDevice>) -> Vec<String> {
    devices.into_iter().map(|device| device.name).collect()
}

fn first_then_any_order(found: &[String], expect: &Value) -> Result<(), String> {
    let list = |key: &str| -> Vec<String> {
        let entries = expect[key].as_array().into_iter().flatten();
        entries
            .filter_map(|entry| entry.as_str().map(str::to_owned))
            .collect()
    };
    let first = list("first");
    let (head, rest) = found.split_at(first.len().min(found.len()));
    equal("first", &head.to_vec(), &first)?;
    equal(
        "number of the rest",
        &rest.len(),
        &list("rest_any_order").len(),
    )?;
    let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
    equal("rest", &set(rest), &set(&list("rest_any_order")))
}

fn cpu_attributes(registry: &FactoryRegistry, case: &Value) -> Result<(), String> {
    let mut options = options(case)?;
    // The cases assume machines without SYCL devices.
    options.device_count.entry("SYCL".to_owned()).or_insert(0);
    let devices = registry.create_devices(&options, text(case, "prefix")?);
    unless_refused(devices, &case["expect"], |devices| {
        let found: Vec<_> = devices
            .iter()
            .map(|(_, device)| {
                let attributes = device.attributes();
                json!({
                    "name": attributes.name,
                    "device_type": attributes.device_type,
                    "memory_limit": attributes.memory_limit_bytes,
                    "incarnation_nonzero": attributes.incarnation != 0,
                    "physical_device_desc": attributes.physical_description,
                })
            })
            .collect();
        equal("devices", &json!(found), &case["expect"]["devices"])
    })
}
