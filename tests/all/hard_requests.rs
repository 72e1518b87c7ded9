//! Runs every model with some requests for random devices: the results equal TensorFlow's numbers
//! under every policy, on one, two and four devices that reject each other's memory.
//!
//! `PLACEWRIGHT_SEED` selects other requests.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use placewright::device::DeviceFactory;
use placewright::device::DeviceOptions;
use placewright::device::FactoryRegistry;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::store::CacheFolder;
use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::interpreter::InterpreterFactory;
use crate::npz;
use crate::sample::Random;
use crate::sample::varied_policies;
use crate::strict_cpu::StrictCpuFactory;

const DEVICE_COUNTS: [u32; 3] = [1, 2, 4];

/// One in this many nodes has a request.
const EVERY: usize = 3;

#[test]
fn models_with_random_hard_requests_give_tensorflows_numbers() {
    let seed = std::env::var("PLACEWRIGHT_SEED");
    let seed = seed.map_or(20_260_501, |seed| seed.parse().unwrap());
    let mut random = Random::new(seed);
    let cache = CacheFolder::open(concat!(env!("CARGO_TARGET_TMPDIR"), "/policies")).ok();
    let engine = PolicyEngine::with_cache(PolicyLimits::default(), cache).unwrap();
    let names = models();
    assert!(names.len() >= 25, "{names:?}");
    let mut uncrossed = Vec::new();
    for name in &names {
        let mut n_transfers = 0;
        let model = Model::read(name);
        for policy in varied_policies() {
            for n_devices in DEVICE_COUNTS {
                let what = format!("{name} under {} on {n_devices}, seed {seed}", policy.name());
                let devices = (
                    n_devices,
                    Arc::new(StrictCpuFactory) as Arc<dyn DeviceFactory>,
                );
                n_transfers += model.check(&engine, policy, devices, &mut random, &what);
            }
        }
        if n_transfers == 0 {
            uncrossed.push(name.as_str());
        }
    }
    // These have one op, and feeds go to the device that reads them.
    assert_eq!(uncrossed, ["tiny_add"], "seed {seed}");
}

#[test]
fn models_on_devices_that_take_partitions_give_tensorflows_numbers() {
    let mut random = Random::new(20_261_125);
    let cache = CacheFolder::open(concat!(env!("CARGO_TARGET_TMPDIR"), "/policies")).ok();
    let engine = PolicyEngine::with_cache(PolicyLimits::default(), cache).unwrap();
    for name in &models() {
        let model = Model::read(name);
        let interpreters = InterpreterFactory::default();
        let calls = Arc::clone(&interpreters.calls);
        let factory: Arc<dyn DeviceFactory> = Arc::new(interpreters);
        for policy in varied_policies() {
            let what = format!("{name} under {}", policy.name());
            let devices = (4, Arc::clone(&factory));
            model.check(&engine, policy, devices, &mut random, &what);
        }
        assert!(calls.n_executions.load(Ordering::Relaxed) > 0, "{name}");
    }
}

/// Returns the models for which there are numbers of TensorFlow.
pub(crate) fn models() -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "npz") {
            names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    names.sort();
    names
}

fn folder() -> PathBuf {
    // A binary built elsewhere (`tests/gpu/run`) reads the current path of the repository.
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    let here = here
        .as_deref()
        .unwrap_or(env!("CARGO_MANIFEST_DIR").as_ref());
    Path::new(here).join("../tests/models")
}

pub(crate) struct Model {
    pub(crate) graph_def: Vec<u8>,
    pub(crate) fed: Vec<(String, Tensor)>,
    pub(crate) expected: Vec<(String, Tensor)>,
}

impl Model {
    /// Reads a model without its numbers.
    pub(crate) fn read_graph(name: &str) -> Self {
        Self {
            graph_def: fs::read(folder().join(format!("{name}.skel.pb"))).unwrap(),
            fed: Vec::new(),
            expected: Vec::new(),
        }
    }

