"""What real processes do before a job's first step, and about steps that go bad."""
import unittest

from cluster import Cluster

HASHES = "training.parameter_hash_every_steps=1"
BITS = ["step", "loss_bits", "gradient_norm_bits", "skipped", "parameter_hash"]
# The second step's loss is not finite, nor is any after it.
BROKEN = ["training.optimizer={adamw: {learning_rate: 1.0e+38, weight_decay: 0}}",
          "training.schedule={warmup_steps: 0, decay: constant}"]


class BadStepTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=4)

    @classmethod
    def tearDownClass(cls):
        left = cls.cluster.close()
        assert not left, f"processes left behind: {left}"

    def train(self, *settings):
        """Returns the job's id and its events."""
        job = self.cluster.submit(*settings)
        done = self.cluster.wait(job)
        self.assertEqual(done.code, 0, (done, self.cluster.run("logs", job)))
        return job, [e["message"] for e in self.cluster.describe(job)["transitions"]]

    def bits(self, job):
        return [[step.get(name) for name in BITS] for step in self.cluster.steps(job)]

    def test_the_launch_check_is_an_event_and_changes_nothing(self):
        checked, events = self.train(HASHES)
        passed = [e for e in events if "launch check passed" in e]
        self.assertEqual(len(passed), 1, events)
        self.assertRegex(passed[0], r"two steps at toy width, 4 ranks, equal one rank's \(\d+\.\d s\)")
        unchecked, events = self.train(HASHES, "check=off")
        self.assertFalse([e for e in events if "launch check" in e], events)
        self.assertEqual(self.bits(checked), self.bits(unchecked))

    def test_a_bad_step_is_run_again_and_attributed(self):
        job, events = self.train(*BROKEN)
        steps = self.cluster.steps(job)
        self.assertEqual([s["step"] for s in steps if s["skipped"]], [2, 3, 4, 5, 6])
        found = [e for e in events if "step 2: a non-finite value" in e]
        self.assertEqual(len(found), 1, events)
        self.assertIn("the same to the bit on every rank: the data or the model, not a machine", found[0])
        self.assertRegex(found[0], r"it is micro-batch \d+ of replica \d \(samples \d+")
        self.assertFalse([e for e in events if "step 3:" in e], "of several in a row the first is an event")
        self.assertIn("step 3: a non-finite value", self.cluster.run("logs", job).out)

    def test_roll_back_tries_once_and_then_skips(self):
        where = self.cluster.root / "rolled-back"
        job, events = self.train(*BROKEN, "training.on_non_finite=roll_back",
                                 f"checkpoint={{directory: {where}, every_steps: 1, resume: auto}}")
        back = [e for e in events if "rolled back" in e]
        self.assertEqual(len(back), 1, events)
        self.assertIn("step 2 was bad: rolled back to step 1; if it is bad again it is skipped", back[0])
        steps = self.cluster.steps(job)
        self.assertEqual([s["step"] for s in steps], [1, 2, 3, 4, 5, 6])
        self.assertEqual([s["step"] for s in steps if s["skipped"]], [2, 3, 4, 5, 6])

    def test_watching_for_spikes_changes_no_bit(self):
        run = [HASHES, "training.steps=24"]
        unwatched, _ = self.train(*run)
        watched, events = self.train(*run, "training.spike_factor=1.001")
        self.assertEqual(self.bits(watched), self.bits(unwatched))
        spikes = [e for e in events if "times the median of the steps before" in e]
        self.assertTrue(spikes, events)
        self.assertRegex(spikes[0], r"% of the squared norm is of unit \d+ .*; the largest loss, .* is of micro-batch")

    def test_a_roll_back_without_checkpoints_is_refused(self):
        refused = self.cluster.run("submit", "-f", str(self.cluster.root / "job.yaml"), "--set",
                                   "training.on_non_finite=roll_back")
        self.assertEqual(refused.code, 2)
        self.assertIn("there is nothing to go back to", refused.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
