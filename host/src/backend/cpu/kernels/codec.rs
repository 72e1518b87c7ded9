//! Files, and images in files.

use std::path::Path;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::cpu::kernels::strings::scalar_string;
use crate::backend::cpu::kernels::strings::set_strings;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::integers;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::files;
use crate::kernels::Threads;
use crate::kernels::codec::Format;
use crate::kernels::codec::bmp::Bmp;
use crate::kernels::codec::jpeg;
use crate::kernels::codec::jpeg::DctMethod;
use crate::kernels::codec::jpeg::Jpeg;
use crate::kernels::codec::png;
use crate::kernels::codec::png::Png;
use crate::tensor::DType;
use crate::tensor::Shape;

/// The largest file that `ReadFile` reads.
const FILE_BYTES_MAX: u64 = 1 << 30;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("ReadFile").with_factory(|_| kernel(read_file)));
    for op in ["DecodeJpeg", "DecodeAndCropJpeg", "DecodeBmp"] {
        registry.register(def(op).with_factory(decode));
    }
    registry.register(
        def("DecodePng")
            .with_types("dtype", &[DType::U8, DType::U16])
            .with_factory(decode),
    );
    registry.register(
        def("DecodeImage")
            .with_types("dtype", &[DType::U8, DType::U16, DType::F32])
            .with_factory(decode),
    );
    registry.register(
        def("ExtractJpegShape")
            .with_types("output_type", &INDICES)
            .with_factory(shape),
    );
    registry.register(
        def("EncodePng")
            .with_types("T", &[DType::U8, DType::U16])
            .with_factory(encode),
    );
}

/// TensorFlow `ReadFile`.
fn read_file(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let name = scalar_string(context, 0, "filename")?;
    let name = String::from_utf8_lossy(name);
    let remedy = "read it in the app, and feed its bytes";
    let bytes = files::read(Path::new(&*name), FILE_BYTES_MAX, remedy)
        .map_err(|error| KernelError::invalid(format!("{name}: {error}")))?;
    set_strings(context, 0, &Shape::scalar(), [Ok(bytes.into())].into_iter())
}

/// The ops that decode images. Each takes files of all formats, except for bitmaps.
#[derive(Debug, Clone, Copy)]
struct Plan {
    is_bmp: bool,
    is_image: bool,
    is_cropped: bool,
    dtype: DType,
    options: jpeg::Options,
}

impl Plan {
    fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let n_channels = int_attr(node, "channels", Some(0))?;
        if !matches!(n_channels, 0 | 1 | 3 | 4) {
            return Err(KernelError::invalid(format!(
                "`channels` must be 0, 1, 3 or 4 but got {n_channels}"
            )));
        }
        let ratio = int_attr(node, "ratio", Some(1))?;
        if !matches!(ratio, 1 | 2 | 4 | 8) {
            return Err(KernelError::invalid(format!(
                "ratio must be 1, 2, 4, or 8, got {ratio}"
            )));
        }
        let method = match string_attr(node, "dct_method", "")? {
            "" | "INTEGER_FAST" => DctMethod::Fast,
            "INTEGER_ACCURATE" => DctMethod::Accurate,
            other => {
                return Err(KernelError::invalid(format!(
                    "dct_method must be one of {{'', 'INTEGER_FAST', 'INTEGER_ACCURATE'}}, not \
                     '{other}'"
                )));
            }
        };
        let dtype = match node.attrs.get("dtype") {
            Some(_) => type_attr(node, "dtype")?,
            None => DType::U8,
        };
        Ok(Self {
            is_bmp: node.op == "DecodeBmp",
            is_image: node.op == "DecodeImage",
            is_cropped: node.op == "DecodeAndCropJpeg",
            dtype,
            options: jpeg::Options {
                n_channels: usize::try_from(n_channels).unwrap_or(0),
                ratio: usize::try_from(ratio).unwrap_or(1),
                is_smooth: bool_attr(node, "fancy_upscaling", true)?,
                recovers: bool_attr(node, "try_recover_truncated", false)?,
                acceptable_fraction: float_attr(node, "acceptable_fraction", 1.0)?,
                method,
            },
        })
    }
}

