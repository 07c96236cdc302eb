"""Killed at random steps and continued in other layouts, a run is the run that never stopped, to the bit.

By default 10 kills at random steps and 10 during saves; ESTEIRA_LONG_KILLS=1 makes it 50 during saves.
"""
import json
import os
import random
import signal
import unittest

from cluster import Cluster

COMPARED = ["loss_bits", "gradient_norm_bits", "learning_rate", "valid_tokens", "skipped", "parameter_hash"]
LAYOUTS = [(2, 2, 3, "1f1b", 1), (4, 1, 1, "zb_h1", 1), (1, 3, 0, "1f1b", 1), (2, 2, 2, "interleaved", 2), (1, 4, 3, "1f1b", 1),
           (2, 1, 0, "zb_v", 2), (4, 1, 0, "gpipe", 1), (2, 2, 1, "dualpipe_v", 2), (1, 2, 2, "1f1b", 1), (3, 1, 1, "zb_h2", 1),
           (1, 1, 0, "1f1b", 1)]
STEPS = 300


def layout(stages, replicas, zero, schedule, chunks):
    return ["parallelism={pipeline_stages: %d, replicas: %d, zero: %d, pipeline_schedule: %s, chunks_per_stage: %d}"
            % (stages, replicas, zero, schedule, chunks)]


class RestartTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=4)
        # Most samples have no target that counts, so that some batches have none at all.
        draw = random.Random(3)
        with open(cls.cluster.root / "train.jsonl", "w") as file:
            for sample in range(20 * 7):
                tokens = [draw.randrange(256) for _ in range(33)]
                ignored = 33 if draw.random() < 0.6 else sample * 5 % 34
                labels = [-100 if position < ignored else token for position, token in enumerate(tokens)]
                file.write(json.dumps({"tokens": tokens, "labels": labels}) + "\n")

    @classmethod
    def tearDownClass(cls):
        left = cls.cluster.close()
        assert not left, f"processes left behind: {left}"

    def submit(self, how, *settings):
        return self.cluster.submit("data.train=[{path: train.jsonl}]", "training.numerics=exact", "training.global_batch_size=7",
                                   "training.parameter_hash_every_steps=1", "training.write_sample_ids=true", *layout(*how), *settings)

    def record(self, job):
        """(step, what it was, the samples that it read) of each step."""
        path = next((self.cluster.directory / "data").rglob(f"{job}/samples.jsonl"))
        samples = {row["step"]: row["sample_ids"] for row in map(json.loads, path.read_text().splitlines())}
        return {s["step"]: ([s[f] for f in COMPARED], samples[s["step"]]) for s in self.cluster.steps(job)}

    def reached(self, job):
        """The last recorded step: from the job's folder, since a call takes as long as many steps."""
        path = next((self.cluster.directory / "data").rglob(f"{job}/steps.jsonl"), None)
        whole_lines = path.read_text().split("\n")[:-1] if path else []
        return json.loads(whole_lines[-1])["step"] if whole_lines else 0

    def test_killed_at_ten_random_steps_in_ten_layouts(self):
        draw = random.Random(4)
        self.check_kills([(1, 1, 0, "1f1b", 1), *LAYOUTS], STEPS, self.cluster.root / "checkpoints", draw)

    def test_killed_while_gradients_travel_as_bf16(self):
        layouts = [(1, 2, 0, "1f1b", 1), (2, 2, 3, "1f1b", 1), (1, 2, 2, "1f1b", 1), (2, 2, 1, "gpipe", 1), (1, 2, 3, "1f1b", 1)]
        self.check_kills(layouts, 120, self.cluster.root / "bf16", random.Random(6), "training.numerics=fast",
                         "parallelism.gradient_traffic=bf16")

    def check_kills(self, layouts, steps, directory, draw, *settings):
        """The run of the first layout, never stopped, and one of the others, each killed and continued by the next."""
        run = [f"training.steps={steps}", "model.hidden_size=96", *settings]  # steps long enough to be met by a kill
        unbroken = self.submit(layouts[0], *run)
        saving = f"checkpoint={{directory: {directory}, every_steps: 5, keep: 2, resume: auto}}"
        self.assertEqual(self.cluster.wait(unbroken, "120s").code, 0)
        expected = self.record(unbroken)
        self.assertTrue(any(values[4] for values, _ in expected.values()), "some step must be skipped")
        whole, reached = {}, 0
        for number, how in enumerate(layouts[1:]):
            saved = max((int(p.name.removeprefix("step-")) for p in directory.glob("step-*")), default=0)
            job = self.submit(how, *run, saving)
            last = number == len(layouts) - 2
            if not last:
                at = reached + draw.randint(1, 15)
                self.cluster.until(lambda: self.reached(job) > 0, "a step")
                victim = draw.choice(self.cluster.trainers())[1]
                self.cluster.until(lambda: self.reached(job) >= at, f"step {at}")
                os.kill(victim, signal.SIGKILL)
            self.assertEqual(self.cluster.wait(job, "120s").code, 0 if last else 1)
            with self.subTest(number=number, how=how):
                record = self.record(job)
                newest = max(record)
                if not last and record[newest][0][-1] == "":  # the killed rank has not reported its part of the hash
                    self.assertEqual(record.pop(newest)[0][:-1], expected[newest][0][:-1])
                first = min(record)
                self.assertEqual(first, saved + 1)
                self.assertLessEqual(first, reached + 1)
                self.assertEqual(record, {step: expected[step] for step in range(first, max(record) + 1)})
            reached = max(record)
            whole.update(record)
        self.assertEqual(whole, expected)

    def test_killed_during_saves_the_latest_checkpoint_loads(self):
        kills = 50 if os.environ.get("ESTEIRA_LONG_KILLS") == "1" else 10
        draw = random.Random(5)
        directory = self.cluster.root / "saves"
        latest, newest, torn = directory / "latest", 0, 0

        def files_of_new_saves():
            try:
                return max((len(list(p.iterdir())) for p in directory.glob(".tmp-step-*") if p.name not in before), default=0)
            except FileNotFoundError:  # it has got its name
                return 0

        for kill in range(kills):
            before = {p.name for p in directory.glob(".tmp-step-*")}
            last = latest.read_text() if latest.exists() else None
            job = self.submit(LAYOUTS[kill % len(LAYOUTS)], *self.big(directory, 1000000))
            if kill > 0:
                steps = self.cluster.until(lambda: self.cluster.steps(job), "a step after the kill")
                self.assertEqual(steps[0]["step"], newest + 1)
            self.cluster.until(lambda: latest.exists() and latest.read_text() != last, "a checkpoint")
            files = draw.randint(1, 6)  # anywhere within a save
            self.cluster.until(lambda: files_of_new_saves() >= files, f"a save with {files} files")
            os.kill(draw.choice(self.cluster.trainers())[1], signal.SIGKILL)
            self.assertEqual(self.cluster.wait(job).code, 1)
            torn += any(p.name not in before for p in directory.glob(".tmp-step-*"))
            self.assertEqual(self.cluster.run("checkpoints", "verify", str(directory)).code, 0)
            self.assertEqual(self.cluster.run("checkpoints", "verify", str(directory / latest.read_text().strip())).code, 0)
            newest = max(int(p.name.removeprefix("step-")) for p in directory.glob("step-*"))  # `latest`, or one behind it
        self.assertGreater(torn, kills // 10, "too few kills hit a save")
        job = self.submit(LAYOUTS[0], *self.big(directory, newest + 3))
        self.assertEqual(self.cluster.wait(job).code, 0)
        self.assertEqual(sorted(self.record(job)), [newest + 1, newest + 2, newest + 3])

    def big(self, directory, steps):
        return [f"training.steps={steps}", "model.hidden_size=128", "training.schedule={decay: constant}",
                f"checkpoint={{directory: {directory}, every_steps: 1, keep: 2, resume: auto}}"]


if __name__ == "__main__":
    unittest.main(verbosity=2)
