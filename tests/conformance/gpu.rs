//! `gpu.json`: memory limits of GPUs, and the devices created on them.

use placewright::device::gpu::ComputeCapability;
use placewright::device::gpu::GpuEra;
use placewright::device::gpu::GpuOptions;
use placewright::device::gpu::GpuPlanError;
use placewright::device::gpu::PhysicalGpu;
use placewright::device::gpu::VirtualGpus;
use placewright::device::gpu::memory_limit;
use placewright::device::gpu::plan_gpus;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::category;
use crate::equal;
use crate::mentions;
use crate::text;

/// The oldest GPUs that TensorFlow's builds support.
const MIN_COMPUTE_CAPABILITY: ComputeCapability = ComputeCapability { major: 3, minor: 5 };

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let inputs = case["inputs"].as_object().ok_or("case has no inputs")?;
    let case_inputs = read(inputs)?;
    let result = match text(case, "op")? {
        "single_device_memory_limit" => {
            let gpu = case_inputs.gpus.first().ok_or("case has no GPU")?;
            memory_limit(0, gpu, &case_inputs.options, &mut Vec::new())
                .map(|limit| json!({ "memory_limit": limit }))
        }
        "plan_gpu_devices" => plan(&case_inputs),
        other => return Err(format!("unknown op `{other}`")),
    };
    let expect = &case["expect"];
    if expect["error"].is_object() {
        if let Err(error) = &result {
            category(&expect["error"], category_of(error))?;
        }
        return mentions(result, &expect["error"]);
    }
    let found = result.map_err(|error| error.to_string())?;
    matches_expected("result", &found, expect)
}

fn category_of(error: &GpuPlanError) -> &'static str {
    match error {
        GpuPlanError::NotEnoughGpus { .. } | GpuPlanError::NotOneEntryPerGpu { .. } => "Unknown",
        GpuPlanError::NoUnifiedMemory { .. } => "Internal",
        _ => "InvalidArgument",
    }
}

fn plan(inputs: &Inputs) -> Result<Value, GpuPlanError> {
    let plan = plan_gpus(
        &inputs.gpus,
        MIN_COMPUTE_CAPABILITY,
        inputs.device_count,
        &inputs.options,
    )?;
    let devices = plan.devices.into_iter().map(|device| {
        let links = device.locality.links.iter().map(
            |link| json!({"device_id": link.device_index, "type": link.kind, "strength": link.strength}),
        );
        json!({
            "tf_id": device.index,
            "physical": device.gpu,
            "memory_limit": device.memory_limit_bytes,
            "priority": device.stream_priority,
            "numa_node": device.locality.numa_node,
            "bus_id": device.locality.bus_id,
            "links": links.collect::<Value>(),
            "physical_device_desc": device.physical_description,
        })
    });
    Ok(json!({ "devices": devices.collect::<Value>() }))
}

/// Compares lists of equal length; of objects, compares only the keys that the case has.
fn matches_expected(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    match (found, expected) {
        (Value::Array(found), Value::Array(expected)) => {
            equal(&format!("number of {what}"), &found.len(), &expected.len())?;
            let mut pairs = found.iter().zip(expected).enumerate();
            pairs.try_for_each(|(at, (found, expected))| {
                matches_expected(&format!("{what}[{at}]"), found, expected)
            })
        }
        (Value::Object(found), Value::Object(expected)) => {
            for (key, expected) in expected {
                let found = found.get(key).ok_or_else(|| {
                    format!("{what}: the case expects `{key}`, which the result lacks")
                })?;
                matches_expected(key, found, expected)?;
            }
            Ok(())
        }
        _ => equal(what, found, expected),
    }
}

struct Inputs {
    gpus: Vec<PhysicalGpu>,
    device_count: Option<u32>,
    options: GpuOptions,
}

/// Reads all inputs. An unknown input is an error, so that none is ignored.
fn read(inputs: &Map<String, Value>) -> Result<Inputs, String> {
    let mut read = Inputs {
        gpus: Vec::new(),
        device_count: None,
        options: GpuOptions::default(),
    };
    // The number of GPUs is needed before their properties.
    let n_gpus = inputs.get("visible_count").map_or(Ok(1), number)?;
    read.gpus = vec![usual_gpu(); n_gpus];
    for (key, value) in inputs {
        let options = &mut read.options;
        match key.as_str() {
            "visible_count" => {}
            "device_count" => read.device_count = Some(number(value)?),
            "visible_device_list" => options.visible_device_list = string(value)?,
            "frac" | "per_process_gpu_memory_fraction" => {
                options.per_process_memory_fraction =
                    value.as_f64().ok_or("a fraction is no number")?;
            }
            "unified" | "use_unified_memory" => {
                options.use_unified_memory = value.as_bool().ok_or("unified is no flag")?;
            }
            "reserve_mb" | "gpu_system_memory_size_in_mb" => {
                options.system_memory_mib = number(value)?;
            }
            "env_reserve_mb" | "TF_DEVICE_MIN_SYS_MEMORY_IN_MB" => {
                options.min_system_memory_mib = Some(string(value)?);
            }
            "min_multiprocessor_count" | "TF_MIN_GPU_MULTIPROCESSOR_COUNT" => {
                options.min_multiprocessor_count = Some(string(value)?);
            }
            "num_virtual_devices_per_gpu" => options.n_virtual_devices_per_gpu = number(value)?,
            "era" => options.era = era(value)?,
            "virtual_devices" => each_entry(options, value, |entry, value| {
                entry.memory_limits_mib = list(value, |limit| {
                    #[expect(clippy::cast_possible_truncation, reason = "the option is a float")]
                    limit.as_f64().map(|limit| limit as f32)
                })?;
                Ok(())
            })?,
            "device_ordinals" => each_entry(options, value, |entry, value| {
                entry.device_ordinals = list(value, |ordinal| number(ordinal).ok())?;
                Ok(())
            })?,
            "priorities" => each_entry(options, value, |entry, value| {
                entry.priorities = list(value, |priority| number(priority).ok())?;
                Ok(())
            })?,
            _ => of_gpus(&mut read.gpus, key, value)?,
        }
    }
    Ok(read)
}

