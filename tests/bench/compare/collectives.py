#!/usr/bin/env python3
"""All-reduce, reduce-scatter and all-gather between processes of this machine: Esteira (UCX), gloo and Open MPI, in turns.

gloo comes through torch.distributed, Open MPI through its mpicc and mpirun (Debian: openmpi-bin, libopenmpi-dev).
Times are of one operation on a buffer of the given size in all; a ratio above 1 means that Esteira is faster.
"""
import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

from processes import Failed, clean_up_on_signals, reason, reason_of, run_checked, run_group
from run import SOURCE, environment, free_port

HERE = Path(__file__).resolve().parent
SYSTEMS = ("esteira", "gloo", "mpi")
TIMEOUT = 900


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8", help="numbers of processes (default: %(default)s)")
    parser.add_argument("--bytes", default="4096,65536,1048576,16777216,67108864,268435456", help="sizes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each system, in turns (default: %(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="(default: %(default)s)")
    parser.add_argument("--binaries", default=SOURCE / "build/release/bin", help="folder of collectives_bench (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/esteira-compare", help="(default: %(default)s)")
    parser.add_argument("--python", help="interpreter that has torch (default: an environment in the work folder)")
    return parser.parse_args()


def run_mpi(options, ranks):
    if shutil.which("mpicc") is None:
        raise Failed("no mpicc")
    program = options.work / "mpi_collectives"
    run_checked(["mpicc", "-O3", "-march=native", "-o", program, HERE / "peers" / "mpi_collectives.c"])
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), program, *options.bytes.split(",")]


def run(options, system, ranks):
    """(operation, bytes) -> seconds."""
    log = options.work / f"collectives_{system}_{ranks}.log"
    if system == "gloo":
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        command = [environment(options), HERE / "peers" / "gloo_collectives.py", options.bytes]
        run_group([command] * ranks, [dict(os.environ, RANK=str(rank), **place) for rank in range(ranks)], log, TIMEOUT)
    else:
        ours = [Path(options.binaries) / "collectives_bench", "--ranks", str(ranks), "--bytes", options.bytes]
        command = ours if system == "esteira" else run_mpi(options, ranks)
        run_group([command], [dict(os.environ)], log, TIMEOUT)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(reason(log.read_text(encoding="utf-8")))
    return {(line["operation"], line["bytes"]): line["seconds"] for line in lines}


def text(nbytes):
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def table(ranks, rounds, failures):
    """`rounds`: a list of {system: {(operation, bytes): seconds}}."""
    lines = []
    for operation, nbytes in rounds[0].get("esteira", {}):
        cells = [f"{operation} {text(nbytes)}", str(ranks)]
        for system in SYSTEMS:
            seconds = [turn[system].get((operation, nbytes)) for turn in rounds if system in turn]
            seconds = [value for value in seconds if value is not None]
            cells.append(f"{1e6 * statistics.median(seconds):.0f}" if seconds else failures.get(system, "not run"))
        for system in SYSTEMS[1:]:
            ratios = [turn[system][operation, nbytes] / turn["esteira"][operation, nbytes] for turn in rounds
                      if (operation, nbytes) in turn.get(system, {}) and "esteira" in turn]
            cells.append(f"{statistics.median(ratios):.2f}x" if ratios else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main():
    options = arguments()
    clean_up_on_signals()
    options.work.mkdir(parents=True, exist_ok=True)
    lines = ["| operation | ranks | Esteira, us | gloo, us | Open MPI, us | gloo / Esteira | Open MPI / Esteira |",
             "|---|---|---|---|---|---|---|"]
    try:
        for ranks in map(int, options.ranks.split(",")):
            rounds, failures = [], {}
            for _ in range(options.rounds):
                turn = {}
                for system in options.systems.split(","):
                    try:
                        turn[system] = run(options, system, ranks)
                    except Exception as error:  # whatever it is, the other systems go on
                        failures[system] = reason_of(error)
                    print(f"{system}, {ranks} ranks: {failures.get(system, 'done')} (load {os.getloadavg()[0]:.1f})", file=sys.stderr)
                rounds.append(turn)
            lines += table(ranks, rounds, failures)
    finally:  # what was measured before a signal too
        print("\n".join(lines))


if __name__ == "__main__":
    main()
