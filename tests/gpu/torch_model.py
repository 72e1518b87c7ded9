"""A frozen GraphDef as a PyTorch module: the same arithmetic, op by op, in straight-line code as written by hand for PyTorch.

Constants are on the device before, and what depends on constants alone is computed once. A matmul or convolution takes the bias behind
it along (`addmm`, `conv2d`), as PyTorch's layers do. Activations of convolutions stay in channels_last from the first convolution to
where somebody reads them in another shape.
"""

import collections

import torch
import torch.nn.functional as F

import graph_def

UNARY = {
    "Relu": "torch.relu({})",
    "Tanh": "torch.tanh({})",
    "Erf": "torch.erf({})",
    "Rsqrt": "torch.rsqrt({})",
    "Sqrt": "torch.sqrt({})",
    "Exp": "torch.exp({})",
    "Neg": "torch.neg({})",
    "Sigmoid": "torch.sigmoid({})",
    "Identity": "{}",
    "StopGradient": "{}",
}
BINARY = {
    "Add": "{} + {}",
    "AddV2": "{} + {}",
    "Sub": "{} - {}",
    "Mul": "{} * {}",
    "RealDiv": "{} / {}",
    "Maximum": "torch.maximum({}, {})",
    "Minimum": "torch.minimum({}, {})",
    "SquaredDifference": "torch.square({} - {})",
}
# Inputs that PyTorch takes as Python numbers, by position.
NUMBERS = {
    "Reshape": [1],
    "Transpose": [1],
    "Mean": [1],
    "Sum": [1],
    "Max": [1],
    "ExpandDims": [1],
    "GatherV2": [2],
    "OneHot": [1, 2, 3],
    "Slice": [1, 2],
    "StridedSlice": [1, 2, 3],
    "ConcatV2": [-1],
}
REDUCTIONS = {"Mean": "mean", "Sum": "sum", "Max": "amax"}


class Unsupported(Exception):
    """A graph has a feature that is not supported here."""


def tensor_name(name):
    """Normalizes a name: `x` and `x:0` are the same tensor."""
    return name.removesuffix(":0")


