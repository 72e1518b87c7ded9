"""Runs Placewright and PyTorch in turns on the same device, and compares them; README.md describes the measurement.

    compare.py --placewright PROGRAM --python PYTHON --device GPU:0 --folder FOLDER

writes FOLDER/compare.json. Needs only Python's standard library itself; PYTHON is one that has PyTorch.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "peers"))

from worker import Worker, WorkerError, busy_seconds

OURS = "Placewright"
SETTINGS = ["eager", "compile", "compile reduce-overhead"]
MODELS = ["mlp_b64", "bert_tiny", "lenet", "wide_branch"]
DTYPES = ["float32", "bfloat16"]
WAYS = {"to-device": "to the device", "from-device": "from the device"}
TOLERANCE = 1e-4
# Matmuls per run of either worker.
N_MATMULS = 8
# Time for PyTorch to compile a model, or to fail.
OPEN_SECONDS = 600


class Side:
    """One process, with one setting; `error` is the reason why it is absent."""

    def __init__(self, name, command, log):
        self.name, self.worker, self.error, self.hello = name, None, None, {}
        self.command, self.log = command, log
        self.start()

    def start(self):
        try:
            self.worker = Worker(self.command, os.sched_getaffinity(0), self.log)
            self.hello = self.worker.hello
        except (WorkerError, OSError, ValueError) as error:
            self.error = f"{error}; {last_line(self.log)}"

    def restart_if_ended(self):
        """A process that was killed, or has crashed, is missing only in that row."""
        if self.worker and self.worker.process.poll() is not None:
            self.end()
            self.start()

    def ask(self, command, seconds=300):
        if self.error:
            raise WorkerError(self.error)
        return self.worker.ask(command, seconds)

    def end(self):
        if self.worker:
            self.worker.end()
            self.worker = None


def last_line(log):
    try:
        lines = Path(log).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def cases(args):
    """Name, kind, the commands that open it for us and for PyTorch, relevant settings of PyTorch, and the work of a run in its unit."""
    for model in args.models:
        graph = next(path for end in (".pb", ".skel.pb") if (path := ROOT / f"tests/models/{model}{end}").exists())
        command = {"do": "open-model", "graph": str(graph), "arrays": str(ROOT / f"tests/models/{model}.npz"), "tolerance": TOLERANCE}
        yield f"model {model}", command, SETTINGS, ("us", 1e3)
    for dtype in DTYPES:
        command = {"do": "open-matmuls", "side": args.side, "dtype": dtype}
        flops = 2.0 * args.side**3 * N_MATMULS
        yield f"matmul of {args.side}, {dtype}", command, SETTINGS[:1], ("TFLOP/s", flops / 1e3)
    for size in args.copies:
        for way, text in WAYS.items():
            command = {"do": "open-copies", "bytes": size, "way": way}
            yield f"copy of {size >> 10} KiB {text}, pinned", command, SETTINGS[:1], ("GB/s", float(size))


def speed(unit, ns):
    name, scale = unit
    return ns / scale if name == "us" else scale / ns


def measure(args, sides, command, settings, unit):
    """Returns the medians of all sides, and the medians of the rounds' ratios: our time divided by theirs."""
    errors, playing = {}, []
    for side in sides:
        if side.name != OURS and side.name not in settings:
            continue
        side.restart_if_ended()
        opened = {**command, "threads": args.threads}
        opened.update({"device": args.device} if side.name == OURS else {"setting": side.name})
        try:
            side.ask(opened, OPEN_SECONDS)
            playing.append(side)
        except WorkerError as error:
            errors[side.name] = str(error)
    times = {side.name: [] for side in playing}
    if OURS in times:
        # The first round does not count.
        for number in range(args.rounds + 1):
            for side in playing[number % len(playing) :] + playing[: number % len(playing)]:
                if side.name in errors:
                    continue
                try:
                    turn = side.ask({"do": "turn", "ms": args.turn_ms})["median_ns"]
                except WorkerError as error:
                    errors[side.name] = str(error)
                    continue
                if number > 0:
                    times[side.name].append(turn)
            if OURS in errors:
                break
    for side in playing:
        try:
            side.ask({"do": "close"})
        except WorkerError as error:
            errors.setdefault(side.name, str(error))
    row = {"unit": unit[0], "errors": errors, "ours": None, "peers": {}}
    done = {name: found for name, found in times.items() if found and name not in errors}
    if OURS in done:
        row["ours"] = {"ns": statistics.median(done[OURS]), "speed": speed(unit, statistics.median(done[OURS]))}
        for name in settings:
            if name in done:
                ns = statistics.median(done[name])
                ratios = [ours / theirs for ours, theirs in zip(done[OURS], done[name])]
                row["peers"][name] = {"ns": ns, "speed": speed(unit, ns), "time_ratio": statistics.median(ratios), "ratios": ratios}
    return row


