//! Kernels allocate memory in one place, `kernels::scratch`, which can reject a request.

use super::Source;
use super::code_lines;
use super::rust_files;

/// Calls that allocate memory and cannot report a failure.
const ALLOCATIONS: [&str; 8] = [
    "vec![",
    "with_capacity(",
    ".resize(",
    "from_elem(",
    ".reserve(",
    ".to_vec()",
    ".repeat(",
    "Vec<",
];

/// Accepted calls: file, a part of the line, and why the size stays small whatever the input.
const BOUNDED: [(&str, &str, &str); 94] = [
    ("", "rank)", "a tensor has 254 dimensions at most"),
    ("", ".rank())", "a tensor has 254 dimensions at most"),
    ("", "dims.len())", "a tensor has 254 dimensions at most"),
    ("", "axes.len())", "a tensor has 254 dimensions at most"),
    ("", "rank() - axis)", "a tensor has 254 dimensions at most"),
    (
        "kernels/strings.rs",
        "&mut Vec<u8>",
        "made by `scratch::list`",
    ),
    (
        "kernels/beam.rs",
        "sequences: Vec<",
        "grows by `try_reserve`",
    ),
    (
        "kernels/beam.rs",
        "best: Vec<usize>",
        "the width of the beam",
    ),
    (
        "kernels/crop.rs",
        "Vec<PixelBox>",
        "made by `scratch::list`",
    ),
    ("kernels/example.rs", "sparse: Vec<DType>", "the attributes"),
    ("kernels/example.rs", "dense: Vec<Dense>", "the attributes"),
    ("kernels/example.rs", "ragged: Vec<", "the attributes"),
    (
        "kernels/example.rs",
        "names: Vec<ByteString>",
        "the attributes",
    ),
    (
        "kernels/example.rs",
        "Vec<&'a [u8]>",
        "made by `scratch::list`",
    ),
    (
        "kernels/example.rs",
        "Vec<Option<Feature",
        "made by `scratch::list`",
    ),
    (
        "kernels/rows.rs",
        "numbers: Vec<usize>",
        "made by `scratch::collected`",
    ),
    (
        "kernels/sets.rs",
        "places: Vec<usize>",
        "made by `scratch::list`",
    ),
    ("kernels/sets.rs", "Result<Vec<", "made by `scratch::list`"),
    (
        "kernels/sparse_math.rs",
        "rows: Vec<usize>",
        "made by `scratch::list`",
    ),
    ("codec/png.rs", "Result<Vec<u8>, String>", "the file"),
    (
        "codec/jpeg/samples.rs",
        "samples: Vec<u8>",
        "made by `scratch::list`",
    ),
    (
        "codec/jpeg/mod.rs",
        "components: Vec<Component>",
        "at most 4",
    ),
    ("codec/jpeg/mod.rs", "let ids: Vec<u8>", "at most 4"),
    ("codec/jpeg/mod.rs", "planes: Vec<Plane>", "at most 4"),
    ("codec/jpeg/mod.rs", "Vec<Block>", "made by `scratch::list`"),
    (
        "codec/jpeg/mod.rs",
        "parts: Vec<(usize, [usize; 2])>",
        "at most 4",
    ),
    (
        "kernels/checks.rs",
        "let data: Vec<String>",
        "one per input",
    ),
    (
        "kernels/elements.rs",
        "element_types() -> Vec<DType>",
        "one per type",
    ),
    (
        "kernels/elements.rs",
        "Result<Vec<i64>, KernelError>",
        "made by `scratch::list`",
    ),
    (
        "kernels/elements.rs",
        "Result<Vec<Tensor>, KernelError>",
        "made by `scratch::list`",
    ),
    ("kernels/pack.rs", "Vec<T>", "made by `scratch::list`"),
    (
        "kernels/tensor_array.rs",
        "self.reserve(",
        "the array's own, which returns an error",
    ),
    (
        "kernels/tensor_array.rs",
        "elements: Vec<Element>",
        "made by `scratch::list`",
    ),
    (
        "kernels/tensor_array.rs",
        "Vec<Tensor>",
        "made by `scratch::list`, or limited by `LEN_MAX`",
    ),
    (
        "kernels/tensor_list.rs",
        "vec![Variant::List(list)]",
        "one element",
    ),
    (
        "kernels/tensor_list.rs",
        "list.resize(",
        "limited by `LEN_MAX`",
    ),
    (
        "kernels/tensor_list.rs",
        "sizes: Vec<i64>",
        "one per dimension",
    ),
    ("kernels/tensor_list.rs", "vec![-1]", "one element"),
    (
        "kernels/sampled.rs",
        "starts: Vec<usize>",
        "made by `scratch::list`",
    ),
    (
        "kernels/sampled.rs",
        "weights: Vec<f32>",
        "made by `scratch::list`",
    ),
    (
        "kernels/sampled.rs",
        "weights.resize(end",
        "within the capacity from `scratch::list`",
    ),
    (
        "kernels/quantize.rs",
        "ranges.resize(n_ranges",
        "within the capacity from `scratch::list`",
    ),
    (
        "kernels/sparse_cross.rs",
        "starts: Vec<usize>",
        "made by `scratch::list`",
    ),
    (
        "kernels/sparse_cross.rs",
        "text: &mut Vec<u8>",
        "one cross, no longer than all inputs together",
    ),
    (
        "kernels/sparse_cross.rs",
        "starts.resize(",
        "within the capacity from `scratch::list`",
    ),
    (
        "kernels/sparse_cross.rs",
        "let columns: Vec<Column<'_>>",
        "one per input",
    ),
    (
        "kernels/sparse_cross.rs",
        "vec![0; columns.len()]",
        "one per input",
    ),
    (
        "",
        "scratch::list(",
        "memory that is asked for with an answer",
    ),
    (
        "kernels/fill.rs",
        "Result<Vec<ByteString>, KernelError>",
        "made by `scratch::list`",
    ),
    ("kernels/fill.rs", "spread.repeat(", "a copy into an output"),
    ("plan/image.rs", "sizes: Vec<usize>", "one per dimension"),
    (
        "plan/image.rs",
        "margins: Vec<(usize, usize)>",
        "one per dimension",
    ),
    (
        "plan/image.rs",
        "collect::<Result<Vec<_>, _>>()",
        "one per dimension",
    ),
    ("kernels/image.rs", "space.to_vec()", "one per dimension"),
    ("kernels/image.rs", "batched.to_vec()", "one per dimension"),
    (
        "host_kernels/shape.rs",
        "input.dims().to_vec()",
        "one per dimension",
    ),
    (
        "kernels/variable.rs",
        "Result<Vec<T>, _>",
        "one per dimension",
    ),
    ("kernels/variable.rs", "vec![(dtype,", "one element"),
    (
        "plan/window.rs",
        "let sizes: Vec<usize>",
        "an attribute of the node",
    ),
    (
        "plan/attr.rs",
        "Result<Vec<i64>, KernelError>",
        "an attribute of the node",
    ),
    (
        "plan/value.rs",
        "Result<Vec<i64>, KernelError>",
        "made by `scratch::list`",
    ),
    (
        "plan/attr.rs",
        "default.to_vec()",
        "a default of an attribute",
    ),
    ("kernels/math.rs", "REALS.to_vec()", "element types"),
    (
        "plan/concat.rs",
        "from_elem(whole / n, n)",
        "one per output of the node",
    ),
    ("kernels/einsum.rs", "Vec<u8>", "letters of an attribute"),
    ("kernels/einsum.rs", "Vec<Term>", "operands of an equation"),
    (
        "kernels/einsum.rs",
        "collect::<Result<Vec<_>, _>>()",
        "operands of an equation",
    ),
    ("kernels/spread.rs", "Vec<String>", "shapes of an error"),
    (
        "kernels/reduce.rs",
        "vec![R::START; n_parts]",
        "one for 32,768 elements of an input",
    ),
    (
        "kernels/epilogue.rs",
        "bias.repeat(",
        "fewer than 192 elements",
    ),
    (
        "kernels/epilogue.rs",
        "let repeated: Vec<T>",
        "fewer than 192 elements",
    ),
    (
        "kernels/parallel.rs",
        "Vec<Mutex<&mut [T]>>",
        "some per thread",
    ),
    ("kernels/queue.rs", "Vec<Tensor>", "one per component"),
    ("kernels/queue.rs", "Vec<DType>", "one per component"),
    ("kernels/queue.rs", "Vec<PartialShape>", "one per component"),
    (
        "kernels/queue.rs",
        "Vec<Ended>",
        "one per execution that waits",
    ),
    ("kernels/queue.rs", "vec![element]", "one element"),
    (
        "kernels/queues.rs",
        "Vec<PartialShape>",
        "one per component",
    ),
    (
        "kernels/queues.rs",
        "with_capacity(n_given)",
        "one per component",
    ),
    (
        "kernels/queue.rs",
        "Vec<Tuple>",
        "elements that the queue has held",
    ),
    (
        "kernels/ragged_variant.rs",
        "vec![Variant::Ragged(ragged)]",
        "one element",
    ),
    (
        "kernels/ragged_variant.rs",
        "Result<Vec<Variant>, KernelError>",
        "made by `scratch::list`",
    ),
    (
        "kernels/ragged_variant.rs",
        "Result<Vec<usize>, KernelError>",
        "made by `scratch::list`",
    ),
    (
        "kernels/saver.rs",
        "string.to_vec()",
        "the name of a tensor or file",
    ),
    (
        "kernels/saver.rs",
        "Result<Vec<String>, KernelError>",
        "names of tensors and files",
    ),
    ("kernels/saver.rs", "vec![string.into()]", "one element"),
    (
        "kernels/saver.rs",
        "Vec<(String, String)>",
        "names of tensors",
    ),
    (
        "kernels/saver.rs",
        "output_dtypes.to_vec()",
        "one per output of the node",
    ),
    ("kernels/saver.rs", "Vec<PathBuf>", "names of files"),
    (
        "kernels/sparse_join.rs",
        "Vec<i64>",
        "made by `scratch::list`",
    ),
    (
        "kernels/sparse_join.rs",
        "order: Vec<usize>",
        "made by `scratch::list`",
    ),
    (
        "kernels/sparse_join.rs",
        "places: Vec<usize>",
        "made by `scratch::list`",
    ),
    ("kernels/scratch.rs", "Vec<T>", "what this rule leads to"),
    ("kernels/scratch.rs", "Vec<u8>", "what this rule leads to"),
];