class Writer:
    """Writes the lines of `forward`. Rank-4 results in `channels_first` are NCHW in memory format channels_last."""

    def __init__(self, nodes, fetches):
        self.nodes = {node.name: node for node in nodes}
        self.fetches = [tensor_name(name) for name in fetches]
        self.lines, self.constants, self.names, self.channels_first = [], {}, {}, set()
        self.readers = collections.Counter()
        self.order = self.needed()
        for node in self.order:
            self.readers.update(set(self.inputs(node)))
        self.readers.update(self.fetches)
        # Matmuls and convolutions whose only reader is a bias: written with it.
        self.joined = {
            self.inputs(node)[0]
            for node in self.order
            if node.op == "BiasAdd" and self.joins(self.nodes[self.inputs(node)[0]])
        }

    def inputs(self, node):
        found = []
        for name in node.inputs:
            if name.startswith("^"):
                continue
            if ":" in tensor_name(name):
                raise Unsupported(f"node {node.name}: input {name} is not the first output of a node")
            found.append(tensor_name(name))
        return found

    def joins(self, node):
        return node.op in ("MatMul", "Conv2D") and self.readers[node.name] == 1

    def needed(self):
        """Returns the nodes that the fetches need, each after its inputs."""
        order, seen, open_nodes = [], set(), [(name, False) for name in reversed(self.fetches)]
        while open_nodes:
            name, is_done = open_nodes.pop()
            if name in seen:
                continue
            if name not in self.nodes:
                raise Unsupported(f"there is no node {name}")
            if is_done:
                seen.add(name)
                order.append(self.nodes[name])
                continue
            open_nodes.append((name, True))
            open_nodes += [(other, False) for other in self.inputs(self.nodes[name]) if other not in seen]
        return order

    def numbers(self, node, position):
        """Returns a constant input as Python numbers."""
        name = self.inputs(node)[position]
        constant = self.nodes[name]
        if constant.op != "Const":
            raise Unsupported(f"node {node.name} ({node.op}): input {name} has to be a constant")
        return constant.attrs["value"].tolist()

    def constant(self, name):
        """Adds a constant to the device, as a buffer of the module."""
        buffer = f"c{list(self.nodes).index(name)}"
        self.constants[buffer] = torch.from_numpy(self.nodes[name].attrs["value"])
        return f"self.{buffer}"

    def value(self, name, channels_first=False):
        """Returns the expression by which a tensor is read."""
        text = self.constant(name) if self.nodes[name].op == "Const" else self.names[name]
        if name in self.channels_first and not channels_first:
            return f"{text}.permute(0, 2, 3, 1)"
        if channels_first and name not in self.channels_first:
            return f"{text}.permute(0, 3, 1, 2)"
        return text

    def write(self):
        placeholders = [node for node in self.nodes.values() if node.op == "Placeholder" and node in self.order]
        for index, node in enumerate(placeholders):
            self.names[node.name] = f"x{index}"
        for index, node in enumerate(self.order):
            if node.op in ("Placeholder", "Const") or node.name in self.joined:
                continue
            expression = self.expression(node)
            if expression in self.names.values():
                self.names[node.name] = expression
                continue
            self.names[node.name] = f"y{index}"
            self.lines.append(f"y{index} = {expression}")
        outputs = ", ".join(f"{self.value(name)}.contiguous()" for name in self.fetches)
        head = ", ".join(["self", *(f"x{index}" for index in range(len(placeholders)))])
        body = "".join(f"    {line}\n" for line in self.lines)
        return [node.name for node in placeholders], f"def forward({head}):\n{body}    return ({outputs},)\n"

    def expression(self, node):
        inputs, op = self.inputs(node), node.op
        numbers = [position % len(inputs) for position in NUMBERS.get(op, [])]
        # Elementwise ops keep the order of elements in memory.
        if op in UNARY:
            is_first = inputs[0] in self.channels_first
            if is_first:
                self.channels_first.add(node.name)
            return UNARY[op].format(self.value(inputs[0], is_first))
        if op in ("Conv2D", "MaxPool", "AvgPool"):
            self.channels_first.add(node.name)
            return self.convolution(node, None) if op == "Conv2D" else self.pool(node)
        if op == "BiasAdd":
            return self.bias(node, inputs)
        args = [self.value(name) for position, name in enumerate(inputs) if position not in numbers]
        if op in BINARY:
            return BINARY[op].format(*args)
        if op == "MatMul":
            return f"torch.mm({', '.join(self.factors(node))})"
        if op in ("BatchMatMul", "BatchMatMulV2"):
            transpose = lambda text, is_transposed: f"{text}.transpose(-1, -2)" if is_transposed else text
            return f"torch.matmul({transpose(args[0], node.attrs.get('adj_x'))}, {transpose(args[1], node.attrs.get('adj_y'))})"
        if op in ("Softmax", "LogSoftmax"):
            return f"torch.{'softmax' if op == 'Softmax' else 'log_softmax'}({args[0]}, -1)"
        if op == "Reshape":
            return f"{args[0]}.reshape({self.numbers(node, 1)})"
        if op == "Transpose":
            return f"{args[0]}.permute({self.numbers(node, 1)})"
        if op in REDUCTIONS:
            axes, keeps = self.numbers(node, 1), node.attrs.get("keep_dims", False)
            return f"torch.{REDUCTIONS[op]}({args[0]}, {axes}, keepdim={keeps})"
        if op == "ConcatV2":
            return f"torch.cat(({', '.join(args)}), {self.numbers(node, len(inputs) - 1)})"
        if op == "ExpandDims":
            return f"{args[0]}.unsqueeze({self.numbers(node, 1)})"
        if op == "Squeeze":
            return f"{args[0]}.squeeze({tuple(node.attrs.get('squeeze_dims') or ()) or ''})"
        if op == "Cast":
            return f"{args[0]}.to(torch.{node.attrs['DstT']})"
        if op == "GatherV2" and self.numbers(node, 2) == 0 and not node.attrs.get("batch_dims"):
            # As an embedding, because models use it as such.
            return f"F.embedding({args[1]}, {args[0]})"
        if op == "OneHot" and self.numbers(node, 2) == 1 and self.numbers(node, 3) == 0 and node.attrs.get("axis", -1) == -1:
            return f"F.one_hot({args[0]}.long(), {self.numbers(node, 1)}).to(torch.{node.attrs['T']})"
        if op == "Slice":
            begins, sizes = self.numbers(node, 1), self.numbers(node, 2)
            parts = [f"{begin}:{'' if size < 0 else begin + size}" for begin, size in zip(begins, sizes)]
            return f"{args[0]}[{', '.join(parts)}]"
        if op == "StridedSlice":
            return f"{args[0]}[{self.strided(node)}]"
        raise Unsupported(f"node {node.name}: op {op} with {node.attrs}")

    def factors(self, node):
        transpose = lambda name, is_transposed: f"{self.value(name)}.t()" if is_transposed else self.value(name)
        a, b = self.inputs(node)
        return transpose(a, node.attrs.get("transpose_a")), transpose(b, node.attrs.get("transpose_b"))

    def bias(self, node, inputs):
        before = self.nodes[inputs[0]]
        if node.attrs.get("data_format", "NHWC") != "NHWC":
            raise Unsupported(f"node {node.name}: biases of channels that come first")
        if inputs[0] not in self.joined:
            return f"{self.value(inputs[0])} + {self.value(inputs[1])}"
        if before.op == "MatMul":
            return f"torch.addmm({self.value(inputs[1])}, {', '.join(self.factors(before))})"
        self.channels_first.add(node.name)
        return self.convolution(before, inputs[1])

    def convolution(self, node, bias):
        x, filters = self.inputs(node)
        strides, dilations = self.spatial(node, "strides"), self.spatial(node, "dilations", [1, 1, 1, 1])
        if self.nodes[filters].op != "Const":
            raise Unsupported(f"node {node.name}: filters have to be a constant")
        padding = {"VALID": 0, "SAME": "same"}.get(node.attrs["padding"])
        if padding is None or (padding == "same" and strides != [1, 1]):
            raise Unsupported(f"node {node.name}: padding {node.attrs['padding']} with strides {strides}")
        buffer = f"f{list(self.nodes).index(filters)}"
        transposed = torch.from_numpy(self.nodes[filters].attrs["value"]).permute(3, 2, 0, 1)
        self.constants[buffer] = transposed.contiguous(memory_format=torch.channels_last)
        bias = self.value(bias) if bias else None
        return f"F.conv2d({self.value(x, True)}, self.{buffer}, {bias}, {strides}, {padding!r}, {dilations})"

    def pool(self, node):
        if node.attrs["padding"] != "VALID":
            raise Unsupported(f"node {node.name}: padding {node.attrs['padding']} of a pool")
        name = "max_pool2d" if node.op == "MaxPool" else "avg_pool2d"
        x = self.value(self.inputs(node)[0], True)
        return f"F.{name}({x}, {self.spatial(node, 'ksize')}, {self.spatial(node, 'strides')})"

    def spatial(self, node, attr, default=None):
        if node.attrs.get("data_format", "NHWC") != "NHWC":
            raise Unsupported(f"node {node.name}: channels that come first")
        sizes = node.attrs.get(attr) or default
        if sizes[0] != 1 or sizes[3] != 1:
            raise Unsupported(f"node {node.name}: {attr} {sizes}")
        return sizes[1:3]

    def strided(self, node):
        begins, ends, strides = (self.numbers(node, position) for position in (1, 2, 3))
        mask = lambda name: node.attrs.get(name) or 0
        if mask("ellipsis_mask") or mask("new_axis_mask") or min(strides) < 1:
            raise Unsupported(f"node {node.name}: a strided slice with {node.attrs}")
        parts = []
        for axis, (begin, end, stride) in enumerate(zip(begins, ends, strides)):
            bit = 1 << axis
            if mask("shrink_axis_mask") & bit:
                parts.append(str(begin))
                continue
            begin, end = ("" if mask(name) & bit else number for name, number in (("begin_mask", begin), ("end_mask", end)))
            parts.append(f"{begin}:{end}:{stride}")
        return ", ".join(parts)


