"""What every system of a model starts from: the same tokens in the same order and the same initial weights."""
import array
import json
import random
import struct
from pathlib import Path

import cases

CORPUS_TOKENS = 400_000
WORDS = 20_000  # of which the corpus is made; fewer than any vocabulary


def write_corpus(path):
    """Tokens with something to learn: common ones are common, and half of them follow from the token before."""
    draw = random.Random(cases.SEED)
    tokens, last = array.array("H"), 0
    for _ in range(CORPUS_TOKENS):
        last = (last * 31 + 7) % WORDS if draw.random() < 0.5 else min(WORDS - 1, int(draw.paretovariate(0.6)))
        tokens.append(last)
    path.write_bytes(tokens.tobytes())
    return tokens


def job(model, setup, steps, corpus, **changes):
    """The job file of a case, as JSON, which is YAML."""
    training = {
        "seed": cases.SEED, "steps": steps, "global_batch_size": model.batch, "micro_batch_size": setup.micro_batch(model),
        "precision": "bf16", "gradient_clip_norm": cases.CLIP_NORM, "write_sample_ids": True,
        "optimizer": {"adamw": {"learning_rate": cases.LEARNING_RATE, "beta1": cases.BETAS[0], "beta2": cases.BETAS[1],
                                "epsilon": cases.EPSILON, "weight_decay": cases.WEIGHT_DECAY}},
        "schedule": {"decay": "constant"}
    }
    spec = {
        "name": model.name,
        "model": {field: getattr(model, field) for field in
                  ("architecture", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "intermediate_size", "vocab_size",
                   "max_sequence_length", "tie_embeddings")},
        "data": {"train": [{"path": str(corpus)}], "tokenizer": "bytes", "sequence_length": model.sequence_length},
        "training": training,
        "parallelism": {"pipeline_stages": setup.stages, "replicas": setup.replicas, "zero": setup.zero,
                        "pipeline_schedule": "1f1b", "reduce_every": "all", "gather_for": "all"}
    }
    for field, value in changes.items():
        section, name = field.split("__")
        spec.setdefault(section, {})[name] = value
    return json.dumps(spec)


class Inputs:
    """The files of one model: `weights` (a Hugging Face folder) and `batches` (uint16, [steps, batch, sequence + 1])."""

    def __init__(self, folder, esteira, model, steps):
        self.weights, self.batches = folder / model.name / "weights", folder / model.name / "batches.bin"
        self.steps = steps
        self.batches.parent.mkdir(parents=True, exist_ok=True)
        corpus = folder / "corpus.bin"
        tokens = write_corpus(corpus)
        alone = cases.Setup("inputs", 1, 1, threads=2)
        with esteira.cluster(1, 2) as cluster:
            cluster.train(job(model, alone, 1, corpus, training__precision="fp32", training__global_batch_size=1,
                              training__micro_batch_size=1, training__optimizer={"adamw": {"learning_rate": 0.0}},
                              checkpoint__directory=str(folder / model.name / "checkpoint")))
            # The order of samples is the data's and the seed's, so that the smallest model tells it.
            order = cluster.train(job(model, alone, steps, corpus, model__num_layers=1, model__hidden_size=64,
                                      model__num_heads=1, model__num_kv_heads=1, model__intermediate_size=64))
        checkpoint = max((folder / model.name / "checkpoint").glob("step-*"))
        self.weights.unlink(missing_ok=True)
        self.weights.symlink_to(checkpoint)
        self._write_batches(tokens, order.samples, model.sequence_length)

    def _write_batches(self, tokens, samples, length):
        with open(self.batches, "wb") as out:
            for step in samples:
                for sample in step:
                    out.write(tokens[sample * length:sample * length + length + 1].tobytes())


def write_llmc_tokens(inputs, model, path):
    """llm.c reads one stream: the targets of a row's end are the next row's first token, so rows are laid end to end."""
    length = model.sequence_length + 1
    tokens = array.array("H", Path(inputs.batches).read_bytes())
    stream = array.array("H")
    for begin in range(0, len(tokens), length):
        stream.extend(tokens[begin:begin + length - 1])
    stream.append(0)
    path.write_bytes(struct.pack("<256i", 20240520, 1, len(stream), *[0] * 253) + stream.tobytes())