def show(report):
    """The table, in Markdown."""
    number = lambda value: f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    of = lambda side: side.get("version", "absent") + (f" on {side['device']}" if "device" in side else "")
    lines = [
        f"Placewright {of(report['ours'])}, PyTorch {of(report['peer'])}; {report['device']}; {report['rounds']} rounds of {report['turn_ms']} ms\n",
        "| case | unit | Placewright | " + " | ".join(f"PyTorch {name}" for name in SETTINGS) + " |",
        "|---|---|---|" + "---|" * len(SETTINGS),
    ]
    for row in report["rows"]:
        cells = [row["case"], row["unit"], number(row["ours"]["speed"]) if row["ours"] else "failed"]
        for name in SETTINGS:
            peer = row["peers"].get(name)
            missing = "failed" if name in row["errors"] else ""
            cells.append(f"{number(peer['speed'])} ({peer['time_ratio']:.2f})" if peer else missing)
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("\nIn brackets: our time by theirs; below 1 Placewright is faster.")
    for row in report["rows"]:
        lines += [f"\n{row['case']}, {name}: {error}" for name, error in row["errors"].items()]
    return "\n".join(lines)


def parse_args():
    parser = argparse.ArgumentParser(description="Placewright and PyTorch in turns on one device.")
    words = lambda text: [word for word in text.split(",") if word]
    parser.add_argument("--placewright", required=True)
    parser.add_argument("--python", required=True, help="a Python that has PyTorch")
    parser.add_argument("--device", default="GPU:0", help="GPU:0, or CPU:0 for a rehearsal")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn-ms", type=int, default=200)
    # With a thread per core, four processes get in each other's way: on 16 cores, PyTorch took
    # 7.9 ms for mlp_b64, and 0.2 with four threads.
    parser.add_argument("--threads", type=int, default=min(4, os.cpu_count() or 1), help="of the host, for all sides; 0 = one per core")
    parser.add_argument("--models", type=words, default=MODELS)
    parser.add_argument("--side", type=int, default=8192, help="of the matrices that are multiplied")
    parser.add_argument("--copies", type=lambda text: [int(size) for size in text.split(",")], default=[4 << 10, 1 << 20, 64 << 20])
    args = parser.parse_args()
    if args.rounds < 1 or args.turn_ms < 1:
        parser.error("expected at least 1 round, and turns of at least 1 ms")
    return args


def main():
    args = parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    log = lambda name: args.folder / f"worker {name}.log"
    peer = [args.python, "-B", HERE / "torch_peer.py", "--device", "cuda" if args.device.startswith("GPU") else "cpu"]
    sides = [Side(OURS, [args.placewright, "bench", "worker"], log(OURS))]
    sides += [Side(setting, peer, log(setting)) for setting in SETTINGS]
    rows = []
    busy, own = busy_seconds(), lambda: sum(side.worker.cpu_seconds() for side in sides if side.worker)
    own_before = own()
    try:
        for name, command, settings, unit in cases(args):
            print(f"== {name}", file=sys.stderr)
            rows.append({"case": name, **measure(args, sides, command, settings, unit)})
        own_seconds = own() - own_before
    finally:
        for side in sides:
            side.end()
    report = {
        "device": args.device,
        "ours": sides[0].hello,
        "peer": next((side.hello for side in sides[1:] if side.hello), {}),
        "rounds": args.rounds,
        "turn_ms": args.turn_ms,
        # Processor time of other programs during the measurement.
        "others_cpu_seconds": round(busy_seconds() - busy - own_seconds, 1),
        "rows": rows,
    }
    (args.folder / "compare.json").write_text(json.dumps(report, indent=1) + "\n")
    print(show(report))
    if any(OURS in row["errors"] for row in rows):
        sys.exit(f"error: {OURS} has failed in a row")
    # The table reports if it cannot compile, for example without a compiler.
    if any(SETTINGS[0] in row["errors"] for row in rows):
        sys.exit("error: PyTorch has failed in a row")


if __name__ == "__main__":
    main()
