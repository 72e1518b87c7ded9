//! SavedModels and checkpoints that TensorFlow has written, and its numbers. The folder
//! `tests/saved_models` has them, with the script that made them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use placewright::backend::default_factories;
use placewright::builder::GraphBuilder;
use placewright::builder::Value;
use placewright::checkpoint::Checkpoint;
use placewright::checkpoint::write_checkpoint;
use placewright::device::Device;
use placewright::device::DeviceOptions;
use placewright::device::DeviceSet;
use placewright::error::Error;
use placewright::execute::CancelToken;
use placewright::execute::ExecuteError;
use placewright::execute::RunOptions;
use placewright::import::ImportOptions;
use placewright::names::DeviceId;
use placewright::ops::OpRegistry;
use placewright::saved_model::LoadedModel;
use placewright::saved_model::SavedModel;
use placewright::saved_model::SavedModelOptions;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::ByteString;
use placewright::tensor::DType;
use placewright::tensor::HostAllocator;
use placewright::tensor::Literal;
use placewright::tensor::LiteralData;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

use crate::npz;
use crate::session_lifecycle::lost_device::Mortal;

const PREFIX: &str = "/job:localhost/replica:0/task:0";

/// Models of numbers, with their signatures.
const MODELS: [(&str, &str); 13] = [
    ("counter", "serving_default"),
    ("counter", "count"),
    ("flow", "serving_default"),
    ("tallies", "serving_default"),
    ("requests", "serving_default"),
    ("requests", "describe"),
    ("keras_dense", "serving_default"),
    ("keras_conv", "serving_default"),
    ("keras_lstm", "serving_default"),
    ("keras_saved", "serving_default"),
    ("v1_reference", "serving_default"),
    ("v1_resource", "serving_default"),
    ("v1_partitioned", "serving_default"),
];

/// The variables that a signature changes.
fn changes(name: &str, signature: &str) -> &'static [&'static str] {
    match (name, signature) {
        ("counter", "count") => &["total"],
        ("tallies", _) => &["hits", "steps"],
        _ => &[],
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/saved_models")
        .join(name)
}

fn options(signature: &str) -> SavedModelOptions {
    SavedModelOptions::default().with_signature(signature)
}

fn builder(name: &str, options: SavedModelOptions) -> SessionBuilder {
    Session::builder()
        .with_saved_model(folder(name), options)
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
}

fn load(name: &str, options: &SavedModelOptions) -> LoadedModel {
    let model = SavedModel::open(folder(name)).unwrap();
    let ops = OpRegistry::default();
    model
        .load(options, &ops, &ImportOptions::default())
        .unwrap()
}

/// Feeds and results of TensorFlow, by the names of the signature.
fn numbers(name: &str, signature: &str) -> (BTreeMap<String, Tensor>, BTreeMap<String, Tensor>) {
    let arrays = npz::read(&folder(&format!("{name}.{signature}.npz")));
    let with = |prefix: &str| {
        let named = arrays.iter();
        let named = named.filter_map(|(name, tensor)| {
            Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone()))
        });
        named.collect()
    };
    (with("in/"), with("out/"))
}

