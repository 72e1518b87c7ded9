//! Reads the NumPy archives next to the models: numbers and byte strings, row-major, as written by
//! `numpy.savez`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use placewright::tensor::DType;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

/// Returns arrays by name: `in/NAME` is a feed, `out/FETCH` a result of TensorFlow.
pub(crate) fn read(path: &Path) -> BTreeMap<String, Tensor> {
    let file = File::open(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    let mut zip = zip::ZipArchive::new(file).unwrap();
    (0..zip.len())
        .map(|index| {
            let mut entry = zip.by_index(index).unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            let name = entry.name().strip_suffix(".npy").unwrap().to_owned();
            let tensor = array(&bytes);
            (name, tensor)
        })
        .collect()
}

fn array(bytes: &[u8]) -> Tensor {
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..end]).unwrap();
    assert!(header.contains("'fortran_order': False"), "{header}");
    let (_, dims) = header.split_once("'shape': (").unwrap();
    let (dims, _) = dims.split_once(')').unwrap();
    let shape: Shape = dims
        .split(',')
        .map(str::trim)
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse::<usize>().unwrap())
        .collect();
    if let Some((_, width)) = header.split_once("'|S") {
        let width = width.split_once('\'').unwrap().0.parse().unwrap();
        return strings(shape, &bytes[end..], width);
    }
    let dtypes = [
        ("'|b1'", DType::Bool),
        ("'|u1'", DType::U8),
        ("'<f4'", DType::F32),
        ("'<i4'", DType::I32),
        ("'<i8'", DType::I64),
    ];
    let known = dtypes.iter().find(|(descr, _)| header.contains(descr));
    let &(_, dtype) = known.unwrap_or_else(|| panic!("an unknown type: {header}"));
    Tensor::from_bytes(dtype, shape, &bytes[end..]).unwrap()
}

/// Strings of `width` bytes, filled up with zeros.
fn strings(shape: Shape, bytes: &[u8], width: usize) -> Tensor {
    let strings = bytes.chunks_exact(width).map(|bytes| {
        let end = bytes.iter().rposition(|&byte| byte != 0);
        bytes[..end.map_or(0, |end| end + 1)].into()
    });
    Tensor::from_strings(shape, strings.collect()).unwrap()
}
