"""What every Python peer shares: its arguments, its tokens, the timed loop, the record of what came out."""
import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import cases  # noqa: E402


class Peer:
    """One rank of a peer. `setup` and `config` are what is run, `rank` and `world` this process's place."""

    def __init__(self):
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("case", help="model/setup/system")
        parser.add_argument("--weights", required=True)
        parser.add_argument("--batches", required=True)
        parser.add_argument("--result", required=True)
        self.arguments = parser.parse_args()
        case, = cases.cases([self.arguments.case])
        self.config, self.setup, self.system = case.model, case.setup, case.system
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(self.setup.threads)
        torch.manual_seed(cases.SEED)
        shape = (-1, self.config.batch, self.config.sequence_length + 1)
        self.batches = torch.from_numpy(numpy.fromfile(self.arguments.batches, dtype=numpy.uint16).astype(numpy.int64)).view(shape)

    def samples(self, step):
        """This replica's inputs and targets."""
        rows = self.batches[step]
        if self.setup.replicas > 1:
            rows = rows.chunk(self.setup.replicas)[self.rank]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def mean(self, loss):
        """Over the replicas."""
        loss = loss.detach().clone().float()
        if self.setup.replicas > 1:
            dist.all_reduce(loss)
            loss /= self.world
        return float(loss)

    def total(self, value):
        """Over all ranks."""
        value = torch.tensor(value, dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(value)
        return float(value)

    def run(self, step, versions):
        """Times `step(inputs, targets)`, which trains once and returns this rank's loss, over all batches."""
        losses, seconds, processor = [], [], []
        for number in range(len(self.batches)):
            inputs, targets = self.samples(number)
            if self.world > 1:
                dist.barrier()
            begin, processor_begin = time.perf_counter(), time.process_time()
            loss = step(inputs, targets)
            seconds.append(time.perf_counter() - begin)
            processor.append(self.total(time.process_time() - processor_begin))
            losses.append(self.mean(loss) if self.setup.stages == 1 else float(loss))
        if self.rank == self.world - 1:  # the last stage knows the loss
            record = {"losses": losses, "step_seconds": seconds, "processor_seconds": processor, "versions": versions}
            Path(self.arguments.result).write_text(json.dumps(record), encoding="utf-8")
        if self.world > 1:
            dist.barrier()
            dist.destroy_process_group()
