"""Process trees: their memory, their processor time, their end."""
import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

POLL_SECONDS = 0.5
GRACE_SECONDS = 1  # for the others to end by themselves when one has failed
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
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


def reason_of(error):
    """Why something did not run, in a line."""
    return str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}".splitlines()[0][:200]


def run_checked(command, **options):
    """Runs a command to its end; raises Failed with what it said when that is a bad one."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **options)
    if done.returncode != 0:
        raise Failed(reason(done.stderr or done.stdout))
    return done.stdout


def clean_up_on_signals():
    """From here on SIGTERM, SIGHUP and SIGINT end this program as sys.exit does: through every `finally`, once."""
    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def leave(number, _):
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        print(f"\n{signal.Signals(number).name}: stopping", file=sys.stderr)
        sys.exit(128 + number)

    for number in signals:
        signal.signal(number, leave)


def end_with(parent):
    """In a child: it is killed when `parent` ends, however that ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has ended already


def own_children():
    return set(children().get(os.getpid(), ()))


def kill(roots):
    """Ends the trees below `roots`. They are stopped first, so that none of them starts another one meanwhile."""
    stopped = set()
    while new := set(tree(roots)) - stopped:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_session(leader):
    """Those that a process which has ended left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def wait_for(processes, timeout):
    """Until all have ended or the time is over; once one has failed there is little of it. Says whether it was enough."""
    deadline = time.monotonic() + timeout
    while any(process.poll() is None for process in processes):
        failed = any(process.poll() not in (None, 0) for process in processes)
        if time.monotonic() > deadline:
            return failed
        if failed:
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        time.sleep(0.1)
    return True


def run_group(commands, environments, log, timeout):
    """Runs one process a command side by side; returns the peak of their memory. Raises Failed when one of them fails.
    Nothing of them is left when it ends, nor when this program does."""
    processes, in_time, peak, before = [], False, 0, own_children()
    try:
        with open(log, "w", encoding="utf-8") as output:
            for command, environment in zip(commands, environments, strict=True):
                processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT,
                                                  start_new_session=True, preexec_fn=functools.partial(end_with, os.getpid())))
        watch = Watch(process.pid for process in processes)
        try:
            in_time = wait_for(processes, timeout)
        finally:
            peak = watch.stop()
    finally:
        kill(own_children() - before)  # more than `processes` when a signal came while one was being started
        for process in processes:
            process.wait()
            kill_session(process.pid)
    if not in_time:
        raise Failed(f"not done after {timeout} s")
    if any(process.returncode != 0 for process in processes):
        raise Failed(reason(Path(log).read_text(encoding="utf-8", errors="replace")))
    return peak
