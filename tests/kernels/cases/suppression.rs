//! Selection of boxes that overlap little.

use half::f16;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

/// Three boxes that overlap by 0.6 and more, a separate one, and one far away.
const BOXES: [f32; 20] = [
    0.0, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 0.0, -0.1, 1.0, 0.9, 0.0, 10.0, 1.0, 11.0, 0.0, 100.0,
    1.0, 101.0,
];
const SCORES: [f32; 5] = [0.9, 0.75, 0.6, 0.95, 0.5];

fn suppression(op: &'static str, name: &str, boxes: Tensor, scores: Tensor, n: i32) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", boxes.dtype())
        .typed("T_threshold", boxes.dtype())
        .input(boxes)
        .input(scores)
        .input(tensor(&[], &[n]))
}

/// The plain algorithm: the best box, then all that overlap with it are dropped, and so on.
fn greedy(boxes: &[f32], scores: &[f32], n: usize, limit: f32) -> Vec<i32> {
    let area = |b: &[f32]| (b[2] - b[0]).abs() * (b[3] - b[1]).abs();
    let overlap = |a: &[f32], b: &[f32]| {
        let side = |axis: usize| {
            let end = |c: &[f32]| c[axis].max(c[axis + 2]);
            let start = |c: &[f32]| c[axis].min(c[axis + 2]);
            (end(a).min(end(b)) - start(a).max(start(b))).max(0.0)
        };
        let common = side(0) * side(1);
        common / (area(a) + area(b) - common)
    };
    let of = |index: usize| &boxes[index * 4..index * 4 + 4];
    let mut left: Vec<usize> = (0..scores.len()).collect();
    let mut found = Vec::new();
    while found.len() < n && !left.is_empty() {
        let first = left.iter().copied().rev();
        let best = first
            .max_by(|&a, &b| scores[a].total_cmp(&scores[b]))
            .expect("not empty");
        found.push(i32::try_from(best).expect("small"));
        left.retain(|&other| other != best && overlap(of(best), of(other)) <= limit);
    }
    found
}

pub(crate) fn cases() -> Vec<Case> {
    let (boxes, scores) = (tensor(&[5, 4], &BOXES), tensor(&[5], &SCORES));
    let of = |op: &'static str, name: &str, n: i32| {
        suppression(op, name, boxes.clone(), scores.clone(), n)
    };
    let number = |x: f32| tensor(&[], &[x]);
    let indices = |values: &[i32]| tensor(&[values.len()], values);
    let halves = |values: &[f32]| {
        values
            .iter()
            .map(|&x| f16::from_f32(x))
            .collect::<Vec<f16>>()
    };
    let half = |x: f32| tensor(&[], &[f16::from_f32(x)]);
    let (v2, v3) = ("NonMaxSuppressionV2", "NonMaxSuppressionV3");
    let (v4, v5) = ("NonMaxSuppressionV4", "NonMaxSuppressionV5");
    let many: Vec<f32> = noise(400, 5).iter().map(|x| x * 3.0).collect();
    let many_scores = noise(100, 6);
    let mut cases = vec![
        of("NonMaxSuppression", "by attribute", 3).gives(indices(&[3, 0, 4])),
        of(v2, "three of five", 3)
            .input(number(0.5))
            .gives(indices(&[3, 0, 4])),
        of(v2, "fewer than asked for", 9)
            .input(number(0.5))
            .gives(indices(&[3, 0, 4])),
        of(v2, "none", 0).input(number(0.5)).gives(indices(&[])),
        of(v2, "no threshold", 9)
            .input(number(1.0))
            .gives(indices(&[3, 0, 1, 2, 4])),
        suppression(
            v2,
            "half",
            tensor(&[5, 4], &halves(&BOXES)),
            tensor(&[5], &halves(&SCORES)),
            3,
        )
        .input(half(0.5))
        .gives(indices(&[3, 0, 4])),
        suppression(
            v2,
            "no boxes",
            tensor::<f32>(&[0, 4], &[]),
            tensor::<f32>(&[0], &[]),
            3,
        )
        .input(number(0.5))
        .gives(indices(&[])),
        suppression(
            v2,
            "a hundred boxes",
            tensor(&[100, 4], &many),
            tensor(&[100], &many_scores),
            50,
        )
        .input(number(0.3))
        .gives(indices(&greedy(&many, &many_scores, 50, 0.3))),
        of(v3, "low scores are dropped", 9)
            .input(number(0.5))
            .input(number(0.5))
            .gives(indices(&[3, 0])),
        of(v4, "padded", 4)
            .bool("pad_to_max_output_size", true)
            .input(number(0.5))
            .input(number(0.0))
            .gives_all(vec![indices(&[3, 0, 4, 0]), tensor(&[], &[3])]),
        of(v4, "not padded", 4)
            .input(number(0.5))
            .input(number(0.0))
            .gives_all(vec![indices(&[3, 0, 4]), tensor(&[], &[3])]),
        of(v5, "without lowering", 2)
            .input(number(0.5))
            .input(number(0.0))
            .input(number(0.0))
            .gives_all(vec![
                indices(&[3, 0]),
                tensor(&[2], &[0.95f32, 0.9]),
                tensor(&[], &[2]),
            ]),
        // TensorFlow's test of soft suppression.
        of(v5, "lowered scores", 5)
            .input(number(0.5))
            .input(number(0.0))
            .input(number(0.5))
            .gives_all_within(
                vec![
                    indices(&[3, 0, 4, 1, 2]),
                    tensor(&[5], &[0.95f32, 0.9, 0.5, 0.384, 0.197]),
                    tensor(&[], &[5]),
                ],
                // Rounded to three digits.
                2e-3,
            ),
        of(v2, "a threshold above 1", 1)
            .input(number(1.5))
            .refused("iou_threshold must be in [0, 1]"),
        of(v2, "a threshold of rank 1", 1)
            .input(tensor(&[1], &[0.5f32]))
            .refused("iou_threshold must be 0-D"),
        of(v2, "a negative number", -1)
            .input(number(0.5))
            .refused("output size must be non-negative"),
        suppression(
            v2,
            "boxes of three columns",
            tensor(&[1, 3], &[0.0f32; 3]),
            tensor(&[1], &[0.0f32]),
            1,
        )
        .input(number(0.5))
        .refused("boxes must be 2-D and have 4 columns"),
        suppression(
            v2,
            "too few scores",
            boxes.clone(),
            tensor(&[1], &[0.0f32]),
            1,
        )
        .input(number(0.5))
        .refused("scores has incompatible shape [1]"),
        of(v5, "a negative width", 1)
            .input(number(0.5))
            .input(number(0.0))
            .input(number(-1.0))
            .with_outputs(3)
            .refused("soft_nms_sigma must be non-negative"),
    ];
    cases.extend(combined());
    cases
}

