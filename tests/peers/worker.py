"""The driver's end of a worker: a process that takes one JSON command per line and answers each with one line."""

import json
import os
import selectors
import subprocess
import time


class WorkerError(Exception):
    """A worker answered with an error, ended, or did not answer in time."""


class Worker:
    """One process. `cores` are the cores that it may run on."""

    def __init__(self, command, cores, log, environment=None):
        self.name = os.path.basename(str(command[-1]))
        self.log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        self.pending = b""
        self.hello = self.ask({"do": "hello"}, 120)

    def ask(self, command, seconds=300):
        """Sends a command, and returns the answer if it comes in time."""
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"{self.name} has ended; see {self.log}") from None
        answer = json.loads(self.line(time.monotonic() + seconds))
        if "error" in answer:
            raise WorkerError(f"{self.name}: {command}: {answer['error']}")
        return answer

    def line(self, end):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.pending:
                if not selector.select(max(end - time.monotonic(), 0)):
                    self.process.kill()
                    raise WorkerError(f"{self.name} does not answer; see {self.log}")
                read = os.read(self.process.stdout.fileno(), 1 << 16)
                if not read:
                    raise WorkerError(f"{self.name} has ended; see {self.log}")
                self.pending += read
        line, self.pending = self.pending.split(b"\n", 1)
        return line

    def cpu_seconds(self):
        """Returns the processor time of all its threads so far."""
        try:
            with open(f"/proc/{self.process.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except FileNotFoundError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        """Ends the process by closing its input."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # It has ended, with a command unread.
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def busy_seconds():
    """Returns the processor time that the machine has spent so far, stolen time included."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
