//! GPU devices in the program, on a machine that has none.

use super::args;
use super::model;
use super::placewright;

#[test]
#[needs(NoGpu)]
fn without_a_driver_requesting_a_gpu_is_an_error_with_a_remedy() {
    let shown = placewright(["devices"]).expect(0).stdout;
    let line = shown.lines().find(|line| line.starts_with("no GPU: "));
    let line = line.unwrap_or_else(|| panic!("no line in\n{shown}"));
    assert!(line.contains("driver"), "{line}");
    let one = placewright(args("devices --device-count GPU=1", &[]));
    one.expect_error(1, &["GPU", "driver"]);
    placewright(args("devices --device-count GPU=0", &[])).expect(0);
    placewright(args("bench gpu", &[])).expect_error(1, &["GPU", "driver"]);
    // Options of GPUs are also accepted without GPUs, and have no effect.
    let line = "run {} --visible-gpus 0 --gpu-memory-fraction 1.5 --gpu-unified-memory --gpu-allow-growth --gpu-streams 2 --sync-every-op";
    placewright(args(line, &[&model("tiny_add.pb")])).expect(0);
    let none = args("run {} --gpu-streams 0", &[&model("tiny_add.pb")]);
    placewright(none).expect_error(2, &["--gpu-streams"]);
}
