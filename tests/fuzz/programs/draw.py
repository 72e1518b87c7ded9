"""Random programs: nested branches, loops, calls and arrays over a few small tensors.

A program is a list of statements. `Draw` makes one from a seed; `emit` adds it to a TensorFlow graph. One program is
added in several forms (control flow of TensorFlow 1 or 2), so drawing and emitting are separate.
"""

import random

# Name, element type, shape.
TYPES = {
    "f": ("float32", ()),
    "fv": ("float32", (3,)),
    "fm": ("float32", (2, 3)),
    "i": ("int32", ()),
    "iv": ("int32", (2,)),
    "b": ("bool", ()),
}
NUMBERS = ["f", "fv", "fm", "i", "iv"]
DEPTH_MAX = 3


class Block:
    """Statements over variables, numbered from 0: the block's arguments first, then one or more per statement."""

    def __init__(self, types, outer):
        self.types = list(types)
        # Types of the variables of enclosing blocks, which statements may read.
        self.outer = outer
        self.statements = []
        self.results = []


class Draw:
    def __init__(self, seed, index, with_arrays=True):
        self.random = random.Random(f"{seed} {index}")
        self.with_arrays = with_arrays
        self.n_left = self.random.randint(6, 40)

    def program(self):
        self.inputs = [self.random.choice(list(TYPES)) for _ in range(self.random.randint(2, 5))]
        block = self.block(self.inputs, [], 0, None)
        return block

    def block(self, args, outer, depth, wanted):
        """Returns a block. `wanted`: types of its results; `None` means any."""
        block = Block(args, outer)
        n = self.random.randint(1, 8 if depth == 0 else 4)
        for _ in range(n):
            if self.n_left <= 0:
                break
            self.n_left -= 1
            self.statement(block, depth)
        if wanted is None:
            n_results = self.random.randint(1, 3)
            n_vars = len(block.types)
            block.results = [("own", self.random.randrange(n_vars)) for _ in range(n_results)]
            block.results.append(("own", n_vars - 1))
        else:
            block.results = [self.operand(block, wanted_type) for wanted_type in wanted]
        return block

    def operand(self, block, wanted):
        """Returns a variable of a type, of the block or of an enclosing one, or a constant."""
        own = [("own", index) for index, found in enumerate(block.types) if found == wanted]
        outer = [
            ("outer", level, index)
            for level, types in enumerate(block.outer)
            for index, found in enumerate(types)
            if found == wanted
        ]
        choices = own * 3 + outer
        if not choices or self.random.random() < 0.12:
            return ("constant", wanted, self.random.randint(-3, 4))
        return self.random.choice(choices)

    def number(self):
        return self.random.choice(NUMBERS)

    def types_in_sight(self, block):
        return block.types + [found for types in block.outer for found in types]

    def statement(self, block, depth):
        kinds = ["binary"] * 6 + ["unary"] * 3 + ["compare"] * 2 + ["select", "cast", "reduce", "logic"]
        if depth < DEPTH_MAX:
            kinds += ["cond"] * 3 + ["loop"] * 3 + ["case", "call", "grow"]
            if self.with_arrays:
                kinds += ["array", "list", "check"]
        kind = self.random.choice(kinds)
        getattr(self, kind)(block, depth)

    def add(self, block, statement, types):
        block.statements.append(statement)
        block.types += types

    def binary(self, block, _):
        t = self.number()
        op = self.random.choice(["add", "subtract", "multiply", "maximum", "minimum"])
        self.add(block, ("binary", op, t, self.operand(block, t), self.operand(block, t)), [t])

    def unary(self, block, _):
        t = self.number()
        ops = ["negative", "abs", "identity", "square", "sign"]
        if t[0] == "f":
            ops += ["floor", "relu"]
        self.add(block, ("unary", self.random.choice(ops), self.operand(block, t)), [t])

    def compare(self, block, _):
        t = self.random.choice(["f", "i"])
        op = self.random.choice(["less", "greater", "less_equal", "equal"])
        self.add(block, ("binary", op, t, self.operand(block, t), self.operand(block, t)), ["b"])

    def logic(self, block, _):
        op = self.random.choice(["logical_and", "logical_or"])
        self.add(block, ("binary", op, "b", self.operand(block, "b"), self.operand(block, "b")), ["b"])

    def select(self, block, _):
        t = self.number()
        self.add(block, ("select", self.operand(block, "b"), self.operand(block, t), self.operand(block, t)), [t])

    def cast(self, block, _):
        source, target = self.random.choice([("i", "f"), ("b", "i"), ("b", "f")])
        self.add(block, ("cast", TYPES[target][0], self.operand(block, source)), [target])

    def reduce(self, block, _):
        source, target = self.random.choice([("fv", "f"), ("fm", "f"), ("iv", "i")])
        op = self.random.choice(["reduce_max", "reduce_min", "reduce_sum"])
        self.add(block, ("unary", op, self.operand(block, source)), [target])

    def check(self, block, _):
        """An assertion, which rarely fails: then both frameworks must fail."""
        self.add(block, ("check", self.operand(block, "i")), [])

    def inner(self, block):
        return block.outer + [list(block.types)]

    def cond(self, block, depth):
        wanted = [self.random.choice(list(TYPES)) for _ in range(self.random.randint(1, 3))]
        branches = [self.block([], self.inner(block), depth + 1, wanted) for _ in range(2)]
        self.add(block, ("cond", self.operand(block, "b"), branches), wanted)

    def case(self, block, depth):
        wanted = [self.number() for _ in range(self.random.randint(1, 2))]
        branches = [self.block([], self.inner(block), depth + 1, wanted) for _ in range(self.random.randint(1, 4))]
        self.add(block, ("case", self.operand(block, "i"), branches), wanted)

    def call(self, block, depth):
        args = [self.random.choice(list(TYPES)) for _ in range(self.random.randint(0, 3))]
        wanted = [self.number() for _ in range(self.random.randint(1, 3))]
        body = self.block(args, [], depth + 1, wanted)
        self.add(block, ("call", [self.operand(block, t) for t in args], body), wanted)

    def loop(self, block, depth):
        """A loop of a few iterations: a counter, and an additional condition in some."""
        types = ["i"] + [self.random.choice(list(TYPES)) for _ in range(self.random.randint(0, 3))]
        start = [self.operand(block, t) for t in types]
        start[0] = ("constant", "i", self.random.randint(-2, 2))
        has_condition = self.random.random() < 0.4
        condition = self.block(types, self.inner(block), depth + 1, ["b"]) if has_condition else None
        body = self.block(types, self.inner(block), depth + 1, types)
        # The counter is the loop's own.
        body.results[0] = None
        options = {"parallel_iterations": self.random.choice([1, 10, 32])}
        if self.random.random() < 0.2:
            options["maximum_iterations"] = self.random.randint(0, 5)
        limit = self.random.randint(-1, 5)
        step = self.random.randint(1, 2)
        self.add(block, ("loop", start, limit, step, condition, body, options), types)

    def grow(self, block, _):
        """A loop whose variable gets longer, and its sum."""
        n = self.random.randint(0, 4)
        self.add(block, ("grow", self.operand(block, "fv"), n), ["f"])

    def array(self, block, _):
        """A TensorArray that a loop fills; then its elements."""
        n = self.random.randint(1, 4)
        self.add(block, ("array", self.operand(block, "fv"), n, self.random.random() < 0.5), ["fv", "fv"])

    def list(self, block, _):
        """A TensorArray made of a tensor, read in a loop."""
        self.add(block, ("list", self.operand(block, "fm")), ["fv"])