fn combined() -> Vec<Case> {
    let op = "CombinedNonMaxSuppression";
    let call = |name: &str, [boxes, scores]: [Tensor; 2], n: [i32; 2]| {
        case(&format!("{op}: {name}"), op)
            .input(boxes)
            .input(scores)
            .input(tensor(&[], &[n[0]]))
            .input(tensor(&[], &[n[1]]))
            .input(tensor(&[], &[0.5f32]))
            .input(tensor(&[], &[0.1f32]))
    };
    let boxes = tensor(&[1, 2, 1, 4], &[0.0f32, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 2.0]);
    let scores = tensor(&[1, 2, 2], &[0.9f32, 0.2, 0.3, 0.8]);
    let inputs = || [boxes.clone(), scores.clone()];
    let (first, second) = ([0.0f32, 0.0, 0.5, 0.5], [0.0f32, 0.0, 0.5, 1.0]);
    vec![
        call("two classes", inputs(), [1, 3]).gives_all(vec![
            tensor(&[1, 3, 4], [first, second, [0.0; 4]].as_flattened()),
            tensor(&[1, 3], &[0.9f32, 0.8, 0.0]),
            tensor(&[1, 3], &[0.0f32, 1.0, 0.0]),
            tensor(&[1], &[2]),
        ]),
        call("as many as there are at most", inputs(), [1, 9])
            .bool("pad_per_class", true)
            .bool("clip_boxes", false)
            .gives_all(vec![
                tensor(&[1, 2, 4], [first, [0.0, 0.0, 0.5, 2.0]].as_flattened()),
                tensor(&[1, 2], &[0.9f32, 0.8]),
                tensor(&[1, 2], &[0.0f32, 1.0]),
                tensor(&[1], &[2]),
            ]),
        call("the best of both classes", inputs(), [2, 1]).gives_all(vec![
            tensor(&[1, 1, 4], &first),
            tensor(&[1, 1], &[0.9f32]),
            tensor(&[1, 1], &[0.0f32]),
            tensor(&[1], &[1]),
        ]),
        call(
            "no images",
            [
                tensor::<f32>(&[0, 1, 1, 4], &[]),
                tensor::<f32>(&[0, 1, 1], &[]),
            ],
            [1, 1],
        )
        .gives_all(vec![
            tensor::<f32>(&[0, 1, 4], &[]),
            tensor::<f32>(&[0, 1], &[]),
            tensor::<f32>(&[0, 1], &[]),
            tensor::<i32>(&[0], &[]),
        ]),
        call("no total", inputs(), [1, 0])
            .with_outputs(4)
            .refused("max_total_size must be > 0"),
        call(
            "other boxes than scores",
            [boxes, tensor(&[1, 1, 1], &[0.5f32])],
            [1, 1],
        )
        .with_outputs(4)
        .refused("as many images and boxes"),
        call(
            "boxes of other classes",
            [
                tensor(&[1, 1, 3, 4], &[0.0f32; 12]),
                tensor(&[1, 1, 2], &[0.5f32; 2]),
            ],
            [1, 1],
        )
        .with_outputs(4)
        .refused("either 1 or num classes"),
        call(
            "boxes of rank 2",
            [
                tensor(&[1, 4], &[0.0f32; 4]),
                tensor(&[1, 1, 2], &[0.5f32; 2]),
            ],
            [1, 1],
        )
        .with_outputs(4)
        .refused("boxes must be 4-D"),
    ]
}
