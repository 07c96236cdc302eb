"""A cluster that works: train, watch, sample, and every command of the client."""
import json
import math
import re
import shutil
import signal
import subprocess
import unittest
import urllib.request
from xml.etree import ElementTree

from cluster import Cluster, BIN

STEP_FIELDS = ["step", "loss", "gradient_norm", "learning_rate", "tokens", "valid_tokens", "skipped", "step_seconds",
               "tokens_per_second", "model_flops_utilization", "bubble_ratio", "exposed_communication_ratio",
               "parameter_hash", "epoch", "loss_bits", "gradient_norm_bits"]


class TrainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=4)
        cls.checkpoints = cls.cluster.root / "checkpoints"
        cls.job = cls.cluster.submit(f"checkpoint.directory={cls.checkpoints}", "checkpoint.every_steps=3",
                                     "training.validate_every_steps=3", "training.parameter_hash_every_steps=1",
                                     "training.write_sample_ids=true")
        cls.done = cls.cluster.wait(cls.job)

    @classmethod
    def tearDownClass(cls):
        left = cls.cluster.close()
        assert not left, f"processes left behind: {left}"

    def test_the_job_succeeds_and_learns(self):
        self.assertEqual(self.done.code, 0, self.done)
        steps = self.cluster.steps(self.job)
        self.assertEqual([s["step"] for s in steps], [1, 2, 3, 4, 5, 6])
        self.assertAlmostEqual(steps[0]["loss"], math.log(256), delta=0.3)
        self.assertLess(steps[-1]["loss"], steps[0]["loss"])
        for step in steps:
            for field in STEP_FIELDS:
                self.assertIn(field, step)
            self.assertEqual(step["valid_tokens"], 12 * 32)
            self.assertNotEqual(step["parameter_hash"], "")
        self.assertEqual(len({s["parameter_hash"] for s in steps}), len(steps))
        self.assertIn("validation_loss", steps[2])

    def test_records_also_stand_in_the_jobs_folder(self):
        records = list((self.cluster.directory / "data").rglob(f"{self.job}/steps.jsonl"))
        self.assertEqual(len(records), 1)
        in_file = [json.loads(line) for line in records[0].read_text().splitlines()]
        for ours, theirs in zip(in_file, self.cluster.steps(self.job), strict=True):
            for field in STEP_FIELDS:
                self.assertEqual(ours[field], theirs[field])

    def test_no_sample_is_repeated_or_skipped(self):
        path = next((self.cluster.directory / "data").rglob(f"{self.job}/samples.jsonl"))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        ids = [i for row in rows for i in row["sample_ids"]]
        self.assertEqual(len(ids), 6 * 12)
        self.assertEqual(len(set(ids)), len(ids))

    def test_measured_memory_is_the_predicted(self):
        predicted = self.cluster.describe(self.job)["prediction"]["memory"]
        measured = self.cluster.steps(self.job)[0]["memory"]
        self.assertEqual(len(predicted), 2, "by stage")
        self.assertEqual(measured, predicted * 2, "of both replicas")

    def test_checkpoints_are_listed_and_whole(self):
        listed = self.cluster.run("checkpoints", "list", self.job)
        self.assertIn("step-00000003", listed.out)
        self.assertIn("step-00000006", listed.out)
        for name in ["config.json", "model.safetensors.index.json", "tokenizer.json", "trainer_state.json", "manifest.json"]:
            self.assertTrue((self.checkpoints / "step-00000006" / name).exists(), name)
        self.assertEqual([p.name for p in self.checkpoints.iterdir() if p.name.startswith(".")], [".lock"])

    def test_a_model_that_replicas_do_not_divide_is_saved_and_loads(self):
        directory = self.cluster.root / "undivided"
        job = self.cluster.submit(f"checkpoint.directory={directory}", "model.hidden_size=36", "parallelism.replicas=3",
                                  "parallelism.pipeline_stages=1", "training.steps=2")
        self.assertEqual(self.cluster.wait(job).code, 0, self.cluster.describe(job))
        self.assertEqual([p.name for p in directory.iterdir() if p.name.startswith("step-")], ["step-00000002"])
        generated = self.cluster.run("generate", str(directory / "step-00000002"), "--prompt", "The", "--tokens", "5", "--seed", "3")
        self.assertEqual(generated.code, 0, generated)

    def test_evaluate_agrees_with_the_job(self):
        result = self.cluster.run("evaluate", str(self.checkpoints / "step-00000006"), "--data", str(self.cluster.root / "validation.txt"))
        self.assertEqual(result.code, 0, result)
        # The job's validation covers the first 4 * 12 samples of the same file; the whole file differs a little.
        evaluated = float(re.search(r"loss\s+([0-9.]+)", result.out).group(1))
        self.assertAlmostEqual(evaluated, self.cluster.steps(self.job)[-1]["validation_loss"], delta=0.05)

    def test_generate_is_reproducible(self):
        arguments = ["generate", str(self.checkpoints / "step-00000006"), "--prompt", "The", "--tokens", "20", "--seed", "3"]
        first, second = self.cluster.run(*arguments), self.cluster.run(*arguments)
        self.assertEqual(first.code, 0, first)
        self.assertEqual(first.out, second.out)
        self.assertTrue(first.out.startswith("The"), first.out)

    def test_what_people_read(self):
        self.assertIn(self.job, self.cluster.run("list").out)
        description = self.cluster.run("describe", self.job).out
        for word in ["SUCCEEDED", "2 stages x 2 replicas, ZeRO 2, 1f1b", "RUNNING", "Predicted"]:
            self.assertIn(word, description)
        self.assertIn("step 6", self.cluster.run("logs", self.job, "--rank", "0").out)
        self.assertEqual(len(self.cluster.run("logs", self.job, "--tail", "2").out.splitlines()), 2)
        csv = self.cluster.run("steps", self.job, "-o", "csv").out.splitlines()
        self.assertEqual(csv[0].split(","), STEP_FIELDS)
        self.assertEqual(len(csv), 7)
        self.assertEqual(self.cluster.run("workers", "list").out.count("IDLE"), 4)
        self.assertIn("SERVING", self.cluster.run("health").out)
        self.assertIn("server", self.cluster.run("version").out)

    def test_metrics_pass_promtool(self):
        promtool = shutil.which("promtool")
        if promtool is None:
            self.skipTest("promtool is not installed")
        for daemon in self.cluster.daemons():
            text = urllib.request.urlopen(f"http://{daemon['metrics']}/metrics").read()
            check = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
            self.assertEqual(check.returncode, 0, (daemon["name"], check.stdout, check.stderr))
            self.assertIn(b"esteira_", text)
            if daemon["name"] == "coordinator":
                self.assertRegex(text, rb'esteira_jobs\{state="SUCCEEDED"\} [1-9]')
                self.assertIn(b'esteira_workers{state="IDLE"} 4', text)
            else:
                self.assertRegex(text, rb"esteira_worker_steps_total ([6-9]|\d\d)")

    def test_the_same_request_id_is_the_same_job(self):
        arguments = ["submit", "-f", str(self.cluster.root / "job.yaml"), "-o", "id", "--request-id", "r1"]
        first, second = self.cluster.run(*arguments), self.cluster.run(*arguments)
        self.assertEqual((first.code, second.code), (0, 0))
        self.assertEqual(first.out, second.out)
        self.assertEqual(self.cluster.wait(first.out.strip()).code, 0)
        other = self.cluster.run(*arguments, "--set", "training.steps=7")
        self.assertEqual(other.code, 2, other)

    def test_follow_shows_lines_when_it_is_no_terminal(self):
        result = self.cluster.run("submit", "-f", str(self.cluster.root / "job.yaml"), "--follow", "--set", "training.steps=3")
        self.assertEqual(result.code, 0, result)
        self.assertIn("3/3", result.out)
        self.assertIn("SUCCEEDED", result.out)
        self.assertNotIn("\r", result.out)

    def test_output_for_scripts_is_the_id_alone(self):
        result = self.cluster.run("submit", "-f", str(self.cluster.root / "job.yaml"), "--follow", "-o", "id")
        self.assertEqual(result.code, 0, result)
        self.assertRegex(result.out, r"^\S+\n$")
        self.assertIn("SUCCEEDED", result.err)

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BIN / "esteira", "describe", self.job], env=self.cluster.environment, stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_interrupting_a_follower_does_not_cancel(self):
        follower = subprocess.Popen([BIN / "esteira", "submit", "-f", str(self.cluster.root / "job.yaml"), "--follow",
                                     "--set", "training.steps=300"], env=self.cluster.environment, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        job = follower.stdout.readline().split()[2].rstrip(".")
        while not follower.stdout.readline().startswith("["):  # the first line of progress
            pass
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=20)
        self.assertIn("Detached", err)
        self.assertEqual(self.cluster.wait(job).code, 0)

    def test_dry_run_submits_nothing(self):
        before = self.cluster.run("list", "-o", "json").out
        result = self.cluster.run("submit", "-f", str(self.cluster.root / "job.yaml"), "--dry-run")
        self.assertEqual(result.code, 0, result)
        self.assertEqual(self.cluster.run("list", "-o", "json").out, before)

    def test_plan_works_offline(self):
        result = subprocess.run([BIN / "esteira", "plan", "-f", str(self.cluster.root / "job.yaml"), "--workers", "4"],
                                capture_output=True, text=True, env={"HOME": "/nonexistent"})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("2 stages x 2 replicas", result.stdout)
        for word in ["F0", "B0", "bubble", "stage 1", "optimizer"]:
            self.assertIn(word, result.stdout)
        self.assertNotIn("\x1b", result.stdout)
        plan = json.loads(self.cluster.run("plan", "-f", str(self.cluster.root / "job.yaml"), "--workers", "4", "-o", "json").out)
        self.assertEqual(len(plan["train"]), 2, "a program for each stage")
        self.assertEqual(sorted(plan["worker_of_rank"]), [0, 1, 2, 3])

    def plan(self, *arguments):
        return self.cluster.run("plan", "-f", str(self.cluster.root / "job.yaml"), "--workers", "4", *arguments)

    def test_every_form_of_a_plan(self):
        self.assertIn("0F0", self.plan("-o", "program").out)
        ElementTree.fromstring(self.plan("-o", "svg").out)
        events = json.loads(self.plan("-o", "trace").out)["traceEvents"]
        self.assertTrue({"M", "X", "s", "f"} <= {event["ph"] for event in events})

    def test_a_schedule_that_was_written_is_read_and_is_the_same(self):
        first = self.plan("--schedule", "1f1b", "-o", "csv")
        self.assertEqual(first.code, 0, first)
        path = self.cluster.root / "schedule.csv"
        path.write_text(first.out)
        again = self.plan("--schedule", f"csv:{path}", "-o", "csv")
        self.assertEqual(again.code, 0, again)
        self.assertEqual(again.out, first.out)

    def test_a_schedule_that_cannot_run_is_shown(self):
        path = self.cluster.root / "circle.csv"
        path.write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
        result = self.plan("--schedule", f"csv:{path}")
        self.assertEqual(result.code, 2, result)
        for word in ["row 0, column 1", "0B0", "waits for 1B0", "^^^"]:
            self.assertIn(word, result.err)

    def test_schedules_are_compared(self):
        result = self.plan("--compare", "gpipe,1f1b,nonsense")
        self.assertEqual(result.code, 0, result)
        lines = result.out.splitlines()
        self.assertEqual([line.split()[0] for line in lines[:4]], ["SCHEDULE", "gpipe", "1f1b", "nonsense"])
        self.assertIn("cannot run", lines[3])

    def test_completion_is_valid_bash(self):
        script = self.cluster.run("completion", "bash").out
        self.assertEqual(subprocess.run(["bash", "-n"], input=script, text=True).returncode, 0)


class RefusalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=1)

    @classmethod
    def tearDownClass(cls):
        assert not cls.cluster.close()

    def test_five_faults_are_named_at_once(self):
        text = (self.cluster.root / "job.yaml").read_text()
        text = text.replace("hidden_size: 32", "hidden_size: 33").replace("vocab_size: 256", "vocab_size: 12")
        text = text.replace("steps: 6", "steps: 0").replace("precision: fp32", "precision: fp17")
        text = text.replace("micro_batch_size", "microbatch_size")
        (self.cluster.root / "bad.yaml").write_text(text)
        result = self.cluster.run("submit", "-f", str(self.cluster.root / "bad.yaml"))
        self.assertEqual(result.code, 2, result)
        for word in ["hidden_size", "33", "vocab_size", "12", "training.steps", "precision", "fp17", "microbatch_size", "micro_batch_size"]:
            self.assertIn(word, result.err)

    def test_exit_codes(self):
        self.assertEqual(self.cluster.run("describe", "nothing").code, 5)
        self.assertEqual(self.cluster.run("list", "--server", "127.0.0.1:1").code, 3)
        self.assertEqual(self.cluster.run("frobnicate").code, 2)
        self.assertEqual(self.cluster.run("submit", "-f", "/no/such/file").code, 2)
        self.assertEqual(self.cluster.run("generate", "/no/such/folder", "--prompt", "x").code, 5)
        self.assertEqual(self.cluster.run("plan", "-f", str(self.cluster.root / "job.yaml")).code, 2)

    def test_a_job_that_needs_more_workers_waits_and_says_so(self):
        job = self.cluster.submit()
        self.assertEqual(self.cluster.wait(job, "1s").code, 124)
        message = self.cluster.describe(job)["message"]
        self.assertIn("4", message)
        self.assertEqual(self.cluster.run("cancel", job).code, 0)
        self.assertEqual(self.cluster.describe(job)["state"], "CANCELLED")

    def test_a_missing_corpus_fails_the_job_and_is_named(self):
        job = self.cluster.submit("data.train=[{path: /no/such/corpus.txt}]", "parallelism.pipeline_stages=1", "parallelism.replicas=1")
        self.assertEqual(self.cluster.wait(job).code, 1)
        self.assertIn("/no/such/corpus.txt", json.dumps(self.cluster.describe(job)["failures"]))

    def test_two_clusters_side_by_side(self):
        other = Cluster(workers=1)
        try:
            self.assertNotEqual(self.cluster.run("health").out, other.run("health").out)
        finally:
            self.assertEqual(other.close(), [])

    def test_a_second_up_in_the_same_folder_is_refused(self):
        result = self.cluster.run("local", "up", "--dir", str(self.cluster.directory))
        self.assertNotEqual(result.code, 0)
        self.assertEqual(result.code, 2)
        self.assertIn("already", result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
