"""What is killed, and what is left: each loss ends the job as FAILED with the worker and the cause named, or goes on."""
import os
import signal
import subprocess
import unittest
from pathlib import Path

from cluster import Cluster, is_running

LONG = ["training.steps=100000"]


class FailureTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(workers=4)
        self.shared_memory = set(os.listdir("/dev/shm"))

    def tearDown(self):
        self.assertEqual(self.cluster.close(), [], "processes left behind")
        self.assertEqual(set(os.listdir("/dev/shm")) - self.shared_memory, set(), "left in /dev/shm")

    def start_long_job(self):
        job = self.cluster.submit(*LONG)
        self.cluster.until(lambda: self.cluster.describe(job)["step"] >= 2, "the second step")
        return job

    def assert_failed_and_clean(self, job, worker, *words):
        """The job failed for `worker`'s sake, its first failure says so, and no trainer is left."""
        result = self.cluster.wait(job, "15s")  # one lease is 10 s
        self.assertEqual(result.code, 1, result)
        description = self.cluster.describe(job)
        self.assertEqual(description["state"], "FAILED")
        cause = description["failures"][0]
        self.assertFalse(cause["consequence"], description["failures"])
        self.assertEqual(cause["worker"], worker, description["failures"])
        for word in words:
            self.assertIn(word, cause["cause"])
            self.assertIn(worker, description["message"])
        for echo in description["failures"][1:]:
            self.assertTrue(echo["consequence"], description["failures"])
        self.cluster.until(lambda: not self.cluster.trainers(), "every trainer has ended")

    def assert_works_again(self, *settings):
        job = self.cluster.submit(*settings)
        self.assertEqual(self.cluster.wait(job).code, 0, self.cluster.describe(job))

    def test_a_killed_trainer(self):
        job = self.start_long_job()
        worker, pid = self.cluster.trainers()[1]
        os.kill(pid, signal.SIGKILL)
        self.assert_failed_and_clean(job, worker, "SIGKILL")
        self.assert_works_again()

    def test_a_killed_worker_daemon(self):
        job = self.start_long_job()
        before = [pid for name, pid in self.cluster.trainers() if name == "worker-2"]
        os.kill(self.cluster.daemon("worker-2")["pid"], signal.SIGKILL)
        self.assert_failed_and_clean(job, "worker-2", "lost")
        self.assertFalse(any(is_running(pid) for pid in before))
        self.assertIn("LOST", self.cluster.run("workers", "list").out)
        self.assert_works_again("parallelism.replicas=1")

    def test_a_killed_coordinator_comes_back_and_training_has_gone_on(self):
        job = self.cluster.submit("training.steps=400")
        self.cluster.until(lambda: self.cluster.describe(job)["step"] >= 2, "the second step")
        coordinator = self.cluster.daemon("coordinator")
        command = Path(f"/proc/{coordinator['pid']}/cmdline").read_bytes().decode().split("\0")[:-1]
        port = self.cluster.run("health").out.split()[0].rsplit(":", 1)[1]
        trainers = self.cluster.trainers()
        os.kill(coordinator["pid"], signal.SIGKILL)
        self.assertEqual(self.cluster.run("list").code, 3)
        command = [f"--listen=127.0.0.1:{port}" if part.startswith("--listen") else part for part in command]
        with open(coordinator["log"], "a") as log:
            again = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self.cluster.until(lambda: self.cluster.run("health").code == 0, "the coordinator is back")
            self.assertEqual(self.cluster.wait(job, "60s").code, 0, self.cluster.describe(job))
            self.assertEqual([s["step"] for s in self.cluster.steps(job)], list(range(1, 401)))
            self.assertEqual(self.cluster.describe(job)["epoch"], 1)
            self.assertEqual(len(trainers), 4)
            self.assert_works_again()
        finally:
            again.terminate()
            again.wait()

    def test_a_cancelled_job_leaves_nothing(self):
        job = self.start_long_job()
        self.assertEqual(self.cluster.run("cancel", job).code, 0)
        self.assertEqual(self.cluster.wait(job, "20s").code, 1)
        self.assertEqual(self.cluster.describe(job)["state"], "CANCELLED")
        self.cluster.until(lambda: not self.cluster.trainers(), "every trainer has ended")
        self.assert_works_again()

    def test_jobs_queue_and_get_their_workers_all_or_nothing(self):
        first = self.start_long_job()
        second = self.cluster.submit("parallelism.replicas=1")  # two workers: none is free
        third = self.cluster.submit()
        self.assertEqual(self.cluster.describe(second)["state"], "QUEUED")
        self.assertEqual(self.cluster.run("cancel", first).code, 0)
        self.assertEqual(self.cluster.wait(second).code, 0)
        self.assertEqual(self.cluster.wait(third).code, 0)

    def test_a_stopped_worker_says_good_bye(self):
        job = self.start_long_job()
        os.kill(self.cluster.daemon("worker-1")["pid"], signal.SIGTERM)
        self.assert_failed_and_clean(job, "worker-1", "trainer killed by signal 9")

    def test_down_in_the_middle_of_a_job(self):
        self.start_long_job()  # tearDown checks that nothing is left


if __name__ == "__main__":
    unittest.main(verbosity=2)
