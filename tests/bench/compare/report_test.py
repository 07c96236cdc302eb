"""The arithmetic of the comparison's tables, and that every case names a model, a setup and a system that can be run."""
import unittest

import cases
import collectives
import esteira_runner
import llmc
import processes
import report


def row(case, *runs, losses=(2.0, 1.0)):
    made = report.Row(case)
    for run in runs:
        report.add_run(made, {"step_seconds": [9.0, *run], "processor_seconds": [], "losses": list(losses), "peak_bytes": 3 << 30}, 1, 0.5)
    return made


class ReportTest(unittest.TestCase):
    def test_warm_up_does_not_count(self):
        self.assertEqual(row("m/s/esteira", [1.0, 3.0, 2.0]).median, 2.0)

    def test_ratio_compares_runs_of_one_round(self):
        ours, theirs = row("m/s/esteira", [1.0], [4.0]), row("m/s/peer", [2.0], [12.0])
        self.assertEqual(report.ratio(theirs, ours), 2.5)  # 2 and 3; the medians alone would say 2.8

    def test_a_failure_is_a_row_with_its_reason(self):
        failed = report.Row("m/s/peer", failure="ImportError: no | such thing")
        last = report.table([row("m/s/esteira", [1.0]), failed]).splitlines()[-1]
        self.assertIn("ImportError: no / such thing", last)
        self.assertEqual(last.count("|"), report.HEAD[0].count("|"))

    def test_loss_gap_is_the_largest(self):
        ours, theirs = row("m/s/esteira", [1.0]), row("m/s/peer", [1.0], losses=(2.0, 1.1))
        self.assertAlmostEqual(report.loss_gap(theirs, ours), 0.1)

    def test_rows_without_ours_have_no_ratio(self):
        self.assertNotIn("x", report.table([row("m/s/peer", [1.0])]).splitlines()[-1])

    def test_shares_are_means_of_the_steps_that_count(self):
        made = report.Row("m/s/esteira")
        step = {"step_seconds": 2.0, "op_seconds": {"F": 1.0, "R": 0.2, "W": 0.4, "I": 0.4, "STEP": 0.1, "SEND_ACT": 9.0},
                "exposed_communication_ratio": 0.125, "bubble_ratio": 0.25}
        steps = [esteira_runner.shares_of({**step, "bubble_ratio": idle}, 2) for idle in (0.9, 0.25, 0.35)]
        report.add_run(made, {"step_seconds": [2.0] * 3, "processor_seconds": [], "losses": [1.0], "peak_bytes": 1, "shares": steps}, 1, 0)
        head, _, line = report.shares([made, row("m/s/peer", [1.0])]).splitlines()
        self.assertEqual(head, "| of the ranks' time | forward | backward | optimizer | communication | idle |")
        self.assertEqual(line, "| m/s/esteira | 30.0 % | 20.0 % | 2.5 % | 12.5 % | 30.0 % |")
        self.assertEqual(report.shares([row("m/s/peer", [1.0])]), "")

    def test_a_table_of_collectives_has_reasons_too(self):
        rounds = [{"esteira": {("all_gather", 1 << 20): 1e-3}, "gloo": {("all_gather", 1 << 20): 3e-3}}]
        line, = collectives.table(2, rounds, {"mpi": "no mpicc"})
        self.assertEqual(line, "| all_gather 1 MiB | 2 | 1000 | 3000 | no mpicc | 3.00x |  |")


class CasesTest(unittest.TestCase):
    def test_batches_divide(self):
        for case in cases.cases(["*"]):
            replica = case.model.batch // case.setup.replicas
            self.assertGreaterEqual(replica, 1, case.name)
            self.assertEqual(replica % case.setup.micro_batch(case.model), 0, case.name)

    def test_every_group_has_esteira(self):
        groups = {case.group for case in cases.cases(["*"])}
        self.assertEqual(groups, {case.group for case in cases.cases(["*/esteira"])})

    def test_llmc_that_has_changed_is_refused(self):
        with self.assertRaises(processes.Failed):
            llmc.constants("int B = 8;", cases.GPT2, 4)

    def test_the_reason_is_the_exception(self):
        self.assertEqual(processes.reason("Traceback\n  x\ntorch.cuda.SomeError: why\n  warning: later\n"),
                         "torch.cuda.SomeError: why")


if __name__ == "__main__":
    unittest.main()
