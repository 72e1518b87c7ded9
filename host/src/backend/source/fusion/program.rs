//! Writes the function that computes an expression, in the dialect.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::expression::Expression;
use super::expression::Function;
use crate::backend::source::call::type_name;
use crate::device::KernelError;
use crate::device::ProgramCode;
use crate::device::ProgramSource;
use crate::tensor::DType;

/// Functions of lanes, which precede the code that uses them.
const FUNCTIONS: &str = concat!(
    include_str!("../lanes.h"),
    include_str!("../unary.c"),
    include_str!("../unary_real.c"),
    include_str!("../binary.c"),
);

/// Other code that precedes the function.
const SOURCE: &str = concat!(include_str!("../reducers.h"), include_str!("../fused.c"));

/// The function's name.
pub(super) const FUNCTION: &str = "fused";

/// The form of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Which inputs have an element per element of a row; the others have one per row.
    pub(super) advances: Vec<bool>,
    /// Number of axes outside of the rows, at least 1.
    pub(super) n_axes: usize,
    /// Lanes of vectors.
    pub(super) width: usize,
    /// Work items per group.
    pub(super) group: usize,
}

/// Returns a program of the dialect preceded by the functions of lanes of `unary.c`, `unary_real.c`
/// and `binary.c`.
pub(in crate::backend::source) fn with_functions_of_lanes(source: ProgramSource) -> ProgramSource {
    let ProgramCode::Source(text) = source.code else {
        return source;
    };
    let source = ProgramSource {
        code: ProgramCode::Source([FUNCTIONS, &text].concat().into()),
        ..source
    };
    source
        .with("FUSED", "1")
        .with("NUMBERS", "1")
        .with("REALS", "1")
}

/// Returns a program with the function [`FUNCTION`] of an expression. Its arguments are the inputs,
/// the output and `Layout`.
pub(super) fn program(
    expression: &Expression,
    dtype: DType,
    form: &Form,
) -> Result<ProgramSource, KernelError> {
    let kernel = if form.group > 1 {
        "KERNEL"
    } else {
        "SERIAL_KERNEL"
    };
    let text = [SOURCE, &Writer::new(expression, form).function(kernel)].concat();
    let source = with_functions_of_lanes(ProgramSource::of_source("fused.c", text));
    Ok(source
        .with("TYPE", type_name(dtype)?)
        .with("WIDTH", form.width.to_string())
        .with("GROUP", form.group.to_string())
        .with("N_INPUTS", expression.n_inputs.to_string())
        .with("N_AXES", form.n_axes.to_string()))
}

/// Values are named `x<index>`; a row of input `i` begins at `p<i>`.
struct Writer<'a> {
    expression: &'a Expression,
    /// Whether each value differs along a row.
    is_wide: Vec<bool>,
    /// Separate functions, one per use of a wide value. Each use computes the value again, from
    /// memory that is in the cache.
    stages: String,
    /// The work of a unit.
    body: String,
}

impl<'a> Writer<'a> {
    fn new(expression: &'a Expression, form: &Form) -> Self {
        let mut is_wide = form.advances.clone();
        for step in &expression.steps {
            let is_row = matches!(step.function, Function::Row(_));
            is_wide.push(!is_row && step.operands.iter().any(|&operand| is_wide[operand]));
        }
        Self {
            expression,
            is_wide,
            stages: String::new(),
            body: String::new(),
        }
    }

    fn function(mut self, kernel: &str) -> String {
        let expression = self.expression;
        let n_inputs = expression.n_inputs;
        for input in 0..n_inputs {
            let start =
                format!("GLOBAL const T *p{input} = in{input} + row_start(layout, row, {input});");
            self.line(&start);
            if !self.is_wide[input] {
                self.line(&format!(
                    "const Lanes x{input} = (Lanes)(LOAD(p{input}, 0));"
                ));
            }
        }
        for (value, step) in (n_inputs..).zip(&expression.steps) {
            match step.function {
                Function::Row(reducer) => {
                    let reduced = self.each(step.operands[0]);
                    self.line(&format!("REDUCE({reducer}, x{value}, {reduced})"));
                }
                _ if self.is_wide[value] => {}
                _ => {
                    let computed = self.computed(value);
                    self.line(&computed);
                }
            }
        }
        let result = self.each(n_inputs + expression.steps.len() - 1);
        self.line(&format!("STORE_EACH({result})"));

        let inputs: String = (0..n_inputs)
            .map(|input| format!("GLOBAL const T *RESTRICT in{input}, "))
            .collect();
        let shared = if expression.has_rows() {
            "#if GROUP > 1\n    SHARED R shared[GROUP];\n#endif\n"
        } else {
            ""
        };
        format!(
            "\n{stages}{kernel} void {FUNCTION}({inputs}GLOBAL T *RESTRICT out, Layout layout)\n{{\n{shared}    \
             const Index n_of_group = (layout.n_units + N_GROUPS(0) - 1) / N_GROUPS(0);\n    \
             const Index last_unit = min(layout.n_units, (GROUP_ID(0) + 1) * n_of_group);\n    \
             for (Index unit = GROUP_ID(0) * n_of_group; unit < last_unit; unit++) {{\n        \
             const Index row = unit / layout.n_runs, first = (unit - row * layout.n_runs) * layout.run;\n        \
             const Index end = min(first + layout.run, layout.width);\n{body}    }}\n}}\n",
            stages = self.stages,
            body = self.body,
        )
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.body, "        {text}");
    }

    /// Returns the definition of a step's result by its operands.
    fn computed(&self, value: usize) -> String {
        let step = &self.expression.steps[value - self.expression.n_inputs];
        let name = match step.function {
            Function::Unary(name) | Function::Binary(name) | Function::Row(name) => name,
            Function::Bias => "add",
        };
        let operands: Vec<String> = step.operands.iter().map(|x| format!("x{x}")).collect();
        format!("const Lanes x{value} = {name}({});", operands.join(", "))
    }

    /// Returns a value at `at`, as an expression. If it differs along the row, it gets a function
    /// of its own.
    fn each(&mut self, value: usize) -> String {
        if !self.is_wide[value] {
            return format!("x{value}");
        }
        let n_inputs = self.expression.n_inputs;
        let (mut wide, mut narrow) = (BTreeSet::from([value]), BTreeSet::new());
        // Operands come before their users.
        for inner in (n_inputs..=value).rev() {
            if wide.contains(&inner) {
                for &operand in &self.expression.steps[inner - n_inputs].operands {
                    let set = if self.is_wide[operand] {
                        &mut wide
                    } else {
                        &mut narrow
                    };
                    set.insert(operand);
                }
            }
        }
        let (mut parameters, mut arguments, mut body) =
            (String::new(), String::new(), String::new());
        for &inner in &wide {
            let line = if inner < n_inputs {
                let _ = write!(parameters, "GLOBAL const T *p{inner}, ");
                let _ = write!(arguments, "p{inner}, ");
                format!("const Lanes x{inner} = load_left(p{inner}, at, left);")
            } else {
                self.computed(inner)
            };
            let _ = writeln!(body, "    {line}");
        }
        for inner in narrow {
            let _ = write!(parameters, "Lanes x{inner}, ");
            let _ = write!(arguments, "x{inner}, ");
        }
        let n = self.stages.matches("INLINE").count();
        let _ = write!(
            self.stages,
            "INLINE Lanes stage_{n}({parameters}Index at, Index left)\n{{\n{body}    return x{value};\n}}\n\n"
        );
        format!("stage_{n}({arguments}at, left)")
    }
}
