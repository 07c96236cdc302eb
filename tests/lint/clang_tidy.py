#!/usr/bin/env python3
"""clang_tidy.py BUILD: runs clang-tidy over every source whose inputs have changed since it last passed.

Most of clang-tidy's time goes into headers that every source parses again. What passed is remembered in BUILD/tidy as a
hash of the source, the project's headers that it includes (also the generated ones), its compile command, .clang-tidy and
clang-tidy's version; system headers change with packages only, remove the folder then.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("common", "coordinator", "worker", "client")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


class Inputs:
    """The files of the project that a source reads, and their hashes."""

    def __init__(self, folders):
        self.folders = folders  # that quoted includes are looked up in
        self.texts = {}

    def text(self, path):
        if path not in self.texts:
            self.texts[path] = path.read_bytes()
        return self.texts[path]

    def of(self, source):
        found, waiting = {source}, [source]
        while waiting:
            path = waiting.pop()
            for name in INCLUDE.findall(self.text(path).decode()):
                for folder in [path.parent, *self.folders]:
                    header = (folder / name).resolve()
                    if header.is_file():
                        if header not in found:
                            found.add(header)
                            waiting.append(header)
                        break
        return sorted(found)


def key_of(inputs, source, command, common):
    digest = hashlib.sha256(common)
    digest.update(command.encode())
    for path in inputs.of(source):
        digest.update(str(path).encode() + b"\0" + hashlib.sha256(inputs.text(path)).digest())
    return digest.hexdigest()


def main():
    build = (ROOT / sys.argv[1]).resolve()
    stamps = build / "tidy"
    stamps.mkdir(exist_ok=True)
    commands = {Path(entry["file"]): entry["command"]
                for entry in json.loads((build / "compile_commands.json").read_text())}
    sources = subprocess.run(["git", "ls-files", *(f"{folder}/*.cc" for folder in FOLDERS)], cwd=ROOT, check=True,
                             capture_output=True, text=True).stdout.split()
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes()
    inputs = Inputs([ROOT, build / "proto"])
    current = {name: stamps / key_of(inputs, ROOT / name, commands.get(ROOT / name, ""), common) for name in sources}
    work = [name for name in sources if not current[name].exists()]

    kept = {stamp.name for stamp in current.values()}
    for old in stamps.iterdir():
        if old.name not in kept:
            old.unlink()

    def check(name):
        result = subprocess.run(["clang-tidy", "-p", str(build), "--quiet", name], cwd=ROOT, capture_output=True, text=True)
        if result.returncode == 0:
            current[name].touch()
        return name, result

    print(f"clang-tidy: {len(work)} of {len(sources)} sources to read", flush=True)
    failed = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, result in pool.map(check, work):
            if result.returncode != 0:
                failed.append(name)
                # Counts of suppressed warnings are noise; clang-tidy's own errors are not.
                errors = [line for line in result.stderr.splitlines() if not re.match(r"\d+ warnings?( and \d+ errors?)? generated", line)]
                print(result.stdout + "\n".join(errors), flush=True)
    if failed:
        print("clang-tidy: findings in " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
