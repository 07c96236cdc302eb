"""Esteira itself, driven by its command line as a user would."""
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from processes import Failed, Watch, processor_seconds, run_checked

TIMEOUT = "1800s"


@dataclasses.dataclass
class Trained:
    losses: list
    step_seconds: list
    processor_seconds: list  # of all processes together; of the first step not known
    samples: list
    peak_bytes: int
    wall_seconds: float  # a step, from the first record to the last, as a bystander sees it
    shares: list  # of the ranks' time in a step, by what they do: shares_of


PHASES = {"forward": ("F", "R"), "backward": ("B", "I", "W"), "optimizer": ("STEP",)}


def shares_of(step, ranks):
    """What the ranks' time goes into, by a step's record: computing, and waiting for messages that nothing hides."""
    seconds = ranks * step["step_seconds"]
    shares = {phase: sum(step["op_seconds"].get(op, 0) for op in ops) / seconds for phase, ops in PHASES.items()}
    return {**shares, "communication": step["exposed_communication_ratio"], "idle": step["bubble_ratio"]}


class Cluster:
    """A local cluster in a folder of its own."""

    def __init__(self, binaries, workers, threads):
        self.binaries, self.workers = binaries, workers
        self.root = Path(tempfile.mkdtemp(prefix="esteira-compare-"))
        self.environment = dict(os.environ, XDG_STATE_HOME=str(self.root / "state"), XDG_CONFIG_HOME=str(self.root / "config"))
        self.environment.pop("ESTEIRA_SERVER", None)
        try:
            self.command("local", "up", "--workers", str(workers), "--threads", str(threads), "--dir", str(self.root / "cluster"))
        except BaseException:
            self.close()
            raise

    def command(self, *arguments):
        return run_checked([self.binaries / "esteira", *arguments], env=self.environment, cwd=self.root)

    def train(self, spec):
        """Runs a job to its end."""
        (self.root / "job.yaml").write_text(spec, encoding="utf-8")
        daemons = json.loads((self.root / "cluster" / "cluster.json").read_text(encoding="utf-8"))["daemons"]
        roots = [daemon["pid"] for daemon in daemons]
        watch = Watch(roots)
        try:
            job = self.command("submit", "-f", "job.yaml", "-o", "id").strip()
            arrivals, processor = self._follow(job, json.loads(spec)["training"]["steps"], roots)
            self.command("wait", job, "--timeout", TIMEOUT)
        finally:
            peak = watch.stop()
        steps = [json.loads(line) for line in self.command("steps", job, "-o", "jsonl").splitlines()]
        samples = next(self.root.glob(f"**/{job}/samples.jsonl"), None)
        return Trained(losses=[step["loss"] for step in steps], step_seconds=[step["step_seconds"] for step in steps],
                       processor_seconds=[0.0, *(after - before for before, after in zip(processor, processor[1:]))],
                       samples=[json.loads(line)["sample_ids"] for line in samples.read_text(encoding="utf-8").splitlines()],
                       peak_bytes=peak, wall_seconds=(arrivals[-1] - arrivals[0]) / max(1, len(arrivals) - 1),
                       shares=[shares_of(step, self.workers) for step in steps])

    def _follow(self, job, steps, roots):
        """When each record was seen, and what the processes had used by then."""
        follow = subprocess.Popen([self.binaries / "esteira", "steps", job, "-f", "-o", "jsonl"], env=self.environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=self.root)
        try:
            seen = [(time.monotonic(), processor_seconds(roots)) for _ in follow.stdout]
        finally:
            follow.kill()
            follow.wait()
        if len(seen) < steps:
            raise Failed(self._cause(job))
        return [arrival for arrival, _ in seen], [used for _, used in seen]

    def _cause(self, job):
        described = json.loads(self.command("describe", job, "-o", "json"))
        failures = described.get("failures") or [{}]
        return failures[0].get("cause") or described.get("message") or "the job ended early"

    def close(self):
        with contextlib.suppress(Failed):  # what kept it from starting has been said
            self.command("local", "down", "--dir", str(self.root / "cluster"))
        shutil.rmtree(self.root, ignore_errors=True)


class Esteira:
    """The binaries of one build."""

    def __init__(self, binaries):
        self.binaries = Path(binaries)

    def version(self):
        return run_checked([self.binaries / "esteira", "--version"]).strip()

    @contextlib.contextmanager
    def cluster(self, workers, threads):
        cluster = Cluster(self.binaries, workers, threads)
        try:
            yield cluster
        finally:
            cluster.close()
