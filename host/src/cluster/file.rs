//! The form of cluster files and of the catalogue.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;
use toml::Spanned;

use super::quantity::Bytes;
use super::quantity::BytesPerS;
use super::quantity::FlopPerS;
use super::quantity::Ns;
use super::quantity::Quantity;
use crate::cost::MeasuredKernel;

/// A cluster file. The catalogue has only profiles and links.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct ClusterFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) forwarding: Forwarding,
    #[serde(rename = "host", skip_serializing_if = "Vec::is_empty")]
    pub(super) hosts: Vec<HostEntry>,
    #[serde(rename = "connection", skip_serializing_if = "Vec::is_empty")]
    pub(super) connections: Vec<Connection>,
    #[serde(rename = "link", skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) links: BTreeMap<String, LinkProfile>,
    #[serde(rename = "profile", skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) profiles: BTreeMap<String, Profile>,
}

/// What a memory between two links does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Forwarding {
    /// It stores the whole tensor before it sends it.
    #[default]
    Staged,
    /// It sends parts while others still arrive.
    Pipelined,
}

/// Hosts with equal devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct HostEntry {
    /// `localhost` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) replica: u32,
    /// Task of the first one; by default the one after the last task of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<u32>,
    /// Number of hosts, with consecutive tasks; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<Spanned<u32>>,
    /// Link to the other hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Spanned<String>>,
    /// Threads that execute nodes of devices with threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) inter_op_threads: Option<u32>,
    /// Processors, which devices with threads share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) processors: Option<u32>,
    #[serde(rename = "device", default)]
    pub(super) devices: Vec<DeviceEntry>,
}

/// Equal devices of one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DeviceEntry {
    pub(super) profile: Spanned<String>,
    /// Index of the first one among the devices of its type; by default the one after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<u32>,
    /// Number of devices; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<Spanned<u32>>,
    /// Instead of the profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Quantity<Bytes>>,
    /// Link to the host, instead of the profile's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<Spanned<String>>,
    /// Link that connects these devices with each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peer_link: Option<Spanned<String>>,
    /// Devices of one host with the same bus share the link to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bus: Option<String>,
}

/// Links between single devices, in both directions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Connection {
    /// Full names of two devices.
    pub(super) between: Spanned<[String; 2]>,
    pub(super) link: Spanned<String>,
}

/// A kind of link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct LinkProfile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    pub(super) latency: Quantity<Ns>,
    /// Per direction; unlimited by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<Spanned<Quantity<BytesPerS>>>,
    /// Part of the bandwidth that transfers reach; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) efficiency: Option<Spanned<f64>>,
    /// From the device to its host, instead of the figures above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) back_latency: Option<Quantity<Ns>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) back_bandwidth: Option<Spanned<Quantity<BytesPerS>>>,
    /// Whether transfers one way slow down those the other way.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) half_duplex: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) notes: Option<String>,
}

/// A kind of device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Profile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    #[serde(rename = "type")]
    pub(super) device_type: Spanned<String>,
    /// Type whose kernels it has; its own type by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kernels_of: Option<String>,
    pub(super) memory: Quantity<Bytes>,
    pub(super) memory_bandwidth: Spanned<Quantity<BytesPerS>>,
    /// Rates of products, by element type. A type without a rate has that of `f32`, and `f32` that
    /// of the first other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) f32: Option<Quantity<FlopPerS>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) f64: Option<Quantity<FlopPerS>>,
    /// Of `f32` products, if the cluster file allows TF32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tf32: Option<Quantity<FlopPerS>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) f16: Option<Quantity<FlopPerS>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bf16: Option<Quantity<FlopPerS>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) int8: Option<Quantity<FlopPerS>>,
    /// Fixed time of one kernel.
    pub(super) launch: Quantity<Ns>,
    /// Parts of these rates that kernels reach; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) compute_efficiency: Option<Spanned<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory_efficiency: Option<Spanned<f64>>,
    /// Compute queues; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queues: Option<u32>,
    /// Link to the host. Without one, it computes in host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host_link: Option<Spanned<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peer_link: Option<Spanned<String>>,
    /// Copies within host memory, for devices that compute there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) copies: Option<Spanned<String>>,
    /// Devices of one host that name one chip share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chip: Option<String>,
    /// Threads of the chip with which a kernel computes. Without them, a kernel has a queue for
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<u32>,
    /// Preference of the type: larger is preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) notes: Option<String>,
    /// From so many elements of a row on, chains of elementwise ops are one kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fused_row_min: Option<usize>,
    /// By how much longer a small kernel takes if others were executed since its last execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cold: Option<Quantity<Ns>>,
    /// Measured times of kernels by family and size, instead of the rates.
    #[serde(rename = "kernel", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) kernels: Vec<MeasuredKernel>,
}

impl DeviceEntry {
    pub(super) fn new(profile: Spanned<String>) -> Self {
        Self {
            profile,
            index: None,
            count: None,
            memory: None,
            link: None,
            peer_link: None,
            bus: None,
        }
    }
}

impl LinkProfile {
    pub(super) fn new(latency: Quantity<Ns>) -> Self {
        Self {
            description: None,
            latency,
            bandwidth: None,
            efficiency: None,
            back_latency: None,
            back_bandwidth: None,
            half_duplex: false,
            source: None,
            notes: None,
        }
    }
}

impl Profile {
    pub(super) fn new(
        device_type: Spanned<String>,
        memory: Quantity<Bytes>,
        memory_bandwidth: Spanned<Quantity<BytesPerS>>,
        launch: Quantity<Ns>,
    ) -> Self {
        Self {
            description: None,
            device_type,
            kernels_of: None,
            memory,
            memory_bandwidth,
            f32: None,
            f64: None,
            tf32: None,
            f16: None,
            bf16: None,
            int8: None,
            launch,
            compute_efficiency: None,
            memory_efficiency: None,
            queues: None,
            host_link: None,
            peer_link: None,
            copies: None,
            chip: None,
            threads: None,
            priority: None,
            source: None,
            notes: None,
            fused_row_min: None,
            cold: None,
            kernels: Vec::new(),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