def emit(tf, block, args, outer=(), place=lambda: None):
    """Adds a block to the current graph; returns its results. `outer`: the variables of enclosing blocks."""
    variables = list(args)
    levels = list(outer)

    def constant(kind, value):
        dtype, shape = TYPES[kind]
        if dtype == "bool":
            return tf.constant(value > 0)
        return tf.constant(value, dtype, shape)

    def value(source):
        if source[0] == "own":
            return variables[source[1]]
        if source[0] == "outer":
            return levels[source[1]][source[2]]
        return constant(source[1], source[2])

    def inside(inner, inner_args=()):
        return emit(tf, inner, inner_args, levels + [variables[:]], place)

    for statement in block.statements:
        with tf.device(place()):
            variables += statements[statement[0]](tf, statement, value, inside, place)
    return [None if result is None else value(result) for result in block.results]


def emit_binary(tf, statement, value, inside, place):
    _, op, _, a, b = statement
    return [getattr(tf, op)(value(a), value(b))]


def emit_unary(tf, statement, value, inside, place):
    _, op, a = statement
    module = tf.nn if op == "relu" else tf
    return [getattr(module, op)(value(a))]


def emit_select(tf, statement, value, inside, place):
    _, p, a, b = statement
    return [tf.where(value(p), value(a), value(b))]


