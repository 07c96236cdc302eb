"""Checkpoints of real processes: resumed in other layouts, damaged, on a full disk; and the tools on them.

Killed jobs are in restart_test.py.
"""
import json
import re
import shutil
import subprocess
import unittest
import urllib.request

from cluster import TOY_JOB, Cluster

COMPARED = ["step", "loss_bits", "gradient_norm_bits", "learning_rate", "valid_tokens", "skipped", "parameter_hash"]
RUN = ["training.dropout=0.1", "training.parameter_hash_every_steps=1", "training.validate_every_steps=5", "training.write_sample_ids=true",
       "training.schedule={warmup_steps: 2, decay: constant}"]


def layout(stages, replicas, zero, schedule="1f1b", chunks=1):
    return ["parallelism={pipeline_stages: %d, replicas: %d, zero: %d, pipeline_schedule: %s, chunks_per_stage: %d}"
            % (stages, replicas, zero, schedule, chunks)]


def saving(directory, every=5, keep=0):
    return [f"checkpoint={{directory: {directory}, every_steps: {every}, keep: {keep}, resume: auto}}"]


class ResumeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=4)
        cls.unbroken = cls.cluster.submit("training.steps=40", *RUN, *layout(2, 2, 2))
        done = cls.cluster.wait(cls.unbroken)
        assert done.code == 0, done
        cls.expected = cls.cluster.steps(cls.unbroken)
        # A run of 20 steps with a checkpoint every 5, for the tests to copy.
        cls.saved = cls.cluster.root / "saved"
        cls.first = cls.cluster.submit("training.steps=20", *RUN, *layout(2, 2, 3), *saving(cls.saved))
        done = cls.cluster.wait(cls.first)
        assert done.code == 0, done

    @classmethod
    def tearDownClass(cls):
        left = cls.cluster.close()
        assert not left, f"processes left behind: {left}"

    def copy(self, name):
        to = self.cluster.root / name
        shutil.copytree(self.saved, to)
        return to

    def samples(self, job):
        path = next((self.cluster.directory / "data").rglob(f"{job}/samples.jsonl"))
        return [json.loads(line) for line in path.read_text().splitlines()]

    def resume(self, directory, *settings, code=0):
        job = self.cluster.submit("training.steps=40", *RUN, *saving(directory), *settings)
        done = self.cluster.wait(job)
        self.assertEqual(done.code, code, (done, self.cluster.run("logs", job)))
        return job

    def events(self, job):
        return [e["message"] for e in self.cluster.describe(job)["transitions"]]

    def assert_same_as_unbroken(self, steps):
        for ours, theirs in zip(steps, self.expected[-len(steps):], strict=True):
            self.assertEqual([ours[f] for f in COMPARED], [theirs[f] for f in COMPARED])
            self.assertEqual(ours.get("validation_loss"), theirs.get("validation_loss"))

    def test_another_layout_goes_on_as_if_it_had_never_stopped(self):
        self.assert_same_as_unbroken(self.expected)
        for number, how in enumerate([layout(1, 2, 0), layout(2, 2, 1, "interleaved", 2), layout(2, 2, 3, "zb_v", 2)]):
            with self.subTest(how=how):
                job = self.resume(self.copy(f"layout-{number}"), *how)
                steps = self.cluster.steps(job)
                self.assertEqual([s["step"] for s in steps], list(range(21, 41)))
                self.assert_same_as_unbroken(steps)
                self.assertEqual([r["sample_ids"] for r in self.samples(job)],
                                 [r["sample_ids"] for r in self.samples(self.unbroken)][20:])
                self.assertTrue(any("continues from step 20" in e and "training.steps 20 -> 40" in e for e in self.events(job)))
                self.assertIn("continues from step 20", self.cluster.run("logs", job).out)

    def test_an_edited_job_file_changes_no_hyper_parameter(self):
        edited = self.cluster.root / "edited.yaml"
        edited.write_text(TOY_JOB.replace("learning_rate: 3.0e-3", "learning_rate: 1.0e-2, beta2: 0.9")
                          .replace("gradient_clip_norm: 1.0", "gradient_clip_norm: 0.1").replace("steps: 6", "steps: 40"))
        watched = [s for s in RUN if "dropout" not in s and "schedule" not in s]  # the file has no dropout, and a cosine
        job = self.cluster.submit(*watched, *saving(self.copy("edited")), file=edited)
        self.assertEqual(self.cluster.wait(job).code, 0)
        self.assertEqual([s["step"] for s in self.cluster.steps(job)], list(range(21, 41)))
        self.assert_same_as_unbroken(self.cluster.steps(job))
        event = next(e for e in self.events(job) if "continues from step 20" in e)
        for field, saved, file in [("optimizer.adamw.learning_rate", "0.003", "0.01"), ("optimizer.adamw.beta2", "0.95", "0.9"),
                                   ("gradient_clip_norm", "1", "0.1"), ("dropout", "0.1", "0"), ("schedule.decay", "constant", "cosine")]:
            self.assertIn(f"training.{field} stays {saved} (the job file gives {file}; --set training.{field}={file} would change it)", event)
        self.assertNotIn("changed on resume", event)

    def test_set_changes_a_hyper_parameter_from_there_on(self):
        directory = self.copy("set")
        job = self.resume(directory, *layout(2, 2, 3), "training.optimizer.adamw.learning_rate=0.001")
        steps = self.cluster.steps(job)
        self.assertEqual({s["learning_rate"] for s in steps}, {0.001})
        self.assertEqual(steps[0]["loss_bits"], self.expected[20]["loss_bits"])  # of the weights before it
        self.assertNotEqual(steps[0]["parameter_hash"], self.expected[20]["parameter_hash"])
        self.assertTrue(any("training.optimizer.adamw.learning_rate 0.003 -> 0.001 (--set)" in e for e in self.events(job)))
        self.assertIn("training.optimizer.adamw.learning_rate", self.cluster.describe(job)["spec"]["set_fields"])
        saved = json.loads((directory / "step-00000025" / "trainer_state.json").read_text())
        self.assertEqual(saved["adamw"]["learning_rate"], 0.001)

    def test_another_precision_needs_set(self):
        edited = self.cluster.root / "bf16.yaml"
        edited.write_text(TOY_JOB.replace("precision: fp32", "precision: bf16").replace("steps: 6", "steps: 22"))
        directory = self.copy("bf16")
        job = self.cluster.submit(*saving(directory), file=edited)
        self.assertEqual(self.cluster.wait(job).code, 1)
        self.assertIn("training.precision is fp32, and bf16 in the job file", self.cluster.describe(job)["message"])
        job = self.cluster.submit("training.precision=bf16", *saving(directory), file=edited)
        self.assertEqual(self.cluster.wait(job).code, 0)
        event = next(e for e in self.events(job) if "continues from step 20" in e)
        self.assertIn("training.precision fp32 -> bf16 (--set)", event)

    def test_other_numbers_of_replicas_learn_the_same(self):
        for number, how in enumerate([layout(4, 1, 1), layout(1, 3, 3)]):
            with self.subTest(how=how):
                for ours, theirs in zip(self.cluster.steps(self.resume(self.copy(f"replicas-{number}"), *how)),
                                        self.expected[20:], strict=True):
                    self.assertAlmostEqual(ours["loss"], theirs["loss"], delta=1e-5 * theirs["loss"])
                    self.assertEqual(ours["learning_rate"], theirs["learning_rate"])

    def test_no_checkpoint_starts_at_step_one_and_a_finished_one_trains_nothing(self):
        directory = self.cluster.root / "fresh"
        for steps in [[1, 2, 3], []]:
            job = self.cluster.submit("training.steps=3", *layout(1, 1, 0), *saving(directory))
            self.assertEqual(self.cluster.wait(job).code, 0)
            self.assertEqual([s["step"] for s in self.cluster.steps(job)], steps)
            self.assertEqual(int(self.cluster.describe(job)["step"]), 3)

    def test_damage_is_passed_over_and_said(self):
        directory = self.copy("damaged")
        shard = directory / "step-00000020" / "optimizer-00001-of-00002.safetensors"
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        with open(directory / "step-00000015" / "model-00001-of-00002.safetensors", "r+b") as shard:
            shard.truncate(1000)
        (directory / "step-00000010" / "model-00002-of-00002.safetensors").unlink()
        verify = self.cluster.run("checkpoints", "verify", str(directory))
        self.assertEqual(verify.code, 1)
        self.assertIn("optimizer-00001-of-00002.safetensors has another digest", verify.out)
        listed = self.cluster.run("checkpoints", "list", str(directory))
        self.assertRegex(listed.out, "15 .*model-00001-of-00002.safetensors has 1000 bytes")
        self.assertRegex(listed.out, "10 .*model-00002-of-00002.safetensors is missing")
        self.assertRegex(listed.out, r"20 .*whole, latest")  # a list reads no digests
        job = self.resume(directory, *layout(2, 2, 1))
        self.assert_same_as_unbroken(self.cluster.steps(job))
        self.assertEqual(self.cluster.steps(job)[0]["step"], 6)
        for text in [next(e for e in self.events(job) if "continues" in e), self.cluster.run("logs", job).out]:
            self.assertIn("continues from step 5", text)
            self.assertIn("step-00000020: optimizer-00001-of-00002.safetensors has another digest", text)
            self.assertIn("step-00000015", text)
            self.assertIn("step-00000010", text)
        self.assertTrue((directory / "damaged-step-00000020").exists())
        self.assertEqual(self.cluster.run("checkpoints", "verify", str(directory)).code, 0)

    def test_nothing_good_is_never_started_anew(self):
        directory = self.copy("hopeless")
        for step in [5, 10, 15, 20]:
            (directory / f"step-{step:08}" / "config.json").unlink()
        job = self.resume(directory, *layout(1, 2, 0), code=1)
        self.assertIn("nothing was started", self.cluster.describe(job)["message"])
        self.assertEqual(self.cluster.steps(job), [])

    def test_another_run_is_refused_with_both_values(self):
        job = self.resume(self.copy("refused"), *layout(1, 2, 0), "training.seed=2", "training.global_batch_size=6", code=1)
        message = self.cluster.describe(job)["message"]
        self.assertIn("training.seed 1 -> 2", message)
        self.assertIn("training.global_batch_size 12 -> 6", message)

    def mount(self, folder, *options):
        if subprocess.run(["mount", *options, folder], capture_output=True).returncode != 0:
            self.skipTest("a file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", folder], capture_output=True)

    def test_a_folder_that_becomes_read_only_does_not_stop_the_training(self):
        directory = self.cluster.root / "read-only"
        latest = directory / "latest"
        job = self.cluster.submit("training.steps=20000", *layout(2, 2, 3), *saving(directory, every=5, keep=1))
        self.addCleanup(self.cluster.run, "cancel", job)
        self.cluster.until(latest.exists, "a first checkpoint")
        self.mount(directory, "--bind", directory)
        # Refused while a file is being written.
        self.cluster.until(lambda: subprocess.run(["mount", "-o", "remount,ro,bind", directory], capture_output=True).returncode == 0,
                           "a read-only folder")
        before = latest.read_text()
        failed = self.cluster.until(lambda: [e for e in self.events(job) if "training goes on" in e], "a failed save")
        self.assertIn("Read-only file system", failed[0])
        at = int(self.cluster.describe(job)["step"])
        self.cluster.until(lambda: int(self.cluster.describe(job)["step"]) > at + 10, "more steps")
        self.assertEqual(latest.read_text(), before)
        self.assertEqual(self.cluster.run("checkpoints", "verify", str(directory)).code, 0)
        subprocess.run(["umount", directory], check=True)
        self.cluster.until(lambda: latest.read_text() != before, "a new checkpoint")
        self.cluster.run("cancel", job)
        self.cluster.wait(job)

    def test_a_full_disk_does_not_stop_the_training(self):
        disk = self.cluster.root / "disk"
        disk.mkdir()
        self.mount(disk, "-t", "tmpfs", "-o", "size=4m", "none")
        job = self.cluster.submit("training.steps=20000", *layout(2, 2, 2), *saving(disk / "ckpt", every=5, keep=1))
        self.cluster.until(lambda: (disk / "ckpt" / "latest").exists(), "a first checkpoint")
        filler = disk / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        failed = self.cluster.until(lambda: [e for e in self.events(job) if "training goes on" in e], "a failed save")
        self.assertIn("must have room for one checkpoint more", failed[0])
        at = int(self.cluster.describe(job)["step"])
        self.cluster.until(lambda: int(self.cluster.describe(job)["step"]) > at + 10, "more steps")
        self.assertEqual(self.cluster.run("checkpoints", "verify", str(disk / "ckpt")).code, 0)
        metrics = "".join(urllib.request.urlopen(f"http://{d['metrics']}/metrics").read().decode()
                          for d in self.cluster.daemons() if d["name"].startswith("worker"))
        failures = sum(float(v) for v in re.findall(r"^esteira_worker_checkpoint_failures_total (\S+)$", metrics, re.M))
        self.assertGreater(failures, 0)
        before = (disk / "ckpt" / "latest").read_text()
        filler.unlink()
        self.cluster.until(lambda: (disk / "ckpt" / "latest").read_text() != before, "a new checkpoint")
        self.cluster.run("cancel", job)
        self.cluster.wait(job)

    def test_diff_verify_and_export(self):
        run = self.cluster.run
        a, b = (str(self.saved / f"step-{step:08}") for step in (15, 20))
        self.assertEqual(run("checkpoints", "diff", a, a).code, 0)
        different = run("checkpoints", "diff", a, b)
        self.assertEqual(different.code, 1)
        self.assertRegex(different.out, r"transformer\.h\.0\.attn\.c_attn\.weight +differs: \d+ of \d+ elements, by ")
        self.assertEqual(run("checkpoints", "verify", b).code, 0)
        self.assertEqual(run("checkpoints", "verify", "/no/such/folder").code, 5)
        listed = json.loads(run("checkpoints", "list", str(self.saved), "-o", "json").out)["checkpoints"]
        self.assertEqual([(c["step"], c["latest"]) for c in listed], [(20, True), (15, False), (10, False), (5, False)])

        out = self.cluster.root / "export"
        exported = run("checkpoints", "export", str(self.saved), str(out), "--dtype", "fp32", "--shard-size", "50kB")
        self.assertEqual(exported.code, 0, exported)
        self.assertGreater(len(list(out.glob("model-*.safetensors"))), 1)
        self.assertEqual(run("checkpoints", "export", b, str(out)).code, 2)  # never over something
        self.assertEqual(run("checkpoints", "diff", b, str(out), "--weights-only").code, 0)
        self.assertEqual(run("checkpoints", "export", b, str(self.cluster.root / "half"), "--dtype", "bf16").code, 0)
        self.assertEqual(run("checkpoints", "diff", b, str(self.cluster.root / "half"), "--weights-only").code, 1)
        self.assertEqual(run("checkpoints", "export", b, "x", "--shard-size", "big").code, 2)
        losses = [re.search(r"loss\s+([0-9.]+)", run("evaluate", path, "--data", str(self.cluster.root / "validation.txt")).out).group(1)
                  for path in (b, str(out))]
        self.assertEqual(losses[0], losses[1])

    def test_times_of_saves_are_shown(self):
        listed = json.loads(self.cluster.run("checkpoints", "list", self.first, "-o", "json").out)["checkpoints"]
        self.assertEqual([int(c["step"]) for c in listed], [5, 10, 15, 20])
        for checkpoint in listed:
            self.assertGreater(checkpoint["save_seconds"], 0)
        self.assertRegex(self.cluster.run("logs", self.first).out, r"checkpoint written .*seconds=\d.*stall_seconds=\d")


if __name__ == "__main__":
    unittest.main(verbosity=2)
