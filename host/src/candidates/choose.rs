//! The candidate list of a colocation group: which devices, in which order (TensorFlow
//! `ColocationGraph::GetDevicesForNode`).

use std::cmp::Reverse;

use hashbrown::HashMap;

use crate::candidates::index::to_u32;
use crate::candidates::types::SupportedTypes;
use crate::candidates::types::TypeTable;
use crate::device::DeviceSet;
use crate::graph::Csr;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// The request of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) requested: &'a DeviceName,
    pub(super) assigned: &'a DeviceName,
    pub(super) resource: &'a DeviceName,
}

/// A candidate list, by its number, and whether the request was dropped for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) set: u32,
    pub(super) softened: bool,
}

/// Chooses and interns candidate lists.
#[derive(Debug)]
pub(super) struct Chooser<'a> {
    devices: &'a DeviceSet,
    /// Full names as strings, for the order of devices.
    names: Vec<&'a str>,
    default_device: Option<usize>,
    soft: bool,
    pub(super) sets: Csr,
    ids: HashMap<Vec<u32>, u32>,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(
        devices: &'a DeviceSet,
        default_device: Option<DeviceId>,
        soft: bool,
    ) -> Self {
        Self {
            devices,
            names: devices
                .iter()
                .map(|(_, device)| device.attributes().name.as_str())
                .collect(),
            default_device: default_device.map(DeviceId::index),
            soft,
            sets: Csr::default(),
            ids: HashMap::new(),
        }
    }

    /// Chooses the list for a group that these types support; `None` if no device is left.
    pub(super) fn choose(
        &mut self,
        supported: &SupportedTypes,
        request: Request<'_>,
        types: &TypeTable,
    ) -> Option<Choice> {
        // An assigned device stays, even if soft placement has kept the conflicting request of a
        // resource.
        let wanted = match request.assigned.has_details() {
            true => request.assigned,
            false => request.requested,
        };
        let mut softened = !wanted.is_compatible_with(request.requested);
        let mut found = self.filtered(supported, wanted, types);
        if found.is_empty() && self.soft && wanted.has_details() {
            softened = true;
            let keeps = |name: &DeviceName| (name.device_type.is_some(), name.index.is_some());
            let (assigned, resource) = (keeps(request.assigned), keeps(request.resource));
            for (keep_type, keep_index) in [
                (assigned.0 || resource.0, assigned.1 || resource.1),
                assigned,
            ] {
                let mut relaxed = wanted.clone();
                if !keep_type {
                    relaxed.device_type = None;
                }
                if !keep_index {
                    relaxed.index = None;
                }
                found = self.filtered(supported, &relaxed, types);
                if !found.is_empty() {
                    break;
                }
            }
        }
        if found.is_empty() {
            return None;
        }
        let set = self.intern(found);
        Some(Choice { set, softened })
    }

    /// Returns the number of a list.
    pub(super) fn intern(&mut self, devices: Vec<u32>) -> u32 {
        if let Some(&id) = self.ids.get(&devices) {
            return id;
        }
        let id = to_u32(self.sets.n_rows());
        self.sets.items.extend_from_slice(&devices);
        self.sets.offsets.push(to_u32(self.sets.items.len()));
        self.ids.insert(devices, id);
        id
    }

    fn filtered(
        &self,
        supported: &SupportedTypes,
        spec: &DeviceName,
        types: &TypeTable,
    ) -> Vec<u32> {
        let priority_of = |device: usize| {
            supported
                .iter()
                .find(|&&(number, _)| number == types.of_device[device])
                .map(|&(_, priority)| priority)
        };
        let mut found: Vec<(u32, i32)> = self
            .devices
            .iter()
            .filter(|(_, device)| spec.matches(device.name()))
            .filter_map(|(id, _)| Some((id.0, priority_of(id.index())?)))
            .collect();
        found.sort_unstable_by_key(|&(device, priority)| {
            let index = device as usize;
            let type_priority = types.priorities[types.of_device[index] as usize];
            (
                self.default_device != Some(index),
                Reverse(priority),
                Reverse(type_priority),
                self.names[index],
                device,
            )
        });
        found.into_iter().map(|(device, _)| device).collect()
    }
}
