//! Models of tests/models: their outputs equal TensorFlow's, under every policy, on one device and
//! on several.

use super::args;
use super::model;
use super::placewright;

fn check_model(graph: &str, expected: &str) {
    let (graph, expected) = (model(graph), model(expected));
    for policy in ["priority", "round-robin", "heft"] {
        for n_devices in [1, 4] {
            let line = format!(
                "run {{}} --check {{}} --atol 1e-4 --rtol 0 --policy {policy} --device-count CPU={n_devices} --strict-policy --json"
            );
            let report = placewright(args(&line, &[&graph, &expected]))
                .expect(0)
                .json();
            assert_eq!(report["check"]["matches"], true);
            assert_eq!(report["placement"]["policy"]["answered_by"], policy);
            let devices = report["placement"]["devices"].as_array().expect("devices");
            assert_eq!(devices.len(), n_devices);
            let fetches = report["check"]["fetches"].as_array().expect("fetches");
            assert!(!fetches.is_empty());
            assert!(
                fetches
                    .iter()
                    .all(|fetch| fetch["n_elements"].as_u64() > Some(0))
            );
        }
    }
}

macro_rules! models {
    ($($test:ident: $graph:literal, $expected:literal;)*) => {$(
        #[test]
        fn $test() {
            check_model($graph, $expected);
        }
    )*};
}

models! {
    mlp_gives_tensorflows_numbers_under_every_policy: "mlp.skel.pb", "mlp.npz";
    mlp_b64_gives_tensorflows_numbers_under_every_policy: "mlp_b64.skel.pb", "mlp_b64.npz";
    lenet_gives_tensorflows_numbers_under_every_policy: "lenet.pb", "lenet.npz";
    tiny_add_gives_tensorflows_numbers_under_every_policy: "tiny_add.pb", "tiny_add.npz";
    tiny_broadcast_gives_tensorflows_numbers_under_every_policy: "tiny_broadcast.pb", "tiny_broadcast.npz";
    wide_branch_gives_tensorflows_numbers_under_every_policy: "wide_branch.skel.pb", "wide_branch.npz";
    tiny_slices_gives_tensorflows_numbers_under_every_policy: "tiny_slices.skel.pb", "tiny_slices.npz";
    tiny_matmul_variants_gives_tensorflows_numbers_under_every_policy: "tiny_matmul_variants.skel.pb", "tiny_matmul_variants.npz";
    tiny_conv_variants_gives_tensorflows_numbers_under_every_policy: "tiny_conv_variants.skel.pb", "tiny_conv_variants.npz";
    tiny_unary_gives_tensorflows_numbers_under_every_policy: "tiny_unary.skel.pb", "tiny_unary.npz";
    tiny_reduce_gives_tensorflows_numbers_under_every_policy: "tiny_reduce.skel.pb", "tiny_reduce.npz";
    tiny_dtypes_gives_tensorflows_numbers_under_every_policy: "tiny_dtypes.skel.pb", "tiny_dtypes.npz";
    tiny_intbool_gives_tensorflows_numbers_under_every_policy: "tiny_intbool.skel.pb", "tiny_intbool.npz";
    tiny_embedding_gives_tensorflows_numbers_under_every_policy: "tiny_embedding.skel.pb", "tiny_embedding.npz";
    lstm20_gives_tensorflows_numbers_under_every_policy: "lstm20.skel.pb", "lstm20.npz";
    tiny_unknown_shape_gives_tensorflows_numbers_under_every_policy: "tiny_unknown_shape.skel.pb", "tiny_unknown_shape.npz";
    small_cnn_fbn_gives_tensorflows_numbers_under_every_policy: "small_cnn_fbn.skel.pb", "small_cnn_fbn.npz";
    bert_tiny_gives_tensorflows_numbers_under_every_policy: "bert_tiny.skel.pb", "bert_tiny.npz";
}
