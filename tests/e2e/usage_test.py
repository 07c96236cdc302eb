"""Flags and addresses that make no sense: each program says so at once, in one line, with code 2. No cluster is up."""
import os
import subprocess
import tempfile
import unittest

from cluster import BIN


def run(program, *arguments, **environment):
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run([f"{BIN}/{program}", *arguments], capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ["PATH"], "HOME": home, **environment})


class UsageTest(unittest.TestCase):
    def assert_refused(self, result, *words, lines):
        self.assertEqual(result.returncode, 2, result)
        self.assertEqual(len(result.stderr.splitlines()), lines, result)
        self.assertEqual(result.stdout, "")
        for word in words:
            self.assertIn(word, result.stderr)

    def test_flags_of_the_worker(self):
        for flag, words in [("--id=two words", ["--id=two words", "1 to 128"]), ("--id=" + "x" * 129, ["--id"]),
                            ("--id=a/b", ["--id=a/b"]), ("--threads=-1", ["--threads=-1", "from 0"]),
                            ("--threads=1025", ["--threads"]), ("--memory_bytes=-5", ["--memory_bytes=-5"]),
                            ("--workers_on_host=0", ["--workers_on_host=0"]), ("--orphan_timeout=-1s", ["--orphan_timeout"]),
                            ("--coordinator=nowhere", ["--coordinator", "nowhere", "host:port"]),
                            ("--coordinator=h:0", ["--coordinator"]), ("--log_level=loud", ["--log_level=loud", "debug"])]:
            with self.subTest(flag):
                self.assert_refused(run("esteira-worker", flag, "--metrics_listen=127.0.0.1:0"), *words, lines=1)

    def test_flags_of_the_coordinator(self):
        for flag, words in [("--log_level=loud", ["--log_level=loud", "debug"]), ("--listen=nowhere", ["nowhere"]),
                            ("--listen=127.0.0.1:99999", ["99999"])]:
            with self.subTest(flag), tempfile.TemporaryDirectory() as data:
                self.assert_refused(run("esteira-coordinator", flag, f"--data_dir={data}"), *words, lines=1)

    def test_a_malformed_server_is_a_usage_error_wherever_it_stands(self):
        for server in ["nowhere", "host:", ":7070", "host:port", "host:0", "host:65536", "a b:1", "http://host:1", "::1:80"]:
            with self.subTest(server):
                self.assert_refused(run("esteira", "list", "--server", server), "--server", server, lines=2)
                self.assert_refused(run("esteira", "list", ESTEIRA_SERVER=server), "ESTEIRA_SERVER", lines=2)

    def test_a_server_that_is_not_there_is_not_connected(self):
        self.assertEqual(run("esteira", "list", "--server", "127.0.0.1:1").returncode, 3)


if __name__ == "__main__":
    unittest.main()
