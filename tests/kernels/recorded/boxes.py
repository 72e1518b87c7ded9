"""Random boxes, overlaps of boxes, patches of volumes, and messages with tensors."""

import numpy as np
import tensorflow as tf
from record import Recorder

RECORDER = Recorder(__file__)
RANDOM = np.random.default_rng(7)


def main():
    call = RECORDER.call
    objects = np.float32([[[0.1, 0.2, 0.6, 0.7], [0.5, 0.5, 0.9, 1.0]]])
    none = np.zeros([1, 0, 4], np.float32)
    for size in ([40, 50, 3], [7, 9, 1], [300, 200, 3]):
        for seed in range(4):
            image = {"image_size": np.int32(size), "bounding_boxes": objects}
            call(f"{size} {seed}", "SampleDistortedBoundingBox", image, seed=seed, seed2=5)
            second = image | {"min_object_covered": np.float32(0.3)}
            attrs = {"area_range": [0.2, 0.7], "aspect_ratio_range": [0.5, 2.0]}
            call(f"{size} {seed}", "SampleDistortedBoundingBoxV2", second, seed=seed, seed2=7, **attrs)
            own = {"seed": np.int32([seed, 3])}
            call(f"{size} {seed}", "StatelessSampleDistortedBoundingBox", second | own, **attrs)
    image = {"image_size": np.int64([40, 50, 3]), "bounding_boxes": none}
    call("the whole image", "SampleDistortedBoundingBox", image, seed=1, use_image_if_no_bounding_boxes=True)
    call("no box", "SampleDistortedBoundingBox", image, "No bounding boxes provided as input", seed=1)
    call("impossible", "SampleDistortedBoundingBox", image | {"bounding_boxes": objects}, seed=1, area_range=[0.9, 0.91], aspect_ratio_range=[3.0, 4.0])
    outside = image | {"bounding_boxes": objects * 2}
    call("outside", "SampleDistortedBoundingBox", outside, "must be in [0.0, 1.0]", seed=1)
    flat = image | {"image_size": np.int64([40, 50]), "bounding_boxes": objects}
    call("two sizes", "SampleDistortedBoundingBox", flat, "must contain 3 elements", seed=1)
    overlaps = RANDOM.uniform(0, 1, (6, 6)).astype(np.float32)
    pairs = {
        "overlaps": (overlaps + overlaps.T) / 2,
        "scores": RANDOM.permutation(6).astype(np.float32),
        "max_output_size": np.int32(4),
        "overlap_threshold": np.float32(0.4),
        "score_threshold": np.float32(0.5),
    }
    op = "NonMaxSuppressionWithOverlaps"
    call("six boxes", op, pairs)
    call("one of them", op, pairs | {"max_output_size": np.int32(1)})
    call("no limit", op, pairs | {"overlap_threshold": np.float32(1), "max_output_size": np.int32(9)})
    call("another shape", op, pairs | {"overlaps": overlaps[:5]}, "overlaps must be square")
    for padding in ("SAME", "VALID"):
        for dtype in (np.float32, np.int32, np.uint8):
            volume = RANDOM.integers(0, 99, (2, 4, 5, 6, 2)).astype(dtype)
            for strides in ([1, 1, 1, 1, 1], [1, 2, 1, 3, 1]):
                attrs = {"ksizes": [1, 2, 3, 2, 1], "strides": strides, "padding": padding}
                name = f"{padding} {dtype.__name__} {strides}"
                call(name, "ExtractVolumePatches", {"input": volume[:1, :3, :4, :3]}, **attrs)
    for array in (
        np.float32([[1, 2.5]]),
        np.array([b"a", b"", b"xyz"], object),
        np.zeros([0, 3], np.int64),
        np.array(True),
        np.complex64([1 + 2j]),
        np.float16([1, 2]),
    ):
        call(f"{array.dtype} {array.shape}", "SerializeTensor", {"tensor": array})
        message = np.array(tf.make_tensor_proto(array).SerializeToString(), object)
        call(f"{array.dtype} {array.shape}", "ParseTensor", {"serialized": message}, out_type=tf.as_dtype(array.dtype))
    message = np.array(tf.make_tensor_proto([1.5, 2.5]).SerializeToString(), object)
    call("another type", "ParseTensor", {"serialized": message}, "Type mismatch", out_type=tf.int32)
    call("no message", "ParseTensor", {"serialized": np.array(b"\x0a\x7f", object)}, "Could not parse", out_type=tf.int32)
    RECORDER.write()


if __name__ == "__main__":
    main()
