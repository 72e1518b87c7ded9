"""What every Placewright policy in Python needs. Copy it beside your policy.

A policy is a subclass of `Policy`, and the module that is built has the line
`Lifecycle, WholeGraph = export(MyPolicy)`. Without that line, the build ends with
`AttributeError: module 'my_policy' has no attribute 'Lifecycle'`. With it,

- an exception in any method reaches the user as its traceback;
- `print()` writes to the policy's log;
- files, clocks and random bytes, which the sandbox does not have, raise `OSError`.

Without this module, each of them would end the policy with the trap `unreachable`.
"""

import array
import builtins
import contextlib
import io
import linecache
import os
import posix
import sys
import time
import traceback

from componentize_py_types import Err
from wit_world.exports.lifecycle import ConfigError_BadValue, ConfigError_Other
from wit_world.exports.lifecycle import ConfigError_UnknownKey, Info, Setting
from wit_world.exports.whole_graph import PlaceError_Declined, PlaceError_Failed
from wit_world.imports import log
from wit_world.imports.planning import Violation
from wit_world.imports.types import DeviceSpec, Property

NONE = 0xFFFFFFFF
"""The entry for "absent" in columns of indices."""

_TRACEBACK_CHARS_MAX = 3_000  # the host keeps 4,096 bytes of a string


class Declined(Exception):
    """Raise it in `place` if another policy should place this graph."""


class Failed(Exception):
    """Raise it in `place` if there is no (better) plan. It is shown without its traceback."""


class BadValue(Exception):
    """Raise it in `configure`: the key, its value, and what was expected."""

    def __init__(self, key: str, value: str, expected: str):
        super().__init__(f"{value} (expected {expected})")
        self.key = key


class Policy:
    """Base class of policies. There is one instance, which keeps its attributes between calls."""

    NAME = ""
    VERSION = "0.1.0"
    DESCRIPTION = ""
    SETTINGS: list[Setting] = []

    def configure(self, config: dict[str, str]) -> None:
        """Takes the value of every setting: the user's, or the default."""

    def place(self, graph, devices, plan, seed: int) -> None:
        """Offers a plan: `plan.set_devices(..)`, then `plan.offer()`."""
        raise NotImplementedError


class Assignment:
    """One device per node. The first member decided, or a pinned one, decides for its group."""

    def __init__(self, graph):
        counts = graph.counts()
        self._group = graph.group()
        self._of_group = [NONE] * counts.groups
        for node, pin in enumerate(graph.pinned()):
            if pin != NONE:
                self._of_group[self._group[node]] = pin
        self.devices = [NONE] * counts.nodes

    def decide(self, node: int, device: int) -> int:
        """Places a node on `device`, unless its group is decided. Returns its device."""
        group = self._group[node]
        if self._of_group[group] == NONE:
            self._of_group[group] = device
        self.devices[node] = self._of_group[group]
        return self.devices[node]


class _View:
    """What the host passes to `place`. Methods without arguments are passed on as they are."""

    def __init__(self, view):
        self._view = view

    def __getattr__(self, name):
        return getattr(self._view, name)


class Graph(_View):
    """The host's graph. A wrong argument raises; without this class, it would end the policy."""

    def cost(self, node, device):
        return self._view.cost(_number("I", node), _number("I", device))

    def node_name(self, node):
        return self._view.node_name(_number("I", node))


class Devices(_View):
    """The host's devices. A wrong argument raises, too."""

    def attributes(self, device):
        return self._view.attributes(_number("I", device))

    def by_name(self, name):
        return self._view.by_name(_text(name))

    def by_spec(self, spec):
        if not isinstance(spec, DeviceSpec):
            raise TypeError(f"expected a DeviceSpec, found {type(spec).__name__}")
        text = [part and _text(part) for part in (spec.job, spec.device_type)]
        numbers = [
            part if part is None else _number("I", part)
            for part in (spec.replica, spec.task, spec.index)
        ]
        (job, device_type), (replica, task, index) = text, numbers
        return self._view.by_spec(DeviceSpec(job, replica, task, device_type, index))

    def by_spec_text(self, spec):
        return self._view.by_spec_text(_text(spec))

    def of_type(self, device_type):
        return self._view.of_type(_text(device_type))

    def link(self, src, dst):
        return self._view.link(_number("I", src), _number("I", dst))


class Plan(_View):
    """The host's plan. A wrong value raises, too."""

    def set_devices(self, devices):
        self._view.set_devices(_numbers("I", devices))

    def move(self, nodes, device):
        self._view.move(_numbers("I", nodes), _number("I", device))

    def set_start_order(self, order):
        self._view.set_start_order(_numbers("i", order))

    def set_queues(self, queues):
        self._view.set_queues(_numbers("I", queues))

    def set_streamed(self, constants):
        self._view.set_streamed(_numbers("I", constants))

    def explain(self, nodes, reason):
        self._view.explain(_numbers("I", nodes), str(reason))

    def metric(self, name, value):
        self._view.metric(str(name), float(value))


def _numbers(typecode, values) -> list[int]:
    """The values as a list. Raises if one is not of the type: "I" is u32, "i" is s32."""
    return list(array.array(typecode, values))


def _number(typecode, value) -> int:
    """The value as an int. Raises if it is not of the type."""
    return _numbers(typecode, [value])[0]


