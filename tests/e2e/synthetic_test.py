"""The synthetic device: real daemons, trainers and transports, and units that take time and compute nothing."""
import json
import unittest

from cluster import Cluster


class SyntheticTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(4, "--device", "synthetic", "--synthetic-pass-seconds", "0.002", "--slow-down", "worker-3=2")

    @classmethod
    def tearDownClass(cls):
        left = cls.cluster.close()
        assert not left, f"processes left behind: {left}"

    def test_a_job_runs_with_a_loss_of_zero_and_everything_else_as_it_is(self):
        checkpoints = self.cluster.root / "checkpoints"
        job = self.cluster.submit(f"checkpoint.directory={checkpoints}", "training.validate_every_steps=3")
        done = self.cluster.wait(job)
        self.assertEqual(done.code, 0, done)
        steps = self.cluster.steps(job)
        self.assertEqual(len(steps), 6)
        for step in steps:
            self.assertEqual(step["loss"], 0)
            self.assertEqual(step["gradient_norm"], 0)
            self.assertEqual(step["valid_tokens"], 12 * 32)
            self.assertFalse(step["skipped"])
            self.assertGreater(step["op_seconds"]["F"], 0)
            self.assertGreater(step["predicted_step_seconds"], 0)
        self.assertEqual(steps[2]["validation_loss"], 0)
        self.assertEqual(len(list(checkpoints.glob("step-*"))), 1)

    def test_workers_say_what_they_are(self):
        result = self.cluster.run("workers", "describe", "worker-1")
        self.assertEqual(result.code, 0, result)
        self.assertIn("synthetic", result.out)
        self.assertIn("2.0 ms of each block", result.out)
        slow = json.loads(self.cluster.run("workers", "describe", "worker-3", "-o", "json").out)
        self.assertEqual(slow["pass_seconds"], 0.004)
        self.assertEqual(self.cluster.run("workers", "describe", "worker-9").code, 5)

    def test_describe_lays_measured_beside_predicted(self):
        job = self.cluster.submit("training.steps=3")
        self.cluster.wait(job)
        text = self.cluster.run("describe", job).out
        for row in ["Predicted and measured (2 steps)", "Step ", "Bubble ", "Peak memory "]:
            self.assertIn(row, text)

    def test_what_makes_no_sense_is_refused_and_starts_nothing(self):
        directory = str(self.cluster.root / "other")
        for flags, message in [(["--synthetic-pass-seconds", "0.1"], "need --device synthetic"),
                               (["--slow-down", "worker-1=0.5"], "a factor of 1"),
                               (["--slow-down", "worker-7=2"], "worker-0 to worker-1"),
                               (["--slow-down", "1=2"], "use WORKER=FACTOR"),
                               (["--device", "synthetic", "--synthetic-flops", "1e9", "--synthetic-pass-seconds", "1"],
                                "excludes")]:
            result = self.cluster.run("local", "up", "--workers", "2", "--dir", directory, *flags)
            self.assertNotEqual(result.code, 0, flags)
            self.assertIn(message, result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