#[track_caller]
fn check(session: &Session, name: &str, signature: &str) {
    let (feeds, expected) = numbers(name, signature);
    let feeds: Vec<(&str, Tensor)> = feeds
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.clone()))
        .collect();
    let fetches: Vec<&str> = expected.keys().map(String::as_str).collect();
    let found = session.run(&feeds, &fetches).unwrap();
    for (found, (fetch, expected)) in found.iter().zip(&expected) {
        let what = format!("{name} {signature} {fetch}");
        assert_eq!(found.shape(), expected.shape(), "{what}");
        assert_eq!(found.dtype(), expected.dtype(), "{what}");
        if found.dtype() != DType::F32 {
            assert_eq!(
                found.as_bytes().unwrap(),
                expected.as_bytes().unwrap(),
                "{what}"
            );
            continue;
        }
        let (found, expected) = (found.as_slice::<f32>(), expected.as_slice::<f32>());
        for (found, expected) in found.unwrap().iter().zip(expected.unwrap()) {
            assert!(
                (found - expected).abs() <= 1e-5,
                "{what}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn models_compute_what_tensorflow_computes() {
    for (name, signature) in MODELS {
        let session = builder(name, options(signature)).build().unwrap();
        check(&session, name, signature);
    }
}

#[test]
fn models_with_kept_variables_compute_the_same() {
    for (name, signature) in MODELS {
        let kept = options(signature).with_keep_variables(true);
        let session = builder(name, kept).build().unwrap();
        check(&session, name, signature);
    }
}

/// Variables are in the memory of a SYCL device where all ops on them have kernels there.
#[cfg(feature = "opencl")]
#[test]
#[needs(Sycl)]
fn models_with_kept_variables_compute_the_same_on_a_sycl_device() {
    let mut n_variables = 0;
    for (name, signature) in MODELS {
        let kept = options(signature).with_keep_variables(true);
        let sycl = Session::builder()
            .with_saved_model(folder(name), kept)
            .with_device_options(crate::sycl::options(1).with_device_count("SYCL", 1))
            .with_policy(crate::sycl::priority());
        let session = sycl.build().unwrap();
        check(&session, name, signature);
        let (graph, placement) = (session.graph(), session.placement());
        let handles = graph
            .nodes()
            .filter(|&node| graph.op(node) == "VarHandleOp");
        n_variables += handles
            .filter(|&node| {
                let device = placement.candidates().device_name(placement.device(node).0);
                device.contains("SYCL")
            })
            .count();
    }
    assert!(n_variables > 20, "{n_variables}");
}

/// Several devices each have constants and variables of their own.
#[test]
fn models_are_distributed() {
    use placewright::policy::PolicyRequest;
    use placewright::policy::ShippedPolicy;
    let request = || PolicyRequest::new(ShippedPolicy::find("round-robin").unwrap());
    for (name, signature) in MODELS {
        for keeps in [false, true] {
            let options = options(signature).with_keep_variables(keeps);
            let builder = builder(name, options).with_device_count("CPU", 3);
            check(
                &builder.with_policy(request()).build().unwrap(),
                name,
                signature,
            );
        }
    }
}

#[test]
fn variables_that_are_only_read_are_constants() {
    for (name, signature) in MODELS {
        let model = load(name, &options(signature));
        let variables = &model.variables;
        assert!(!variables.is_empty(), "{name}");
        for variable in variables {
            let is_changed = changes(name, signature).contains(&&*variable.name);
            assert_eq!(variable.is_constant, !is_changed, "{name}: {variable:?}");
            let node = model.graph.find_node(&variable.name).unwrap();
            let op = if is_changed { "VarHandleOp" } else { "Const" };
            assert_eq!(model.graph.op(node), op, "{name}: {variable:?}");
        }
        assert_eq!(
            model.graph.init().is_empty(),
            changes(name, signature).is_empty(),
            "{name}"
        );
    }
}

/// What another signature needs, savers and restores are left out.
#[test]
fn a_graph_has_what_its_signature_needs() {
    let model = load("counter", &options("serving_default"));
    let ops: Vec<&str> = model.graph.op_names().iter().map(|op| &**op).collect();
    assert!(!ops.contains(&"VarHandleOp"), "{ops:?}");
    let functions = model.graph.functions().iter();
    let mut bodies = functions.flat_map(|function| &function.nodes);
    assert!(bodies.all(|node| !node.op.contains("Save") && !node.op.contains("Assign")));
}

#[test]
fn a_variable_that_a_signature_changes_keeps_its_value() {
    let session = builder("counter", options("count")).build().unwrap();
    let step = Tensor::from_values([], &[3i32]).unwrap();
    let callable = session.callable(&["step"], &["total"]).unwrap();
    for expected in [8, 11, 14] {
        let outputs = callable.call_named(&[("step", step.clone())]).unwrap();
        assert_eq!(outputs["total"].as_slice::<i32>().unwrap(), [expected]);
    }
    // Another session starts with the values of the checkpoint.
    let session = builder("counter", options("count")).build().unwrap();
    check(&session, "counter", "count");
}

/// What a lost device had comes from the checkpoint again, and nothing else does.
#[test]
fn variables_of_a_lost_device_are_restored() {
    let cpu = |index: u32| format!("{PREFIX}/device:CPU:{index}");
    let options = DeviceOptions::default().with_device_count("CPU", 3);
    let cpus = default_factories()
        .create_devices(&options, PREFIX)
        .unwrap();
    let second = Arc::new(Mortal::new(&cpu(1)));
    let [first, _, third] = [0, 1, 2].map(|it| Arc::clone(cpus.get(DeviceId(it)).unwrap()));
    let devices = DeviceSet::new([first, second as Arc<dyn Device>, third]);
    let session = Session::builder()
        .with_saved_model(folder("tallies"), SavedModelOptions::default())
        .with_devices(devices.with_type_priorities_of(&cpus))
        .with_pin("hits", "/device:CPU:1")
        .with_pin("steps", "/device:CPU:2")
        .build()
        .unwrap();
    let add = || {
        let step = Tensor::from_values([], &[3i32]).unwrap();
        let found = session.run(&[("step", step)], &["hits", "steps"]).unwrap();
        let values = found.iter().map(|it| it.as_slice::<i32>().unwrap()[0]);
        values.collect::<Vec<_>>()
    };
    let replace = |indices: &[u32], others: &DeviceSet| {
        let all = session.devices();
        let kept = indices.iter().map(|&it| all.get(DeviceId(it)).unwrap());
        let others = others.iter().map(|(_, device)| device);
        let devices = DeviceSet::new(kept.chain(others).cloned());
        session
            .replace_devices(devices.with_type_priorities_of(&all))
            .unwrap()
    };
    let none = DeviceSet::new([]);
    assert_eq!(add(), [8, 11]);
    assert_eq!(add(), [11, 12]);
    // Devices with other numbers, nothing lost.
    replace(&[2, 0, 1], &none);
    assert_eq!(add(), [14, 13]);
    // Another device under the name of one that had a variable: no node moves, but the variable.
    let second = Arc::new(Mortal::new(&cpu(1)));
    let replaced = replace(&[0, 1], &DeviceSet::new([Arc::clone(&second) as _]));
    assert!(replaced.moved.is_empty(), "{replaced:?}");
    assert_eq!(add(), [17, 14]);
    second.lose();
    let other = Arc::clone(cpus.get(DeviceId(1)).unwrap());
    replace(&[0, 1], &DeviceSet::new([other]));
    assert_eq!(add(), [8, 15]);
}

/// A session that never ran has nothing to keep.
#[test]
fn variables_are_restored_where_they_are_after_a_replacement() {
    let session = builder("tallies", SavedModelOptions::default())
        .with_device_count("CPU", 2)
        .build()
        .unwrap();
    let first = Arc::clone(session.devices().get(DeviceId(0)).unwrap());
    for expected in [8, 11] {
        session
            .replace_devices(DeviceSet::new([Arc::clone(&first)]))
            .unwrap();
        let step = Tensor::from_values([], &[3i32]).unwrap();
        let found = session.run(&[("step", step)], &["hits"]).unwrap();
        assert_eq!(found[0].as_slice::<i32>().unwrap(), [expected]);
    }
}

#[test]
fn tables_move_with_their_nodes() {
    let session = builder("words", SavedModelOptions::default())
        .with_device_count("CPU", 2)
        .build()
        .unwrap();
    let ids = || {
        let words = ["cat", "dog", "the"].map(ByteString::from);
        let words = Tensor::from_strings(Shape::from([3]), words.to_vec()).unwrap();
        let found = session.run(&[("words", words)], &["ids"]).unwrap();
        found[0].as_slice::<i64>().unwrap().to_vec()
    };
    let before = ids();
    assert_eq!(before[0], 1);
    let second = Arc::clone(session.devices().get(DeviceId(1)).unwrap());
    let replaced = session.replace_devices(DeviceSet::new([second])).unwrap();
    let moved = replaced.moved.iter();
    let bytes: u64 = moved.filter_map(|it| it.moved_state_bytes).sum();
    assert!(bytes > 9, "the letters of three words");
    assert_eq!(ids(), before);
}

/// Initialisation is part of the time that a run may take.
#[test]
fn initialisation_ends_with_its_run() {
    let session = builder("tallies", SavedModelOptions::default())
        .build()
        .unwrap();
    let step = || Tensor::from_values([], &[3i32]).unwrap();
    let callable = session.callable(&["step"], &["hits"]).unwrap();
    let timeout = RunOptions::default().with_timeout(Duration::ZERO);
    let token = CancelToken::new();
    token.cancel();
    let cancelled = RunOptions::default().with_cancel(token);
    for (options, expected) in [
        (timeout, ExecuteError::TimedOut(Duration::ZERO)),
        (cancelled, ExecuteError::Cancelled),
    ] {
        match callable.call_with(&[step()], &options) {
            Err(Error::Execute(found)) => assert_eq!(found, expected),
            other => panic!("{other:?}"),
        }
    }
    let limit = Duration::from_secs(600);
    let options = RunOptions::default().with_timeout(limit);
    let found = callable.call_with(&[step()], &options).unwrap();
    assert_eq!(found[0].as_slice::<i32>().unwrap(), [8]);
}

/// The model with the new checkpoint continues where the session was.
#[test]
fn variables_are_saved_for_the_next_session() {
    let session = builder("counter", options("count")).build().unwrap();
    let copy = damaged("counter", "saved_model.pb", |_| {});
    let step = [("step", Tensor::from_values([], &[3i32]).unwrap())];
    session.run(&step, &["total"]).unwrap();
    let variables = copy.path().join("variables/variables");
    session.save(&variables).unwrap();
    let old = Checkpoint::open(folder("counter/variables/variables")).unwrap();
    let new = Checkpoint::open(&variables).unwrap();
    let names = |of: &Checkpoint| of.tensors().map(|it| it.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&old), names(&new));
    let session = Session::builder()
        .with_saved_model(copy.path(), options("count"))
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .build()
        .unwrap();
    let found = session.run(&step, &["total"]).unwrap();
    assert_eq!(found[0].as_slice::<i32>().unwrap(), [11]);
    let frozen = builder("keras_dense", SavedModelOptions::default()).build();
    let error = frozen.unwrap().save(&variables).unwrap_err().to_string();
    assert!(error.contains("no variables of a SavedModel"), "{error}");
}

#[test]
fn arguments_have_names_and_tensors_too() {
    let session = builder("keras_dense", SavedModelOptions::default())
        .build()
        .unwrap();
    let graph = session.graph();
    let signature = graph.signature().unwrap();
    assert_eq!(signature.name, "serving_default");
    let names = signature.inputs.iter().map(|input| input.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["left", "right"]);
    let (feeds, _) = numbers("keras_dense", "serving_default");
    let by_tensor: Vec<(&str, Tensor)> = signature
        .inputs
        .iter()
        .map(|input| (input.tensor.as_str(), feeds[&input.name].clone()))
        .collect();
    let output = &signature.outputs[0];
    let fetches = [output.name.as_str(), &output.tensor];
    let found = session.run(&by_tensor, &fetches).unwrap();
    assert_eq!(found[0].as_bytes().unwrap(), found[1].as_bytes().unwrap());
    let error = session.run(&[], &["clas"]).unwrap_err().to_string();
    assert!(error.contains("did you mean `class`?"), "{error}");
}

/// The path of the asset is a constant, and the table is initialised before the first run.
#[test]
fn assets_and_tables_are_connected() {
    let model = load("words", &SavedModelOptions::default());
    let graph = &model.graph;
    let [targets] = &graph.init()[..] else {
        panic!("one initialisation, found {:?}", graph.init());
    };
    assert!(graph.find_node(&targets[0]).is_some());
    let paths = graph.nodes().filter_map(|node| {
        let value = graph.attrs(node).tensor("value")?;
        match value.data() {
            LiteralData::Strings(strings) => Some(strings.concat()),
            _ => None,
        }
    });
    let paths: Vec<Vec<u8>> = paths.collect();
    let asset = folder("words/assets/words.txt");
    let asset = asset.to_str().unwrap().as_bytes();
    assert!(paths.iter().any(|path| path == asset), "{paths:?}");
}

#[test]
fn requests_that_a_model_cannot_meet_name_what_it_has() {
    let error = |name: &str, options: SavedModelOptions| {
        builder(name, options).build().unwrap_err().to_string()
    };
    let text = error("counter", options("train"));
    assert!(
        text.contains("no signature `train`; there are `count`, `serving_default`"),
        "{text}"
    );
    let text = error("counter", SavedModelOptions::default().with_tags(["gpu"]));
    assert!(
        text.contains("no graph has the tags `gpu`; there are `serve`"),
        "{text}"
    );
    let text = error("checkpoint", SavedModelOptions::default());
    assert!(text.contains("saved_model.pb"), "{text}");
}

/// A copy of a model, with one file damaged.
fn damaged(name: &str, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("variables")).unwrap();
    for part in [
        "saved_model.pb",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    ] {
        fs::copy(folder(name).join(part), copy.path().join(part)).unwrap();
    }
    let path = copy.path().join(file);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    copy
}

