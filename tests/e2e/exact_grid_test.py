"""Exact numerics in real processes over UCX: in every layout each step has the loss, gradient norm and parameter hash of
one rank, to the bit.

The layouts are chosen so that all pairs of values of all dimensions occur as early as possible. By default the first 24;
ESTEIRA_LONG_GRID=1 runs 96. Several jobs run at once, so a job's ranks lie on whatever workers are free.
"""
import itertools
import json
import os
import random
import unittest

from cluster import Cluster

WORKERS = 12
STEPS = 6
LAYERS = 6  # eight units: for four stages of two chunks
DIMENSIONS = {
    "model": ["gpt2 fp32 tied", "llama bf16", "llama fp32 tied dropout", "gpt2 bf16 dropout"],
    "pipeline_stages": [1, 2, 3, 4],
    "replicas": [1, 2, 3, 4, 5],
    "zero": [0, 1, 2, 3],
    "pipeline_schedule": ["1f1b", "gpipe", "interleaved", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe_v"],
    "reduce_every": [1, 2, "all"],
    "gather_for": [1, 2, "all"],
    "recompute": ["none", "full"],
}
CHUNKS = {"interleaved": 2, "zb_v": 2, "v_half": 2, "v_min": 2, "dualpipe_v": 2}
ONE_RANK = {"pipeline_stages": 1, "replicas": 1, "zero": 0, "pipeline_schedule": "1f1b", "reduce_every": "all",
            "gather_for": 1, "recompute": "none"}


def pairs(layout):
    return set(itertools.combinations(sorted(layout.items(), key=lambda item: item[0]), 2))


def layouts(count):
    """Greedily: of some random layouts that fit, always the one with the most pairs of values that no layout had before."""
    draw = random.Random(1)
    chosen, seen = [], set()
    while len(chosen) < count:
        candidates = [{name: draw.choice(values) for name, values in DIMENSIONS.items()} for _ in range(60)]
        candidates = [c for c in candidates if c["pipeline_stages"] * c["replicas"] <= WORKERS and c not in chosen]
        best = max(candidates, key=lambda c: len(pairs(c) - seen))
        chosen.append(best)
        seen |= pairs(best)
    return chosen


class ExactGridTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=WORKERS)
        # Samples in which unequal numbers of targets count, and in some none.
        draw = random.Random(2)
        with open(cls.cluster.root / "train.jsonl", "w") as file:
            for sample in range(200):
                tokens = [draw.randrange(256) for _ in range(33)]
                labels = [-100 if position < sample * 5 % 34 else token for position, token in enumerate(tokens)]
                file.write(json.dumps({"tokens": tokens, "labels": labels}) + "\n")

    @classmethod
    def tearDownClass(cls):
        assert not cls.cluster.close()

    def test_which_workers_hold_the_ranks_changes_no_bit(self):
        layout = {**ONE_RANK, "model": "gpt2 fp32 tied", "pipeline_stages": 2, "replicas": 2, "zero": 2}
        jobs = [self.submit(layout) for _ in range(3)]  # all workers are free: they run side by side
        bits = [self.bits(job) for job in jobs]
        self.assertEqual(bits, [bits[0]] * len(jobs))
        placements = [self.cluster.describe(job)["workers"] for job in jobs]
        self.assertGreater(len({tuple(placement) for placement in placements}), 1, placements)

    def submit(self, layout):
        architecture, precision, *options = layout["model"].split()
        return self.cluster.submit(
            f"model.architecture={architecture}", f"model.num_layers={LAYERS}", f"model.num_kv_heads={2 if architecture == 'llama' else 4}",
            f"model.tie_embeddings={'true' if 'tied' in options else 'false'}", f"training.dropout={0.2 if 'dropout' in options else 0}", "data.train=[{path: train.jsonl}]", f"training.precision={precision}",
            f"training.steps={STEPS}", "training.global_batch_size=11", "training.numerics=exact",
            "training.parameter_hash_every_steps=1", f"training.recompute={layout['recompute']}",
            "parallelism={pipeline_stages: %(pipeline_stages)s, replicas: %(replicas)s, zero: %(zero)s, "
            "pipeline_schedule: %(pipeline_schedule)s, reduce_every: %(reduce_every)s, gather_for: %(gather_for)s, " % layout +
            "chunks_per_stage: %d}" % CHUNKS.get(layout["pipeline_schedule"], 1))

    def bits(self, job):
        self.assertEqual(self.cluster.wait(job, "600s").code, 0, self.cluster.describe(job))
        steps = self.cluster.steps(job)
        self.assertEqual([s["step"] for s in steps], list(range(1, STEPS + 1)))
        self.assertTrue(all(s["parameter_hash"] for s in steps))
        return [(s["loss_bits"], s["gradient_norm_bits"], s["parameter_hash"]) for s in steps]

    def test_every_layout_has_the_bits_of_one_rank(self):
        chosen = layouts(96 if os.environ.get("ESTEIRA_LONG_GRID") == "1" else 24)
        for name, values in DIMENSIONS.items():
            self.assertEqual({layout[name] for layout in chosen}, set(values))
        oracles = {model: self.submit({"model": model, **ONE_RANK}) for model in DIMENSIONS["model"]}
        jobs = [self.submit(layout) for layout in chosen]
        expected = {model: self.bits(job) for model, job in oracles.items()}
        self.assertEqual(len({bits[-1][2] for bits in expected.values()}), len(expected), "models that do not differ")
        for job, layout in zip(jobs, chosen, strict=True):
            with self.subTest(layout=layout):
                self.assertEqual(self.bits(job), expected[layout["model"]])


if __name__ == "__main__":
    unittest.main(verbosity=2)
