"""The same numbers whatever the layout, in real processes over UCX.

Loss and gradient norm are equal to the bit over stages, schedules and ZeRO where replicas and k are the same, and within
1e-5 of one rank otherwise (exact numerics: exact_grid_test.py). ESTEIRA_FULL_GRID=1 runs every combination; by default a
sample that covers each value of each dimension.
"""
import itertools
import os
import unittest

from cluster import Cluster

STAGES, REPLICAS, ZEROS, SCHEDULES, WINDOWS = (1, 2, 4), (1, 2, 3), (0, 1, 2, 3), ("gpipe", "1f1b"), ("1", "all")


def layouts():
    everything = list(itertools.product(STAGES, REPLICAS, ZEROS, SCHEDULES, WINDOWS))
    if os.environ.get("ESTEIRA_FULL_GRID") == "1":
        return everything
    return [layout for i, layout in enumerate(everything) if i % 11 == 5 or layout[:3] == (4, 3, 3)]


class EquivalenceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=12)

    @classmethod
    def tearDownClass(cls):
        assert not cls.cluster.close()

    def submit(self, stages, replicas, zero, schedule, window):
        return self.cluster.submit(
            "training.steps=20", "training.global_batch_size=7", "training.gradient_clip_norm=0.5",
            "training.parameter_hash_every_steps=1", f"parallelism.pipeline_stages={stages}", f"parallelism.replicas={replicas}",
            f"parallelism.zero={zero}", f"parallelism.pipeline_schedule={schedule}", f"parallelism.reduce_every={window}")

    def steps(self, job):
        self.assertEqual(self.cluster.wait(job, "600s").code, 0, self.cluster.describe(job))
        steps = self.cluster.steps(job)
        self.assertEqual(len(steps), 20)
        return steps

    def test_every_layout_learns_the_same(self):
        tried = layouts()
        self.assertGreater(len(tried), 10)
        first = self.submit(1, 1, 0, "1f1b", "all")
        jobs = [self.submit(*layout) for layout in tried]  # as many at once as there are workers for
        oracle = self.steps(first)
        self.assertTrue(any(step["gradient_norm"] > 0.5 for step in oracle), "clipping must be at work")
        same = {}
        for job, layout in zip(jobs, tried, strict=True):
            with self.subTest(layout=layout):
                steps = self.steps(job)
                for ours, theirs in zip(steps, oracle, strict=True):
                    self.assertLess(abs(ours["loss"] - theirs["loss"]), 1e-5 * theirs["loss"])
                bits = [(s["loss_bits"], s["gradient_norm_bits"], s["parameter_hash"]) for s in steps]
                _, replicas, _, _, window = layout
                self.assertEqual(bits, same.setdefault((replicas, window), bits))


if __name__ == "__main__":
    unittest.main(verbosity=2)
