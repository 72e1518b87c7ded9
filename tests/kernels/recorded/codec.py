"""Images in files: tiny files, and what they are decoded to."""

import io

import numpy as np
from PIL import Image
from record import Recorder

RECORDER = Recorder(__file__)


def add(name, op, file, refusal=None, window=None, **attrs):
    inputs = {"contents": np.array(file, object)}
    if window:
        inputs["crop_window"] = np.array(window, np.int32)
    RECORDER.call(name, op, inputs, refusal, **attrs)


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def main():
    random = np.random.default_rng(1)
    y, x = np.mgrid[0:11, 0:19]
    waves = np.stack([128 + 100 * np.sin(x / 3 + y / 4), 128 + 90 * np.cos(y / 2), 9 * x], -1)
    noisy = np.clip(waves + random.normal(0, 12, waves.shape), 0, 255).astype(np.uint8)
    colour = Image.fromarray(noisy)
    grey = colour.convert("L")
    jpeg = {
        "grey": saved(grey, "JPEG"),
        "420": saved(colour, "JPEG", subsampling=2),
        "422": saved(colour, "JPEG", subsampling=1),
        "444": saved(colour, "JPEG", subsampling=0, quality=95),
        "progressive": saved(colour, "JPEG", subsampling=2, progressive=True),
        "restarts": saved(colour, "JPEG", subsampling=2, restart_marker_blocks=1),
        "CMYK": saved(colour.convert("CMYK"), "JPEG"),
    }
    for name, file in jpeg.items():
        add(name, "DecodeJpeg", file)
    for ratio in (2, 4, 8):
        add(f"420 of ratio {ratio}", "DecodeJpeg", jpeg["420"], ratio=ratio)
    add("422 of ratio 2", "DecodeJpeg", jpeg["422"], ratio=2)
    add("accurate", "DecodeJpeg", jpeg["420"], dct_method="INTEGER_ACCURATE")
    add("repeated samples", "DecodeJpeg", jpeg["420"], fancy_upscaling=False)
    add("colour as grey", "DecodeJpeg", jpeg["420"], channels=1)
    add("grey as colour", "DecodeJpeg", jpeg["grey"], channels=3)
    add("as float", "DecodeImage", jpeg["grey"], dtype="float32")
    add("truncated", "DecodeJpeg", jpeg["420"][:-40], "the JPEG file cannot be decoded")
    add("without its end, recovered", "DecodeJpeg", jpeg["420"][:-2], try_recover_truncated=True)
    add("one byte", "DecodeJpeg", jpeg["420"][:1], "Unknown image file format")
    for cut in (3, 20, 200):
        add(f"a part of {cut} bytes", "DecodeJpeg", jpeg["420"][:cut], "the JPEG file cannot be decoded")
    add("the shape", "ExtractJpegShape", jpeg["422"])
    add("a window", "DecodeAndCropJpeg", jpeg["grey"], window=[2, 3, 5, 7])
    refusal = "is not within an image of 11 rows and 19 columns"
    add("a window outside", "DecodeAndCropJpeg", jpeg["grey"], refusal, [2, 3, 10, 7])
    palette = colour.quantize(5)
    for name, image in {
        "grey": grey,
        "colour": colour,
        "palette": palette,
        "bits": grey.convert("1"),
        "opacity": colour.convert("RGBA"),
        "grey with opacity": grey.convert("LA"),
        "wide": Image.fromarray(noisy[:, :, 0].astype(np.uint16) * 255 + 7),
    }.items():
        file = saved(image, "PNG")
        for channels in (0, 1, 3, 4):
            add(f"{name}, {channels} channels", "DecodePng", file, channels=channels)
        add(f"{name} as uint16", "DecodePng", file, dtype="uint16")
    file = saved(colour, "PNG")
    add("PNG as float", "DecodeImage", saved(grey, "PNG"), dtype="float32")
    add("PNG by DecodeJpeg", "DecodeJpeg", file)
    for cut in (9, 40, len(file) - 20, len(file) - 5):
        add(f"a part of {cut} bytes", "DecodePng", file[:cut], "the PNG file cannot be decoded")
    huge = bytearray(file)
    huge[16:24] = bytes([0, 127, 255, 255, 0, 0, 255, 255])
    add("a huge size", "DecodePng", bytes(huge), "the PNG file cannot be decoded")
    huge = bytearray(jpeg["420"])
    at = huge.index(b"\xff\xc0") + 5
    huge[at : at + 4] = b"\xff\xff\xff\xff"
    add("a huge size", "DecodeJpeg", bytes(huge), "it states 65535 x 65535 pixels")
    bitmap = saved(colour, "BMP")
    for channels in (0, 3, 4):
        add(f"{channels} channels", "DecodeBmp", bitmap, channels=channels)
    add("grey", "DecodeBmp", bitmap, "`channels` must be 0, 3 or 4", channels=1)
    add("not as large as stated", "DecodeBmp", bitmap[:-1], "Input size should match")
    add("a header alone", "DecodeBmp", bitmap[:20], "Incomplete bmp content")
    add("BMP by DecodePng", "DecodePng", bitmap, "this op does not decode")
    add("BMP", "DecodeImage", bitmap, expand_animations=False)
    add("another format", "DecodeImage", b"no image", "Unknown image file format")
    add("nothing", "DecodeImage", b"", "Input is empty")
    for name, dims, refusal in (
        ("no pixels", [0, 3, 1], "image is empty"),
        ("five channels", [2, 3, 5], "must have 1, 2, 3, or 4 channels"),
        ("a matrix", [2, 3], "must be at least rank 3"),
    ):
        RECORDER.call(name, "EncodePng", {"image": np.zeros(dims, np.uint8)}, refusal)
    RECORDER.write()


if __name__ == "__main__":
    main()
