//! Resizing of images, blocks of pixels as channels or batches.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = resized();
    cases.extend(blocks());
    cases.extend(batches());
    cases
}

fn resize(op: &'static str, name: &str, images: Tensor, size: &[i32]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", images.dtype())
        .bool("align_corners", false)
        .bool("half_pixel_centers", false)
        .input(images)
        .named_input("size", tensor(&[size.len()], size))
}

fn resized() -> Vec<Case> {
    let (linear, nearest) = ("ResizeBilinear", "ResizeNearestNeighbor");
    let line = |values: &[f32]| tensor(&[1, 1, values.len(), 1], values);
    let two = line(&[0.0, 4.0]);
    let mut cases = Vec::new();
    let images = MOVED.into_iter().filter(|dtype| {
        !matches!(
            dtype,
            DType::Bool
                | DType::String
                | DType::Complex64
                | DType::Complex128
                | DType::U32
                | DType::U64
        )
    });
    for dtype in images {
        let input = typed_tensor(dtype, &[1, 1, 2, 1], &[0, 4]);
        cases.push(
            resize(linear, &format!("{dtype}"), input.clone(), &[1, 4])
                .gives(line(&[0.0, 2.0, 4.0, 4.0])),
        );
        cases.push(
            resize(nearest, &format!("{dtype}"), input, &[1, 4]).gives(typed_tensor(
                dtype,
                &[1, 1, 4, 1],
                &[0, 0, 4, 4],
            )),
        );
    }
    let zeros = |dims: &[usize]| tensor(dims, &vec![0.0f32; dims.iter().product()]);
    for op in [linear, nearest] {
        cases.extend([
            resize(op, "the same size", line(&[1.0, 2.0, 3.0]), &[1, 3])
                .gives(line(&[1.0, 2.0, 3.0])),
            resize(op, "no images", zeros(&[0, 1, 1, 1]), &[2, 2]).gives(zeros(&[0, 2, 2, 1])),
            resize(op, "an image without pixels", zeros(&[1, 0, 1, 1]), &[2, 2])
                .refused("input image must be of non-zero size: [1,0,1,1]"),
            resize(
                op,
                "an image without channels",
                zeros(&[1, 1, 1, 0]),
                &[2, 2],
            )
            .refused("at least one channel"),
            resize(op, "no result", two.clone(), &[0, 2])
                .refused("output dimensions must be positive"),
            resize(op, "a negative size", two.clone(), &[1, -2])
                .refused("output dimensions must be positive"),
            resize(op, "one size", two.clone(), &[2])
                .refused("shape_t must have two elements: [1]"),
            resize(op, "a vector", tensor(&[1], &[1.0f32]), &[2, 2])
                .refused("input must be 4-dimensional: [1]"),
            resize(op, "both ways of placing", two.clone(), &[1, 2])
                .bool("align_corners", true)
                .bool("half_pixel_centers", true)
                .refused("align_corners must be False"),
        ]);
    }
    cases.extend([
        resize(linear, "corners aligned", two.clone(), &[1, 3])
            .bool("align_corners", true)
            .gives(line(&[0.0, 2.0, 4.0])),
        resize(linear, "middles of pixels", two.clone(), &[1, 4])
            .bool("half_pixel_centers", true)
            .gives(line(&[0.0, 1.0, 3.0, 4.0])),
        resize(linear, "smaller", line(&[0.0, 1.0, 2.0, 3.0]), &[1, 2]).gives(line(&[0.0, 2.0])),
        resize(
            linear,
            "both axes, two channels",
            tensor(&[1, 2, 2, 2], &[0.0f32, 8.0, 2.0, 8.0, 4.0, 8.0, 6.0, 8.0]),
            &[3, 3],
        )
        .bool("align_corners", true)
        .gives(tensor(
            &[1, 3, 3, 2],
            &[
                0.0f32, 8.0, 1.0, 8.0, 2.0, 8.0, 2.0, 8.0, 3.0, 8.0, 4.0, 8.0, 4.0, 8.0, 5.0, 8.0,
                6.0, 8.0,
            ],
        )),
        resize(nearest, "corners aligned", two.clone(), &[1, 3])
            .bool("align_corners", true)
            .gives(line(&[0.0, 4.0, 4.0])),
        resize(
            nearest,
            "middles of pixels",
            line(&[0.0, 1.0, 2.0]),
            &[1, 2],
        )
        .bool("half_pixel_centers", true)
        .gives(line(&[0.0, 2.0])),
        resize(nearest, "smaller", line(&[0.0, 1.0, 2.0]), &[1, 2]).gives(line(&[0.0, 1.0])),
        resize(
            nearest,
            "a column of two images",
            tensor(&[2, 1, 1, 1], &[1.0f32, 2.0]),
            &[2, 1],
        )
        .gives(tensor(&[2, 2, 1, 1], &[1.0f32, 1.0, 2.0, 2.0])),
    ]);
    cases
}

fn block(op: &'static str, name: &str, input: Tensor, size: i64) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", input.dtype())
        .int("block_size", size)
        .text("data_format", "NHWC")
        .input(input)
}

