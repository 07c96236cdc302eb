"""Hugging Face's transformers loads what a job has saved, and its exports, and finds the loss of `esteira evaluate`.

Where torch and transformers are not installed, the loss is compared with the one that they found for the same training
(LOSSES, printed by this test where they are), and the test says that it skipped the rest.
"""
import json
import os
import subprocess
import unittest
from pathlib import Path

from cluster import Cluster

# By transformers 4.35.2 with torch 1.13.1, after 30 steps (uniform guessing is 5.5). Training rounds a little differently
# on other processors.
LOSSES = {"gpt2 true": 3.4572305, "gpt2 false": 3.4623699, "llama true": 3.4966036, "llama false": 3.5640802}
SAME_WEIGHTS, OTHER_PROCESSOR = 2e-5, 2e-3
EXPORTS = {"fp32": ["--dtype", "fp32", "--shard-size", "50kB"], "bf16": ["--dtype", "bf16"]}
SCRIPT = Path(__file__).parent.parent / "worker" / "checkpoint" / "load_in_transformers.py"
PYTHON = os.environ.get("ESTEIRA_TRANSFORMERS_PYTHON") or "python3"


class TransformersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=4)
        cls.data = cls.cluster.root / "validation.txt"

    @classmethod
    def tearDownClass(cls):
        assert not cls.cluster.close()

    def train(self, architecture, tied):
        directory = self.cluster.root / f"{architecture}-{tied}"
        job = self.cluster.submit(f"model.architecture={architecture}", f"model.num_kv_heads={2 if architecture == 'llama' else 4}",
                                  f"model.tie_embeddings={tied}", "training.steps=30", "training.numerics=exact",
                                  f"checkpoint.directory={directory}")
        self.assertEqual(self.cluster.wait(job).code, 0, self.cluster.describe(job))
        return next(directory.glob("step-*"))

    def evaluate(self, folder):
        result = self.cluster.run("evaluate", str(folder), "--data", str(self.data), "-o", "json")
        self.assertEqual(result.code, 0, result)
        return json.loads(result.out)["loss"]

    def exports(self, checkpoint):
        folders = []
        for dtype, options in EXPORTS.items():
            folders.append(checkpoint.parent / f"export-{dtype}")
            exported = self.cluster.run("checkpoints", "export", str(checkpoint), str(folders[-1]), *options)
            self.assertEqual(exported.code, 0, exported)
        self.assertEqual(self.evaluate(folders[0]), self.evaluate(checkpoint))
        return folders

    def test_a_checkpoint_and_its_exports_have_the_same_loss(self):
        folders = []
        for name, expected in LOSSES.items():
            with self.subTest(name):
                checkpoint = self.train(*name.split())
                self.assertAlmostEqual(self.evaluate(checkpoint), expected, delta=OTHER_PROCESSOR)
                folders += [checkpoint, *self.exports(checkpoint)]
        done = subprocess.run([PYTHON, SCRIPT, *folders, self.data], capture_output=True, text=True)
        if done.returncode == 77:
            self.skipTest(f"compared with the checked-in losses alone; {done.stdout.strip()}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        losses = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss ")]
        for folder, theirs in zip(folders, losses, strict=True):
            with self.subTest(folder.relative_to(self.cluster.root)):
                print(f"{folder.relative_to(self.cluster.root)}: evaluate {self.evaluate(folder):.9f}, transformers {theirs:.9f}")
                self.assertAlmostEqual(self.evaluate(folder), theirs, delta=SAME_WEIGHTS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
