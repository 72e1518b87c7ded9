//! `place` ends with status 0 only for plans that `run` loads and executes with the same flags.

use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;
use crate::hard_requests::push_field;
use crate::sample::Random;
use crate::sample::seed;

/// Sizes of memory per model, policy and number of devices.
const N_SIZES: usize = 3;

#[test]
fn accepted_placements_run() {
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
                        let parts = &["memory"];
                        placed.expect_error(1, parts);
                        assert!(capacity < 2 * needed, "{name} by {policy}, seed {seed}");
                        n_refused += 1;
                    }
                }
            }
        }
    }
    assert!(n_placed > 10 && n_refused > 10, "{n_placed}, {n_refused}");
}

/// Returns a GraphDef that negates a placeholder of `n` floats.
fn long_vector(n: u64) -> Vec<u8> {
    let mut size = vec![0x08];
    let mut rest = n;
    while rest >= 0x80 {
        size.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    size.push(rest as u8);
    let shape = attr("shape", &field(0x3a, &field(0x12, &size)));
    let placeholder = node("x", "Placeholder", &[attr("dtype", &[0x30, FLOAT]), shape]);
    let negative = node("y", "Neg", &[field(0x1a, b"x"), attr("T", &[0x30, FLOAT])]);
    [placeholder, negative].concat()
}

#[test]
fn sizes_that_overflow_do_not_fit() {
    let folder = folder();
    for power in [40, 59, 60, 61, 62] {
        let graph = file(&folder, "long.pb", &long_vector(1 << power));
        for flags in ["", "--memory CPU:0=9223372036854775807"] {
            let run = placewright(args(&format!("run {{}} {flags}"), &[&graph])).expect(1);
            assert!(run.stderr.contains("error: "), "{}", run.stderr);
            // A plan is accepted if a larger device could hold it, but not if it exceeds the
            // address space.
            if power > 40 && (flags.is_empty() || power > 59) {
                placewright(args(&format!("place {{}} {flags}"), &[&graph]))
                    .expect_error(1, &["`memory`", "CPU:0"]);
            }
        }
    }
}

/// The smallest memory that `place` accepts suffices for `run`.
#[test]
fn the_smallest_memory_that_is_accepted_suffices() {
    for name in ["lenet", "mlp_b64", "small_cnn_fbn"] {
        let graph = model(&format!("{name}.skel.pb"));
        let flags = "--device-count SYCL=0 --threads 1 --policy priority --strict-policy";
        let ample = placewright(args(&format!("place {{}} {flags} --json"), &[&graph])).expect(0);
        let ample = ample.json()["memory"]["memories"][0]["peak_bytes"].as_u64();
        let limited = |command: &str, capacity: u64| {
            let line = format!("{command} {{}} {flags} --memory CPU:0={capacity}");
            placewright(args(&line, &[&graph]))
        };
        let (mut refused, mut accepted) = (0, ample.expect("bytes"));
        limited("place", accepted).expect(0);
        while accepted - refused > 1 {
            let middle = u64::midpoint(refused, accepted);
            match limited("place", middle).status {
                0 => accepted = middle,
                _ => refused = middle,
            }
        }
        limited("run", accepted).expect(0);
        limited("run --repeat 1", accepted).expect(0);
    }
}

/// The flags that a memory error suggests can be pasted, and help.
#[test]
fn the_remedies_of_a_memory_error_are_flags_that_help() {
    let graph = model("lenet.pb");
    let place = |flags: &str| {
        let line =
            format!("place {{}} --device-count SYCL=0 --policy heft --strict-policy {flags}");
        placewright(args(&line, &[&graph]))
    };
    let error = place("--memory CPU=250KiB").expect(1).stderr;
    let remedies = error.split('`').filter(|part| part.starts_with("--"));
    let remedies: Vec<&str> = remedies.collect();
    for kind in ["--memory CPU:0=", "--device-count CPU=2 --memory CPU="] {
        assert!(remedies.iter().any(|it| it.starts_with(kind)), "{error}");
    }
    for remedy in remedies {
        place(remedy).expect(0);
    }
}

/// The outputs of one run are gone before the next run of `run --repeat` or `--warmup` starts.
#[test]
fn runs_after_the_first_need_no_more_memory() {
    let folder = folder();
    let graph = file(&folder, "negative.pb", &long_vector(1 << 18));
    // The feed's copy and its negative take 2 MiB; with the output of the previous run, 3 MiB.
    let flags = "--device-count SYCL=0 --memory CPU:0=2500KiB";
    placewright(args(&format!("place {{}} {flags}"), &[&graph])).expect(0);
    for repeated in ["", "--repeat 2", "--warmup 2", "--warmup 1 --repeat 1"] {
        placewright(args(&format!("run {{}} {flags} {repeated}"), &[&graph])).expect(0);
    }
}

/// `Range` over constants of floats, from 0 to 1e10 by 1.
fn long_range() -> Vec<u8> {
    const DOUBLE: u8 = 2;
    let constant = |name: &str, value: f64| {
        let number = field(0x22, &value.to_le_bytes());
        let tensor = [vec![0x08, DOUBLE], field(0x12, &[]), number].concat();
        let value = attr("value", &field(0x42, &tensor));
        node(name, "Const", &[attr("dtype", &[0x30, DOUBLE]), value])
    };
    let inputs = [
        field(0x1a, b"start"),
        field(0x1a, b"limit"),
        field(0x1a, b"delta"),
    ];
    let range = [inputs.concat(), attr("Tidx", &[0x30, DOUBLE])];
    let constants = [("start", 0.0), ("limit", 1e10), ("delta", 1.0)];
    let constants = constants.map(|(name, value)| constant(name, value));
    [constants.concat(), node("range", "Range", &range)].concat()
}

#[test]
fn ranges_of_floats_count_as_memory() {
    let folder = folder();
    let graph = file(&folder, "range.pb", &long_range());
    let flags = "--device-count SYCL=0 --memory CPU:0=20GiB";
    placewright(args(&format!("place {{}} {flags}"), &[&graph]))
        .expect_error(1, &["`memory`", "CPU:0"]);
}

const FLOAT: u8 = 1;

fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    push_field(&mut message, tag, content);
    message
}

