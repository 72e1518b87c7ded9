//! Results do not depend on the device of a node: every model, placed at random over two CPU
//! devices and up to two SYCL devices, gives the same results as on one CPU, and TensorFlow's
//! numbers.
//!
//! `PLACEWRIGHT_SEED` selects other placements.

use super::n_devices;
use super::open;
use super::options;
use crate::placed;

/// Placements of each model: with 18 models, more than 200.
const N_PLACEMENTS: usize = 12;

const NAMES: [&str; 4] = [
    "/device:CPU:0",
    "/device:CPU:1",
    "/device:SYCL:0",
    "/device:SYCL:1",
];

#[test]
#[needs(Sycl)]
fn outputs_do_not_depend_on_the_placement() {
    let n_sycl = n_devices().min(2);
    // All sessions share the devices, so programs are compiled once.
    let mut wanted = options(2);
    let n = u32::try_from(n_sycl).unwrap();
    wanted.device_count.insert("SYCL".to_owned(), n);
    let devices = open(&wanted);
    let names = &NAMES[..2 + n_sycl];
    let placed = placed::place_at_random(&devices, names, "SYCL", N_PLACEMENTS);
    assert!(placed.n >= 200, "{placed:?}");
    // Half of the nodes request a SYCL device, and most have kernels there.
    assert!(placed.n_nodes > 2_000, "{placed:?}");
}

#[test]
#[needs(Sycl)]
fn models_run_wholly_on_a_sycl_device() {
    placed::stand_wholly_on(&open(&options(1)), "/device:SYCL:0", "SYCL");
}