#[test]
fn damaged_models_are_refused() {
    let build = |copy: &tempfile::TempDir| {
        let options = SavedModelOptions::default();
        Session::builder()
            .with_saved_model(copy.path(), options)
            .with_device_count("SYCL", 0)
            .with_device_count("GPU", 0)
            .build()
            .map_or_else(|error| Err(error.to_string()), |_| Ok(()))
    };
    let data = "variables/variables.data-00000-of-00001";
    let copy = damaged("keras_dense", data, |bytes| {
        bytes.iter_mut().for_each(|byte| *byte ^= 1);
    });
    let error = build(&copy).unwrap_err();
    assert!(error.contains("data-00000-of-00001: tensor `"), "{error}");
    assert!(error.contains("sum of its bytes is wrong"), "{error}");
    let length = fs::metadata(folder("keras_dense/saved_model.pb"))
        .unwrap()
        .len();
    for length in (0..usize::try_from(length).unwrap()).step_by(997) {
        let copy = damaged("keras_dense", "saved_model.pb", |bytes| {
            bytes.truncate(length)
        });
        assert!(build(&copy).is_err(), "{length} bytes");
    }
    // Some changes have no effect; none may make it panic.
    for position in (0..usize::try_from(length).unwrap()).step_by(331) {
        let copy = damaged("keras_dense", "saved_model.pb", |bytes| {
            bytes[position] ^= 0x14
        });
        let _ = build(&copy);
    }
    let copy = damaged("keras_dense", data, |_| {});
    fs::remove_file(copy.path().join("variables/variables.index")).unwrap();
    let error = build(&copy).unwrap_err();
    assert!(error.contains("variables.index does not exist"), "{error}");
}

