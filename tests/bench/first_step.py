#!/usr/bin/env python3
"""How long a user waits from `esteira submit` to the first step, on an idle local cluster.

usage: ESTEIRA_BIN=build/release/bin tests/bench/first_step.py [JOBS]
"""
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from cluster import Cluster  # noqa: E402


def seconds_to_first_step(cluster, *settings):
    begin = time.monotonic()
    job = cluster.submit("training.steps=1", *settings)
    while not cluster.steps(job):
        pass
    seconds = time.monotonic() - begin
    cluster.wait(job)
    return seconds


def main():
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    cluster = Cluster(workers=4)
    try:
        for name, settings in (("with the launch check", []), ("without it", ["check=off"])):
            times = [seconds_to_first_step(cluster, *settings) for _ in range(jobs)]
            print(f"submit to first step, 4 workers, {name}: median {statistics.median(times):.2f} s, "
                  f"from {min(times):.2f} to {max(times):.2f}, of {jobs} jobs")
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
