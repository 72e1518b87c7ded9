//! Pins by the names of nodes and devices.

use super::names;
use crate::candidates::PlacementOptions;
use crate::device::DeviceSet;
use crate::error::Error;
use crate::graph::Graph;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// Names in a message; a cluster may have thousands of devices.
const N_NAMES_MAX: usize = 8;

/// Adds pins that are given by names to those of the options.
///
/// # Errors
/// [`Error::Pin`].
pub(super) fn resolve(
    pins: &[(String, String)],
    graph: &Graph,
    devices: &DeviceSet,
    options: &mut PlacementOptions,
) -> Result<(), Error> {
    for (node, device) in pins {
        let error = |problem: String| Error::Pin {
            node: node.clone(),
            device: device.clone(),
            problem,
        };
        let Some(found) = graph.find_node(node) else {
            return Err(error(match names::nearest(graph, node) {
                Some(near) => format!("the graph has no such node; did you mean `{near}`?"),
                None => "the graph has no such node".to_owned(),
            }));
        };
        let id = find_device(devices, device).map_err(error)?;
        options.pins.push((found, id));
    }
    Ok(())
}

/// Adds priorities of nodes that are given by name to those of the options.
///
/// # Errors
/// [`Error::UnknownNode`].
pub(super) fn prioritize(
    priorities: &[(String, i32)],
    graph: &Graph,
    options: &mut PlacementOptions,
) -> Result<(), Error> {
    for (node, priority) in priorities {
        let found = names::find_target(graph, node)?;
        options.priorities.push((found, *priority));
    }
    Ok(())
}

/// Checks that a device matches the scope, unless nodes may run elsewhere.
///
/// # Errors
/// [`Error::DeviceScope`].
pub(super) fn check_scope(options: &PlacementOptions, devices: &DeviceSet) -> Result<(), Error> {
    let scope = &options.device_scope;
    if options.allow_soft_placement || !devices.find_matching(scope).is_empty() {
        return Ok(());
    }
    let all: Vec<DeviceId> = devices.iter().map(|(id, _)| id).collect();
    Err(Error::DeviceScope {
        scope: scope.request_text(),
        remedy: format!(
            "devices are {}; use one of them, or allow soft placement",
            list(devices, &all)
        ),
    })
}

/// Finds the one device that a possibly partial name matches, or returns the problem of the name.
pub(crate) fn find_device(devices: &DeviceSet, name: &str) -> Result<DeviceId, String> {
    if let Some(id) = devices.find_by_name(name) {
        return Ok(id);
    }
    let spec = DeviceName::parse_full_or_local(name).map_err(|error| error.to_string())?;
    match devices.find_matching(&spec)[..] {
        [id] => Ok(id),
        [] => {
            let all: Vec<DeviceId> = devices.iter().map(|(id, _)| id).collect();
            let all = list(devices, &all);
            Err(format!("there is no such device; devices are {all}"))
        }
        ref several => {
            let n_devices = several.len();
            let several = list(devices, several);
            Err(format!(
                "the name matches {n_devices} devices: {several}; name one of them"
            ))
        }
    }
}

fn list(devices: &DeviceSet, ids: &[DeviceId]) -> String {
    let names = ids.iter().take(N_NAMES_MAX).filter_map(|&id| {
        let device = devices.get(id)?;
        Some(format!("`{}`", device.attributes().name))
    });
    let mut list = names.collect::<Vec<_>>().join(", ");
    if ids.len() > N_NAMES_MAX {
        list.push_str(&format!(" and {} more", ids.len() - N_NAMES_MAX));
    }
    list
}
