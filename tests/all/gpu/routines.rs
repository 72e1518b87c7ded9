//! Matmuls and convolutions by the vendor's libraries, which the driver emulates: which calls they
//! get, and what happens if they do not support them. The kernel suite tests the numbers of all
//! shapes (`GPU-routines`).

use placewright::backend::cuda::driver::DriverErrorKind;
use placewright::builder::Conv2d;
use placewright::builder::GraphBuilder;
use placewright::builder::Padding;
use placewright::device::DeviceOptions;
use placewright::tensor::Tensor;

use super::Machine;
use super::options;
use super::session;
use crate::emulated::EmulatedConfig;
use crate::emulated::EmulatedRoutines;

fn machine(routines: EmulatedRoutines) -> Machine {
    Machine::new(EmulatedConfig {
        routines,
        ..EmulatedConfig::default()
    })
}

/// `y` = x w of `[2, k]` by `[k, 2]`, where w is a constant.
fn matmul(k: usize, factor: f32) -> GraphBuilder {
    let b = GraphBuilder::new("matmul");
    let x = b.placeholder::<f32>("x", [2, k]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    let w = gpu.constant([k, 2], &vec![factor; 2 * k]).unwrap();
    gpu.named("y").matmul(x, w).unwrap();
    b
}

/// Runs the matmul of `k` ones with equal numbers.
fn run(machine: &Machine, options: &DeviceOptions, k: usize, factor: f32) -> Result<f32, String> {
    let session = session(matmul(k, factor), &machine.open(options))
        .build()
        .map_err(|error| error.to_string())?;
    let ones = Tensor::from_values([2, k], &vec![1.0f32; 2 * k]).unwrap();
    let fetched = session.run(&[("x", ones)], &["y"]);
    let fetched = fetched.map_err(|error| error.to_string())?;
    let numbers = fetched[0].as_slice::<f32>().unwrap();
    assert!(
        numbers.iter().all(|number| *number == numbers[0]),
        "{numbers:?}"
    );
    Ok(numbers[0])
}

#[test]
#[needs(Sycl)]
fn unsupported_calls_are_computed_without_libraries() {
    for (routines, k, n_matmuls) in [
        (EmulatedRoutines::Present, 4, 1),
        (EmulatedRoutines::Odd, 3, 1),
        (EmulatedRoutines::Odd, 4, 1),
        (EmulatedRoutines::Absent, 4, 0),
    ] {
        let machine = machine(routines);
        assert_eq!(run(&machine, &options(1), k, 2.0), Ok(2.0 * k as f32));
        assert_eq!(machine.driver.n_calls("matmul"), n_matmuls, "{routines:?}");
        let is_done =
            routines == EmulatedRoutines::Present || (routines == EmulatedRoutines::Odd && k == 3);
        // Our own matmul is one function launch; another function would copy its right side into
        // panels.
        assert_eq!(
            machine.driver.n_calls("launch") == 0,
            is_done,
            "{routines:?}, {k}"
        );
        machine.check();
    }
}

/// Factors are rounded to TensorFloat-32 only on request.
#[test]
#[needs(Sycl)]
fn factors_are_rounded_on_request() {
    let factor = 1.0 + f32::EPSILON * 1024.0;
    for allow_tf32 in [false, true] {
        let machine = machine(EmulatedRoutines::Present);
        let mut options = options(1);
        options.gpu.allow_tf32 = allow_tf32;
        let expected = if allow_tf32 { 4.0 } else { 4.0 * factor };
        assert_eq!(run(&machine, &options, 4, factor), Ok(expected));
        machine.check();
    }
}

/// The driver checks that a workspace is free, and leaves garbage in it. A device without memory
/// for one works without it.
#[test]
#[needs(Sycl)]
fn small_devices_have_no_workspace() {
    for limit_bytes in [4096, 1 << 20] {
        let machine = machine(EmulatedRoutines::Present);
        let mut options = options(1);
        options.memory_bytes.insert("GPU:0".to_owned(), limit_bytes);
        assert_eq!(run(&machine, &options, 4, 0.5), Ok(2.0));
        assert_eq!(machine.driver.n_calls("matmul"), 1);
        machine.check();
    }
}

#[test]
#[needs(Sycl)]
fn a_library_that_fails_ends_the_run_and_names_the_node() {
    let machine = machine(EmulatedRoutines::Present);
    machine
        .driver
        .refuse_next("matmul", DriverErrorKind::Refused);
    let error = run(&machine, &options(1), 4, 1.0).unwrap_err();
    for part in ["`y`", "MatMul", "GPU:0", "a matmul"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    machine.driver.refuse_next("matmul", DriverErrorKind::Lost);
    let error = run(&machine, &options(1), 4, 1.0).unwrap_err();
    for part in ["`y`", "the device is lost"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert_eq!(run(&machine, &options(1), 4, 1.0), Ok(4.0));
    machine.check();
}

/// Filters are prepared once, whichever routine uses them. Convolutions are matmuls of their
/// windows; without matmuls, images whose padding differs at both ends are padded before the
/// library, which supports only equal padding, gets them.
#[test]
#[needs(Sycl)]
fn convolutions_by_libraries_or_not_prepare_filters_once() {
    // Launches of later runs are our own convolution, the windows, or a padded image: zeroes, and a
    // copy. One of the libraries has only convolutions, none of them with four channels.
    for (routines, channels, size, n_launches, n_calls) in [
        (EmulatedRoutines::Absent, 3, 7, 1, [0, 0]),
        (EmulatedRoutines::Present, 3, 7, 1, [3, 0]),
        (EmulatedRoutines::Present, 4, 6, 1, [3, 0]),
        (EmulatedRoutines::OddConvolutions, 3, 7, 0, [0, 3]),
        (EmulatedRoutines::OddConvolutions, 3, 6, 2, [0, 3]),
        (EmulatedRoutines::OddConvolutions, 4, 7, 1, [0, 3]),
        (EmulatedRoutines::Absent, 3, 6, 1, [0, 0]),
    ] {
        let what = format!("{routines:?}, {channels} channels of {size} x {size}");
        let machine = machine(routines);
        let b = GraphBuilder::new("strided");
        let shape = [1, size, size, channels];
        let x = b.placeholder::<f32>("x", shape).unwrap();
        let numbers =
            |n: usize, of: usize| -> Vec<f32> { (0..n).map(|i| (i % of) as f32 - 2.0).collect() };
        let filter = numbers(3 * 3 * channels * 5, 7);
        let windows = Conv2d::new(Padding::Same).with_strides([2, 2]);
        for (name, device) in [("y", "GPU"), ("expected", "CPU")] {
            let scope = b.device(&format!("/device:{device}:0")).unwrap();
            let filter = scope.constant([3, 3, channels, 5], &filter).unwrap();
            scope.named(name).conv2d(x, filter, windows).unwrap();
        }
        let session = session(b, &machine.open(&options(1))).build().unwrap();
        let x = Tensor::from_values(shape, &numbers(size * size * channels, 5)).unwrap();
        for run in 0..3 {
            let before = machine.driver.n_calls("launch");
            let fetched = session.run(&[("x", x.clone())], &["y", "expected"]);
            let fetched = fetched.unwrap();
            let launched = machine.driver.n_calls("launch") - before;
            assert!(run == 0 || launched == n_launches, "{what}: {launched}");
            let [found, expected] = [0, 1].map(|at| fetched[at].as_slice::<f32>().unwrap());
            assert_eq!(found, expected, "{what}");
        }
        let called = ["matmul", "convolve"].map(|call| machine.driver.n_calls(call));
        assert_eq!(called, n_calls, "{what}");
        drop(session);
        machine.check();
    }
}
