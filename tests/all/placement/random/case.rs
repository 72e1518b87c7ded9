//! A random placement problem as plain data: a test may print it, remove a constraint, and build it
//! again.

use std::fmt;
use std::sync::Arc;

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesError;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::device::DeviceSet;
use placewright::device::KernelDef;
use placewright::device::KernelRegistry;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_oneof;
use proptest::sample::Index;

use crate::fakes::FakeDevice;

/// Device types. The last one is used only on request, or if it is the only one.
pub(super) const TYPES: [&str; 4] = ["CPU", "GPU", "FOO", "XLA_CPU"];

/// Larger means more preferred.
pub(super) const TYPE_PRIORITIES: [i32; 4] = [60, 210, 60, 50];

/// Metadata ops, with the types that they run on.
const METADATA: [(&str, usize); 3] = [("Shape", 0b1111), ("Size", 0b0011), ("Rank", 0b0001)];

/// Identities, with the types that they run on.
const IDENTITIES: [(&str, usize); 2] = [("Identity", 0b1111), ("RefIdentity", 0b0011)];

/// The role of a node besides ops that run on some types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Any,
    Metadata,
    Identity,
}

/// The output of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gives {
    Value,
    Reference,
    Resource,
}

/// Parts of a device name; unset parts match anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) job: Option<&'static str>,
    pub(super) task: Option<u32>,
    pub(super) device_type: Option<&'static str>,
    pub(super) index: Option<u32>,
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match (self.device_type, self.index) {
            (None, None) => Ok(()),
            (Some(device_type), None) => write!(f, "/device:{device_type}:*"),
            (None, Some(index)) => write!(f, "/device:*:{index}"),
            (Some(device_type), Some(index)) => write!(f, "/device:{device_type}:{index}"),
        }
    }
}

/// A node that reads earlier ones.
#[derive(Debug, Clone)]
pub(super) struct CaseNode {
    /// One bit per entry of [`TYPES`].
    pub(super) kernels: usize,
    pub(super) gives: Gives,
    pub(super) role: Role,
    /// Earlier nodes, in slot order.
    pub(super) inputs: Vec<usize>,
    pub(super) control: Vec<usize>,
    pub(super) request: Parts,
    pub(super) is_spelt_the_old_way: bool,
    /// Names in `_class`; those of nodes are `nN`.
    pub(super) groups: Vec<String>,
    pub(super) pin: Option<usize>,
}

/// Devices, nodes and their constraints.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// Job, task, type and index are set.
    pub(super) devices: Vec<Parts>,
    pub(super) nodes: Vec<CaseNode>,
    pub(super) soft: bool,
    pub(super) default_device: Option<usize>,
}

impl CaseNode {
    /// The node's request, as spelled in its graph.
    pub(super) fn request_text(&self) -> String {
        let text = self.request.to_string();
        let legacy = match self.request.device_type {
            Some("CPU") => text.replace("/device:CPU:", "/cpu:"),
            Some("GPU") => text.replace("/device:GPU:", "/gpu:"),
            _ => text.clone(),
        };
        if self.is_spelt_the_old_way {
            legacy
        } else {
            text
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let soft = if self.soft { "soft" } else { "hard" };
        writeln!(f, "{soft} placement, default {:?}, on", self.default_device)?;
        for (index, device) in self.devices.iter().enumerate() {
            writeln!(f, "  {index} {device}")?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let kernels: Vec<&str> = (0..TYPES.len())
                .filter(|bit| node.kernels & 1 << bit != 0)
                .map(|bit| TYPES[bit])
                .collect();
            writeln!(
                f,
                "  n{index} = {} {:?}({:?}, after {:?}) on {kernels:?} requests `{}`, in {:?}, pinned {:?}",
                node.op(),
                node.gives,
                node.inputs,
                node.control,
                node.request_text(),
                node.groups,
                node.pin
            )?;
        }
        Ok(())
    }
}

impl Case {
    /// Returns the candidates that the library lists.
    pub(super) fn candidates(&self) -> Result<Candidates, CandidatesError> {
        let mut options = PlacementOptions::default().with_soft_placement(self.soft);
        for (index, node) in self.nodes.iter().enumerate() {
            // Both ways to fix a node mean the same here.
            options = match node.pin {
                None => options,
                Some(pin) if index % 2 == 0 => options.with_pin(node_id(index), device_id(pin)),
                Some(pin) => options.with_assigned_device(node_id(index), self.full_name(pin)),
            };
        }
        if let Some(device) = self.default_device {
            options = options.with_default_local_device(device_id(device));
        }
        let devices = (0..self.devices.len()).map(|index| {
            let device_type = self.devices[index].device_type.unwrap_or_default();
            FakeDevice::new(&self.full_name(index), device_type).shared()
        });
        let priorities = TYPES.into_iter().zip(TYPE_PRIORITIES);
        let devices = DeviceSet::new(devices).with_type_priorities(priorities);
        enumerate(&self.graph(), &Arc::new(devices), &kernels(), &options)
    }

