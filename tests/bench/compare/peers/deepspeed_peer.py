"""DeepSpeed on CPU: ZeRO 1-3, bf16, its own fused AdamW, gloo. Without ZeRO it keeps no fp32 weights beside the bf16 ones, and learns
less from the same tokens; in one process ZeRO 1 shards nothing and keeps them."""
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import torch  # noqa: E402

import cases  # noqa: E402
import models  # noqa: E402
from harness import Peer  # noqa: E402


def configuration(peer):
    return {
        "train_batch_size": peer.config.batch,
        "train_micro_batch_size_per_gpu": peer.config.batch // peer.world,
        "gradient_clipping": cases.CLIP_NORM,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": int(peer.system.removeprefix("deepspeed-")), "overlap_comm": True, "contiguous_gradients": True},
        "optimizer": {"type": "AdamW", "params": {"lr": cases.LEARNING_RATE, "betas": list(cases.BETAS), "eps": cases.EPSILON,
                                                  "weight_decay": cases.WEIGHT_DECAY}},
        "steps_per_print": 1_000_000
    }


def main():
    peer = Peer()
    deepspeed.init_distributed(dist_backend="gloo")
    model = models.load(models.Transformer(peer.config), peer.config, peer.arguments.weights)
    engine, *_ = deepspeed.initialize(model=model, config=configuration(peer),
                                      model_parameters=models.parameter_groups(model, cases.WEIGHT_DECAY))

    def step(inputs, targets):
        loss = models.loss_of(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        return loss

    peer.run(step, {"torch": torch.__version__, "deepspeed": deepspeed.__version__})


if __name__ == "__main__":
    main()