#[test]
fn kernels_ask_for_memory_in_one_place() {
    let folders = [
        "host/src/kernels",
        "host/src/backend/cpu/kernels",
        "host/src/backend/host_kernels",
        "host/src/backend/plan",
    ];
    let sources: Vec<Source> = folders.into_iter().flat_map(rust_files).collect();
    let problems: Vec<String> = sources.iter().flat_map(allocation_problems).collect();
    assert_eq!(problems, Vec::<String>::new());
    for (path, text, reason) in BOUNDED {
        let is_there = |source: &Source| source.path.ends_with(path) && source.text.contains(text);
        assert!(
            sources.iter().any(is_there),
            "{path}: `{text}` ({reason}) is gone"
        );
    }
}

/// Returns the allocations outside of `kernels::scratch`.
fn allocation_problems(source: &Source) -> Vec<String> {
    let is_bounded = |line: &str| {
        let mut bounded = BOUNDED.iter();
        bounded.any(|(path, text, _)| source.path.ends_with(path) && line.contains(text))
    };
    code_lines(&source.text)
        .into_iter()
        .filter(|(_, line)| !line.contains("SmallVec<") || line.contains("from_elem("))
        .filter(|(_, line)| ALLOCATIONS.iter().any(|text| line.contains(text)))
        .filter(|(_, line)| !is_bounded(line))
        .map(|(number, line)| {
            format!(
                "{}:{number}: `{}` asks for memory without an answer; take it from `Threads::scratch` or `scratch::list`",
                source.path,
                line.trim()
            )
        })
        .collect()
}

/// The rule above, on samples that break it and samples that obey it.
mod rules {
    use super::*;

    #[test]
    fn memory_that_grows_with_shapes_is_found() {
        let problems =
            |text: &str| allocation_problems(&Source::new("host/src/kernels/x.rs", text));
        for text in [
            "let sums = vec![0.0; channels];\n",
            "let mut all = Vec::with_capacity(n);\n",
            "let copy: Vec<f32> = row.iter().copied().collect();\n",
            "padded.resize(n, 0.0);\n",
        ] {
            assert_eq!(problems(text).len(), 1, "{text}");
        }
        for text in [
            "let dims: SmallVec<[usize; 4]> = SmallVec::from_elem(1, rank);\n",
            "let sums = threads.scratch::<f32>(channels)?;\n",
            "#[cfg(test)]\nmod tests {\n    let x = vec![0; n];\n}\n",
        ] {
            assert_eq!(problems(text), Vec::<String>::new(), "{text}");
        }
    }
}
