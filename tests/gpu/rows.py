"""Tests and measures GPU devices, row by row; `tests/gpu/run` calls it, and README.md lists the rows.

    rows.py FOLDER [--rehearse] [--python PYTHON]

Keeps the output of each row in FOLDER, writes FOLDER/results.json and prints a table. A row that is unavailable (no tool, no PyTorch) says
so, and the rest runs; the exit status is 1 where a row has failed. Needs only Python's standard library.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import compare

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = ROOT / "tests/models"
# Models whose nodes all have kernels on a GPU; gpu::cards of tests/all has the same list.
WHOLE = """bert_tiny lenet mlp mlp_b64 small_cnn_fbn tiny_add tiny_broadcast tiny_embedding tiny_intbool tiny_matmul_variants
tiny_reduce tiny_slices tiny_unary wide_branch""".split()
# Small enough for a tool that watches each access.
CHECKED = ["tiny_add", "lenet", "mlp_b64", "bert_tiny"]
TOLERANCE = ["--rtol", "1e-4", "--atol", "1e-4"]
ROW_SECONDS = 900


def graph(model):
    return next(path for end in (".pb", ".skel.pb") if (path := MODELS / f"{model}{end}").exists())


class Failed(Exception):
    """The output of a program shows that the row has failed; the message says how."""


class Rows:
    def __init__(self, args):
        self.args, self.rows = args, []
        self.only = tuple(args.only.split(",")) if args.only else ("",)
        self.device = "CPU:0" if args.rehearse else "GPU:0"

    def run(self, name, command, read=None, environment=None, output=None, seconds=ROW_SECONDS):
        """Runs one row. `read` summarizes the output, which is kept in the file `output`, and may add to the row."""
        if not name.startswith(self.only):
            return
        started = time.monotonic()
        row = {"row": name, "status": "failed", "exit_status": None, "command": [str(word) for word in command]}
        out, err = self.args.folder / (output or f"{name}.txt"), self.args.folder / f"{name}.err.txt"
        try:
            with open(out, "wb") as stdout, open(err, "wb") as stderr:
                ran = subprocess.run(
                    row["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=ROOT,
                    env={**os.environ, **(environment or {})},
                    timeout=seconds,
                )
            row["exit_status"] = ran.returncode
            # A row without any result proves nothing.
            row["summary"] = read(out.read_text(errors="replace"), row) if read and ran.returncode == 0 else said(out, err)
            row["status"] = "ok" if ran.returncode == 0 else "failed"
        except FileNotFoundError:
            row["summary"] = f"{command[0]} is not here"
        except subprocess.TimeoutExpired:
            row["summary"] = f"not done after {seconds} s"
        except Failed as error:
            row["summary"] = str(error)
        except (ValueError, KeyError, IndexError, TypeError, StopIteration) as error:
            row["summary"] = f"its output is not as expected: {type(error).__name__}: {error}"
        self.add(row, time.monotonic() - started)

    def absent(self, name, why):
        if not name.startswith(self.only):
            return
        self.add({"row": name, "status": "absent", "exit_status": None, "summary": why}, 0.0)

    def add(self, row, seconds):
        row["seconds"] = round(seconds, 1)
        self.rows.append(row)
        print(f"{row['row']:<28} {row['status']:<7} {row['seconds']:8.1f} s  {row['summary'][:120]}", file=sys.stderr, flush=True)

    def program(self, name):
        return self.args.programs / name


def said(out, err):
    """Returns the line with the result."""
    lines = [line.strip() for path in (out, err) for line in path.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in ("test result", "error", "Error", "ERROR SUMMARY"))]
    return (telling or lines or ["no output"])[-1][:300]


def tests(text, row):
    """Returns the result line of a test program that has run at least one test."""
    result = next(line for line in reversed(text.splitlines()) if line.startswith("test result"))
    if " 0 passed" in result:
        raise Failed(f"nothing was tested: {result}")
    return result


def checked(text, row):
    """Summarizes a checked run: the devices of its nodes, and its time."""
    report = json.loads(text)
    if not report["check"]["matches"]:
        raise Failed("the results differ")
    nodes = {device["name"].rpartition("device:")[2]: device["n_nodes"] for device in report["placement"]["devices"]}
    row["n_nodes"], row["timing"] = nodes, report.get("timing")
    text = "matches; nodes " + ", ".join(f"{name} {n}" for name, n in nodes.items() if n)
    if row["timing"] and row["timing"]["n_runs"]:
        text += f"; median {row['timing']['median_ns'] / 1e3:.0f} us"
    return text


def on(*types):
    """The same; fails unless each of these device types has nodes."""

    def read(text, row):
        summary = checked(text, row)
        used = {name.partition(":")[0] for name, n in row["n_nodes"].items() if n}
        if missing := set(types) - used:
            raise Failed(f"no node is on {', '.join(sorted(missing))}: {row['n_nodes']}")
        return summary

    return read


def device_types(rows):
    """Returns the devices, by which rows are chosen; nothing if the program cannot list them."""
    try:
        asked = subprocess.run([rows.program("placewright"), "devices", "--json"], capture_output=True, timeout=ROW_SECONDS, check=False)
        return {device["device_type"] for device in json.loads(asked.stdout)["devices"]}
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return set()


def device_row(rows):
    def read(text, row):
        report = json.loads(text)
        row["devices"] = [(device["name"], device["physical_description"]) for device in report["devices"]]
        row["physical_devices"] = report["physical_devices"]
        found = [device["device_type"] for device in report["devices"]]
        absent = {entry["device_type"]: entry["reason"] for entry in report["without_devices"]}
        wanted = rows.device.partition(":")[0]
        if wanted not in found:
            raise Failed(f"no {wanted} device: {absent.get(wanted, 'its factory has made none')}")
        return ", ".join(name.rpartition("device:")[2] for name, _ in row["devices"])

    rows.run("devices", [rows.program("placewright"), "devices", "--json"], read, output="devices.json")


def model_rows(rows, types):
    program, own_type = rows.program("placewright"), rows.device.partition(":")[0]
    run = lambda model, *flags: [program, "run", graph(model), "--check", MODELS / f"{model}.npz", *TOLERANCE, "--json", *flags]
    for model in WHOLE:
        trace = rows.args.folder / f"whole_{model}.trace.json"
        flags = ["--device", f"/device:{rows.device}", "--device-count", "SYCL=0", "--repeat", "50", "--warmup", "10", "--trace", trace]
        rows.run(f"whole_{model}", run(model, *flags), on(own_type), output=f"whole_{model}.json")
    archives = sorted(path.stem for path in MODELS.glob("*.npz"))
    # Every other node elsewhere, so that tensors cross where they can; two CPU devices are what a
    # rehearsal has.
    spread = ["--policy", "round-robin", "--strict-policy", "--soft-placement"]
    count = ["--device-count", "CPU=2" if rows.args.rehearse else "CPU=1", "--device-count", "SYCL=0"]
    for model in archives:
        read = on("CPU", own_type) if model in WHOLE else on("CPU")
        rows.run(f"split_{model}", run(model, *spread, *count), read, output=f"split_{model}.json")
    if "SYCL" not in types:
        rows.absent("split_sycl", "no SYCL device: the card's OpenCL driver (libnvidia-opencl.so.1 and its .icd file) is not here")
        return
    for model in archives:
        read = on("CPU", own_type, "SYCL") if model in WHOLE and model != "tiny_add" else on("CPU")
        command = run(model, *spread, "--device-count", "CPU=1", "--device-count", "SYCL=1")
        rows.run(f"split_sycl_{model}", command, read, output=f"split_sycl_{model}.json")


def memcheck_rows(rows):
    sanitizer = shutil.which("compute-sanitizer")
    if rows.args.rehearse or not sanitizer:
        rows.absent("memcheck", "compute-sanitizer is not here; it comes with the CUDA toolkit" if not sanitizer else "needs a GPU")
        return
    for model in CHECKED:
        command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", rows.program("placewright"), "run", graph(model)]
        command += ["--check", MODELS / f"{model}.npz", *TOLERANCE, "--device", "/device:GPU:0", "--device-count", "SYCL=0"]
        rows.run(f"memcheck_{model}", command, lambda text, row: next(line for line in text.splitlines() if "ERROR SUMMARY" in line))


def bench_row(rows):
    if rows.args.rehearse:
        rows.absent("bench_gpu", "needs a GPU")
        return

    def read(text, row):
        row["report"] = json.loads(text)
        return f"{len(row['report']['rows'])} rows on {row['report']['gpu']['name']}"

    command = [rows.program("placewright"), "bench", "gpu", "--json", *TOLERANCE, "--device-count", "SYCL=0"]
    rows.run("bench_gpu", command, read, output="bench_gpu.json", seconds=3600)


def cost_rows(rows, types):
    """Calibration, and what its costs predict of runs, on the card and between it and the CPU."""
    program, count = rows.program("placewright"), ["--device-count", "SYCL=0"]
    flags = ["--threads", "1"] if rows.args.rehearse else []
    brief = ["--seconds", "0.01", "--rounds", "1"] if rows.args.rehearse else ["--seconds", "0.1"]
    # A folder of its own: calibrations of an earlier state would be used otherwise.
    own = {"PLACEWRIGHT_CACHE_DIR": str(rows.args.folder / "cache")}

    def errors(text, row):
        row["report"] = report = json.loads(text)
        percent = lambda errors: f"median {100 * errors['median']:.0f} %, 90th percentile {100 * errors['p90']:.0f} %"
        summary = f"{len(report['rows'])} models; errors {percent(report['by_rates'])}; after measured runs {percent(report['learned'])}"
        plans = [r["plans"] for r in report["rows"] if r.get("plans") and r["plans"]["tau"] is not None]
        if plans:
            taus = sorted(p["tau"] for p in plans)
            losses = sorted(p["best_expected_over_best"] for p in plans)
            summary += f"; tau of {len(plans)} models: median {taus[len(taus) // 2]:.2f}, least {taus[0]:.2f}"
            summary += f"; the plan expected to be best takes {losses[len(losses) // 2]:.2f} of the best, at most {losses[-1]:.2f}"
        return summary

    def predict(name, device, devices, *more):
        command = [program, "bench", "prediction", "--json", *brief, *devices, *flags, *more]
        rows.run(name, command + (["--device", f"/device:{device}"] if device else []), errors, own, output=f"{name}.json")

    rows.run("calibration", [program, "devices", "--calibrate", "--force", *count, *flags], None, own, output="calibration.txt")
    predict("prediction", rows.device, count)
    pair = ["--device-count", "CPU=2"] if rows.args.rehearse else []
    predict("prediction_plans", None, [*count, *pair], "--plans", "4" if rows.args.rehearse else "20")
    if "SYCL" in types and not rows.args.rehearse:
        only = ["--device-count", "SYCL=1", "--device-count", "GPU=0"]
        rows.run("calibration_sycl", [program, "devices", "--calibrate", "--force", *only], None, own, output="calibration_sycl.txt")
        predict("prediction_sycl", "SYCL:0", only)


def torch_row(rows):
    if not "pytorch".startswith(rows.only):
        return
    python = find_torch(rows.args.python)
    if not python:
        rows.absent("pytorch", "no Python here imports torch and numpy; say which does with --python")
        return
    command = [sys.executable, "-B", ROOT / "tests/gpu/compare.py", "--placewright", rows.program("placewright"), "--python", python]
    command += ["--device", rows.device, "--folder", rows.args.folder]
    if rows.args.rehearse:
        command += ["--rounds", "2", "--turn-ms", "20", "--side", "128", "--copies", "4096,65536", "--threads", "1"]

    def read(text, row):
        row["report"] = json.loads((rows.args.folder / "compare.json").read_text())
        return f"{len(row['report']['rows'])} rows against PyTorch {row['report']['peer'].get('version', '')}"

    compared = rows.args.folder / "compare.json"
    compared.unlink(missing_ok=True)
    rows.run("pytorch", command, read, output="compare.md", seconds=3 * 3600)
    # Successful rows are shown even if others failed.
    if compared.exists():
        rows.rows[-1].setdefault("report", json.loads(compared.read_text()))


def find_torch(asked):
    for python in [asked] if asked else [sys.executable, "python3", "python"]:
        try:
            found = subprocess.run([python, "-c", "import torch, numpy"], capture_output=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if found.returncode == 0:
            return python
    return None


def suites(rows):
    # As cargo would say it: these were built elsewhere.
    built = {"CARGO_MANIFEST_DIR": str(ROOT / "host")}
    if rows.args.rehearse:
        rows.run("kernels", [rows.program("kernels"), "CPU:"], tests, built)
        rows.absent("sessions", "gpu::cards needs a GPU")
        return
    required = {**built, "PLACEWRIGHT_REQUIRE": "GPU"}
    rows.run("kernels", [rows.program("kernels"), "GPU:"], tests, required)
    # Models wholly on a card, random placements over CPU, GPU and SYCL with the same results,
    # threads.
    rows.run("sessions", [rows.program("all"), "gpu::cards"], tests, required)


def show(rows, card):
    """The table, in Markdown."""
    title = "REHEARSAL on CPU:0: nothing here has run on a GPU" if rows.args.rehearse else f"GPU:0: {card}"
    cell = lambda text: str(text).replace("|", "\\|")
    lines = [f"# {title}", "", "| row | | seconds | |", "|---|---|---|---|"]
    lines += [f"| {row['row']} | {row['status']} | {row['seconds']} | {cell(row['summary'])} |" for row in rows.rows]
    by_name = {row["row"]: row for row in rows.rows}
    if report := by_name.get("bench_gpu", {}).get("report"):
        lines += ["", "| `bench gpu` | | against | | ratio of speeds |", "|---|---|---|---|---|"]
        for row in report["rows"]:
            against = f"{row['against_speed']:.4g}" if row["against"] else ""
            ratio = f"{row['speed_ratio']:.2f}" if row["against"] else ""
            lines.append(f"| {row['case']} | {row['speed']:.4g} {row['speed_unit']} | {row['against'] or ''} | {against} | {ratio} |")
    if report := by_name.get("pytorch", {}).get("report"):
        lines += ["", compare.show(report)]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="What can be shown of GPU devices here.")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rehearse", action="store_true", help="with CPU:0 in place of the GPU: whether the rows work, and no figure")
    parser.add_argument("--python", help="a Python that has PyTorch")
    parser.add_argument("--only", metavar="ROW,..", help="rows whose names begin so; by default all")
    parser.add_argument("--programs", type=Path, default=ROOT / "target/gpu", help="what `run --build` has made")
    args = parser.parse_args()
    args.folder = (args.folder or ROOT / "target/gpu" / ("rehearsal" if args.rehearse else "results")).absolute()
    args.programs = args.programs.absolute()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows, card = Rows(args), "no card"
    if args.rehearse:
        rows.absent("card", "a rehearsal on CPU:0")
    else:
        query = "name,driver_version,memory.total,compute_cap,power.limit,clocks.max.sm"
        rows.run("card", ["nvidia-smi", f"--query-gpu={query}", "--format=csv"], lambda text, row: text.splitlines()[1])
        card = next((row["summary"] for row in rows.rows if row["row"] == "card"), card)
    device_row(rows)
    suites(rows)
    types = device_types(rows)
    cost_rows(rows, types)
    model_rows(rows, types)
    memcheck_rows(rows)
    bench_row(rows)
    torch_row(rows)
    report = {"device": rows.device, "is_rehearsal": args.rehearse, "card": card, "rows": rows.rows}
    (args.folder / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    table = show(rows, card)
    (args.folder / "table.md").write_text(table + "\n")
    print(table)
    print(f"\nwritten: {args.folder}/results.json", file=sys.stderr)
    sys.exit(any(row["status"] == "failed" for row in rows.rows))


if __name__ == "__main__":
    main()
