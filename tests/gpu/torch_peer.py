"""PyTorch behind the protocol of tests/peers: one JSON command per input line, one JSON answer per output line. README.md has the commands.

    torch_peer.py [--device cuda|cpu]

A timed run of a model is the work that Placewright does for a request: feeds are copied into pinned memory and from there to the device,
outputs come back to pinned memory, and the host has them when the run ends. Matmuls and copies have their operands where they are.
"""

import argparse
import json
import sys
import time
import traceback

import numpy as np
import torch

import torch_model

# Modes of `torch.compile`.
SETTINGS = {
    "eager": None,
    "compile": {},
    "compile reduce-overhead": {"mode": "reduce-overhead"},
}
# Matmuls per run, so that the fixed cost of a run is negligible: as many as Placewright's worker
# has.
N_MATMULS = 8
TURN_MS_MAX = 600_000


class Device:
    def __init__(self, kind):
        self.is_cuda = kind == "cuda"
        self.device = torch.device(kind)
        if self.is_cuda:
            torch.empty(1, device=self.device)  # Fails here, with the reason, where there is none.

    def host(self, array):
        """Returns the array in host memory that the device copies without staging."""
        tensor = torch.from_numpy(np.array(array))
        return tensor.pin_memory() if self.is_cuda else tensor

    def sync(self):
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


class Model:
    """A model with its feeds and its expected results."""

    def __init__(self, device, command):
        self.device = device
        self.tolerance = command.get("tolerance", 1e-5)
        setting = command.get("setting") or "eager"
        if setting not in SETTINGS:
            raise ValueError(f"`{setting}` is no setting; expected {', '.join(SETTINGS)}")
        archive = np.load(command["arrays"])
        of = lambda side: {name.split("/", 1)[1]: archive[name] for name in sorted(archive.files) if name.startswith(side)}
        fed, self.expected = of("in/"), of("out/")
        module, names, _ = torch_model.read(command["graph"], list(self.expected))
        self.module = module.to(device.device)
        if SETTINGS[setting] is not None:
            self.module = torch.compile(self.module, dynamic=False, **SETTINGS[setting])
        fed = {torch_model.tensor_name(name): array for name, array in fed.items()}
        self.feeds = [torch.from_numpy(np.array(fed[name])) for name in names]
        self.pinned = [device.host(feed) for feed in self.feeds]
        self.outputs = [device.host(np.empty_like(array)) for array in self.expected.values()]
        for number in range(3):  # Compiles.
            self.run(number)

    def run(self, number):
        with torch.inference_mode():
            started = time.perf_counter_ns()
            inputs = []
            for pinned, feed in zip(self.pinned, self.feeds):
                pinned.copy_(feed)
                # On a CPU no copies are needed.
                inputs.append(pinned.to(self.device.device, non_blocking=True))
            # The results of the previous run are not needed any more: CUDA graphs overwrite them.
            torch.compiler.cudagraph_mark_step_begin()
            for kept, output in zip(self.outputs, self.module(*inputs)):
                kept.copy_(output, non_blocking=True)
            self.device.sync()
            elapsed = time.perf_counter_ns() - started
        for found, (name, expected) in zip(self.outputs, self.expected.items()):
            if not np.allclose(found.numpy(), expected, rtol=self.tolerance, atol=self.tolerance):
                difference = np.abs(found.numpy() - expected).max()
                raise ValueError(f"{name} differs from the expected one by up to {difference}")
        return elapsed


class Matmuls:
    """Matmuls of square matrices on the device, each with the previous result."""

    def __init__(self, device, command):
        self.device, side = device, command["side"]
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[command["dtype"]]
        self.x = torch.ones(side, side, dtype=dtype, device=device.device)
        self.factor = torch.full((side, side), 1 / side, dtype=dtype, device=device.device)
        self.tolerance = 1e-4 if dtype == torch.float32 else 0.05
        self.run(0)
        wrong = (self.last.float() - 1).abs().max().item()
        if not wrong <= self.tolerance:
            raise ValueError(f"an element of the result is off by {wrong}")

    def run(self, number):
        with torch.inference_mode():
            started = time.perf_counter_ns()
            y = self.x
            for _ in range(N_MATMULS):
                y = torch.matmul(y, self.factor)
            self.device.sync()
            elapsed = time.perf_counter_ns() - started
        self.last = y
        return elapsed


class Copies:
    """Copies between pinned host memory and the device, to newly allocated device memory and to the same host memory."""

    def __init__(self, device, command):
        self.device = device
        ways = ("to-device", "from-device")
        if command["way"] not in ways:
            raise ValueError(f"`{command['way']}` is no way; expected {', '.join(ways)}")
        self.is_to = command["way"] == "to-device"
        self.host = device.host(np.ones(command["bytes"], np.uint8))
        self.there = self.host.to(device.device, copy=True)
        self.run(0)

    def run(self, number):
        started = time.perf_counter_ns()
        if self.is_to:
            self.host.to(self.device.device, copy=True, non_blocking=True)
        else:
            self.host.copy_(self.there, non_blocking=True)
        self.device.sync()
        return time.perf_counter_ns() - started


OPENED = {"open-model": Model, "open-matmuls": Matmuls, "open-copies": Copies}


def repeat(work, ms):
    """Repeats work for a while, at least three times, and returns the sorted times."""
    end = time.perf_counter_ns() + ms * 1_000_000
    times = []
    while len(times) < 3 or time.perf_counter_ns() < end:
        times.append(work.run(len(times)))
    return sorted(times)


class Worker:
    def __init__(self, device):
        self.device, self.open = device, None

    def answer(self, command):
        kind = command["do"]
        if kind == "hello":
            versions = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
            name = torch.cuda.get_device_name(self.device.device) if self.device.is_cuda else "cpu"
            return {"framework": "PyTorch", "version": torch.__version__, "device": name, "libraries": versions}
        if kind in OPENED:
            self.close()
            torch.set_num_threads(command.get("threads") or torch.get_num_threads())
            started = time.perf_counter_ns()
            work = OPENED[kind](self.device, command)
            load = time.perf_counter_ns() - started
            first = work.run(0)
            self.open = work
            return {"load_ns": load, "first_ns": first}
        if kind == "turn":
            if not self.open:
                raise ValueError("nothing is open; send `open-model`, `open-matmuls` or `open-copies` first")
            if not 0 <= command["ms"] <= TURN_MS_MAX:
                raise ValueError(f"{command['ms']} ms; expected {TURN_MS_MAX} at most")
            times = repeat(self.open, command["ms"])
            quantile = lambda part: times[max(-int(-len(times) * part // 1), 1) - 1]
            return {"runs": len(times), "median_ns": quantile(0.5), "p90_ns": quantile(0.9), "min_ns": times[0]}
        if kind == "close":
            self.close()
            return {}
        raise ValueError(f"`{kind}` is no command of this worker")

    def close(self):
        self.open = None
        torch.compiler.reset()
        if self.device.is_cuda:
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description="PyTorch as a worker of tests/gpu/compare.py")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    # Text that libraries print to standard output would be mistaken for answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    # Floats stay floats: no TF32.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    worker = Worker(Device(args.device))
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:  # the protocol: an error is an answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
