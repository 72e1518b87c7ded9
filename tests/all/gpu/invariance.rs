//! Results depend neither on the device of a node nor on the progress of other streams: models on
//! GPUs only, and placed at random over a CPU and GPUs. `PLACEWRIGHT_SEED` selects other placements
//! and schedules.

use super::Machine;
use super::options;
use crate::emulated::EmulatedConfig;
use crate::emulated::EmulatedRoutines;
use crate::placed;
use crate::sample::seed;

/// Placements of each model on each machine.
const N_PLACEMENTS: usize = 3;

const NAMES: [&str; 3] = ["/device:CPU:0", "/device:GPU:0", "/device:GPU:1"];

#[test]
#[needs(Sycl)]
fn models_run_wholly_on_a_gpu() {
    let config = EmulatedConfig {
        seed: seed(),
        ..EmulatedConfig::default()
    };
    let machine = Machine::new(config);
    placed::stand_wholly_on(&machine.open(&options(1)), "/device:GPU:0", "GPU");
    machine.check();
}

/// With one stream for kernels and with several, with and without access between GPUs, and with
/// libraries that compute all, some or none of the matmuls and convolutions.
#[test]
#[needs(Sycl)]
fn outputs_do_not_depend_on_the_placement() {
    let machines = [
        (1, true, EmulatedRoutines::Present),
        (3, true, EmulatedRoutines::Odd),
        (2, false, EmulatedRoutines::Absent),
    ];
    for (n_compute_streams, has_peers, routines) in machines {
        let config = EmulatedConfig {
            n_gpus: 2,
            has_peers,
            routines,
            seed: seed() + u64::from(n_compute_streams),
            ..EmulatedConfig::default()
        };
        let machine = Machine::new(config);
        let mut options = options(1);
        options.gpu.n_compute_streams = n_compute_streams;
        let devices = machine.open(&options);
        let placed = placed::place_at_random(&devices, &NAMES, "GPU", N_PLACEMENTS);
        assert!(placed.n_nodes > 600, "{placed:?}");
        for call in ["matmul", "convolve"] {
            let is_called = machine.driver.n_calls(call) > 0;
            assert_eq!(is_called, routines != EmulatedRoutines::Absent, "{call}");
        }
        drop(devices);
        machine.check();
    }
}