    pub(crate) fn read(name: &str) -> Self {
        let arrays = npz::read(&folder().join(format!("{name}.npz")));
        let with = |prefix: &str| {
            let arrays = arrays.iter();
            let named =
                arrays.filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?, tensor)));
            named
                .map(|(name, tensor)| (name.to_owned(), tensor.clone()))
                .collect()
        };
        Self {
            graph_def: fs::read(folder().join(format!("{name}.skel.pb"))).unwrap(),
            fed: with("in/"),
            expected: with("out/"),
        }
    }

    /// Builds and runs a session of the model with requests; returns the number of transfers.
    fn check(
        &self,
        engine: &PolicyEngine,
        policy: ShippedPolicy,
        (n_devices, factory): (u32, Arc<dyn DeviceFactory>),
        random: &mut Random,
        what: &str,
    ) -> usize {
        let mut factories = FactoryRegistry::empty();
        factories.register("CPU", 60, factory).unwrap();
        let mut options = DeviceOptions::default();
        options.device_count.insert("CPU".to_owned(), n_devices);
        options.intra_op_parallelism_threads = 1;
        let mut requests = Vec::new();
        let graph_def = with_requests(&self.graph_def, |name| {
            let device = random.below(EVERY * n_devices as usize);
            let request = (device < n_devices as usize).then(|| format!("/device:CPU:{device}"))?;
            requests.extend(name.map(|name| (name.to_owned(), request.clone())));
            Some(request)
        });
        let session = Session::builder()
            .with_graph_def(graph_def)
            .with_factories(factories)
            .with_device_options(options)
            .with_policy_engine(engine.clone())
            .with_policy(PolicyRequest::new(policy).with_strict(true))
            .build()
            .unwrap_or_else(|error| panic!("{what}: {error}"));

        let graph = session.graph();
        for (node, request) in &requests {
            // A pass may merge nodes with one request.
            let Some(node) = graph.find_node(node) else {
                continue;
            };
            let devices = session.devices();
            let device = devices.get(session.placement().device(node)).unwrap();
            let name = &device.attributes().name;
            assert!(name.ends_with(request), "{what}: {request} is on {name}");
        }
        let feeds: Vec<(&str, Tensor)> = self
            .fed
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor.clone()))
            .collect();
        let fetches: Vec<&str> = self
            .expected
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let found = session.run(&feeds, &fetches);
        let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        for (found, (name, expected)) in found.iter().zip(&self.expected) {
            assert_agree(found, expected, &format!("{what}: {name}"));
        }
        let feeds: Vec<&str> = feeds.iter().map(|&(name, _)| name).collect();
        let plan = session.plan(&feeds, &fetches, &[]).unwrap();
        plan.transfers().len()
    }
}

pub(crate) fn assert_agree(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    assert_eq!(found.dtype(), expected.dtype(), "{what}");
    if found.dtype() != DType::F32 {
        assert_eq!(
            found.as_bytes().unwrap(),
            expected.as_bytes().unwrap(),
            "{what}"
        );
        return;
    }
    let (found, expected): (&[f32], &[f32]) =
        (found.as_slice().unwrap(), expected.as_slice().unwrap());
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        // Sums have another order than TensorFlow's. Some models compute infinities and NaN on
        // purpose.
        let is_close = a == b || (a - b).abs() <= 1e-4 || (a.is_nan() && b.is_nan());
        assert!(is_close, "{what}: element {index} is {a}, expected {b}");
    }
}

/// Returns the same GraphDef with devices for some nodes. `request` gets the name of a node; `None`
/// for nodes of functions, whose names depend on the calls. Nodes that name a colocation group, and
/// those of arrays, get none: two random requests in one group contradict each other.
pub(crate) fn with_requests(
    graph_def: &[u8],
    mut request: impl FnMut(Option<&str>) -> Option<String>,
) -> Vec<u8> {
    edited(graph_def, &mut |tag, field| match tag {
        NODE => {
            let (_, name, _) = next_field(field).expect("a node has fields");
            let name = std::str::from_utf8(name).expect("names are UTF-8");
            with_device(field, || request(Some(name)))
        }
        LIBRARY => edited(field, &mut |tag, field| match tag {
            FUNCTION => edited(field, &mut |tag, field| match tag {
                NODE_OF_FUNCTION => with_device(field, || request(None)),
                _ => field.to_vec(),
            }),
            _ => field.to_vec(),
        }),
        _ => field.to_vec(),
    })
}

/// Returns a node with a device. A later field of a message overrides an earlier one.
fn with_device(node: &[u8], device: impl FnOnce() -> Option<String>) -> Vec<u8> {
    let has = |text: &[u8]| node.windows(text.len()).any(|bytes| bytes == text);
    let is_in_group = has(b"loc:@") || has(b"TensorArray");
    let device = if is_in_group { None } else { device() };
    let mut node = node.to_vec();
    if let Some(device) = device {
        push_field(&mut node, DEVICE, device.as_bytes());
    }
    node
}

/// Returns a message whose fields are replaced.
fn edited(message: &[u8], edit: &mut dyn FnMut(u8, &[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut edited = Vec::new();
    let mut rest = message;
    while let Some((tag, field, after)) = next_field(rest) {
        rest = after;
        push_field(&mut edited, tag, &edit(tag, field));
    }
    edited
}

/// Tags of `GraphDef.node`, `GraphDef.library`, `FunctionDefLibrary.function`,
/// `FunctionDef.node_def` and `NodeDef.device`, all with a length.
const NODE: u8 = 1 << 3 | 2;
const LIBRARY: u8 = 2 << 3 | 2;
const FUNCTION: u8 = 1 << 3 | 2;
const NODE_OF_FUNCTION: u8 = 3 << 3 | 2;
const DEVICE: u8 = 4 << 3 | 2;

/// Returns tag, content and rest. GraphDefs that TensorFlow writes begin their nodes with the name,
/// and have only fields with lengths down to the fields of nodes.
fn next_field(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, mut rest) = bytes.split_first()?;
    assert_eq!(tag & 7, 2, "a field with a length");
    let mut length = 0;
    for shift in (0..).step_by(7) {
        let (&byte, after) = rest.split_first().expect("a length");
        rest = after;
        length |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    let (content, after) = rest.split_at(length);
    Some((tag, content, after))
}

pub(crate) fn push_field(message: &mut Vec<u8>, tag: u8, content: &[u8]) {
    message.push(tag);
    let mut length = content.len();
    while length >= 0x80 {
        message.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend(content);
}
