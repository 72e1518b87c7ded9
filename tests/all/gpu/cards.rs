//! Runs on the cards of this machine what is emulated elsewhere.

use std::process::Command;
use std::sync::Arc;

use placewright::backend::default_factories;
use placewright::builder::GraphBuilder;
use placewright::device::DeviceOptions;
use placewright::device::DeviceSet;
use placewright::tensor::Tensor;

use super::PREFIX;
use super::options;
use super::session;
use crate::placed;

/// Placements per model.
const N_PLACEMENTS: usize = 12;

fn open(options: &DeviceOptions) -> Arc<DeviceSet> {
    Arc::new(default_factories().create_devices(options, PREFIX).unwrap())
}

#[test]
#[needs(Gpu)]
fn models_run_wholly_on_a_card() {
    let mut options = options(1);
    options.device_count.insert("SYCL".to_owned(), 0);
    placed::stand_wholly_on(&open(&options), "/device:GPU:0", "GPU");
}

/// Over CPU:0, GPU:0 and, if OpenCL has a device (perhaps the same card), SYCL:0.
#[test]
#[needs(Gpu)]
fn outputs_do_not_depend_on_the_placement() {
    // The process shares the state behind a device, so all tests here request the same number of
    // streams.
    let devices = open(&options(1));
    let mut names = vec!["/device:CPU:0", "/device:GPU:0"];
    let mut types = devices
        .iter()
        .map(|(_, device)| &*device.attributes().device_type);
    if types.any(|device_type| device_type == "SYCL") {
        names.push("/device:SYCL:0");
    }
    let placed = placed::place_at_random(&devices, &names, "GPU", N_PLACEMENTS);
    assert!(placed.n >= 200, "{placed:?}");
    assert!(placed.n_nodes > 1_000, "{placed:?}");
}

/// Several threads, and tensors that are copied in pieces.
#[test]
#[needs(Gpu)]
fn threads_share_a_card() {
    let devices = open(&options(1));
    let b = GraphBuilder::new("squares");
    let x = b.placeholder::<f32>("x", [Option::<usize>::None]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    let squared = gpu.named("squared").mul(x, x).unwrap();
    gpu.named("y").add(squared, x).unwrap();
    let session = session(b, &devices).build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let session = &session;
            scope.spawn(move || {
                for round in 0..20 {
                    let n = 1 + (thread * 7919 + round * 104_729) % 3_000_000;
                    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                    let x: Vec<f32> = (0..n).map(|i| ((i + thread) % 1009) as f32).collect();
                    let fed = Tensor::from_values([n], &x).unwrap();
                    let y = session.run(&[("x", fed)], &["y"]).unwrap();
                    let found = y[0].as_slice::<f32>().unwrap();
                    assert!(x.iter().zip(found).all(|(x, y)| x * x + x == *y));
                }
            });
        }
    });
}

#[test]
#[needs(NoGpu)]
fn a_test_without_its_card_is_ignored_or_fails_if_required() {
    let run = |required: &str| {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "gpu::cards::models_run_wholly_on_a_card"]);
        let ran = program
            .env(crate::needs::VARIABLE, required)
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&ran.stdout).into_owned();
        (ran.status.success(), stdout)
    };
    let (is_success, stdout) = run("");
    assert!(is_success, "{stdout}");
    for part in ["needs GPU", "ignored", "0 passed", "1 ignored"] {
        assert!(stdout.contains(part), "{stdout} lacks {part}");
    }
    let (is_success, stdout) = run("GPU");
    assert!(!is_success, "{stdout}");
    for part in ["PLACEWRIGHT_REQUIRE names GPU", "1 failed"] {
        assert!(stdout.contains(part), "{stdout} lacks {part}");
    }
}
