"""A local cluster of real daemons for end-to-end tests: everything goes through the command line, as a user would."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

BIN = Path(os.environ["ESTEIRA_BIN"])
POLL_SECONDS = 0.05

TOY_JOB = """
name: toy
model:
  architecture: gpt2
  num_layers: 4
  hidden_size: 32
  num_heads: 4
  vocab_size: 256
  max_sequence_length: 32
  tie_embeddings: true
data:
  train: [{path: train.txt}]
  validation: [{path: validation.txt}]
  tokenizer: bytes
  sequence_length: 32
training:
  seed: 1
  steps: 6
  global_batch_size: 12
  micro_batch_size: 2
  precision: fp32
  gradient_clip_norm: 1.0
  optimizer: {adamw: {learning_rate: 3.0e-3}}
  schedule: {warmup_steps: 2, decay: cosine, final_ratio: 0.1}
parallelism: {pipeline_stages: 2, replicas: 2, zero: 2, pipeline_schedule: 1f1b}
"""


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Cluster:
    """One `esteira local up` in a folder of its own, with an environment of its own."""

    def __init__(self, workers, *flags):
        self.root = Path(tempfile.mkdtemp(prefix="esteira-e2e-"))
        self.directory = self.root / "cluster"
        self.environment = dict(os.environ, XDG_STATE_HOME=str(self.root / "state"), XDG_CONFIG_HOME=str(self.root / "config"))
        self.environment.pop("ESTEIRA_SERVER", None)
        text = "".join(f"The {i}th line of the corpus speaks of {i * i % 97} sheep and {i % 13} goats.\n" for i in range(3000))
        (self.root / "train.txt").write_text(text)
        (self.root / "validation.txt").write_text(text[-20000:])
        (self.root / "job.yaml").write_text(TOY_JOB)
        self.flags = flags
        self.up(workers)

    def up(self, workers):
        result = self.run("local", "up", "--workers", str(workers), "--threads", "1", "--dir", str(self.directory),
                          *self.flags)
        assert result.code == 0, result

    def run(self, *arguments, timeout=120):
        done = subprocess.run([BIN / "esteira", *arguments], env=self.environment, capture_output=True, text=True,
                              timeout=timeout, cwd=self.root)
        return Result(done)

    def submit(self, *settings, file=None):
        """Submits the toy job with some fields changed; returns its id."""
        arguments = ["submit", "-f", str(file or self.root / "job.yaml"), "-o", "id"]
        for setting in settings:
            arguments += ["--set", setting]
        result = self.run(*arguments)
        assert result.code == 0, result
        return result.out.strip()

    def describe(self, job):
        result = self.run("describe", job, "-o", "json")
        assert result.code == 0, result
        return json.loads(result.out)

    def steps(self, job):
        result = self.run("steps", job, "-o", "jsonl")
        assert result.code == 0, result
        return [json.loads(line) for line in result.out.splitlines()]

    def wait(self, job, timeout="60s", state=None):
        return self.run("wait", job, "--timeout", timeout, *(["--for", state] if state else []))

    def daemons(self):
        return json.loads((self.directory / "cluster.json").read_text())["daemons"]

    def daemon(self, name):
        return next(d for d in self.daemons() if d["name"] == name)

    def trainers(self):
        """(worker's name, trainer's pid) of every trainer that runs."""
        found = []
        for daemon in self.daemons():
            children = subprocess.run(["pgrep", "-P", str(daemon["pid"])], capture_output=True, text=True).stdout.split()
            found += [(daemon["name"], int(pid)) for pid in children]
        return found

    def processes(self):
        """Every process that belongs to this cluster, by its folder or its coordinator's address on the command line."""
        return self.trainers() + [(d["name"], d["pid"]) for d in self.daemons() if Path(f"/proc/{d['pid']}").exists()]

    def until(self, condition, what, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"not within {seconds} s: {what}")

    def close(self):
        pids = [pid for _, pid in self.processes()] if (self.directory / "cluster.json").exists() else []
        self.run("local", "down", "--dir", str(self.directory))
        left = [pid for pid in pids if is_running(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)
        return left


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
