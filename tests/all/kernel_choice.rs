//! Which kernel a node gets, and the errors for ops, kernels or nodes that do not match. Compiles
//! and passes without default features.

use std::sync::Arc;

use placewright::Error;
use placewright::backend::default_factories;
use placewright::candidates::CandidatesBuilder;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::device::StatusCode;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
#[cfg(feature = "kernels")]
use placewright::ops::AttrKind;
use placewright::ops::OpDef;
use placewright::ops::OpRegistry;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;

use crate::sample::cpus;

const TASK: &str = "/job:localhost/replica:0/task:0";

/// Returns the same number, whatever its input.
struct Number(f32);

impl Kernel for Number {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let shape = context.input(0)?.shape().clone();
        context.fill_output(0, &shape, |output: &mut [f32]| {
            output.fill(self.0);
            Ok(())
        })
    }
}

fn number(op: &str, device_type: &str, number: f32) -> KernelDef {
    KernelDef::new(op, device_type).with_factory(move |_| Ok(Box::new(Number(number))))
}

/// `y = op(x)`, both of one float; unchecked.
fn graph(op: &str, attrs: &[(&str, AttrValue)]) -> Graph {
    let mut assembler = GraphAssembler::new("kernel choice");
    let output = Output {
        dtype: DType::F32,
        is_ref: false,
        shape: PartialShape::new(&[Some(1)]),
    };
    let mut add = |name: &str, op: &str, inputs: &[Input], attrs: AttrSet| {
        let spec = NodeSpec {
            name,
            op,
            inputs,
            requested_device: "",
            attrs,
            outputs: std::slice::from_ref(&output),
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&spec).unwrap()
    };
    let x = add("x", "Source", &[], AttrSet::default());
    let attrs = attrs
        .iter()
        .map(|(name, value)| ((*name).into(), value.clone()));
    let input = Input::Data { node: x, slot: 0 };
    add("y", op, &[input], AttrSet::new(attrs));
    assembler.finish()
}

/// `Blur(image: T, radius: int = 1) -> (blurred: T)`.
fn ops() -> OpRegistry {
    let blur = OpDef::new(
        "Blur",
        &["image: T"],
        &["blurred: T"],
        &["T: {float, double}", "radius: int >= 1 = 1"],
    );
    let mut ops = OpRegistry::empty();
    ops.register(blur.unwrap()).unwrap();
    ops
}

fn session(
    op: &str,
    attrs: &[(&str, AttrValue)],
    kernels: impl IntoIterator<Item = KernelDef>,
) -> SessionBuilder {
    Session::builder()
        .with_graph(graph(op, attrs))
        .with_ops(ops())
        .with_device_options(cpus(1))
        .with_kernels(kernels)
}

fn run(session: SessionBuilder) -> Result<f32, Box<Error>> {
    let x = Tensor::from_values([1], &[0f32]).unwrap();
    let fetched = session.build()?.run(&[("x", x)], &["y"])?;
    Ok(fetched[0].as_slice::<f32>().unwrap()[0])
}

/// Returns the category and the message of the error of a session with these kernels.
fn refusal(
    op: &str,
    attrs: &[(&str, AttrValue)],
    kernels: impl IntoIterator<Item = KernelDef>,
) -> (StatusCode, String) {
    let error = run(session(op, attrs, kernels)).unwrap_err();
    (error.code(), error.to_string())
}

const CPU0: &str = "/job:localhost/replica:0/task:0/device:CPU:0";

#[test]
fn label_constraints_priority_and_default_choose_the_kernel() {
    let float = ("T", DType::F32.into());
    let label = |label: &str| ("_kernel", AttrValue::Bytes(label.as_bytes().into()));
    let kernels = || {
        [
            number("Blur", "CPU", 1.0).with_types("T", &[DType::F32]),
            number("Blur", "CPU", 2.0)
                .with_types("T", &[DType::F32, DType::F64])
                .with_priority(1),
            number("Blur", "CPU", 3.0)
                .with_types("T", &[DType::F64])
                .with_priority(2),
            number("Blur", "CPU", 4.0).with_label("fast"),
            number("Blur", "DEFAULT", 5.0).with_label("portable"),
        ]
    };
    let chosen = |attrs: &[(&str, AttrValue)]| run(session("Blur", attrs, kernels())).unwrap();
    assert_eq!(chosen(std::slice::from_ref(&float)), 2.0);
    assert_eq!(chosen(&[float.clone(), label("fast")]), 4.0);
    assert_eq!(chosen(&[float, label("portable")]), 5.0);
}

