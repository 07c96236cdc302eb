"""Measured against theory: eight real trainer processes over the real transport, each pass a sleep."""
import statistics
import unittest

from cluster import Cluster

STAGES = 8
PASS_SECONDS = 0.02
TOLERANCE = 0.05


class SyntheticTimingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(STAGES, "--device", "synthetic", "--synthetic-pass-seconds", str(PASS_SECONDS))

    @classmethod
    def tearDownClass(cls):
        left = cls.cluster.close()
        assert not left, f"processes left behind: {left}"

    def measure(self, schedule, micro_batches):
        job = self.cluster.submit(f"model.num_layers={STAGES}", f"training.global_batch_size={micro_batches}",
                                  "training.micro_batch_size=1", "training.steps=7",
                                  f"parallelism.pipeline_stages={STAGES}", "parallelism.replicas=1", "parallelism.zero=0",
                                  f"parallelism.pipeline_schedule={schedule}")
        done = self.cluster.wait(job)
        self.assertEqual(done.code, 0, done)
        return self.cluster.steps(job)[1:]

    def test_the_bubble_is_that_of_the_theory(self):
        for schedule in ["gpipe", "1f1b"]:
            for micro_batches in [4, 16]:
                with self.subTest(schedule=schedule, micro_batches=micro_batches):
                    steps = self.measure(schedule, micro_batches)
                    seconds = statistics.median(s["step_seconds"] for s in steps)
                    theory = 3 * PASS_SECONDS * (micro_batches + STAGES - 1)
                    print(f"{schedule} m={micro_batches}: {seconds:.4f} s, theory {theory:.4f} s, ratio {seconds / theory:.3f}")
                    self.assertLess(abs(seconds / theory - 1), TOLERANCE)
                    # Whatever a rank waits for at the end of the step is a wait for slower stages.
                    idle = statistics.median(s["bubble_ratio"] + s["exposed_communication_ratio"] for s in steps)
                    self.assertAlmostEqual(idle, (STAGES - 1) / (micro_batches + STAGES - 1), delta=TOLERANCE)


if __name__ == "__main__":
    unittest.main(verbosity=2)
