"""The collectives of torch.distributed over gloo: a JSON object a line, as tests/bench/collectives_bench prints them.

python gloo_collectives.py BYTES[,BYTES...]; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who takes part.
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

BYTES_A_TURN, MOST_ITERATIONS, TURNS = 256 << 20, 200, 3


def operations(values, world):
    """Each acts on the whole buffer, a piece a rank, in place where gloo can."""
    pieces = values.chunk(world)
    own = pieces[dist.get_rank()]
    return {
        "all_reduce": lambda: dist.all_reduce(values),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(own, values),
        "all_gather": lambda: dist.all_gather_into_tensor(values, own.clone())
    }


def measure(run, nbytes):
    iterations = min(max(BYTES_A_TURN // nbytes, 2), MOST_ITERATIONS)
    run()
    seconds = []
    for _ in range(TURNS):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(iterations):
            run()
        seconds.append((time.perf_counter() - begin) / iterations)
    return statistics.median(seconds)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    for nbytes in map(int, sys.argv[1].split(",")):
        values = torch.full((nbytes // 4,), 1e-3)
        for name, run in operations(values, world).items():
            seconds = measure(run, nbytes)
            if dist.get_rank() == 0:
                print(json.dumps({"operation": name, "ranks": world, "bytes": nbytes, "seconds": seconds}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
