"""PyTorch: one process, DistributedDataParallel, ZeroRedundancyOptimizer, FSDP2 and torch.distributed.pipelining."""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import cases
import models
from harness import Peer

ADAMW = {"lr": cases.LEARNING_RATE, "betas": cases.BETAS, "eps": cases.EPSILON, "fused": True}


def adamw(model):
    return torch.optim.AdamW(models.parameter_groups(model, cases.WEIGHT_DECAY), **ADAMW)


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def update(model, optimizer):
    torch.nn.utils.clip_grad_norm_(model.parameters(), cases.CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def whole_step(forward, model, optimizer):
    """A step of a model that computes loss and gradient in one go."""

    def step(inputs, targets):
        with autocast():
            loss = forward(inputs, targets)
        loss.backward()
        update(model, optimizer)
        return loss

    return step


def forward_of(model, compiled):
    def forward(inputs, targets):
        return models.loss_of(model(inputs), targets)

    return torch.compile(forward) if compiled else forward


def one(peer, compiled):
    model = models.load(models.Transformer(peer.config), peer.config, peer.arguments.weights)
    return whole_step(forward_of(model, compiled), model, adamw(model))


def ddp(peer, compiled, sharded_optimizer=False):
    model = models.load(models.Transformer(peer.config), peer.config, peer.arguments.weights)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=not compiled)
    if not sharded_optimizer:
        return whole_step(forward_of(wrapped, compiled), model, adamw(model))
    groups = models.parameter_groups(model, cases.WEIGHT_DECAY)
    optimizer = ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **ADAMW)
    return whole_step(forward_of(wrapped, compiled), model, optimizer)


def fsdp2(peer, compiled, reshard):
    model = models.load(models.Transformer(peer.config), peer.config, peer.arguments.weights)
    policy = {"mesh": init_device_mesh("cpu", (peer.world,)), "reshard_after_forward": reshard,
              "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for block in model.blocks.values():
        if compiled:
            block.compile()
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    optimizer = adamw(model)

    def step(inputs, targets):
        loss = models.loss_of(model(inputs), targets)
        loss.backward()
        update(model, optimizer)
        return loss

    return step


def pipeline(peer, compiled):
    """1F1B; a tied table's ends are added up over the first and the last stage."""
    config = peer.config
    layers, rest = divmod(config.num_layers, peer.world)
    first = peer.rank * layers + min(peer.rank, rest)
    module = models.Transformer(config, first, first + layers + (peer.rank < rest))
    models.load(module, config, peer.arguments.weights)
    if compiled:
        module.compile()
    stage = PipelineStage(module, peer.rank, peer.world, torch.device("cpu"))
    micro_batches = config.batch // peer.setup.micro_batch(config)
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=models.loss_of)
    optimizer = adamw(module)
    is_first, is_last = peer.rank == 0, peer.rank == peer.world - 1
    ends = dist.new_group([0, peer.world - 1])
    tied = config.tie_embeddings and (is_first or is_last)

    def clip():
        """One norm over all stages; a tied table counts once."""
        table = (module.embed or module.lm_head).weight if tied else None
        if tied:
            dist.all_reduce(table.grad, group=ends)
        square = sum(p.grad.float().pow(2).sum() for p in module.parameters() if not (is_last and p is table))
        dist.all_reduce(square)
        torch.nn.utils.clip_grads_with_norm_(module.parameters(), cases.CLIP_NORM, square.sqrt())

    def step(inputs, targets):
        losses = []
        with autocast():
            if is_first:
                schedule.step(inputs)
            elif is_last:
                schedule.step(target=targets, losses=losses)
            else:
                schedule.step()
        clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).mean() if losses else torch.zeros(())

    return step


def main():
    peer = Peer()
    if peer.world > 1:
        dist.init_process_group("gloo")
    compiled = peer.system.endswith("-compiled")
    kind = peer.system.removesuffix("-compiled").removeprefix("torch-").removesuffix("-eager")
    if kind == "fsdp2":
        step = fsdp2(peer, compiled, reshard=peer.setup.zero == 3)
    elif kind == "pipeline":
        step = pipeline(peer, compiled)
    elif kind in ("ddp", "zero1"):
        step = ddp(peer, compiled, sharded_optimizer=kind == "zero1")
    else:
        step = one(peer, compiled)
    peer.run(step, {"torch": torch.__version__})


if __name__ == "__main__":
    main()