#[test]
fn kernels_of_an_undefined_op_are_accepted() {
    assert_eq!(
        run(session("Own", &[], [number("Own", "CPU", 7.0)])).unwrap(),
        7.0
    );
}

#[test]
fn an_undefined_op_without_a_kernel_is_placed_but_does_not_run() {
    let built = session("Elsewhere", &[], []).build().unwrap();
    let y = built.graph().find_node("y").unwrap();
    assert_eq!(built.placement().device(y).index(), 0);
    let (code, text) = refusal("Elsewhere", &[], []);
    assert_eq!(code, StatusCode::NotFound);
    assert_eq!(
        text,
        format!(
            "node `y` (Elsewhere) on {CPU0}: no kernel for op `Elsewhere` is registered for device type CPU; registered:\n  \
             <no registered kernels>"
        )
    );
}

#[test]
fn a_defined_op_without_a_matching_kernel_is_rejected_by_placement() {
    let float = [("T", DType::F32.into())];
    let kernels = [
        number("Blur", "CPU", 1.0).with_types("T", &[DType::F64]),
        number("Blur", "GPU", 1.0).with_label("fast"),
    ];
    let (code, text) = refusal("Blur", &float, kernels);
    assert_eq!(code, StatusCode::InvalidArgument);
    assert_eq!(
        text,
        "node `y`: no kernel for op `Blur` (float -> float) on device types [CPU] takes the node's attributes (kernels were \
         found, but attributes did not match); registered:\n  device='CPU'; T in [DT_DOUBLE]\n  device='GPU'; label='fast'"
    );
    // An error in the node itself is more specific, and comes first.
    let (code, text) = refusal("Blur", &[], []);
    assert_eq!(code, StatusCode::InvalidArgument);
    assert_eq!(
        text,
        "node `y` (Blur): attribute `T` is missing, and the op has no default for it"
    );
}

#[test]
fn a_node_placed_regardless_of_kernels_reports_the_registered_ones_when_it_runs() {
    let graph = Arc::new(graph("Blur", &[("T", DType::F32.into())]));
    let devices = default_factories().create_devices(&cpus(1), TASK);
    let candidates = CandidatesBuilder::new(&graph, &Arc::new(devices.unwrap()));
    let session = Session::builder()
        .with_candidates(candidates.build().unwrap())
        .with_ops(ops())
        .with_kernels([number("Blur", "CPU", 1.0).with_types("T", &[DType::F64])]);
    let error = run(session).unwrap_err();
    assert_eq!(error.code(), StatusCode::NotFound);
    let text = error.to_string();
    assert!(text.starts_with("node `y` (Blur) on "), "{text}");
    assert!(
        text.ends_with(
            "no kernel for op `Blur` is registered for device type CPU that takes the node's attributes (kernels were found, but \
             T=DT_FLOAT did not match); registered:\n  device='CPU'; T in [DT_DOUBLE]"
        ),
        "{text}"
    );
}

#[test]
fn kernels_of_equal_priority_are_rejected_with_both_named() {
    let float = [("T", DType::F32.into())];
    let constrained = || number("Blur", "CPU", 1.0).with_types("T", &[DType::F32]);
    let (code, text) = refusal("Blur", &float, [constrained(), number("Blur", "CPU", 2.0)]);
    assert_eq!(code, StatusCode::InvalidArgument);
    assert_eq!(
        text,
        "node `y`: multiple kernels of priority 0 match op `Blur` on device type CPU: device='CPU'; T in [DT_FLOAT] and \
         device='CPU'; give one another priority"
    );
    // DEFAULT kernels may not overlap, whatever their priority.
    let default = |priority| number("Blur", "DEFAULT", 1.0).with_priority(priority);
    let (code, text) = refusal("Blur", &float, [default(1), default(2)]);
    assert_eq!(code, StatusCode::InvalidArgument);
    assert!(
        text.starts_with("node `y`: multiple DEFAULT kernels match op `Blur`"),
        "{text}"
    );
}

