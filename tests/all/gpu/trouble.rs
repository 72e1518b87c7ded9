//! GPUs in trouble: rejected calls, work that fails on the GPU, a lost GPU, no GPU.

use placewright::backend::cuda::GpuDeviceFactory;
use placewright::backend::cuda::driver::DriverErrorKind;
use placewright::builder::GraphBuilder;
use placewright::device::DeviceError;
use placewright::device::DeviceFactory;
use placewright::device::DeviceOptions;
use placewright::session::Session;
use placewright::tensor::Tensor;

use super::Machine;
use super::floats;
use super::options;
use super::session;
use crate::emulated::EmulatedConfig;

/// `first` = x w, `second` = first w, `third` = second w.
fn matmuls() -> GraphBuilder {
    let b = GraphBuilder::new("matmuls");
    let x = b.placeholder::<f32>("x", [3, 3]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    let first = gpu.named("first").matmul(x, x).unwrap();
    let second = gpu.named("second").matmul(first, x).unwrap();
    gpu.named("third").matmul(second, x).unwrap();
    b
}

fn run(session: &Session) -> Result<f32, String> {
    let x = Tensor::from_values([3, 3], &[1.0f32; 9]).unwrap();
    let fetched = session.run(&[("x", x)], &["third"]);
    let fetched = fetched.map_err(|error| error.to_string())?;
    Ok(fetched[0].as_slice::<f32>().unwrap()[4])
}

#[test]
#[needs(Sycl)]
fn a_rejected_call_is_an_error_of_its_node_and_run_only() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let session = session(matmuls(), &devices).build().unwrap();
    assert_eq!(run(&session), Ok(27.0));
    for (call, part) in [
        ("launch", "launching `"),
        ("wait", "first"),
        ("copy", "GPU:0"),
    ] {
        machine.driver.refuse_next(call, DriverErrorKind::Refused);
        let error = run(&session).unwrap_err();
        assert!(error.contains(part) && error.contains("GPU:0"), "{error}");
        assert_eq!(run(&session), Ok(27.0));
    }
    drop((session, devices));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn failed_work_loses_the_gpu_and_names_possible_nodes() {
    for syncs_every_op in [false, true] {
        let machine = Machine::new(EmulatedConfig::default());
        let mut options = options(1);
        options.gpu.sync_every_op = syncs_every_op;
        let devices = machine.open(&options);
        let lost = session(matmuls(), &devices).build().unwrap();
        assert_eq!(run(&lost), Ok(27.0));
        machine.driver.fail_launch(1);
        let error = run(&lost).unwrap_err();
        for part in ["the device is lost", "GPU:0", "build a new session"] {
            assert!(error.contains(part), "{error} lacks {part}");
        }
        // The driver does not report which work in flight has failed, unless each is waited for.
        let named = if syncs_every_op {
            "node `second` (op MatMul)"
        } else {
            "at work was node `"
        };
        assert!(error.contains(named), "{error} lacks {named}");
        let again = run(&lost).unwrap_err();
        assert!(again.contains("the device is lost"), "{again}");
        // New devices are opened while the old ones still exist.
        let anew = session(matmuls(), &machine.open(&options)).build().unwrap();
        assert_eq!(run(&anew), Ok(27.0));
        drop((lost, devices));
        assert_eq!(run(&anew), Ok(27.0));
        drop(anew);
        machine.check();
    }
}

#[test]
#[needs(Sycl)]
fn a_gpu_that_is_lost_between_runs_is_reported() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let lost = session(matmuls(), &devices).build().unwrap();
    assert_eq!(run(&lost), Ok(27.0));
    machine.driver.lose(0);
    let error = run(&lost).unwrap_err();
    assert!(error.contains("the device is lost"), "{error}");
    drop((lost, devices));
    let anew = session(matmuls(), &machine.open(&options(1)))
        .build()
        .unwrap();
    assert_eq!(run(&anew), Ok(27.0));
    drop(anew);
    machine.check();
}