fn attr(name: &str, value: &[u8]) -> Vec<u8> {
    let entry = [field(0x0a, name.as_bytes()), field(0x12, value)].concat();
    field(0x2a, &entry)
}

fn node(name: &str, op: &str, rest: &[Vec<u8>]) -> Vec<u8> {
    let names = [field(0x0a, name.as_bytes()), field(0x12, op.as_bytes())].concat();
    field(0x0a, &[names, rest.concat()].concat())
}

/// Returns a GraphDef of a convolution of volumes of ones, channels first, for which CPUs have
/// no kernel.
fn channels_first() -> Vec<u8> {
    let constant = |name: &str| {
        let size = field(0x12, &[0x08, 1]);
        let one = field(0x22, &1f32.to_le_bytes());
        let tensor = [vec![0x08, FLOAT], field(0x12, &size.repeat(5)), one].concat();
        let value = attr("value", &field(0x42, &tensor));
        node(name, "Const", &[attr("dtype", &[0x30, FLOAT]), value])
    };
    let convolution = [
        field(0x1a, b"x"),
        field(0x1a, b"f"),
        attr("T", &[0x30, FLOAT]),
        attr("strides", &field(0x0a, &field(0x1a, &[1; 5]))),
        attr("padding", &field(0x12, b"VALID")),
        attr("data_format", &field(0x12, b"NCDHW")),
    ];
    let convolution = node("conv", "Conv3D", &convolution);
    [constant("x"), constant("f"), convolution].concat()
}

#[test]
fn place_fails_if_a_kernel_rejects_its_node() {
    let folder = folder();
    let graph = file(&folder, "ncdhw.pb", &channels_first());
    let why = "`conv` (Conv3D)";
    placewright(args("run {}", &[&graph])).expect_error(1, &[why, "NCDHW"]);
    let parts = ["a run of the whole graph fails", why, "NCDHW"];
    placewright(args("place {}", &[&graph])).expect_error(1, &parts);
    let report = placewright(args("place {} --json", &[&graph])).expect(1);
    let report = report.json();
    assert!(report["memory"].is_null(), "{report}");
    let text = report["no_memory_plan"].as_str().expect("a reason");
    assert!(text.contains(why), "{text}");
}
