"""Runs Placewright and its peers in turns on the same work, and prints a comparison; tests/peers/README.md describes the measurement.

Needs only Python's standard library, so that unavailable peers do not stop the rest.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from worker import Worker, WorkerError, busy_seconds

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OURS = "Placewright"
NODES = 10_000
MODELS = ["tiny_add", "mlp", "lenet", "bert_tiny", "wide_branch"]
# Names for several models.
LISTS = {
    "nets": [
        "mlp",
        "lenet",
        "small_cnn_fbn",
        "mobilenet_v2",
        "resnet50",
        "resnet50_fbn",
        "inception_v3",
        "bert_tiny",
        "bert_base",
        "lstm20",
        "gpt2_small",
        "wide_branch",
    ],
}
SERVED = ["mlp", "bert_tiny", "mobilenet_v2"]
# Graphs of loops.py, with the number of iterations, branches or calls that times are divided by.
CONTROL_FLOW = {
    "loop_v1": 10_000,
    "loop_v2": 10_000,
    "nested_v1": 10_000,
    "nested_v2": 10_000,
    "branches_v1": 1_000,
    "branches_v2": 1_000,
    "calls": 1_000,
    "additions": 1_000,
    "lstm_b1": 1,
    "lstm_b32": 1,
}
# Reference models with loops and branches.
CONTROL_MODELS = [
    "cf_while_v1",
    "cf_while_v2",
    "cf_nested_v1",
    "cf_nested_v2",
    "cf_cond_v1",
    "cf_cond_v2",
    "cf_dynrnn_v1",
    "cf_dynrnn_v2",
    "cf_functional",
]
CALLERS = [1, 2, 8]
PARTS = ["dispatch", "models", "control", "serve"]

# The settings to try for each peer; the fastest in a trial takes part.
TENSORFLOW = ["default", "one-op", "single-threaded"]
ONNX_RUNTIME = ["sequential", "sequential no-spin", "parallel", "parallel no-spin"]
OPENVINO = ["latency", "latency no-pin"]
OPENVINO_SERVED = [*OPENVINO, "throughput", "throughput no-pin"]
STARPU = ["eager", "lws", "dmda"]
# Concurrent operators need two threads, and one thread has none to wait for.
NEED_TWO_THREADS = {"one-op", "sequential no-spin", "parallel", "parallel no-spin"}

# The peers that read ONNX: the worker's name for each, and the library in its Python package.
READ_ONNX = {
    "ONNX Runtime": ("onnxruntime", "onnxruntime/capi/libonnxruntime.so*"),
    "OpenVINO": ("openvino", "openvino/libs/libopenvino_c.so*"),
}


class Lineup:
    """The processes: one per framework, number of threads and, where that belongs to the process, setting."""

    def __init__(self, args):
        self.args = args
        self.workers = {}
        self.absent = {}
        self.versions = {}
        for line in (args.folder / "absent").read_text().splitlines():
            peer, reason = line.split("\t", 1)
            self.absent[peer] = reason

    def worker(self, framework, threads, setting, spread):
        """With `spread`, uses all cores, whatever the number of threads."""
        per_setting = setting if framework == "TensorFlow" else None
        key = (framework, threads, per_setting, spread)
        if key not in self.workers:
            cores = sorted(os.sched_getaffinity(0))
            # StarPU's submitting thread is additional to its workers, and would share a core with
            # one that polls.
            if not spread and framework != "StarPU":
                cores = cores[-threads:]
            worker = Worker(self.command(framework), cores, self.args.folder / "workers.log", self.environment())
            self.workers[key] = worker
            self.versions[framework] = worker.hello["version"]
        return self.workers[key]

    def command(self, framework):
        folder = self.args.folder
        if framework == OURS:
            return [self.args.placewright, "bench", "worker"]
        if framework == "TensorFlow":
            return [folder / "venv/bin/python", HERE / "tensorflow_worker.py"]
        if framework in READ_ONNX:
            name, pattern = READ_ONNX[framework]
            libraries = sorted(folder.glob(f"venv/lib/python*/site-packages/{pattern}"))
            if not libraries:
                raise WorkerError(f"there is no {pattern} in {folder / 'venv'}; remove that folder and run again")
            return [folder / "runtimes/release/runtimes-worker", name, libraries[0]]
        return [folder / "starpu-worker"]

    def environment(self):
        # The task rates that dmda measures are stored here, not among those of the user's programs.
        home = self.args.folder / "starpu-home"
        home.mkdir(exist_ok=True)
        return {"STARPU_HOME": str(home), "STARPU_SILENT": "1"}

    def has(self, framework):
        return framework not in self.absent

    def cpu_seconds(self):
        return sum(worker.cpu_seconds() for worker in self.workers.values())

    def end(self):
        for worker in self.workers.values():
            worker.end()
        self.workers = {}

    def end_worker(self, worker):
        """Removes a process that failed; the next side that needs one gets a new one."""
        self.workers = {key: other for key, other in self.workers.items() if other is not worker}
        worker.end()


class Side:
    """One framework with one setting in one row."""

    def __init__(self, lineup, name, framework, setting, threads, spread=False):
        self.name, self.framework, self.setting, self.threads = name, framework, setting, threads
        self.worker = lineup.worker(framework, threads, setting, spread)

    def open(self, command):
        return self.worker.ask({**command, "threads": self.threads, "setting": self.setting})


def open_model(args, framework, model):
    source = args.folder / "models" / model
    given = ROOT / f"tests/models/{model}.npz"
    # Large models have no given results; sums in another order differ by more in them.
    given, tolerance = (given, 1e-5) if given.exists() else (f"{source}.npz", 1e-4)
    if model in CONTROL_FLOW and framework not in READ_ONNX:
        graph, arrays = f"{source}.pb", f"{source}.npz"
    elif framework == OURS:
        graph, arrays = ROOT / f"tests/models/{model}.skel.pb", given
    elif framework == "TensorFlow":
        graph, arrays = f"{source}.pb", given
    else:
        graph, arrays = f"{source}.onnx", f"{source}.arrays.json"
    return {"do": "open-model", "graph": str(graph), "arrays": str(arrays), "tolerance": tolerance}


def open_dag(args, framework, case):
    graph = args.folder / "models" / f"{case}-{NODES}.onnx"
    return {"do": "open-dag", "case": case, "nodes": NODES, "graph": str(graph)}


def fastest(lineup, framework, settings, threads, command, trial, spread=False):
    """Returns the side that was fastest in a trial of its settings, opened; the others are closed."""
    if threads == 1:
        settings = [setting for setting in settings if setting not in NEED_TWO_THREADS]
    tried, failed = [], []
    for setting in settings:
        side = Side(lineup, framework, framework, setting, threads, spread)
        try:
            side.open(command)
            tried.append((min(trial(side) for _ in range(2)), setting))
            side.worker.ask({"do": "close"})
        except WorkerError as error:
            failed.append(f"{setting}: {error}")
            lineup.end_worker(side.worker)
    if not tried:
        raise WorkerError("; ".join(failed))
    best = Side(lineup, framework, framework, min(tried)[1], threads, spread)
    best.open(command)
    return best


class SideError(Exception):
    """A side that did not complete its turns."""

    def __init__(self, side, reason):
        super().__init__(f"{side.name}: {reason}")
        self.side, self.reason = side, str(reason)


def measure(lineup, sides, n_rounds, turn):
    """Gives all sides a turn per round, in changing order. Returns per side the answers, and the number of cores that other processes kept busy."""
    answers = {side.name: [] for side in sides}
    started, busy, own = time.monotonic(), busy_seconds(), lineup.cpu_seconds()
    for number in range(n_rounds):
        order = sides[number % len(sides):] + sides[: number % len(sides)]
        for side in order if number % 2 == 0 else reversed(order):
            # Threads of the previous side may keep spinning for a while.
            time.sleep(0.01)
            try:
                answers[side.name].append(turn(side))
            except WorkerError as error:
                raise SideError(side, error) from None
    elapsed = time.monotonic() - started
    others = (busy_seconds() - busy - (lineup.cpu_seconds() - own)) / elapsed
    return answers, max(others, 0.0)


def row_of(kind, what, threads, unit, key, answers, others, sides, scale=1.0, more_is_better=False):
    """Medians over the rounds, and of the ratios of each round; a ratio below 1 means that we are faster."""
    ours = [answer[key] * scale for answer in answers[OURS]]
    row = {"kind": kind, "what": what, "threads": threads, "unit": unit, "ours": statistics.median(ours)}
    row["others_busy_cores"] = round(others, 2)
    row["peers"] = {}
    for side in sides:
        if side.name == OURS:
            continue
        theirs = [answer[key] * scale for answer in answers[side.name]]
        ratios = [b / a if more_is_better else a / b for a, b in zip(ours, theirs)]
        row["peers"][side.name] = {
            "setting": side.setting,
            "value": statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else ratios * 2,
        }
    return row


class Bench:
    def __init__(self, args, lineup):
        self.args, self.lineup, self.rows = args, lineup, []

    def add(self, row):
        self.rows.append(row)
        print(f"  {row['what']}, {row['threads']} threads: {show_row(row)}", file=sys.stderr, flush=True)

    def close(self, sides):
        for side in sides:
            try:
                side.worker.ask({"do": "close"})
            except WorkerError:
                self.lineup.end_worker(side.worker)

    def measure(self, what, threads, sides, turn):
        """Like `measure`, but without peers that fail: they are removed from the row, with the reason, and the others start again."""
        while True:
            try:
                return measure(self.lineup, sides, self.args.rounds, turn)
            except SideError as error:
                self.lineup.end_worker(error.side.worker)
                if error.side.name == OURS:
                    raise
                self.lineup.absent[f"{error.side.name} from {what}, {threads} threads"] = error.reason
                sides.remove(error.side)

    def opened(self, what, framework, settings, threads, command, trial, spread=False):
        """The best side of a peer, as a list; empty, with the reason, if it cannot take part in this row."""
        if not self.lineup.has(framework):
            return []
        try:
            return [fastest(self.lineup, framework, settings, threads, command(self.args, framework), trial, spread)]
        except WorkerError as error:
            self.lineup.absent[f"{framework} from {what}, {threads} threads"] = str(error)
            return []

    def own_side(self, threads, command, spread=False):
        side = Side(self.lineup, OURS, OURS, "", threads, spread)
        side.open(command(self.args, OURS))
        return side

    def turn(self, side):
        return side.worker.ask({"do": "turn", "ms": self.args.turn_ms})

    def latency_trial(self, side):
        return side.worker.ask({"do": "turn", "ms": self.args.turn_ms})["median_ns"]

    def dispatch(self, threads):
        for case in ("chain", "independent", "layered"):
            command = lambda args, framework: open_dag(args, framework, case)
            sides = [self.own_side(threads, command)]
            sides += self.opened(case, "TensorFlow", TENSORFLOW, threads, command, self.latency_trial)
            sides += self.opened(case, "ONNX Runtime", ONNX_RUNTIME, threads, command, self.latency_trial)
            answers, others = self.measure(case, threads, sides, self.turn)
            scale = 1 / NODES
            row = row_of("dispatch", case, threads, "ns/node", "median_ns", answers, others, sides, scale)
            self.close(sides[1:])
            # StarPU supports one scheduler at a time.
            for scheduler in STARPU if self.lineup.has("StarPU") else []:
                try:
                    starpu = Side(self.lineup, f"StarPU {scheduler}", "StarPU", scheduler, threads)
                    starpu.open(open_dag(self.args, "StarPU", case))
                    pair = [sides[0], starpu]
                    answers, others = measure(self.lineup, pair, self.args.rounds, self.turn)
                    other = row_of("dispatch", case, threads, "ns/node", "median_ns", answers, others, pair, scale)
                    row["peers"].update(other["peers"])
                    row["others_busy_cores"] = max(row["others_busy_cores"], other["others_busy_cores"])
                    self.close([starpu])
                except (SideError, WorkerError) as error:
                    if isinstance(error, SideError) and error.side.name == OURS:
                        raise
                    self.lineup.end_worker(starpu.worker)
                    self.lineup.absent[f"StarPU {scheduler} from {case}, {threads} threads"] = str(error)
            self.close(sides[:1])
            self.add(row)

    def models(self, threads):
        for model in self.args.models:
            command = lambda args, framework: open_model(args, framework, model)
            sides = [self.own_side(threads, command)]
            sides += self.opened(model, "TensorFlow", TENSORFLOW, threads, command, self.latency_trial)
            sides += self.opened(model, "ONNX Runtime", ONNX_RUNTIME, threads, command, self.latency_trial)
            sides += self.opened(model, "OpenVINO", OPENVINO, threads, command, self.latency_trial)
            answers, others = self.measure(model, threads, sides, self.turn)
            self.add(row_of("latency", model, threads, "us", "median_ns", answers, others, sides, 1e-3))
            self.close(sides)

    def control(self, threads):
        for model, count in (CONTROL_FLOW | dict.fromkeys(CONTROL_MODELS, 1)).items():
            if threads > 1 and not model.startswith("lstm"):
                continue  # Nothing in them can be done at one time.
            if not (self.args.folder / "models" / f"{model}.pb").exists():
                self.lineup.absent.setdefault(model, "TensorFlow makes the graph, and is absent")
                continue
            command = lambda args, framework: open_model(args, framework, model)
            sides = [self.own_side(threads, command)]
            sides += self.opened(model, "TensorFlow", TENSORFLOW, threads, command, self.latency_trial)
            sides += self.opened(model, "ONNX Runtime", ONNX_RUNTIME, threads, command, self.latency_trial)
            sides += self.opened(model, "OpenVINO", OPENVINO, threads, command, self.latency_trial)
            answers, others = self.measure(model, threads, sides, self.turn)
            unit, scale = ("us", 1e-3) if count == 1 else ("ns/item", 1 / count)
            self.add(row_of("control flow", model, threads, unit, "median_ns", answers, others, sides, scale))
            self.close(sides)

    def serve(self, threads):
        for model in [model for model in SERVED if model in self.args.models]:
            command = lambda args, framework: open_model(args, framework, model)
            for callers in CALLERS:
                ask = {"do": "serve", "callers": callers, "ms": self.args.turn_ms * 3}

                def turn(side):
                    side.worker.ask({"do": "turn", "ms": 20})
                    return side.worker.ask(ask)

                what = f"{model}, {callers} caller{'s' if callers > 1 else ''}"
                trial = lambda side: -side.worker.ask(ask)["requests_per_s"]
                sides = [self.own_side(threads, command, spread=True)]
                sides += self.opened(what, "ONNX Runtime", ONNX_RUNTIME, threads, command, trial, spread=True)
                sides += self.opened(what, "OpenVINO", OPENVINO_SERVED, threads, command, trial, spread=True)
                answers, others = self.measure(what, threads, sides, turn)
                rate = row_of("requests", what, threads, "1/s", "requests_per_s", answers, others, sides, more_is_better=True)
                self.add(rate)
                self.add(row_of("p99", what, threads, "us", "p99_ns", answers, others, sides, 1e-3))
                self.close(sides)


def show_number(value):
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def show_ratio(ratio):
    return f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.2g}"


def show_row(row):
    peers = [
        f"{name} {show_number(peer['value'])} ({show_ratio(peer['ratio'])}, {peer['setting']})"
        for name, peer in row["peers"].items()
    ]
    return f"{show_number(row['ours'])} {row['unit']}; " + "; ".join(peers)


def show_table(rows):
    """Markdown: per peer its median and, in brackets, the ratio."""
    names = ["TensorFlow", *READ_ONNX] + [f"StarPU {scheduler}" for scheduler in STARPU]
    names = [name for name in names if any(name in row["peers"] for row in rows)]
    lines = [["work", "threads", "unit", "Placewright", *names, "others"]]
    lines.append(["---"] * 2 + ["---"] + ["---:"] * (len(names) + 2))
    for row in rows:
        cells = [f"{row['kind']}: {row['what']}", str(row["threads"]), row["unit"], show_number(row["ours"])]
        for name in names:
            peer = row["peers"].get(name)
            cells.append(f"{show_number(peer['value'])} ({show_ratio(peer['ratio'])})" if peer else "")
        lines.append([*cells, f"{row['others_busy_cores']:.2f}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summarize(rows):
    """Returns, per number of threads, the geometric mean and the worst of the latency rows' ratios to the better of the peers that read ONNX.

    The better one is that with the larger ratio, so the summary follows from the cells of the table.
    """
    ratios = {}
    for row in rows:
        of_peers = [row["peers"][name]["ratio"] for name in READ_ONNX if name in row["peers"]]
        if row["kind"] == "latency" and of_peers:
            ratios.setdefault(row["threads"], {})[row["what"]] = max(of_peers)
    return [
        {
            "threads": threads,
            "rows": len(of_rows),
            "geometric_mean": statistics.geometric_mean(of_rows.values()),
            "worst": max(of_rows.values()),
            "worst_row": max(of_rows, key=of_rows.get),
        }
        for threads, of_rows in ratios.items()
    ]


def show_summary(part):
    return (
        f"latency, {part['threads']} thread{'s' if part['threads'] > 1 else ''}: {OURS}'s time divided by that of the better of "
        f"{' and '.join(READ_ONNX)} has the geometric mean {part['geometric_mean']:.3f} over {part['rows']} rows, "
        f"and is {part['worst']:.3f} at worst ({part['worst_row']})"
    )


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def make_models(args, lineup):
    """Makes the files that TensorFlow, ONNX Runtime and OpenVINO read."""
    if not (args.folder / "venv/installed.txt").exists():
        return
    command = [args.folder / "venv/bin/python", HERE / "models.py", ROOT / "tests/models", args.folder / "models", str(NODES)]
    log = args.folder / "models.log"
    with open(log, "wb") as output:
        loops = [*CONTROL_FLOW, *CONTROL_MODELS] if "control" in args.only else []
        made = subprocess.run([*command, *args.models, *loops], stdout=output, stderr=output, check=False)
    if made.returncode != 0:
        for peer in ("TensorFlow", *READ_ONNX):
            lineup.absent.setdefault(peer, f"the models cannot be converted; see {log}")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    names = lambda text: text.split(",")
    models = lambda text: list(dict.fromkeys(model for name in names(text) for model in LISTS.get(name, [name])))
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser.add_argument("--placewright", type=Path, required=True, help="the program, an optimized build")
    parser.add_argument("--folder", type=Path, required=True, help="where everything that is made lies")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side per row")
    parser.add_argument("--turn-ms", type=int, default=150, help="length of a turn; with several callers three times as long")
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="threads of all sides, one block of rows each")
    parser.add_argument("--models", type=models, default=MODELS, help=f"of tests/models, or {', '.join(LISTS)} for several; without this option {','.join(MODELS)}")
    parser.add_argument("--only", type=names, default=PARTS, help=f"of {','.join(PARTS)}")
    args = parser.parse_args()
    known = {path.name.removesuffix(".skel.pb") for path in (ROOT / "tests/models").glob("*.skel.pb")}
    unknown = set(args.only) - set(PARTS) | set(args.models) - known
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    cores = len(os.sched_getaffinity(0))
    if args.rounds < 1 or args.turn_ms < 1 or not all(1 <= threads <= cores for threads in args.threads):
        parser.error(f"expected at least 1 round, turns of at least 1 ms, and threads between 1 and the {cores} cores")
    return args


def main():
    args = parse_args()
    lineup = Lineup(args)
    make_models(args, lineup)
    bench = Bench(args, lineup)
    failure = None
    try:
        for threads in args.threads:
            for part in args.only:
                getattr(bench, part)(threads)
            lineup.end()
    except (SideError, WorkerError) as error:
        failure = error  # Of our own side: what was measured so far is shown, and the run has failed.
    finally:
        lineup.end()
    rows = sorted(bench.rows, key=lambda row: ["dispatch", "latency", "control flow", "requests", "p99"].index(row["kind"]))
    machine = f"{processor()}, {len(os.sched_getaffinity(0))} cores"
    versions = ", ".join(f"{name} {version}" for name, version in lineup.versions.items())
    print(f"{machine}; {versions}; {args.rounds} rounds of {args.turn_ms} ms\n")
    print(show_table(rows))
    summary = summarize(rows)
    for part in summary:
        print(f"\n{show_summary(part)}")
    for peer, reason in lineup.absent.items():
        print(f"\n{peer} is absent: {' '.join(reason.split())}")
    results = args.folder / "results.json"
    report = {"machine": machine, "versions": lineup.versions, "absent": lineup.absent, "rows": rows, "summary": summary}
    results.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nwritten: {results}", file=sys.stderr)
    if failure:
        sys.exit(f"error: {failure}")


if __name__ == "__main__":
    main()