#[test]
#[needs(Sycl)]
fn a_lost_gpu_does_not_affect_others() {
    let machine = Machine::new(EmulatedConfig {
        n_gpus: 2,
        ..EmulatedConfig::default()
    });
    let devices = machine.open(&options(1));
    let b = GraphBuilder::new("both");
    let x = b.placeholder::<f32>("x", [3, 3]).unwrap();
    let [first, second] = ["/device:GPU:0", "/device:GPU:1"].map(|name| b.device(name).unwrap());
    let y = first.named("first").matmul(x, x).unwrap();
    second.named("third").matmul(y, y).unwrap();
    let both = session(b, &devices).build().unwrap();
    let b = GraphBuilder::new("second");
    let x = b.placeholder::<f32>("x", [3, 3]).unwrap();
    let second = b.device("/device:GPU:1").unwrap();
    second.named("third").matmul(x, x).unwrap();
    let alone = session(b, &devices).build().unwrap();
    assert_eq!((run(&both), run(&alone)), (Ok(27.0), Ok(3.0)));
    for launches_fail in [true, false] {
        if launches_fail {
            machine.driver.fail_launch(0);
        } else {
            machine.driver.lose(0);
        }
        let error = run(&both).unwrap_err();
        assert!(error.contains("lost"), "{error}");
        // Memory of the second that the first has read or written is used again.
        for _ in 0..20 {
            assert_eq!(run(&alone), Ok(3.0));
        }
        // The first is restarted while its old users still exist.
        let anew = machine.open(&options(1));
        let b = GraphBuilder::new("anew");
        let x = b.placeholder::<f32>("x", [3, 3]).unwrap();
        let [first, second] =
            ["/device:GPU:0", "/device:GPU:1"].map(|name| b.device(name).unwrap());
        let y = first.named("first").matmul(x, x).unwrap();
        second.named("third").matmul(y, y).unwrap();
        let anew = session(b, &anew).build().unwrap();
        assert_eq!((run(&anew), run(&alone)), (Ok(27.0), Ok(3.0)));
        assert!(run(&both).is_err());
    }
    drop((both, alone, devices));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn invalid_inputs_of_a_kernel_are_an_error_of_their_run() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let b = GraphBuilder::new("graph");
    let x = b.placeholder::<i32>("x", [3]).unwrap();
    let y = b.placeholder::<i32>("y", [3]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    gpu.named("quotient").floor_div(x, y).unwrap();
    let session = session(b, &devices).build().unwrap();
    let run = |divisor: i32| {
        let x = Tensor::from_values([3], &[7, -7, 8]).unwrap();
        let y = Tensor::from_values([3], &[2, 2, divisor]).unwrap();
        let ran = session.run(&[("x", x), ("y", y)], &["quotient"]);
        ran.map_err(|error| error.to_string())
    };
    assert_eq!(run(4).unwrap()[0].as_slice::<i32>().unwrap(), [3, -4, 2]);
    let error = run(0).unwrap_err();
    for part in ["quotient", "FloorDiv", "GPU:0", "division by zero"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert_eq!(run(4).unwrap()[0].as_slice::<i32>().unwrap(), [3, -4, 2]);
    drop((session, devices));
    machine.check();
}

/// More launches that check their inputs than there are fault flags, before anything waits.
#[test]
#[needs(Sycl)]
fn fault_flags_are_reused_after_their_launches() {
    let config = EmulatedConfig {
        early_per_mille: 0,
        ..EmulatedConfig::default()
    };
    let machine = Machine::new(config);
    let devices = machine.open(&options(1));
    let b = GraphBuilder::new("graph");
    let x = b.placeholder::<i32>("x", [2]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    let mut y = x;
    for index in 0..1100 {
        y = gpu.named(format!("y{index}")).floor_div(y, x).unwrap();
    }
    let session = session(b, &devices).build().unwrap();
    let run = |x: i32| {
        let x = Tensor::from_values([2], &[1, x]).unwrap();
        let ran = session.run(&[("x", x)], &["y1099"]);
        ran.map_err(|error| error.to_string())
    };
    assert_eq!(run(1).unwrap()[0].as_slice::<i32>().unwrap(), [1, 1]);
    let error = run(0).unwrap_err();
    for part in ["y0", "FloorDiv", "division by zero"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert_eq!(run(-1).unwrap()[0].as_slice::<i32>().unwrap(), [1, -1]);
    drop((session, devices));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn a_foreign_tensor_is_rejected() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let gpu = devices
        .iter()
        .find_map(|(_, device)| device.accelerator_info());
    let context = &gpu.unwrap().default_context;
    let error = context.copy_to_host(&floats(3)).unwrap_err().to_string();
    assert!(error.contains("GPU:0") && error.contains("transfer it"));
    drop(devices);
    machine.check();
}

#[test]
#[needs(NoGpu)]
fn without_a_driver_requesting_a_gpu_gives_a_remedy() {
    let factory = GpuDeviceFactory::default();
    let absent = factory.list_physical().unwrap_err();
    assert!(matches!(absent, DeviceError::Absent { .. }), "{absent}");
    let text = absent.to_string();
    assert!(text.contains("driver") && text.contains("GPU"), "{text}");
    let mut options = DeviceOptions::default();
    let prefix = "/job:localhost/replica:0/task:0";
    assert!(factory.create(&options, prefix).unwrap().is_empty());
    options.device_count.insert("GPU".to_owned(), 1);
    let error = factory.create(&options, prefix).unwrap_err();
    assert!(matches!(error, DeviceError::Absent { .. }), "{error}");
    assert!(factory.pinned_host_memory(&options).is_none());
}