/// TensorFlow `DecodeJpeg`, `DecodeAndCropJpeg`, `DecodePng`, `DecodeBmp` and `DecodeImage`.
fn decode(node: &KernelConstruction<'_>) -> Made {
    let plan = Plan::new(node)?;
    kernel(move |context| {
        let bytes = scalar_string(context, 0, "`contents`")?;
        if bytes.is_empty() {
            return Err(KernelError::invalid("Input is empty."));
        }
        let format = Format::of(bytes).ok_or_else(|| {
            KernelError::invalid("Unknown image file format. One of JPEG, PNG, BMP required.")
        })?;
        let is_wrong = match format {
            Format::Bmp => !plan.is_bmp && !plan.is_image,
            Format::Jpeg => plan.is_bmp,
            Format::Gif | Format::Png => plan.is_bmp || plan.is_cropped,
        };
        if is_wrong {
            return Err(KernelError::invalid(format!(
                "the file has format {format:?}, which this op does not decode; use DecodeImage"
            )));
        }
        match format {
            Format::Bmp => decode_bmp(context, plan, bytes),
            Format::Jpeg => decode_jpeg(context, plan, bytes),
            Format::Png => decode_png(context, plan, bytes),
            Format::Gif => Err(KernelError::invalid(
                "the file has format GIF, which is not supported; convert it to PNG",
            )),
        }
    })
}

fn decode_bmp(context: &KernelContext<'_>, plan: Plan, bytes: &[u8]) -> Result<(), KernelError> {
    if plan.options.n_channels == 1 {
        return Err(KernelError::invalid(
            "`channels` must be 0, 3 or 4 for BMP, but got 1",
        ));
    }
    let bmp = Bmp::open(bytes, plan.options.n_channels).map_err(KernelError::invalid)?;
    write_bytes(context, plan.dtype, bmp.dims(), |out| {
        bmp.read(out);
        Ok(())
    })
}

fn decode_jpeg(context: &KernelContext<'_>, plan: Plan, bytes: &[u8]) -> Result<(), KernelError> {
    if plan.options.n_channels == 4 {
        return Err(KernelError::invalid("JPEG does not support 4 channels"));
    }
    let invalid = |error| KernelError::invalid(format!("the JPEG file cannot be decoded: {error}"));
    let file = Jpeg::open(bytes, plan.options).map_err(invalid)?;
    let dims = file.dims();
    let threads = Threads::of(context);
    let read = |out: &mut [u8]| {
        file.read(out, &|| threads.is_interrupted())
            .map_err(invalid)
    };
    if !plan.is_cropped {
        return write_bytes(context, plan.dtype, dims, read);
    }
    let window = context.input(1)?;
    let [height, width, n_channels] = dims;
    let found = integers(window)?;
    let &[y, x, rows, columns] = found.as_slice() else {
        return Err(KernelError::invalid(format!(
            "crop_window must have four elements, not shape {}",
            window.shape()
        )));
    };
    let place = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
    let [y, x, rows, columns] = [y, x, rows, columns].map(place);
    let fits = |start: usize, n: usize, all: usize| n > 0 && start.saturating_add(n) <= all;
    if window.shape().rank() != 1 || !fits(y, rows, height) || !fits(x, columns, width) {
        return Err(KernelError::invalid(format!(
            "Invalid JPEG data or crop window: crop_window {found:?} is not within an image of \
             {height} rows and {width} columns"
        )));
    }
    let mut whole = threads.scratch::<u8>(height * width * n_channels)?;
    read(&mut whole)?;
    write_bytes(context, plan.dtype, [rows, columns, n_channels], |out| {
        let (stride, n) = (width * n_channels, columns * n_channels);
        for (out, row) in out
            .chunks_exact_mut(n)
            .zip(whole.chunks_exact(stride).skip(y))
        {
            out.copy_from_slice(&row[x * n_channels..][..n]);
        }
        Ok(())
    })
}