fn tensor(literal: &Literal) -> Tensor {
    literal
        .to_tensor(&HostAllocator::new("test", 1 << 20))
        .unwrap()
}

/// Both files of the written checkpoint have the bytes of TensorFlow's, so it reads them.
#[test]
fn checkpoints_are_written_as_tensorflow_writes_them() {
    let original = folder("checkpoint/types");
    let checkpoint = Checkpoint::open(&original).unwrap();
    let names: Vec<&str> = checkpoint.tensors().map(|it| it.name.as_str()).collect();
    assert_eq!(names.len(), 10);
    let tensors: Vec<Tensor> = names
        .iter()
        .map(|name| tensor(&checkpoint.read(name).unwrap()))
        .collect();
    let of = |name: &str| &tensors[names.iter().position(|it| *it == name).unwrap()];
    assert_eq!(of("c/int64").as_slice::<i64>().unwrap(), [1 << 40, -1]);
    assert_eq!(of("c/scalar").as_slice::<i32>().unwrap(), [7]);
    assert_eq!(&*of("d/strings").as_strings().unwrap()[2], b"three");
    let written = tempfile::tempdir().unwrap();
    let prefix = written.path().join("types");
    write_checkpoint(&prefix, names.iter().copied().zip(&tensors)).unwrap();
    for suffix in ["index", "data-00000-of-00001"] {
        let file = format!("types.{suffix}");
        let expected = fs::read(folder("checkpoint").join(&file)).unwrap();
        let found = fs::read(written.path().join(&file)).unwrap();
        assert_eq!(found, expected, "{file}");
    }
}

