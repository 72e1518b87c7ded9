//! Recognises files of other formats that users pass to the importer.

use super::ImportError;

const CONVERT_TEXT: &str =
    "write it in binary: tf.io.write_graph(graph, folder, name, as_text=False)";
const FREEZE: &str = "freeze it into a GraphDef first: tensorflow.python.framework.convert_to_constants.\
                      convert_variables_to_constants_v2(function).graph.as_graph_def()";
const LOAD_FOLDER: &str =
    "pass its folder: `placewright run FOLDER`, or `SessionBuilder::with_saved_model` in an app";
const FROM_ONNX: &str = "convert the original model to a frozen TensorFlow GraphDef";
const NO_MODEL: &str = "pass a frozen GraphDef (`.pb`)";
const UNPACK: &str = "unpack it first";

/// Returns an error if the bytes certainly have another format.
pub(super) fn refuse_other_formats(bytes: &[u8]) -> Result<(), ImportError> {
    let (found, remedy) = match bytes {
        [0x1f, 0x8b, ..] => ("a gzip archive", UNPACK),
        [b'P', b'K', 3, 4, ..] => (
            "a zip archive (a Keras or PyTorch model, or arrays for `--feeds` and `--check`)",
            FREEZE,
        ),
        [0x89, b'H', b'D', b'F', ..] => ("an HDF5 file (a Keras model)", FREEZE),
        [0, b'a', b's', b'm', ..] => ("a WebAssembly file (a policy)", NO_MODEL),
        [0x7f, b'E', b'L', b'F', ..] => ("a program", NO_MODEL),
        // After the byte 0x0a they may be the name of a GraphDef's first node.
        [first, _, _, _, b'T', b'F', b'L', b'3', ..] if *first != 0x0a => {
            ("a TensorFlow Lite model", FREEZE)
        }
        // Field 1 of a GraphDef is a message; a number there is the version of a SavedModel or of
        // ONNX.
        [0x08, 1, 0x12, ..] => ("a SavedModel", LOAD_FOLDER),
        [0x08, _, ..] => ("an ONNX model", FROM_ONNX),
        _ if is_text(bytes) && bytes.contains(&b'{') => {
            ("text (a GraphDef in text format, `.pbtxt`)", CONVERT_TEXT)
        }
        _ if is_text(bytes) => ("text", NO_MODEL),
        _ => return Ok(()),
    };
    Err(ImportError::OtherFormat { found, remedy })
}

/// Returns whether the file starts with text.
fn is_text(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(512)];
    let printable = |&byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    // A binary file starts with the byte 0x0a, which is a line feed, so all of the head must be
    // text.
    head.len() >= 16 && head.iter().all(printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_kinds_of_files_are_named_with_a_remedy() {
        for (bytes, expected) in [
            (b"node {\n  name: \"x\"\n}".as_slice(), "as_text=False"),
            (b"# a comment\nnode {}".as_slice(), "text format"),
            (&[0x08, 1, 0x12, 4, 0x0a], "a SavedModel"),
            (&[0x08, 8, 0x12, 7, b'p', b'y'], "an ONNX model"),
            (b"\x1c\0\0\0TFL3....".as_slice(), "TensorFlow Lite"),
            (b"PK\x03\x04....".as_slice(), "zip"),
            (b"\x89HDF\r\n".as_slice(), "HDF5"),
            (&[0x1f, 0x8b, 8], "gzip"),
            (b"\0asm\x01\0\0\0", "a WebAssembly file"),
            (b"\x7fELF\x02\x01", "a program"),
            (b"[workspace]\nresolver = 3\n", "like text, not"),
        ] {
            let error = refuse_other_formats(bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(refuse_other_formats(b"\n\x0c\n\x01x\x12\x04NoOp*\0").is_ok());
        assert!(refuse_other_formats(b"\n\x0f\n\x04TFL3\x12\x04NoOp*\x01\0").is_ok());
        assert!(refuse_other_formats(b"").is_ok());
    }
}