fn decode_png(context: &KernelContext<'_>, plan: Plan, bytes: &[u8]) -> Result<(), KernelError> {
    let invalid = |error| KernelError::invalid(format!("the PNG file cannot be decoded: {error}"));
    let file = Png::open(bytes, plan.options.n_channels).map_err(invalid)?;
    let shape = Shape::from(file.dims());
    // 8 bits become 16 by repetition.
    let widened = |sample: u16, is_wide: bool| if is_wide { sample } else { sample * 257 };
    match plan.dtype {
        DType::U16 => context.fill_output(0, &shape, |out: &mut [u16]| {
            let mut slots = out.iter_mut();
            let write = |sample, is_wide| {
                if let Some(slot) = slots.next() {
                    *slot = widened(sample, is_wide);
                }
            };
            file.read(write).map_err(invalid)
        }),
        DType::F32 => context.fill_output(0, &shape, |out: &mut [f32]| {
            let mut slots = out.iter_mut();
            let write = |sample, is_wide| {
                if let Some(slot) = slots.next() {
                    *slot = f32::from(widened(sample, is_wide)) * (1.0 / 65535.0);
                }
            };
            file.read(write).map_err(invalid)
        }),
        _ => context.fill_output(0, &shape, |out: &mut [u8]| {
            let mut slots = out.iter_mut();
            let write = |sample: u16, is_wide: bool| {
                if let Some(slot) = slots.next() {
                    let [high, low] = sample.to_be_bytes();
                    *slot = if is_wide { high } else { low };
                }
            };
            file.read(write).map_err(invalid)
        }),
    }
}

/// Sets the output to samples of 8 bits, in its element type.
fn write_bytes(
    context: &KernelContext<'_>,
    dtype: DType,
    dims: [usize; 3],
    read: impl FnOnce(&mut [u8]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let shape = Shape::from(dims);
    if dtype == DType::U8 {
        return context.fill_output(0, &shape, read);
    }
    let mut bytes = Threads::of(context).scratch::<u8>(shape.n_elements())?;
    read(&mut bytes)?;
    if dtype == DType::U16 {
        return context.fill_output(0, &shape, |out: &mut [u16]| {
            for (slot, &byte) in out.iter_mut().zip(bytes.iter()) {
                *slot = u16::from(byte) * 256;
            }
            Ok(())
        });
    }
    context.fill_output(0, &shape, |out: &mut [f32]| {
        for (slot, &byte) in out.iter_mut().zip(bytes.iter()) {
            *slot = f32::from(byte) * (1.0 / 255.0);
        }
        Ok(())
    })
}

/// TensorFlow `ExtractJpegShape`.
fn shape(node: &KernelConstruction<'_>) -> Made {
    let plan = Plan::new(node)?;
    let is_wide = type_attr(node, "output_type")? == DType::I64;
    kernel(move |context| {
        let bytes = scalar_string(context, 0, "contents")?;
        let file = Jpeg::open(bytes, plan.options);
        let dims = file
            .map_err(|error| KernelError::invalid(format!("Invalid JPEG data: {error}")))?
            .dims()
            .map(|dim| i64::try_from(dim).unwrap_or(i64::MAX));
        set_indices(context, 0, &Shape::from([3]), &dims, is_wide)
    })
}

/// TensorFlow `EncodePng`.
fn encode(node: &KernelConstruction<'_>) -> Made {
    let level = int_attr(node, "compression", Some(-1))?;
    if !(-1..=9).contains(&level) {
        return Err(KernelError::invalid(format!(
            "compression should be in [-1,9], got {level}"
        )));
    }
    let is_wide = type_attr(node, "T")? == DType::U16;
    kernel(move |context| {
        let image = context.input(0)?;
        let dims = image.shape().dims();
        let Some((batch, &image_dims)) = dims.split_last_chunk::<3>() else {
            return Err(KernelError::invalid(format!(
                "image must be at least rank 3, has shape {}",
                image.shape()
            )));
        };
        if image.shape().n_elements() == 0 {
            return Err(KernelError::invalid(format!(
                "image is empty, has shape {}",
                image.shape()
            )));
        }
        if !(1..=4).contains(&image_dims[2]) {
            return Err(KernelError::invalid(format!(
                "image must have 1, 2, 3, or 4 channels, has {}",
                image_dims[2]
            )));
        }
        let bytes = image.as_bytes()?;
        let mut big = Threads::of(context).scratch::<u8>(if is_wide { bytes.len() } else { 0 })?;
        for (out, sample) in big.chunks_exact_mut(2).zip(bytes.chunks_exact(2)) {
            out.copy_from_slice(&[sample[1], sample[0]]);
        }
        let samples = if is_wide { &*big } else { bytes };
        let batch = Shape::new(batch);
        let files = samples
            .chunks_exact(samples.len() / batch.n_elements().max(1))
            .map(|image| {
                let file = png::encode(image_dims, image, is_wide, level);
                file.map(Into::into).map_err(KernelError::invalid)
            });
        set_strings(context, 0, &batch, files)
    })
}
