#!/usr/bin/env python3
"""Trains the same model on the same tokens with Esteira and with its peers, in turns, and prints a table.

  run.py                                 everything (about two hours on two cores)
  run.py --only 'gpt2-256/one/*'         some cases, by shell pattern; may be repeated
  run.py --quick                         few steps, one round: does it work?
  run.py --list                          the cases

While it runs, the table so far is in table.md of the work folder.

The first run makes a Python environment with the peers (several GB, from PyPI). Every system starts from the same
weights and sees the same tokens. A case that cannot run is a row with its reason. Step times are wall time of a step
after warm-up; ratios compare runs of one round only, since the machine may have other work.
"""
import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

import cases
import llmc
import report
from esteira_runner import Esteira
from inputs import Inputs, job
from processes import Failed, clean_up_on_signals, reason_of, run_checked, run_group

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent.parent
CASE_SECONDS = 1800


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="cases to run, as MODEL/SETUP/SYSTEM")
    parser.add_argument("--quick", action="store_true", help="4 steps, one of them warm-up, one round")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--steps", type=int, default=8, help="steps of a run (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=2, help="of which do not count (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each case, in turns (default: %(default)s)")
    parser.add_argument("--binaries", default=SOURCE / "build/release/bin", help="folder of esteira (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/esteira-compare",
                        help="folder of environment, inputs and results (default: %(default)s)")
    parser.add_argument("--python", help="interpreter that has the peers (default: an environment in the work folder)")
    parser.add_argument("--llmc", metavar="DIR", help="a checkout of llm.c (default: it is cloned)")
    return parser.parse_args()


def faults(options):
    """What is wrong with the options, a line each: found before the first case runs."""
    found = [f"--only {pattern}: no case matches; --list prints them" for pattern in options.only or [] if not cases.cases([pattern])]
    if options.warm_up < 0 or options.steps <= options.warm_up:
        found.append(f"--steps {options.steps} must be more than --warm-up {options.warm_up}, which must not be negative")
    if options.rounds < 1:
        found.append(f"--rounds {options.rounds}: must be at least 1")
    if not (Path(options.binaries) / "esteira").is_file():
        found.append(f"--binaries {options.binaries}: there is no esteira; build it, or name the folder of another build")
    if options.llmc and not llmc.is_checkout(Path(options.llmc)):
        found.append(f"--llmc {options.llmc}: is no checkout of llm.c, which has train_gpt2.c and llmc/")
    if options.python:
        try:
            run_checked([options.python, "-c", "import numpy, safetensors, torch"])
        except (Failed, OSError) as error:
            found.append(f"--python {options.python}: cannot run the peers: {reason_of(error)}")
    return found


def environment(options):
    """The interpreter of the peers; makes their environment first if need be."""
    if options.python:
        return options.python
    folder = options.work / "environment"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        run_checked([sys.executable, "-m", "venv", folder])
        run_checked([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"])
        (folder / "complete").touch()
    return str(python)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Runner:
    """Runs single cases; keeps the inputs of each model."""

    def __init__(self, options, python):
        self.options, self.python, self.esteira = options, python, Esteira(options.binaries)
        self.inputs, self.versions = {}, {"esteira": self.esteira.version()}
        options.work.mkdir(parents=True, exist_ok=True)

    def run(self, case):
        if case.model.name not in self.inputs:
            self.inputs[case.model.name] = Inputs(self.options.work, self.esteira, case.model, self.options.steps)
        log = self.options.work / (case.name.replace("/", "_") + ".log")
        if case.system == "esteira":
            return self._run_esteira(case)
        if case.system == "llmc":
            return llmc.run(self.options.work, self.options.llmc, self.python, case, self.inputs[case.model.name], log,
                            CASE_SECONDS)
        record = self._run_peer(case, log)
        self.versions.update(record["versions"])
        return record

    def _run_esteira(self, case):
        with self.esteira.cluster(case.setup.processes, case.setup.threads) as cluster:
            trained = cluster.train(job(case.model, case.setup, self.options.steps, self.options.work / "corpus.bin"))
        return {"losses": trained.losses, "step_seconds": trained.step_seconds, "shares": trained.shares,
                "processor_seconds": trained.processor_seconds, "peak_bytes": trained.peak_bytes}

    def _run_peer(self, case, log):
        script = HERE / "peers" / ("deepspeed_peer.py" if case.system.startswith("deepspeed") else "torch_peer.py")
        inputs = self.inputs[case.model.name]
        result = log.with_suffix(".json")
        result.unlink(missing_ok=True)
        command = [self.python, script, case.name, "--weights", inputs.weights, "--batches", inputs.batches, "--result", result]
        world = case.setup.processes
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world),
                 "OMP_NUM_THREADS": str(case.setup.threads), "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(HERE),
                 "PATH": f"{Path(self.python).parent}:{os.environ['PATH']}"}
        peak = run_group([command] * world,
                         [dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in range(world)], log,
                         CASE_SECONDS)
        return {**json.loads(result.read_text(encoding="utf-8")), "peak_bytes": peak}


def attempt(runner, case, row, warm_up):
    """One run of one case; what goes wrong becomes the row's reason."""
    load = os.getloadavg()[0]
    begin = time.monotonic()
    try:
        report.add_run(row, runner.run(case), warm_up, load)
        print(f"{case.name}: {row.run_medians[-1]:.3f} s a step ({time.monotonic() - begin:.0f} s in all)", file=sys.stderr)
    except Exception as error:  # whatever it is, the other cases go on
        row.failure = reason_of(error)
        print(f"{case.name}: {row.failure}", file=sys.stderr)


def text(rows, runner):
    """What is known so far; cases that are still to come are left out."""
    tried = [row for row in rows.values() if row.failure or row.step_seconds]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(runner.versions.items()))
    return f"{report.table(tried)}\n\n{report.shares(tried)}\n\nLoss, step by step:\n\n{report.curves(tried)}\n\nVersions: {versions}\n"


def main():
    options = arguments()
    chosen = cases.cases(options.only or ["*"])
    if options.list:
        return print("\n".join(case.name for case in chosen))
    if options.quick:
        options.steps, options.warm_up, options.rounds = 4, 1, 1
    if found := faults(options):
        sys.exit("\n".join(f"run.py: {fault}" for fault in found))
    clean_up_on_signals()
    try:
        runner = Runner(options, environment(options))
    except (Failed, OSError) as error:
        sys.exit(f"run.py: {reason_of(error)}")
    rows = {case.name: report.Row(case.name) for case in chosen}
    for group in dict.fromkeys(case.group for case in chosen):
        for _ in range(options.rounds):
            for case in chosen:
                if case.group == group and not rows[case.name].failure:
                    attempt(runner, case, rows[case.name], options.warm_up)
                    (options.work / "table.md").write_text(text(rows, runner), encoding="utf-8")
    return print(text(rows, runner), end="")


if __name__ == "__main__":
    main()