#[test]
fn an_invalid_registration_is_rejected_with_node_and_argument() {
    let float = [("T", DType::F32.into())];
    let kernel = || number("Blur", "CPU", 1.0);
    let rows = [
        (
            kernel().with_host_memory("image").with_host_memory("mask"),
            StatusCode::InvalidArgument,
            "keeps argument `mask` in host memory",
        ),
        (
            kernel().with_types("U", &[DType::F32]),
            StatusCode::InvalidArgument,
            "constrains attribute `U`, which the node does not have",
        ),
        (
            kernel().with_types("T", &[]),
            StatusCode::Unimplemented,
            "constrains attribute `T` without listing a type",
        ),
    ];
    for (kernel, expected, fragment) in rows {
        let (code, text) = refusal("Blur", &float, [kernel]);
        assert_eq!(code, expected, "{text}");
        assert!(text.starts_with("node `y`"), "{text}");
        assert!(text.contains("`Blur`") && text.contains(fragment), "{text}");
    }
    // A constraint on an attribute that is not a type.
    let attrs = [float[0].clone(), ("radius", AttrValue::Int(1))];
    let constrained = kernel().with_types("radius", &[DType::F32]);
    let (code, text) = refusal("Blur", &attrs, [constrained]);
    assert_eq!(code, StatusCode::InvalidArgument);
    assert!(text.contains("`radius`, which the node has as something other than a type"));
    // Host-memory arguments that the op has are accepted, inputs and outputs.
    let good = kernel()
        .with_host_memory("image")
        .with_host_memory("blurred");
    assert_eq!(run(session("Blur", &float, [good])).unwrap(), 1.0);
}

#[test]
fn a_node_is_checked_against_its_op_before_its_kernel_is_created() {
    let kernel = || {
        KernelDef::new("Blur", "CPU").with_factory(|node| {
            // The op's defaults have been filled in.
            let radius = node.attrs.int("radius");
            let radius = radius.ok_or_else(|| KernelError::invalid("no radius"))?;
            Ok(Box::new(Number(radius as f32)))
        })
    };
    let float = ("T", DType::F32.into());
    let radius = |radius| ("radius", AttrValue::Int(radius));
    assert_eq!(
        run(session("Blur", std::slice::from_ref(&float), [kernel()])).unwrap(),
        1.0
    );
    assert_eq!(
        run(session("Blur", &[float.clone(), radius(5)], [kernel()])).unwrap(),
        5.0
    );
    let rows: [(&[(&str, AttrValue)], &str); 4] = [
        (
            &[],
            "attribute `T` is missing, and the op has no default for it",
        ),
        (
            &[float.clone(), radius(0)],
            "attribute `radius` is 0; the smallest allowed value is 1",
        ),
        (
            &[float.clone(), ("size", AttrValue::Int(1))],
            "the op has no attribute `size`; unchecked attributes start with `_`",
        ),
        (
            &[("T", DType::F64.into())],
            "input 0 is float; the node's attributes require double",
        ),
    ];
    for (attrs, expected) in rows {
        let (code, text) = refusal("Blur", attrs, [kernel()]);
        assert_eq!(code, StatusCode::InvalidArgument);
        assert_eq!(text, format!("node `y` (Blur) on {CPU0}: {expected}"));
    }
}

#[test]
fn a_kernel_that_cannot_be_created_is_an_error_with_its_category() {
    let fails = KernelDef::new("Own", "CPU")
        .with_factory(|_| Err(KernelError::Unimplemented("blurring".to_owned())));
    let (code, text) = refusal("Own", &[], [fails]);
    assert_eq!(code, StatusCode::Unimplemented);
    assert_eq!(
        text,
        format!("cannot prepare node `y` (Own) on {CPU0}: not implemented: blurring")
    );
    let panics = KernelDef::new("Own", "CPU").with_factory(|_| panic!("no lens"));
    let (code, text) = refusal("Own", &[], [panics]);
    assert_eq!(code, StatusCode::InvalidArgument);
    assert!(text.ends_with("the kernel panicked while it was made: no lens"));
    let (code, text) = refusal("Own", &[], [KernelDef::new("Own", "CPU")]);
    assert_eq!(code, StatusCode::Unimplemented);
    assert!(text.contains("registered for placement only"));
}

/// A registration that contradicts its op would only be found once a graph has such a node.
#[cfg(feature = "kernels")]
#[test]
fn shipped_kernels_match_their_ops() {
    let (ops, kernels) = (OpRegistry::default(), default_factories().kernels());
    let mut n_checked = 0;
    for op in kernels.ops() {
        let Some(op_def) = ops.get(op) else {
            continue;
        };
        let has_argument = |name: &str| {
            let mut args = op_def.inputs().iter().chain(op_def.outputs());
            args.any(|arg| *arg.name == *name)
        };
        for kernel in kernels.of_op(op) {
            kernel.check_host_memory_args(has_argument).unwrap();
            for (attr, dtypes) in &kernel.constraints {
                let attr_def = op_def.attr(attr);
                let attr_def = attr_def.unwrap_or_else(|| panic!("{op}: no attribute {attr}"));
                assert_eq!(attr_def.kind, AttrKind::Type, "{op}: {attr}");
                assert!(!dtypes.is_empty(), "{op}: {attr}");
            }
            n_checked += 1;
        }
    }
    assert!(n_checked > 100, "{n_checked}");
}