def _text(value) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a str, found {type(value).__name__}")
    return value


def rows(csr) -> list[list[int]]:
    """The rows of a `csr` column, such as `graph.candidates()` or `graph.predecessors()`."""
    offsets, items = csr.offsets, csr.items
    return [items[start:end] for start, end in zip(offsets, offsets[1:])]


def constants(graph) -> list[bool]:
    """Which nodes are constants: they do not run, and each device that reads one holds it."""
    is_const = [name == "Const" for name in graph.op_type_names()]
    offsets = graph.predecessors().offsets
    columns = zip(graph.op_type(), graph.resident_bytes(), offsets, offsets[1:])
    return [size > 0 and is_const[op] and start == end for op, size, start, end in columns]


def export(policy_class: type[Policy]):
    """Returns the two classes that componentize-py exports."""
    policy = policy_class()
    _keep_sources()

    class Lifecycle:
        def describe(self) -> Info:
            with _calls():
                return Info(str(policy.NAME), str(policy.VERSION), str(policy.DESCRIPTION))

        def settings(self) -> list[Setting]:
            with _calls():
                return list(policy.SETTINGS)

        def configure(self, config: list[Property]) -> None:
            with _calls(_config_error):
                values = {setting.key: setting.default for setting in policy.SETTINGS}
                for entry in config:
                    if entry.key not in values:
                        raise Err(ConfigError_UnknownKey(entry.key))
                    values[entry.key] = entry.value
                policy.configure(values)

    class WholeGraph:
        def place(self, graph, devices, plan, seed: int) -> None:
            with _calls(_place_error):
                policy.place(Graph(graph), Devices(devices), Plan(plan), seed)

    return Lifecycle, WholeGraph


@contextlib.contextmanager
def _calls(error_of=None):
    """Runs one export: prints go to the log, and exceptions to the user."""
    _close_system()
    out, err = _Log(log.Level.INFO), _Log(log.Level.WARN)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                yield
            finally:
                out.finish()
                err.finish()
    except BaseException as error:
        if error_of is None:
            # The export has no error. The host shows the last error before a trap.
            log.emit(log.Level.ERROR, _traceback_of(error))
            raise
        raise Err(error_of(error)) from None


def _config_error(error: BaseException):
    match error:
        case BadValue():
            return ConfigError_BadValue(Property(error.key, str(error)))
        case Err(value=ConfigError_UnknownKey() | ConfigError_BadValue() | ConfigError_Other()):
            return error.value
    return ConfigError_Other(_traceback_of(error))


def _place_error(error: BaseException):
    match error:
        case Declined():
            return PlaceError_Declined(str(error))
        case Failed():
            return PlaceError_Failed(str(error))
        case Err(value=PlaceError_Declined() | PlaceError_Failed()):
            return error.value
        case Err(value=Violation()):  # of plan.offer()
            return PlaceError_Failed(error.value.explanation)
    return PlaceError_Failed(_traceback_of(error))


def _traceback_of(error: BaseException) -> str:
    """The traceback. Of a long one, the start and the end, which names the exception."""
    frames = error.__traceback__
    while frames and frames.tb_next and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next  # of this module's own calls
    report = traceback.TracebackException.from_exception(error.with_traceback(frames))
    causes = [report]
    for cause in causes:
        for frame in cause.stack:
            frame.colno = frame.end_colno = None  # to mark columns, it would open files
        causes += filter(None, (cause.__cause__, cause.__context__))
    text = "".join(report.format()).rstrip()
    if len(text) > _TRACEBACK_CHARS_MAX:
        half = _TRACEBACK_CHARS_MAX // 2
        text = f"{text[:half]}\n  [..]\n{text[-half:]}"
    return text


def _keep_sources() -> None:
    """Keeps the lines that tracebacks quote. Runs during the build: later there are no files."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and path.endswith(".py") and not path.startswith(os.path.dirname(os.__file__)):
            lines = linecache.getlines(path)
            linecache.cache[path] = (len(lines), None, lines, path)  # None: never checked again
    for code in ("missing", "''.missing", "from os import missing", "import missing"):
        try:
            exec(code, {})
        except Exception as error:
            _traceback_of(error)  # imports what it needs to suggest other names


def _close_system() -> None:
    """Replaces functions that would trap. Those written in C may still call the system."""

    def closed(*_args, **_options):
        raise OSError(
            "a policy has no files, no clock and no random bytes;"
            " it imports modules at the top of its file"
        )

    if os.stat.__name__ == closed.__name__:
        return
    for name in ("access", "getrandom", "listdir", "lstat", "open", "scandir", "stat", "urandom"):
        for module in (os, posix):
            if hasattr(module, name):
                setattr(module, name, closed)
    for name in ("monotonic", "perf_counter", "process_time", "sleep", "time"):
        for clock in (name, f"{name}_ns"):
            if hasattr(time, clock):
                setattr(time, clock, closed)
    builtins.open = io.open = closed
    linecache.updatecache = lambda *_args: []


class _Log(io.TextIOBase):
    """A stream whose lines are messages of the log."""

    def __init__(self, level: log.Level):
        self._level = level
        self._line = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            log.emit(self._level, line)
        return len(text)

    def finish(self) -> None:
        """Emits a line that has no end yet."""
        if self._line:
            self.write("\n")
