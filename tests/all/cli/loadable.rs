//! `place` ends with 0 only for plans that `run`, with the same flags, loads and executes.

use super::args;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;
use crate::sample::Random;
use crate::sample::seed;

/// Sizes of memory per model, policy and number of devices.
const N_SIZES: usize = 3;

#[test]
fn what_is_placed_runs() {
    let seed = seed();
    let mut random = Random::new(seed);
    let folder = folder();
    let (mut n_placed, mut n_refused) = (0, 0);
    for name in ["lenet", "mlp_b64", "bert_tiny", "small_cnn_fbn"] {
        let graph = model(&format!("{name}.skel.pb"));
        let expected = model(&format!("{name}.npz"));
        let whole = placewright(args("place {} --policy priority --json", &[&graph])).expect(0);
        let needed = whole.json()["memory"]["memories"][0]["peak_bytes"].as_u64();
        let needed = needed.expect("bytes");
        for policy in ["priority", "heft", "round-robin"] {
            for n_devices in [1, 2, 4] {
                for _ in 0..N_SIZES {
                    let least = needed / n_devices / 2;
                    let range = usize::try_from(needed * 5 / 4 - least).expect("small models");
                    let capacity = least + random.below(range + 1) as u64;
                    let memories: String = (0..n_devices)
                        .map(|index| format!(" --memory CPU:{index}={capacity}"))
                        .collect();
                    let flags = format!(
                        "--policy {policy} --strict-policy --device-count CPU={n_devices}{memories} --concurrent-runs {}",
                        1 + random.below(2)
                    );
                    let plan = path_in(&folder, "plan.json");
                    let line = format!("place {{}} {flags} --save-placement {{}}");
                    let placed = placewright(args(&line, &[&graph, &plan]));
                    if placed.status == 0 {
                        let line = format!("run {{}} {flags} --check {{}} --atol 1e-4 --repeat 1");
                        placewright(args(&line, &[&graph, &expected])).expect(0);
                        n_placed += 1;
                    } else {
                        let words = &["memory"];
                        placed.expect_error(1, words);
                        assert!(capacity < 2 * needed, "{name} by {policy}, seed {seed}");
                        n_refused += 1;
                    }
                }
            }
        }
    }
    assert!(n_placed > 10 && n_refused > 10, "{n_placed}, {n_refused}");
}
