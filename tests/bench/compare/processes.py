"""Process trees: their memory, their processor time, their end."""
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

POLL_SECONDS = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


def children():
    """Parent's pid -> pids, of every process that can be seen."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        found.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return found


def tree(roots):
    below = children()
    found, left = [], list(roots)
    while left:
        pid = left.pop()
        found.append(pid)
        left += below.get(pid, [])
    return found


def pss_bytes(pid):
    """Memory of a process, shared pages divided among those who share them."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def processor_seconds(roots):
    """What all processes of these trees have used so far, those that ended included."""
    total = 0
    for pid in tree(roots):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))  # its own, and its children's that it has waited for
    return total / TICKS


class Watch(threading.Thread):
    """Samples the memory of the trees below `roots` until stop()."""

    def __init__(self, roots):
        super().__init__(daemon=True)
        self.roots, self.peak_bytes, self.ended = list(roots), 0, threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(POLL_SECONDS):
            self.peak_bytes = max(self.peak_bytes, sum(pss_bytes(pid) for pid in tree(self.roots)))

    def stop(self):
        self.ended.set()
        self.join()
        return self.peak_bytes


class Failed(Exception):
    """A case that did not run; its text is the reason, for the table."""


def reason(text):
    """The line of a program's output that says why it failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name = line.split(":")[0].split(".")[-1]
        if name.endswith(("Error", "Exception")) and " " not in name:
            return line[:200]
    return lines[-1][:200] if lines else "no output"


def run_group(commands, environments, log, timeout):
    """Runs one process a command side by side; returns the peak of their memory. Raises Failed when one of them fails."""
    with open(log, "w", encoding="utf-8") as output:
        processes = [subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
                     for command, environment in zip(commands, environments, strict=True)]
    watch = Watch(process.pid for process in processes)
    deadline = time.monotonic() + timeout
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() not in (None, 0) for process in processes):
                break
            if time.monotonic() > deadline:
                raise Failed(f"not done after {timeout} s")
            time.sleep(0.1)
    finally:
        peak = watch.stop()
        for process in processes:
            if process.poll() is None:
                time.sleep(1)
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait()
    if any(process.returncode != 0 for process in processes):
        raise Failed(reason(Path(log).read_text(encoding="utf-8", errors="replace")))
    return peak