fn blocks() -> Vec<Case> {
    let (into, out_of) = ("SpaceToDepth", "DepthToSpace");
    let flat = [0, 1, 2, 3, 4, 5, 6, 7];
    let blocked = [0, 1, 4, 5, 2, 3, 6, 7];
    let mut cases = Vec::new();
    for dtype in MOVED {
        let (pixels, channels) = (
            typed_tensor(dtype, &[1, 2, 4, 1], &flat),
            typed_tensor(dtype, &[1, 1, 2, 4], &blocked),
        );
        cases.push(block(into, &format!("{dtype}"), pixels.clone(), 2).gives(channels.clone()));
        cases.push(block(out_of, &format!("{dtype}"), channels, 2).gives(pixels));
    }
    let zeros = |dims: &[usize]| tensor(dims, &vec![0.0f32; dims.iter().product()]);
    cases.extend([
        block(into, "nothing", zeros(&[0, 2, 2, 3]), 2).gives(zeros(&[0, 1, 1, 12])),
        block(out_of, "nothing", zeros(&[0, 1, 1, 12]), 2).gives(zeros(&[0, 2, 2, 3])),
        block(into, "a remainder", zeros(&[1, 3, 2, 1]), 2)
            .refused("should be divisible by block_size: 2"),
        block(out_of, "a remainder", zeros(&[1, 1, 1, 3]), 2).refused("should be divisible by: 4"),
        block(into, "blocks of one", zeros(&[1, 2, 2, 1]), 1).refused("block size should be > 1"),
        block(into, "channels first", zeros(&[1, 2, 2, 1]), 2)
            .text("data_format", "NCHW")
            .refused("only NHWC is"),
        block(out_of, "a vector", zeros(&[4]), 2).refused("input rank should be 4: [4]"),
    ]);
    cases
}

fn batch(op: &'static str, name: &str, input: Tensor, sizes: &[i32], margins: &[i32]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", input.dtype())
        .typed("Tblock_shape", DType::I32)
        .typed("Tpaddings", DType::I32)
        .typed("Tcrops", DType::I32)
        .input(input)
        .named_input("block_shape", tensor(&[sizes.len()], sizes))
        .named_input(
            if op == "SpaceToBatchND" {
                "paddings"
            } else {
                "crops"
            },
            tensor(&[margins.len() / 2, 2], margins),
        )
}

fn batches() -> Vec<Case> {
    let (into, out_of) = ("SpaceToBatchND", "BatchToSpaceND");
    let mut cases = Vec::new();
    let numbers = MOVED
        .into_iter()
        .filter(|dtype| dtype.is_floating() || dtype.is_integer());
    for dtype in numbers {
        let (space, batches) = (
            typed_tensor(dtype, &[1, 2, 2, 1], &[1, 2, 3, 4]),
            typed_tensor(dtype, &[4, 1, 1, 1], &[1, 2, 3, 4]),
        );
        cases.push(
            batch(into, &format!("{dtype}"), space.clone(), &[2, 2], &[0; 4])
                .gives(batches.clone()),
        );
        cases.push(batch(out_of, &format!("{dtype}"), batches, &[2, 2], &[0; 4]).gives(space));
    }
    let counted = |dims: &[usize]| {
        let values: Vec<i32> = (1..).take(dims.iter().product()).collect();
        tensor(dims, &values)
    };
    let none: [i32; 0] = [];
    cases.extend([
        batch(into, "a margin", counted(&[1, 3]), &[2], &[1, 0])
            .gives(tensor(&[2, 2], &[0, 2, 1, 3])),
        batch(
            out_of,
            "a margin",
            tensor(&[2, 2], &[0, 2, 1, 3]),
            &[2],
            &[1, 0],
        )
        .gives(counted(&[1, 3])),
        batch(into, "two images", counted(&[2, 2, 2]), &[2], &[0, 0])
            .gives(tensor(&[4, 1, 2], &[1, 2, 5, 6, 3, 4, 7, 8])),
        batch(
            out_of,
            "two images",
            tensor(&[4, 1, 2], &[1, 2, 5, 6, 3, 4, 7, 8]),
            &[2],
            &[0, 0],
        )
        .gives(counted(&[2, 2, 2])),
        batch(into, "no blocks", counted(&[2]), &[], &[]).gives(counted(&[2])),
        batch(into, "nothing", counted(&[0, 2]), &[2], &[0, 0]).gives(tensor(&[0, 1], &none)),
        batch(out_of, "all cropped", counted(&[2, 1]), &[2], &[1, 1]).gives(tensor(&[1, 0], &none)),
        batch(into, "a remainder", counted(&[1, 3]), &[2], &[0, 0])
            .refused("padded_shape[0]=3 is not divisible by block_shape[0]=2"),
        batch(out_of, "a remainder", counted(&[3, 1]), &[2], &[0, 0])
            .refused("input batch dimension (3) is not divisible by product of block sizes (2)"),
        batch(out_of, "too much cropped", counted(&[2, 1]), &[2], &[2, 1])
            .refused("cropped size must be non-negative"),
        batch(into, "a block of none", counted(&[1, 2]), &[0], &[0, 0])
            .refused("all values in block_shape must be positive"),
        batch(into, "a negative margin", counted(&[1, 2]), &[1], &[-1, 1])
            .refused("paddings must be non-negative"),
        batch(into, "too many blocks", counted(&[2]), &[2], &[0, 0])
            .refused("input rank should be >= 2 instead of 1"),
        batch(
            into,
            "margins of another rank",
            counted(&[1, 2]),
            &[2],
            &[0; 4],
        )
        .refused("paddings should have shape [1, 2] instead of [2,2]"),
    ]);
    cases
}
