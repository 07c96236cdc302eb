#!/usr/bin/env python3
"""Holds the dependency rule of the tree.

Who may include whom is the table below; a new folder needs a row. Vendor headers may appear only in the folders that wrap
them. A foo.cc whose foo.h exists includes it first, which proves that the header is self-contained.
"""
import re
import sys
from pathlib import Path

# folder -> folders (prefixes) whose headers it may include, besides its own.
ALLOWED = {
    "common/base": [],
    "common/plan": ["common/base"],
    "common/checkpoint": ["common/base", "common/plan"],
    "common/rpc": ["common/base"],
    "common/observability": ["common/base"],
    "coordinator/planner": ["common/base", "common/plan"],
    "coordinator/job": ["common/base", "common/plan", "common/rpc"],
    "coordinator/membership": ["common/base"],
    "coordinator/controller": ["common", "coordinator/planner", "coordinator/job", "coordinator/membership"],
    "coordinator/service": ["common", "coordinator/planner", "coordinator/job", "coordinator/controller"],
    "coordinator": ["common", "coordinator"],
    "worker/device": ["common/base"],
    "worker/tensor": ["common/base", "common/plan/sizes.h", "worker/device"],
    "worker/kernels": ["common/base", "common/plan", "worker/device", "worker/tensor"],
    "worker/model": ["common/base", "common/plan", "worker/device", "worker/tensor", "worker/kernels"],
    "worker/optimizer": ["common/base", "common/plan"],
    "worker/communication": ["common/base", "worker/device"],
    "worker/data": ["common/base", "common/plan"],
    "worker/engine": ["common/base", "common/plan", "worker/device", "worker/tensor", "worker/kernels", "worker/model",
                      "worker/optimizer", "worker/communication"],
    "worker/launch_check": ["common/base", "common/plan", "worker/device", "worker/tensor", "worker/kernels", "worker/model",
                            "worker/optimizer", "worker/communication", "worker/engine/engine.h"],
    "worker/checkpoint": ["common/base", "common/plan", "common/checkpoint", "worker/communication",
                          "worker/engine/engine.h"],
    "worker/inference": ["common/base", "common/plan", "common/checkpoint", "worker/device", "worker/tensor",
                         "worker/kernels", "worker/model", "worker/data", "worker/checkpoint"],
    "worker/trainer": ["common/base", "common/plan", "common/checkpoint", "worker"],
    "worker/agent": ["common/base", "common/rpc", "common/observability", "worker/trainer/channel.h",
                     "worker/trainer/compute_rates.h"],
    "worker": ["common", "worker"],
    # What `esteira plan` shows offline: the planner's own entry, what it is asked with, and a user's schedule.
    "client": ["common", "coordinator/planner/planner.h", "coordinator/planner/cluster.h",
               "coordinator/planner/schedules/csv.h"],
}

# vendor header -> folders that may name it.
VENDORS = {
    r"ucp/|uct/|ucs/": ["worker/communication/ucx"],
    r"(oneapi/)?dnnl": ["worker/kernels/cpu"],
    r"omp\.h": ["worker/kernels/cpu", "worker/device/cpu"],
    r"cuda|cublas": ["worker/device/cuda", "worker/kernels/cuda"],
    r"nccl\.h": ["worker/communication/nccl"],
    r"grpcpp?/": ["common/rpc", "coordinator/service", "worker/agent", "coordinator/main.cc", "client"],
    r".*\.grpc\.pb\.h": ["coordinator/service", "worker/agent", "client"],
    r"esteira/v1/.*\.pb\.h": ["common/plan", "common/rpc", "coordinator/job", "coordinator/controller",
                              "coordinator/service", "coordinator/main.cc", "worker/agent", "worker/trainer", "client"],
    r"sqlite3\.h": ["coordinator/job"],
    r"prometheus/": ["common/observability", "coordinator/main.cc", "worker/main.cc"],
    r"yaml-cpp/": ["common/plan", "client"],
    r"nlohmann/": ["common/checkpoint", "common/rpc", "client", "worker/data"],
    r"spdlog/": ["common/base"],
    r"CLI/": ["client"],
}

ROOTS = ("common/", "coordinator/", "worker/", "client/")


def folder_of(path):
    """The longest row of ALLOWED that holds `path`."""
    rows = [row for row in ALLOWED if path.startswith(row + "/")]
    return max(rows, key=len) if rows else None


def check_file(root, path):
    faults = []
    row = folder_of(path)
    if row is None:
        return [f"{path}: its folder has no row in {Path(__file__).name}"]
    includes = re.findall(r'^#include [<"]([^>"]+)[>"]', (root / path).read_text(), re.M)
    for include in includes:
        if include.startswith(ROOTS):
            allowed = [row] + ALLOWED[row]
            if not any(include == a or include.startswith(a.rstrip("/") + "/") for a in allowed):
                faults.append(f"{path}: {row} may not include {include}")
        for vendor, folders in VENDORS.items():
            if re.match(vendor, include) and not any(path == f or path.startswith(f + "/") for f in folders):
                faults.append(f"{path}: {include} may be included only in {', '.join(folders)}")
    if path.endswith(".cc"):
        header = path[:-3] + ".h"
        if (root / header).exists() and (not includes or includes[0] != header):
            faults.append(f"{path}: the first include must be {header}")
    return faults


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = [p.relative_to(root).as_posix() for folder in ROOTS for p in sorted((root / folder).rglob("*"))
             if p.suffix in (".h", ".cc", ".cu", ".cuh")]
    if not files:
        sys.exit(f"include_check: no source files under {root}")
    faults = [fault for path in files for fault in check_file(root, path)]
    print("\n".join(faults))
    print(f"include_check: {len(files)} files, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