    /// Returns the full name of a device.
    pub(super) fn full_name(&self, device: usize) -> String {
        let Parts { job, task, .. } = self.devices[device];
        let name = self.devices[device].to_string();
        let (_, local) = name.split_at(name.find("/device").unwrap_or_default());
        let (job, task) = (job.unwrap_or_default(), task.unwrap_or_default());
        format!("/job:{job}/replica:0/task:{task}{local}")
    }

    fn graph(&self) -> Arc<Graph> {
        let mut assembler = GraphAssembler::new("random");
        for (index, node) in self.nodes.iter().enumerate() {
            let data = node.inputs.iter().map(|&producer| Input::Data {
                node: node_id(producer),
                slot: 0,
            });
            let control = node
                .control
                .iter()
                .map(|&producer| Input::Control(node_id(producer)));
            let inputs: Vec<Input> = data.chain(control).collect();
            let classes: Vec<AttrValue> = node
                .groups
                .iter()
                .map(|group| AttrValue::Bytes(format!("loc:@{group}").into_bytes().into()))
                .collect();
            let is_grouped = !classes.is_empty();
            let class = is_grouped.then(|| ("_class".into(), AttrValue::List(classes.into())));
            let output = Output {
                dtype: match node.gives {
                    Gives::Resource => DType::Resource,
                    Gives::Value | Gives::Reference => DType::F32,
                },
                is_ref: node.gives == Gives::Reference,
                shape: PartialShape::scalar(),
            };
            let spec = NodeSpec {
                name: &format!("n{index}"),
                op: &node.op(),
                inputs: &inputs,
                requested_device: &node.request_text(),
                attrs: AttrSet::new(class),
                outputs: &[output],
                stateful: node.gives != Gives::Value,
                work: Work::default(),
            };
            assembler.add_node(&spec).expect("inputs come first");
        }
        Arc::new(assembler.finish())
    }
}

impl CaseNode {
    fn op(&self) -> String {
        let named = ops_of(self.role)
            .iter()
            .find(|(_, types)| *types == self.kernels);
        named.map_or_else(|| format!("Op{}", self.kernels), |(op, _)| (*op).to_owned())
    }
}

/// Returns the named ops of a role, with the types that they run on.
fn ops_of(role: Role) -> &'static [(&'static str, usize)] {
    match role {
        Role::Any => &[],
        Role::Metadata => &METADATA,
        Role::Identity => &IDENTITIES,
    }
}

/// `OpK` runs on the types in the bits of `K`; metadata ops and identities as in their tables.
fn kernels() -> KernelRegistry {
    let mut kernels = KernelRegistry::empty();
    let named = METADATA.into_iter().chain(IDENTITIES);
    let named = named.map(|(op, types)| (op.to_owned(), types));
    let ops = (0..1 << TYPES.len()).map(|types| (format!("Op{types}"), types));
    for (op, types) in ops.chain(named) {
        for (number, device_type) in TYPES.iter().enumerate() {
            if types & 1 << number != 0 {
                let kernel = KernelDef::new(&op, *device_type);
                kernels.register(kernel.with_priority(kernel_priority(types, number)));
            }
        }
    }
    kernels
}

/// Returns the priority of the kernel of a type, for an op with kernels for these types. Most ops
/// have none.
pub(super) fn kernel_priority(types: usize, number: usize) -> i32 {
    match types {
        0b1111 | 0b0001 => 0,
        _ => [0, 0, 2, 1][(types + number) % 4],
    }
}

fn node_id(index: usize) -> NodeId {
    NodeId(u32::try_from(index).expect("cases are small"))
}

fn device_id(index: usize) -> DeviceId {
    DeviceId(u32::try_from(index).expect("cases are small"))
}

/// 1 to 12 devices of up to four types in up to two tasks, and 1 to 16 nodes; about half of the
/// cases can be placed.
pub(super) fn arbitrary() -> impl Strategy<Value = Case> {
    let device = (
        prop_oneof![5 => Just(0), 3 => Just(1), 1 => Just(2), 1 => Just(3_usize)],
        0..2_u32,
    );
    let devices = vec(device, 1..=12).prop_map(numbered);
    let soft = prop_oneof![2 => Just(false), 1 => Just(true)];
    (
        devices,
        vec(node(), 1..=16),
        soft,
        option::weighted(0.2, any::<Index>()),
    )
        .prop_map(|(devices, drafts, soft, default_device)| {
            let nodes = drafts.into_iter().enumerate();
            let nodes = nodes
                .map(|(index, draft)| draft.on(index, &devices))
                .collect();
            let default_device = default_device.map(|at| at.index(devices.len()));
            Case {
                devices,
                nodes,
                soft,
                default_device,
            }
        })
}

