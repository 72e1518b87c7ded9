//! Work that fails after the driver has accepted it. A layer between the OpenCL loader and the
//! driver makes it fail, in a separate process that loads the layer.

use std::env;
use std::fs;
use std::path::Path;

use placewright::builder::GraphBuilder;
use placewright::session::Session;
use placewright::tensor::Tensor;

use super::lost::run_with_layer;
use super::open;
use super::options;
use super::session;

/// Names the file that lists which functions fail, and how they are reported.
const FILE: &str = "LOSSY_LAYER_FAILS_FILE";

const INSIDE: &str = "sycl::failing::inside_the_process_with_the_layer";

#[test]
#[needs(Sycl)]
fn work_that_fails_on_the_device_ends_its_run_with_node_op_and_device_and_no_other() {
    run_with_layer(INSIDE, FILE);
}

/// Makes some functions of device SYCL:0 fail.
#[helper]
fn inside_the_process_with_the_layer() {
    let file = env::var(FILE).expect("the test above sets it");
    let file = Path::new(&file);
    let devices = open(&options(1));
    let graph = |is_relu: bool| {
        let b = GraphBuilder::new("graph");
        let any = Option::<usize>::None;
        let x = b.placeholder::<f32>("x", [any, any]).unwrap();
        let sycl = b.device("/device:SYCL:0").unwrap();
        // Takes so long that later commands are enqueued before it fails.
        let matmul = sycl.named("matmul").matmul(x, x).unwrap();
        let y = if is_relu {
            sycl.named("y").relu(matmul).unwrap()
        } else {
            sycl.named("y").neg(matmul).unwrap()
        };
        sycl.named("z").matmul(y, y).unwrap();
        // Runs after `y`, which it does not read.
        let after = sycl.control_dependencies([y]);
        after.named("after").neg(matmul).unwrap();
        session(b, &devices).build().unwrap()
    };
    let (relus, negs) = (graph(true), graph(false));
    let run = |session: &Session, n: usize, fetch: &str| {
        let x: Vec<f32> = (0..n * n).map(|i| [1.0, -1.0, 0.0][i % 3]).collect();
        let x = Tensor::from_values([n, n], &x).unwrap();
        let fetched = session.run(&[("x", x)], &[fetch]);
        let fetched = fetched.map_err(|error| error.to_string())?;
        Ok::<_, String>(fetched[0].as_slice::<f32>().unwrap().to_vec())
    };
    // Small tensors are copied to the host, large ones shared with devices that use host memory.
    for n in [4, 192] {
        let right = |session: &Session| ["y", "z", "after"].map(|y| run(session, n, y).unwrap());
        let (relu, neg) = (right(&relus), right(&negs));
        let numbers = || relu[0].iter().zip(&neg[0]);
        assert!(numbers().all(|(relu, neg)| *relu == (-neg).max(0.0)));
        for how in ["told", "success", "silent"] {
            fs::write(file, format!("{how} relu")).unwrap();
            for fetch in ["y", "z", "after", "y"] {
                let error = run(&relus, n, fetch).unwrap_err();
                for part in [
                    "/device:SYCL:0",
                    "node `y` (op Relu)",
                    "executing it: CL_OUT_OF_RESOURCES (-5)",
                ] {
                    assert!(error.contains(part), "{n} {how} {fetch}: {part}: {error}");
                }
                // Runs that do not need it do not fail.
                assert_eq!(right(&negs), neg, "{n} {how}");
            }
            fs::remove_file(file).unwrap();
            assert_eq!(right(&relus), relu, "{n} {how}");
        }
    }
}