def fold(nodes, fetches):
    """Computes nodes that depend only on constants, as a user of PyTorch does when creating the module."""
    known = {node.name for node in nodes if node.op == "Const"}
    for node in nodes:
        inputs = [tensor_name(name) for name in node.inputs if not name.startswith("^")]
        # Feeds, constants, and nodes that depend on a feed stay unchanged.
        if node.op in ("Placeholder", "Const") or not inputs or not known.issuperset(inputs):
            continue
        writer = Writer(nodes, [node.name])
        _, source = writer.write()
        (value,) = module(source, writer.constants)()
        node.op, node.inputs, node.attrs = "Const", [], {"value": value.numpy()}
        known.add(node.name)


def module(source, constants):
    """`source` defines `forward`; constants are buffers."""
    names = {"torch": torch, "F": F}
    exec(compile(source, "<graph>", "exec"), names)
    made = type("Graph", (torch.nn.Module,), {"forward": names["forward"]})()
    for name, value in constants.items():
        made.register_buffer(name, value)
    return made.eval()


def read(path, fetches):
    """Returns a module of a GraphDef, the names of the arguments of its `forward`, and its source."""
    nodes = graph_def.read(path)
    with torch.no_grad():
        fold(nodes, fetches)
    writer = Writer(nodes, fetches)
    feeds, source = writer.write()
    return module(source, writer.constants), feeds, source
