//! Products and convolutions by libraries of the GPU's maker, which the driver emulates: who is asked, with what, and what happens when they do not
//! do it. Numbers of all shapes are the kernel suite's affair (`GPU-routines`).

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

fn machine(routines: EmulatedRoutines) -> Option<Machine> {
    Machine::new(EmulatedConfig {
        routines,
        ..EmulatedConfig::default()
    })
}

/// `y` = x w of `[2, k]` by `[k, 2]`, w being a constant.
fn product(k: usize, factor: f32) -> GraphBuilder {
    let b = GraphBuilder::new("product");
    let x = b.placeholder::<f32>("x", [2, k]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    let w = gpu.constant([k, 2], &vec![factor; 2 * k]).unwrap();
    gpu.named("y").matmul(x, w).unwrap();
    b
}

/// What the product of so many ones, and numbers that are all alike, is.
fn run(machine: &Machine, options: &DeviceOptions, k: usize, factor: f32) -> Result<f32, String> {
    let session = session(product(k, factor), &machine.open(options))
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
fn what_libraries_do_not_do_is_done_without_them() {
    for (routines, k, n_products) in [
        (EmulatedRoutines::Present, 4, 1),
        (EmulatedRoutines::Odd, 3, 1),
        (EmulatedRoutines::Odd, 4, 1),
        (EmulatedRoutines::Absent, 4, 0),
    ] {
        let Some(machine) = machine(routines) else {
            return;
        };
        assert_eq!(run(&machine, &options(1), k, 2.0), Ok(2.0 * k as f32));
        assert_eq!(
            machine.driver.n_calls("multiply"),
            n_products,
            "{routines:?}"
        );
        let is_done =
            routines == EmulatedRoutines::Present || (routines == EmulatedRoutines::Odd && k == 3);
        // A product of our own is a function that is launched; its right side would be packed by another.
        assert_eq!(
            machine.driver.n_calls("launch") == 0,
            is_done,
            "{routines:?}, {k}"
        );
        machine.check();
    }
}

/// Factors lose what TensorFloat-32 has no bits for only where somebody asked for it.
#[test]
fn factors_are_rounded_when_that_is_asked_for() {
    let factor = 1.0 + f32::EPSILON * 1024.0;
    for allow_tf32 in [false, true] {
        let Some(machine) = machine(EmulatedRoutines::Present) else {
            return;
        };
        let mut options = options(1);
        options.gpu.allow_tf32 = allow_tf32;
        let expected = if allow_tf32 { 4.0 } else { 4.0 * factor };
        assert_eq!(run(&machine, &options, 4, factor), Ok(expected));
        machine.check();
    }
}

/// The driver checks that a workspace is free, and leaves garbage in it; a device that has no room for one does without.
#[test]
fn small_devices_have_no_workspace() {
    for limit_bytes in [4096, 1 << 20] {
        let Some(machine) = machine(EmulatedRoutines::Present) else {
            return;
        };
        let mut options = options(1);
        options.memory_bytes.insert("GPU:0".to_owned(), limit_bytes);
        assert_eq!(run(&machine, &options, 4, 0.5), Ok(2.0));
        assert_eq!(machine.driver.n_calls("multiply"), 1);
        machine.check();
    }
}

#[test]
fn a_library_that_fails_ends_the_run_and_names_the_node() {
    let Some(machine) = machine(EmulatedRoutines::Present) else {
        return;
    };
    machine
        .driver
        .refuse_next("multiply", DriverErrorKind::Refused);
    let error = run(&machine, &options(1), 4, 1.0).unwrap_err();
    for part in ["`y`", "MatMul", "GPU:0", "a product"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    machine
        .driver
        .refuse_next("multiply", DriverErrorKind::Lost);
    let error = run(&machine, &options(1), 4, 1.0).unwrap_err();
    for part in ["`y`", "the device is lost"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert_eq!(run(&machine, &options(1), 4, 1.0), Ok(4.0));
    machine.check();
}

/// What pads one end more than the other is no library's, which is known before anything is prepared for it; the filter is then prepared for our own
/// function, once.
#[test]
fn a_filter_that_is_not_for_a_library_is_prepared_once() {
    let mut results = Vec::new();
    for (routines, padding_is_equal) in [
        (EmulatedRoutines::Absent, false),
        (EmulatedRoutines::Present, false),
        (EmulatedRoutines::Absent, true),
        (EmulatedRoutines::Present, true),
    ] {
        let Some(machine) = machine(routines) else {
            return;
        };
        let size = if padding_is_equal { 7 } else { 6 };
        let b = GraphBuilder::new("strided");
        let x = b.placeholder::<f32>("x", [1, size, size, 3]).unwrap();
        let gpu = b.device("/device:GPU:0").unwrap();
        let numbers: Vec<f32> = (0..3 * 3 * 3 * 5).map(|i| (i % 7) as f32 - 3.0).collect();
        let filter = gpu.constant([3, 3, 3, 5], &numbers).unwrap();
        let windows = Conv2d::new(Padding::Same).with_strides([2, 2]);
        gpu.named("y").conv2d(x, filter, windows).unwrap();
        let session = session(b, &machine.open(&options(1))).build().unwrap();
        let numbers: Vec<f32> = (0..size * size * 3).map(|i| (i % 5) as f32).collect();
        let x = Tensor::from_values([1, size, size, 3], &numbers).unwrap();
        let mut n_launches = Vec::new();
        for _ in 0..3 {
            let before = machine.driver.n_calls("launch");
            let fetched = session.run(&[("x", x.clone())], &["y"]).unwrap();
            n_launches.push(machine.driver.n_calls("launch") - before);
            results.push(fetched[0].as_slice::<f32>().unwrap().to_vec());
        }
        let is_library = routines == EmulatedRoutines::Present && padding_is_equal;
        let n_own = if is_library { 0 } else { 1 };
        assert_eq!(n_launches[1..], [n_own; 2], "{routines:?}, {size}");
        let n_convolved = if is_library { 3 } else { 0 };
        assert_eq!(machine.driver.n_calls("convolve"), n_convolved);
        drop(session);
        machine.check();
    }
    let (unequal, equal) = results.split_at(6);
    for results in [unequal, equal] {
        assert!(
            results.iter().all(|result| *result == results[0]),
            "{results:?}"
        );
    }
}