/// Turns types and tasks into devices; indices are counted per type and task.
fn numbered(drafts: Vec<(usize, u32)>) -> Vec<Parts> {
    let mut devices: Vec<Parts> = Vec::new();
    for (device_type, task) in drafts {
        let device_type = Some(TYPES[device_type]);
        let before = devices
            .iter()
            .filter(|device| (device.device_type, device.task) == (device_type, Some(task)));
        let index = u32::try_from(before.count()).expect("cases are small");
        devices.push(Parts {
            job: Some("worker"),
            task: Some(task),
            device_type,
            index: Some(index),
        });
    }
    devices
}

/// A node before the other nodes and devices are known.
#[derive(Debug, Clone)]
struct Draft {
    kernels: usize,
    gives: Gives,
    role: Role,
    inputs: Vec<Index>,
    control: Vec<Index>,
    asked: Asked,
    is_spelt_the_old_way: bool,
    groups: Vec<(bool, Index)>,
    pin: Option<Index>,
}

#[derive(Debug, Clone)]
enum Asked {
    Nothing,
    /// These parts of some device's name: job, task, type, index.
    Like(Index, [bool; 4]),
    /// A name that no device has.
    Wrong(Parts),
}

fn node() -> impl Strategy<Value = Draft> {
    // Most ops run on most types, as in real graphs.
    let kernels = prop_oneof![
        12 => Just(0b1111),
        5 => Just(0b0011),
        2 => Just(0b0001),
        1 => Just(0b1001),
        1 => 1_usize..16,
    ];
    let gives = prop_oneof![
        6 => Just(Gives::Value),
        1 => Just(Gives::Reference),
        1 => Just(Gives::Resource),
    ];
    let group = (any::<bool>(), any::<Index>());
    let groups = prop_oneof![5 => Just(Vec::new()), 1 => vec(group, 1..3)];
    (
        kernels,
        gives,
        prop_oneof![4 => Just(Role::Any), 1 => Just(Role::Metadata), 3 => Just(Role::Identity)],
        vec(any::<Index>(), 0..3),
        prop_oneof![9 => Just(Vec::new()), 1 => vec(any::<Index>(), 1..3)],
        (asked(), prop_oneof![4 => Just(false), 1 => Just(true)]),
        groups,
        option::weighted(0.05, any::<Index>()),
    )
        .prop_map(
            |(kernels, gives, role, inputs, control, asked, groups, pin)| Draft {
                kernels,
                gives,
                role,
                inputs,
                control,
                asked: asked.0,
                is_spelt_the_old_way: asked.1,
                groups,
                pin,
            },
        )
}

fn asked() -> impl Strategy<Value = Asked> {
    let like = |parts: [bool; 4]| any::<Index>().prop_map(move |at| Asked::Like(at, parts));
    let parts = |job, task, device_type, index| Parts {
        job,
        task,
        device_type,
        index,
    };
    prop_oneof![
        30 => Just(Asked::Nothing),
        3 => like([true; 4]),
        3 => like([false, false, true, true]),
        3 => like([false, false, true, false]),
        1 => like([false, false, false, true]),
        1 => like([false, true, false, false]),
        1 => (any::<Index>(), any::<[bool; 4]>()).prop_map(|(at, parts)| Asked::Like(at, parts)),
        1 => prop_oneof![
            Just(parts(Some("ps"), None, None, None)),
            Just(parts(None, Some(7), Some("CPU"), None)),
            Just(parts(None, None, Some("GPU"), Some(9))),
            Just(parts(None, None, Some("TPU"), None)),
        ]
        .prop_map(Asked::Wrong),
    ]
}

impl Draft {
    fn on(self, index: usize, devices: &[Parts]) -> CaseNode {
        let earlier = |at: &Index| (index > 0).then(|| at.index(index));
        let request = match self.asked {
            Asked::Nothing => Parts::default(),
            Asked::Wrong(parts) => parts,
            Asked::Like(at, [job, task, device_type, index]) => {
                let device = &devices[at.index(devices.len())];
                Parts {
                    job: device.job.filter(|_| job),
                    task: device.task.filter(|_| task),
                    device_type: device.device_type.filter(|_| device_type),
                    index: device.index.filter(|_| index),
                }
            }
        };
        let group = |(is_node, at): &(bool, Index)| match is_node {
            // The name of a node is also the name of a group, even if the node comes later.
            true => format!("n{}", at.index(16)),
            false => format!("g{}", at.index(3)),
        };
        let mut inputs: Vec<usize> = self.inputs.iter().filter_map(earlier).collect();
        let has_op = ops_of(self.role)
            .iter()
            .any(|(_, types)| *types == self.kernels);
        let role = match self.role {
            role if has_op && !inputs.is_empty() => role,
            _ => Role::Any,
        };
        if role == Role::Identity {
            inputs.truncate(1);
        }
        CaseNode {
            kernels: self.kernels,
            gives: self.gives,
            role,
            inputs,
            control: self.control.iter().filter_map(earlier).collect(),
            request,
            is_spelt_the_old_way: self.is_spelt_the_old_way,
            groups: self.groups.iter().map(group).collect(),
            pin: self.pin.map(|at| at.index(devices.len())),
        }
    }
}