#[test]
fn slices_are_put_together_and_taken_apart() {
    let checkpoint = Checkpoint::open(folder("checkpoint/slices")).unwrap();
    let read = |name: &str, slice: &str| {
        let value = checkpoint.read_slice(name, slice).unwrap();
        tensor(&value).as_slice::<f32>().unwrap().to_vec()
    };
    let all: Vec<f32> = (0u8..12).map(f32::from).collect();
    for name in ["rows", "whole"] {
        assert_eq!(read(name, ""), all);
        assert_eq!(read(name, "4 3 1,3:-"), all[3..]);
        assert_eq!(read(name, "4 3 0,2:1,2"), [1.0, 2.0, 4.0, 5.0]);
    }
    for (slice, part) in [("4 3", "not a slice"), ("5 3 0,1:-", "shape [5,3]")] {
        let error = checkpoint
            .read_slice("rows", slice)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// A graph with savers: both files have the bytes of TensorFlow's `SaveV2` of the same tensors.
#[test]
fn savers_of_a_graph_write_and_read_what_tensorflow_writes() {
    let folder_written = tempfile::tempdir().unwrap();
    let prefix = folder_written.path().join("new/slices");
    let b = GraphBuilder::new("saver");
    let strings = |values: &[&str]| -> Value {
        let elements = values.iter().map(|text| text.as_bytes().into()).collect();
        let shape = match values {
            [_] => [].into(),
            _ => [values.len()].into(),
        };
        b.tensor(&Tensor::from_strings(shape, elements).unwrap())
            .unwrap()
    };
    let rows = |dims: [usize; 2], first: u8| -> Value {
        let values = (first..).take(dims[0] * dims[1]).map(f32::from);
        let values: Vec<f32> = values.collect();
        b.tensor(&Tensor::from_values(dims, &values).unwrap())
            .unwrap()
    };
    let path = strings(&[prefix.to_str().unwrap()]);
    b.op("SaveV2")
        .name("save")
        .input(path)
        .input(strings(&["rows", "rows", "whole"]))
        .input(strings(&["4 3 0,1:0,3", "4 3 1,3:-", ""]))
        .inputs([rows([1, 3], 0), rows([3, 3], 3), rows([4, 3], 0)])
        .finish()
        .unwrap();
    for (name, tensor, dtype) in [
        ("restore", "rows", DType::F32),
        ("other_type", "rows", DType::I32),
        ("missing", "columns", DType::F32),
    ] {
        b.op("RestoreV2")
            .name(name)
            .input(path)
            .input(strings(&[tensor, "whole"]))
            .input(strings(&["4 3 1,1:-", ""]))
            .attr("dtypes", vec![dtype, DType::F32])
            .finish()
            .unwrap();
    }
    let session = Session::builder()
        .with_graph(b.finish())
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .build()
        .unwrap();
    let run = |fetches: &[&str], targets: &[&str]| {
        let fetched = session.run_with(&[], fetches, targets, &RunOptions::default());
        fetched.map_err(Box::new)
    };
    let error = run(&["restore:0"], &[]).unwrap_err().to_string();
    assert!(error.contains("slices.index does not exist"), "{error}");
    run(&[], &["save"]).unwrap();
    for suffix in ["index", "data-00000-of-00001"] {
        let file = format!("slices.{suffix}");
        let expected = fs::read(folder("checkpoint").join(&file)).unwrap();
        let found = fs::read(folder_written.path().join("new").join(&file)).unwrap();
        assert_eq!(found, expected, "{file}");
    }
    let found = run(&["restore:0", "restore:1"], &[]).unwrap();
    assert_eq!(found[0].as_slice::<f32>().unwrap(), [3.0, 4.0, 5.0]);
    assert_eq!(found[1].shape().dims(), [4, 3]);
    let error = run(&["other_type:0"], &[]).unwrap_err().to_string();
    assert!(
        error.contains("slices: tensor `rows` is of type float, it is restored as int32"),
        "{error}"
    );
    let error = run(&["missing:0"], &[]).unwrap_err().to_string();
    assert!(
        error.contains("has no tensor `columns`; it has `rows`, `whole`"),
        "{error}"
    );
}
