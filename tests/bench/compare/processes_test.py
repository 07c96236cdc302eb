"""That nothing which a comparison starts outlives it, and that whatever goes wrong becomes a row with a reason."""
import argparse
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import cases
import processes
import report
import run

HERE = Path(__file__).resolve().parent
SCRIPT = f"""
import os, sys
sys.path.insert(0, {str(HERE)!r})
import processes
processes.clean_up_on_signals()
processes.run_group([["sh", "-c", sys.argv[1]]] * 2, [dict(os.environ)] * 2, sys.argv[2], 60)
"""


class GroupTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.log = Path(self.folder) / "log"
        self.nap = f"1000.{os.getpid()}{self._testMethodName.__hash__() % 10**6}"  # nobody else sleeps that long
        # A child, and one in a session of its own, as compilers' workers are.
        self.sleeper = f"sleep {self.nap} & setsid sleep {self.nap} & echo started; wait"

    def sleepers(self):
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if file.read_bytes().split(b"\0")[:2] == [b"sleep", self.nap.encode()]:
                    found.append(int(file.parent.name))
        return found

    def until(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def run_group(self, *commands, timeout=60):
        return processes.run_group([["sh", "-c", command] for command in commands], [dict(os.environ)] * len(commands), self.log,
                                   timeout)

    def test_all_that_end_well_leave_their_peak(self):
        self.assertGreaterEqual(self.run_group("true", "exit 0"), 0)

    def test_one_that_fails_ends_the_others_and_says_why(self):
        with self.assertRaisesRegex(processes.Failed, "^ValueError: why$"):
            self.run_group(self.sleeper, "sleep 0.3; echo 'ValueError: why'; exit 3")
        self.until(lambda: not self.sleepers())

    def test_nothing_is_left_of_one_that_is_not_done_in_time(self):
        with self.assertRaisesRegex(processes.Failed, "not done after 0.5 s"):
            self.run_group(self.sleeper, timeout=0.5)
        self.until(lambda: not self.sleepers())

    def test_a_program_that_is_not_there_leaves_nothing(self):
        commands = [["sh", "-c", self.sleeper], ["/no/such/program"]]
        with self.assertRaises(FileNotFoundError):
            processes.run_group(commands, [dict(os.environ)] * 2, self.log, 60)
        self.until(lambda: not self.sleepers())

    def started(self, command):
        comparison = subprocess.Popen([sys.executable, "-c", SCRIPT, command, self.log], stderr=subprocess.PIPE, text=True)
        self.addCleanup(comparison.stderr.close)
        self.addCleanup(comparison.kill)
        self.until(lambda: self.log.exists() and self.log.read_text().count("started") == 2)
        return comparison

    def test_signals_end_all(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number=number):
                self.log.unlink(missing_ok=True)
                comparison = self.started(self.sleeper)
                comparison.send_signal(number)
                comparison.send_signal(number)  # impatience spoils nothing
                self.assertEqual(comparison.wait(timeout=20), 128 + number)
                self.assertEqual(comparison.stderr.read(), f"\n{number.name}: stopping\n")
                self.until(lambda: not self.sleepers())

    def test_killed_outright_it_takes_its_peers_along(self):
        comparison = self.started(f"echo started; exec sleep {self.nap}")
        comparison.kill()
        comparison.wait()
        self.until(lambda: not self.sleepers())


class RunnerThatFails:
    def __init__(self, error):
        self.error = error

    def run(self, _):
        raise self.error


class AttemptTest(unittest.TestCase):
    def attempt(self, error):
        row = report.Row("m/s/peer")
        with contextlib.redirect_stderr(io.StringIO()):
            run.attempt(RunnerThatFails(error), cases.cases(["*"])[0], row, 1)
        return row

    def test_whatever_goes_wrong_is_a_row(self):
        self.assertIn("FileNotFoundError: [Errno 2] No such file", self.attempt(FileNotFoundError(2, "No such file", "x")).failure)
        self.assertEqual(self.attempt(processes.Failed("GPT-2 only")).failure, "GPT-2 only")
        self.assertEqual(self.attempt(ValueError("one\ntwo")).failure, "ValueError: one")

    def test_a_run_without_measured_steps_is_one(self):
        with self.assertRaisesRegex(processes.Failed, "1 steps, 1 of them warm-up"):
            report.add_run(report.Row("m/s/p"), {"step_seconds": [1.0], "processor_seconds": [], "losses": [], "peak_bytes": 0}, 1, 0)

    def test_a_command_that_fails_says_why(self):
        with self.assertRaisesRegex(processes.Failed, "^no such case$"):
            processes.run_checked(["sh", "-c", "echo no such case >&2; exit 1"])


class OptionsTest(unittest.TestCase):
    def faults(self, **changes):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "esteira").touch()
            (Path(folder) / "train_gpt2.c").touch()
            (Path(folder) / "llmc").mkdir()
            options = {"only": None, "steps": 8, "warm_up": 2, "rounds": 2, "binaries": folder, "llmc": folder, "python": None}
            return run.faults(argparse.Namespace(**options | changes))

    def test_good_ones_have_none(self):
        self.assertEqual(self.faults(), [])
        self.assertEqual(self.faults(only=["gpt2-256/*"], llmc=None), [])

    def test_each_bad_one_is_named_at_once(self):
        found = self.faults(only=["*/esteira", "gpt3*"], steps=2, rounds=0, binaries="/no/bin", llmc="/no/llmc", python="/no/python")
        self.assertEqual([fault.split()[0] for fault in found], ["--only", "--steps", "--rounds", "--binaries", "--llmc", "--python"])
        self.assertIn("gpt3*", found[0])
        self.assertIn("no checkout of llm.c", found[4])

    def test_a_python_without_the_peers_is_refused(self):
        self.assertIn("cannot run the peers", self.faults(python="/bin/false")[0])


if __name__ == "__main__":
    unittest.main()
