//! Sessions whose GraphDef is extended.

use placewright::device::StatusCode;
use placewright::import::ImportOptions;
use placewright::import::import_graph;
use placewright::ops::OpRegistry;
use placewright::session::Session;
use placewright::tensor::Tensor;

use super::COUNTER;
use super::counter_on;
use super::devices;
use super::graph;

pub(super) const TINY_ADD: &[u8] = include_bytes!("../../models/tiny_add.pb");

/// `NodeDef { name, op, input, attr { T: float } }` as field 1 of a GraphDef.
pub(super) fn node(name: &str, op: &str, input: &str) -> Vec<u8> {
    let mut attr = vec![0x0a, 1, b'T', 0x12, 2, 0x30, 1];
    let mut body = Vec::new();
    for (tag, text) in [(0x0a, name), (0x12, op), (0x1a, input)] {
        body.extend([tag, u8::try_from(text.len()).unwrap()]);
        body.extend(text.as_bytes());
    }
    body.extend([0x2a, u8::try_from(attr.len()).unwrap()]);
    body.append(&mut attr);
    let mut message = vec![0x0a, u8::try_from(body.len()).unwrap()];
    message.append(&mut body);
    message
}

#[test]
fn a_graph_def_is_extended_by_another_one() {
    // y = a + b, and then z = -y: two concatenated messages.
    let session = Session::builder().with_graph_def(TINY_ADD).build().unwrap();
    session.extend_graph_def(&node("z", "Neg", "y")).unwrap();
    let a = Tensor::from_values([3], &[1f32, 2.0, 3.0]).unwrap();
    let b = Tensor::from_values([3], &[10f32, 20.0, 30.0]).unwrap();
    let fetched = session.run(&[("a", a), ("b", b)], &["z"]).unwrap();
    assert_eq!(fetched[0].as_slice::<f32>().unwrap(), [-11.0, -22.0, -33.0]);
    // A second extension builds on the first; an existing name is rejected.
    session.extend_graph_def(&node("w", "Neg", "z")).unwrap();
    let error = session
        .extend_graph_def(&node("z", "Neg", "y"))
        .unwrap_err();
    assert!(error.to_string().contains("`z`"), "{error}");
    assert!(session.graph().find_node("w").is_some());
    let built = counter_on(&devices(1)).build().unwrap();
    let error = built.extend_graph_def(&node("z", "Neg", "x")).unwrap_err();
    assert_eq!(error.code(), StatusCode::FailedPrecondition);
}

#[test]
fn a_graph_def_cannot_be_extended_once_a_graph_has_replaced_it() {
    let session = Session::builder().with_graph_def(TINY_ADD).build().unwrap();
    let larger = import_graph(
        [TINY_ADD, &node("z", "Neg", "y")].concat(),
        &OpRegistry::default(),
        &ImportOptions::default(),
    );
    session.extend(larger.unwrap()).unwrap();
    let error = session
        .extend_graph_def(&node("w", "Neg", "y"))
        .unwrap_err();
    assert_eq!(error.code(), StatusCode::FailedPrecondition);
    assert!(error.to_string().contains("use `extend`"), "{error}");
    assert!(session.graph().find_node("z").is_some());
    // The same for a session that never had one.
    let builder = Session::builder().with_graph(graph(&COUNTER));
    let session = builder.build().unwrap();
    assert!(session.extend_graph_def(&node("w", "Neg", "x")).is_err());
}

#[test]
fn a_graph_def_of_another_version_is_rejected_as_an_extension() {
    // `versions { producer }`, as field 4 of a GraphDef.
    let versions = |producer: u8| [0x22, 2, 0x08, producer];
    let of = |producer| [TINY_ADD, &versions(producer)].concat();
    let refused = |old, added| {
        let session = Session::builder().with_graph_def(of(old)).build().unwrap();
        let bytes = [&node("z", "Neg", "y")[..], &versions(added)].concat();
        let error = session.extend_graph_def(&bytes).unwrap_err();
        assert!(session.graph().find_node("z").is_none());
        assert_eq!(error.code(), StatusCode::FailedPrecondition);
        error.to_string()
    };
    let error = refused(30, 23);
    assert!(
        error.contains("version 30") && error.contains("of 23"),
        "{error}"
    );
    let error = refused(23, 24);
    assert!(
        error.contains("version 23") && error.contains("of 24"),
        "{error}"
    );
    let session = Session::builder().with_graph_def(of(30)).build().unwrap();
    for (name, versions) in [("z", &versions(24)[..]), ("w", &[0x22, 0]), ("u", &[])] {
        let bytes = [&node(name, "Neg", "y"), versions].concat();
        session.extend_graph_def(&bytes).unwrap();
    }
    let error = session.extend_graph_def(b"no graph").unwrap_err();
    assert_eq!(error.code(), StatusCode::InvalidArgument);
}
