"""Three CPU workers, one of them half as fast: it gets fewer layers, and the step is shorter than with equal shares."""
import json
import os
import signal
import subprocess
import unittest

from cluster import BIN, Cluster, is_running

FLOPS = 50e9
SLOW = 2


class UnevenTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(1)
        self.workers = []

    def tearDown(self):
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(timeout=20)
        left = self.cluster.close()
        assert not left, f"processes left behind: {left}"

    def start_workers(self, known):
        """Workers of which the last takes twice the time; `known`: whether it says so when it registers."""
        server = json.loads((self.cluster.directory / "cluster.json").read_text())["server"]
        for i in range(3):
            slow = i == 2
            flops = FLOPS / SLOW if slow and known else FLOPS
            self.workers.append(subprocess.Popen(
                [BIN / "esteira-worker", "--coordinator", server, "--id", f"cpu-{i}", "--threads", "1",
                 "--metrics_listen", "127.0.0.1:0", "--flops_fp32", str(flops), "--flops_bf16", str(flops),
                 "--memory_bytes_per_second", "1e12", "--slow_down", str(SLOW if slow else 1)],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        pid = self.cluster.daemon("worker-0")["pid"]
        os.kill(pid, signal.SIGTERM)
        self.cluster.until(lambda: not is_running(pid), "worker-0 ended")
        self.cluster.until(lambda: sum(f"cpu-{i}" in self.cluster.run("workers", "list").out for i in range(3)) == 3,
                           "three workers")

    def train(self):
        job = self.cluster.submit("model.num_layers=12", "model.hidden_size=192", "model.num_heads=4",
                                  "training.global_batch_size=12", "training.micro_batch_size=1", "training.steps=8",
                                  "parallelism.pipeline_stages=3", "parallelism.replicas=1", "parallelism.zero=0")
        done = self.cluster.wait(job)
        self.assertEqual(done.code, 0, done)
        steps = self.cluster.steps(job)[1:]
        # The shortest: others may use the machine too.
        return self.cluster.describe(job), min(s["step_seconds"] for s in steps), [s["loss"] for s in steps]

    def compare(self):
        """Step seconds with shares by speed over those with equal shares."""
        self.start_workers(known=True)
        job, uneven, losses = self.train()
        bounds = job["layout"]["boundaries"]
        units = [end - begin for begin, end in zip(bounds, bounds[1:])]
        slow_stage = job["workers"].index("cpu-2")
        self.assertTrue(all(units[slow_stage] < count for stage, count in enumerate(units) if stage != slow_stage), units)
        self.restart()
        self.start_workers(known=False)
        job, even, even_losses = self.train()
        bounds = job["layout"]["boundaries"]
        even_units = [end - begin for begin, end in zip(bounds, bounds[1:])]
        self.assertLessEqual(max(even_units) - min(even_units), 1, even_units)
        self.assertEqual(losses, even_losses)
        print(f"uneven {units}: {uneven:.4f} s, even {even_units}: {even:.4f} s, ratio {uneven / even:.3f}")
        return uneven / even

    def restart(self):
        self.tearDown()
        self.workers = []
        self.setUp()

    def test_the_slow_worker_gets_fewer_layers_and_the_step_is_shorter(self):
        tries = 3  # a machine that others use too may spoil one
        for _ in range(tries):
            if self.compare() < 0.9:
                return
            self.restart()
        self.fail(f"the step was not shorter in any of {tries} tries")


if __name__ == "__main__":
    unittest.main(verbosity=2)