def emit_cast(tf, statement, value, inside, place):
    _, dtype, a = statement
    return [tf.cast(value(a), dtype)]


def emit_check(tf, statement, value, inside, place):
    checked = value(statement[1])
    added = tf.debugging.Assert(tf.less(checked, 1_000), [checked], name="check")
    # Only some graphs warn about results that nothing uses.
    if hasattr(added, "mark_used"):
        added.mark_used()
    return []


def emit_cond(tf, statement, value, inside, place):
    _, p, (then, otherwise) = statement
    found = tf.cond(value(p), lambda: inside(then), lambda: inside(otherwise))
    return found if isinstance(found, (list, tuple)) else [found]


def emit_case(tf, statement, value, inside, place):
    _, index, branches = statement
    fns = [lambda branch=branch: inside(branch) for branch in branches]
    found = tf.switch_case(value(index), fns)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def emit_call(tf, statement, value, inside, place):
    _, args, body = statement
    function = tf.function(lambda *args: emit(tf, body, args, (), place), autograph=False)
    found = function(*[value(arg) for arg in args])
    return list(found) if isinstance(found, (list, tuple)) else [found]


def emit_loop(tf, statement, value, inside, place):
    _, start, limit, step, condition, body, options = statement

    def is_going_on(*args):
        below = tf.less(args[0], limit)
        return tf.logical_and(below, inside(condition, args)[0]) if condition else below

    def iterate(*args):
        results = inside(body, args)
        return [args[0] + step] + results[1:]

    found = tf.while_loop(is_going_on, iterate, [value(source) for source in start], **options)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def emit_grow(tf, statement, value, inside, place):
    _, start, n = statement
    found = tf.while_loop(
        lambda index, grown: index < n,
        lambda index, grown: (index + 1, tf.concat([grown, grown[:1]], 0)),
        [tf.constant(0), value(start)],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )
    return [tf.reduce_max(found[1]) + tf.cast(tf.size(found[1]), tf.float32)]


def emit_array(tf, statement, value, inside, place):
    _, element, n, grows = statement
    array = tf.TensorArray(tf.float32, size=0 if grows else n, dynamic_size=grows, element_shape=[3], clear_after_read=False)
    first = value(element)
    _, array = tf.while_loop(
        lambda index, array: index < n,
        lambda index, array: (index + 1, array.write(index, first * tf.cast(index, tf.float32))),
        [tf.constant(0), array],
    )
    return [array.read(n - 1), tf.reduce_sum(array.stack(), 0)]


def emit_list(tf, statement, value, inside, place):
    matrix = value(statement[1])
    array = tf.TensorArray(tf.float32, size=2).unstack(matrix)
    _, total = tf.while_loop(
        lambda index, total: index < 2,
        lambda index, total: (index + 1, total + array.read(index)),
        [tf.constant(0), tf.zeros([3])],
    )
    return [total]


statements = {name.removeprefix("emit_"): function for name, function in list(globals().items()) if name.startswith("emit_")}
