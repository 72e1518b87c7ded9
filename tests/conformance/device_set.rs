//! `device_set.json`: look-ups and orders.

use placewright::device::DeviceSet;
use placewright::device::UNREGISTERED_TYPE_PRIORITY;
use placewright::names::DeviceId;
use placewright::names::DeviceName;
use serde_json::Value;
use serde_json::json;

use crate::equal;
use crate::fakes::FakeDevice;
use crate::text;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let expect = &case["expect"];
    match text(case, "op")? {
        "prioritized_device_types" => {
            let set = set(case)?;
            equal("types", &json!(set.prioritized_types()), &expect["types"])
        }
        "prioritized_devices" => {
            let set = set(case)?;
            let found = named(&set, &set.prioritized_devices());
            equal("devices", &found, &expect["devices"])
        }
        "sort_device_priority_pairs" => sort_devices(case),
        "sort_type_priority_pairs" => sort_types(case),
        "find_device_by_name" => {
            let set = set(case)?;
            let found = set
                .find_by_name(text(case, "name")?)
                .map(|id| name(&set, id));
            equal("device", &json!(found), &expect["device"])
        }
        "find_matching_devices" => {
            let set = set(case)?;
            let spec = DeviceName::parse_full(text(case, "spec")?).map_err(|e| e.to_string())?;
            let found: Vec<_> = set
                .find_matching(&spec)
                .into_iter()
                .map(|id| name(&set, id))
                .collect();
            equal("devices", &json!(found), &expect["devices"])
        }
        other => Err(format!("unknown op `{other}`")),
    }
}

fn set(case: &Value) -> Result<DeviceSet, String> {
    let listed = case["devices"].as_array().ok_or("case has no devices")?;
    let mut devices = Vec::new();
    let mut priorities = Vec::new();
    for device in listed {
        let device_type = text(device, "type")?;
        devices.push(FakeDevice::new(text(device, "name")?, device_type).shared());
        let priority = device["priority"]
            .as_i64()
            .and_then(|n| i32::try_from(n).ok());
        // A negative priority in a case means that no factory is registered.
        if let Some(priority) = priority
            && priority > UNREGISTERED_TYPE_PRIORITY
        {
            priorities.push((device_type.to_owned(), priority));
        }
    }
    Ok(DeviceSet::new(devices).with_type_priorities(priorities))
}

fn type_priorities(case: &Value) -> Result<Vec<(String, i32)>, String> {
    let listed = case["type_priority"]
        .as_object()
        .ok_or("no type_priority")?;
    listed
        .iter()
        .map(|(device_type, priority)| Ok((device_type.clone(), number(priority)?)))
        .collect()
}

fn sort_devices(case: &Value) -> Result<(), String> {
    let input = case["input"].as_array().ok_or("case has no input")?;
    let mut devices = Vec::new();
    let mut pairs = Vec::new();
    for (id, pair) in (0u32..).zip(input) {
        let full = pair[0].as_str().ok_or("no name")?;
        let parsed = DeviceName::parse_full(full).map_err(|error| error.to_string())?;
        let device_type = parsed.device_type.ok_or("no type")?;
        devices.push(FakeDevice::new(full, &device_type).shared());
        pairs.push((DeviceId(id), number(&pair[1])?));
    }
    let set = DeviceSet::new(devices).with_type_priorities(type_priorities(case)?);
    set.sort_by_priority(&mut pairs);
    equal("order", &named(&set, &pairs), &case["expect"]["order"])
}

fn sort_types(case: &Value) -> Result<(), String> {
    let input = case["input"].as_array().ok_or("case has no input")?;
    let mut pairs = Vec::new();
    for pair in input {
        pairs.push((pair[0].as_str().ok_or("no type")?, number(&pair[1])?));
    }
    let set = DeviceSet::new([]).with_type_priorities(type_priorities(case)?);
    set.sort_types_by_priority(&mut pairs);
    equal("order", &json!(pairs), &case["expect"]["order"])
}

fn number(value: &Value) -> Result<i32, String> {
    value
        .as_i64()
        .and_then(|number| i32::try_from(number).ok())
        .ok_or_else(|| format!("no number: {value}"))
}

fn named(set: &DeviceSet, pairs: &[(DeviceId, i32)]) -> Value {
    let named: Vec<_> = pairs
        .iter()
        .map(|&(id, priority)| (name(set, id), priority))
        .collect();
    json!(named)
}

fn name(set: &DeviceSet, id: DeviceId) -> String {
    set.get(id)
        .map_or_else(String::new, |device| device.attributes().name.clone())
}
