//! Files that a graph reads.

use placewright::builder::GraphBuilder;
use placewright::builder::Value;
use placewright::session::Session;
use placewright::tensor::DType;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

#[test]
fn a_file_is_read_and_an_error_names_it() {
    let b = GraphBuilder::new("file");
    let name = b.op("Placeholder").name("name");
    let name: Value = name.attr("dtype", DType::String).value().unwrap();
    let read = b.op("ReadFile").name("read").input(name);
    read.finish().unwrap();
    let session = Session::builder()
        .with_graph(b.finish())
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .build()
        .unwrap();
    let read = |name: &[u8]| {
        let name = Tensor::from_strings(Shape::scalar(), vec![name.into()]).unwrap();
        session
            .run(&[("name", name)], &["read"])
            .map_err(anyhow::Error::new)
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bytes");
    for bytes in [&b""[..], b"\0\xff\n", &[7; 100_000]] {
        std::fs::write(&path, bytes).unwrap();
        let found = read(path.to_str().unwrap().as_bytes()).unwrap();
        assert_eq!(found[0].shape(), &Shape::scalar());
        assert_eq!(&*found[0].as_strings().unwrap()[0], bytes);
    }
    let missing = folder.path().join("missing");
    let error = read(missing.to_str().unwrap().as_bytes()).unwrap_err();
    let text = format!("{error:#}");
    for part in ["node `read`", "missing", "No such file"] {
        assert!(text.contains(part), "{text}");
    }
    let error = read(folder.path().to_str().unwrap().as_bytes()).unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("directory") || text.contains("folder"),
        "{text}"
    );
}
