"""Measured against theory and against the plan: eight real trainer processes over the real transport, each pass a sleep."""
import statistics
import unittest

from cluster import Cluster

STAGES = 8
PASS_SECONDS = 0.05
MICRO_BATCHES = 16
TOLERANCE = 0.05

# Chunks a stage, and how long a step takes in passes of one chunk, for equal F, I and W: tests/coordinator/planner/schedules_test.cc.
FILL = STAGES - 1
SCHEDULES = {
    "gpipe": (1, lambda m: 3 * (m + FILL)),
    "1f1b": (1, lambda m: 3 * (m + FILL)),
    "interleaved": (2, lambda m: 6 * m + 3 * FILL),
    "zb_h1": (1, lambda m: 3 * m + FILL),
    "zb_h2": (1, lambda m: 3 * m + FILL),
    "zb_v": (2, lambda m: 6 * m + FILL),
    "v_half": (2, lambda m: 6 * m + 19),
    "v_min": (2, lambda m: 6 * m + 27),
    "dualpipe_v": (2, lambda m: 6 * m + FILL),
}


class SyntheticTimingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(STAGES, "--device", "synthetic", "--synthetic-pass-seconds", str(PASS_SECONDS))

    @classmethod
    def tearDownClass(cls):
        left = cls.cluster.close()
        assert not left, f"processes left behind: {left}"

    def measure(self, schedule, chunks, micro_batches):
        job = self.cluster.submit(f"model.num_layers={STAGES * chunks}", f"training.global_batch_size={micro_batches}",
                                  "training.micro_batch_size=1", "training.steps=4", "training.validation_batches=1",
                                  f"parallelism.pipeline_stages={STAGES}", f"parallelism.chunks_per_stage={chunks}",
                                  "parallelism.replicas=1", "parallelism.zero=0",
                                  f"parallelism.pipeline_schedule={schedule}")
        done = self.cluster.wait(job, timeout="110s")
        self.assertEqual(done.code, 0, done)
        return self.cluster.steps(job)[1:]

    def check(self, schedule, micro_batches):
        chunks, passes = SCHEDULES[schedule]
        steps = self.measure(schedule, chunks, micro_batches)
        seconds = statistics.median(s["step_seconds"] for s in steps)
        predicted = steps[0]["predicted_step_seconds"]
        theory = PASS_SECONDS * passes(micro_batches)
        work = PASS_SECONDS * 3 * chunks * micro_batches
        # Whatever a rank waits for at the end of the step is a wait for slower stages.
        idle = statistics.median(s["bubble_ratio"] + s["exposed_communication_ratio"] for s in steps)
        print(f"{schedule:12} m={micro_batches}: measured {seconds:.4f} s, predicted {predicted:.4f} s ({seconds / predicted:.3f}), "
              f"theory {theory:.4f} s ({seconds / theory:.3f}); idle {idle:.3f}, theory {1 - work / theory:.3f}", flush=True)
        self.assertLess(abs(seconds / theory - 1), TOLERANCE)
        self.assertLess(abs(seconds / predicted - 1), TOLERANCE)
        self.assertAlmostEqual(idle, 1 - work / theory, delta=TOLERANCE)

    def test_every_schedule_has_the_bubble_of_the_theory(self):
        for schedule in SCHEDULES:
            with self.subTest(schedule=schedule):
                self.check(schedule, MICRO_BATCHES)

    def test_fewer_micro_batches_than_stages(self):
        self.check("1f1b", 4)


class OverlapTest(unittest.TestCase):
    """ZeRO-3 of two replicas: parameters are gathered and gradients reduced for every micro-batch and layer."""

    def test_communication_hides_behind_computation(self):
        cluster = Cluster(2, "--device", "synthetic", "--synthetic-pass-seconds", "0.1")
        try:
            exposed = {}
            for lookahead in (0, 1):
                job = cluster.submit(
                    "model={architecture: gpt2, num_layers: 8, hidden_size: 768, num_heads: 12, vocab_size: 256, max_sequence_length: 32}",
                    "training.global_batch_size=4", "training.micro_batch_size=1", "training.steps=4", "training.validation_batches=1",
                    "parallelism={pipeline_stages: 1, replicas: 2, zero: 3, pipeline_schedule: gpipe, reduce_every: 1, gather_for: 1, "
                    f"lookahead: {lookahead}}}", "check=off")
                done = cluster.wait(job, timeout="110s")
                self.assertEqual(done.code, 0, done)
                steps = cluster.steps(job)[1:]
                exposed[lookahead] = statistics.median(s["step_seconds"] * s["exposed_communication_ratio"] for s in steps)
                print(f"lookahead {lookahead}: step {statistics.median(s['step_seconds'] for s in steps):.3f} s, "
                      f"exposed communication {exposed[lookahead]:.4f} s", flush=True)
            self.assertLess(exposed[1], 0.15 * exposed[0])
        finally:
            left = cluster.close()
            self.assertFalse(left, f"processes left behind: {left}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