/// Applies a property of GPUs: one value for all, or a list with one per GPU.
fn of_gpus(gpus: &mut [PhysicalGpu], key: &str, value: &Value) -> Result<(), String> {
    for (index, gpu) in gpus.iter_mut().enumerate() {
        let is_range = matches!(key, "priority_range" | "stream_priority_range");
        let value = match value {
            Value::Array(values) if !is_range || values.iter().all(Value::is_array) => values
                .get(index)
                .ok_or_else(|| format!("`{key}` has no value for GPU {index}"))?,
            value => value,
        };
        match key {
            "avail" | "available_memory" => gpu.available_bytes = number(value)?,
            "total" | "total_memory" => gpu.total_bytes = number(value)?,
            "cc" | "compute_capability" | "compute_capabilities" => {
                gpu.compute_capability = Some(compute_capability(value)?);
            }
            "multiprocessors" | "multiprocessor_counts" | "core_counts" => {
                gpu.n_multiprocessors = number(value)?;
            }
            "numa_node" | "numa_nodes" => gpu.numa_node = number(value)?,
            "peers" => gpu.peers = list(value, |peer| number(peer).ok())?,
            "tegra" => gpu.is_tegra = value == true,
            "priority_range" | "stream_priority_range" => {
                let ends: Vec<i32> = list(value, |end| number(end).ok())?;
                let (least, most) = (ends.iter().min(), ends.iter().max());
                let (least, most) = least.zip(most).ok_or("a range has no ends")?;
                gpu.stream_priorities = *least..=*most;
            }
            _ => return Err(format!("unknown input `{key}`")),
        }
    }
    Ok(())
}

fn usual_gpu() -> PhysicalGpu {
    PhysicalGpu {
        name: "GPU of a case".to_owned(),
        pci_bus_id: "0000:00:00.0".to_owned(),
        compute_capability: Some(ComputeCapability { major: 7, minor: 0 }),
        n_multiprocessors: 80,
        total_bytes: 16 << 30,
        available_bytes: 16 << 30,
        numa_node: 0,
        peers: Vec::new(),
        nvlinks: Vec::new(),
        stream_priorities: -5..=0,
        is_tegra: false,
    }
}

fn era(value: &Value) -> Result<GpuEra, String> {
    match value.as_str() {
        Some("0.x") => Ok(GpuEra::V0),
        Some("1.x") => Ok(GpuEra::V1),
        Some("2.x-late") => Ok(GpuEra::V2Late),
        _ => Err(format!("unknown era {value}")),
    }
}

/// Parses `7`, `7.5` or `"7.5"`.
fn compute_capability(value: &Value) -> Result<ComputeCapability, String> {
    let text = string(value)?;
    let (major, minor) = text.split_once('.').unwrap_or((&text, "0"));
    match (major.parse(), minor.parse()) {
        (Ok(major), Ok(minor)) => Ok(ComputeCapability { major, minor }),
        _ => Err(format!("{value} is no compute capability")),
    }
}

fn each_entry(
    options: &mut GpuOptions,
    value: &Value,
    mut set: impl FnMut(&mut VirtualGpus, &Value) -> Result<(), String>,
) -> Result<(), String> {
    let values = value.as_array().ok_or("entries are no list")?;
    if options.virtual_devices.len() < values.len() {
        let n = values.len();
        options.virtual_devices.resize_with(n, VirtualGpus::default);
    }
    let mut pairs = options.virtual_devices.iter_mut().zip(values);
    pairs.try_for_each(|(entry, value)| set(entry, value))
}

fn list<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>, String> {
    let values = value
        .as_array()
        .ok_or_else(|| format!("{value} is no list"))?;
    let read = |value| read(value).ok_or_else(|| format!("{value} is not what belongs there"));
    values.iter().map(read).collect()
}

fn number<T: std::str::FromStr>(value: &Value) -> Result<T, String> {
    let text = string(value)?;
    text.parse()
        .map_err(|_| format!("{value} is no number that fits"))
}

/// Returns a string, or another value as JSON.
fn string(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("{other} is neither text nor number")),
    }
}
