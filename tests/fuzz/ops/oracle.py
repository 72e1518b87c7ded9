"""TensorFlow as the oracle: a separate process, because some inputs end it.

The worker reads cases (`cases.Case`) from a pipe and answers with arrays or with the text of the error.
"""

import multiprocessing
import os

SECONDS_MAX = 60

# Arguments for which TensorFlow's Python API has another name than the op.
RENAMED = {("Select", "t"): "x", ("Select", "e"): "y", ("Squeeze", "squeeze_dims"): "axis"}


def work(pipe):
    """Answers cases until the pipe is closed."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # Eigen's kernels are TensorFlow's own; those of oneDNN differ between processors.
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    types = {}

    def registered(op):
        from tensorflow.core.framework import types_pb2
        from tensorflow.python.framework import kernels

        if op not in types:
            found = {}
            for kernel in kernels.get_registered_kernels_for_op(op).kernel:
                for constraint in kernel.constraint if kernel.device_type == "CPU" else []:
                    names = found.setdefault(constraint.name, set())
                    names |= {types_pb2.DataType.Name(t)[3:].lower() for t in constraint.allowed_values.list.type}
            types[op] = {name: sorted(names) for name, names in found.items()}
        return types[op]

    def compute(case):
        call = getattr(tf.raw_ops, case.op)
        name_of = lambda name: RENAMED.get((case.op, name), name)
        attrs = {
            name_of(name): tf.as_dtype(value[1]) if is_type(value) else value
            for name, value in case.attrs.items()
            if name not in case.inferred
        }
        inputs = {}
        for name, arrays in case.inputs.items():
            tensors = [tf.constant(array) for array in arrays]
            inputs[name_of(name)] = tensors if case.is_list(name) else tensors[0]
        found = call(**inputs, **attrs)
        if found is None:
            return []
        if not isinstance(found, (list, tuple)):
            found = [found]
        return [(tensor if len(tensor.shape) <= 64 else tf.reshape(tensor, [-1])).numpy() for tensor in found]

    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        if isinstance(question, str):
            pipe.send(registered(question))
            continue
        try:
            pipe.send((True, compute(question)))
        except Exception as error:  # whatever TensorFlow raises is an answer
            pipe.send((False, f"{type(error).__name__}: {error}"))


def is_type(value):
    """Returns whether an attribute's value is an element type: ("type", name)."""
    return isinstance(value, tuple) and len(value) == 2 and value[0] == "type"


class Oracle:
    """The worker, restarted if a case has ended it."""

    def __init__(self):
        self.process = None

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, question):
        """Returns the answer, or (False, the reason why there is none)."""
        if self.process is None:
            self.start()
        try:
            self.pipe.send(question)
            if self.pipe.poll(SECONDS_MAX):
                return self.pipe.recv()
            why = f"TensorFlow takes more than {SECONDS_MAX} s"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            why = "TensorFlow's process ends"
        self.process.kill()
        self.process.join()
        self.process = None
        return False, why
