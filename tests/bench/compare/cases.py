"""What is compared: models, setups (how many processes, which layout) and the systems that run each. Data only."""
import dataclasses
import fnmatch

SEED = 1
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP_NORM = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int
    max_sequence_length: int
    tie_embeddings: bool
    sequence_length: int
    batch: int  # sequences of one optimizer step

    @property
    def tokens(self):
        return self.batch * self.sequence_length


GPT2 = Model("gpt2-256", "gpt2", 12, 768, 12, 12, 3072, 50304, 1024, True, 256, 8)
MODELS = {
    model.name: model
    for model in (GPT2, dataclasses.replace(GPT2, name="gpt2-1024", sequence_length=1024, batch=2),
                  Model("llama-256", "llama", 16, 768, 12, 4, 2048, 32000, 1024, False, 256, 8))
}


@dataclasses.dataclass(frozen=True)
class Setup:
    name: str
    stages: int
    replicas: int
    threads: int  # of each process
    zero: int = 0
    micro_batches: int = 1  # of each replica
    models: tuple = tuple(MODELS)
    systems: tuple = ()

    @property
    def processes(self):
        return self.stages * self.replicas

    def micro_batch(self, model):
        """Sequences; a model with few of them has fewer micro-batches."""
        return max(1, model.batch // self.replicas // self.micro_batches)


SETUPS = (
    Setup("one", 1, 1, threads=2, systems=("esteira", "torch-eager", "torch-compiled", "deepspeed-1", "llmc")),
    Setup("pipeline-2", 2, 1, threads=1, micro_batches=4, systems=("esteira", "torch-pipeline", "torch-pipeline-compiled")),
    Setup("zero-0", 1, 2, threads=1, systems=("esteira", "torch-ddp", "torch-ddp-compiled")),
    Setup("zero-1", 1, 2, threads=1, zero=1, systems=("esteira", "torch-zero1-compiled", "deepspeed-1")),
    Setup("zero-2", 1, 2, threads=1, zero=2, systems=("esteira", "torch-fsdp2", "torch-fsdp2-compiled", "deepspeed-2")),
    Setup("zero-3", 1, 2, threads=1, zero=3, systems=("esteira", "torch-fsdp2", "torch-fsdp2-compiled", "deepspeed-3")),
    Setup("pipeline-4", 4, 1, threads=1, micro_batches=8, models=("gpt2-256",), systems=("esteira", "torch-pipeline-compiled")),
    Setup("zero-2x4", 1, 4, threads=1, zero=2, models=("gpt2-256",), systems=("esteira", "torch-fsdp2-compiled", "deepspeed-2")),
)


@dataclasses.dataclass(frozen=True)
class Case:
    model: Model
    setup: Setup
    system: str

    @property
    def group(self):
        return f"{self.model.name}/{self.setup.name}"

    @property
    def name(self):
        return f"{self.group}/{self.system}"


def cases(patterns):
    """All cases whose name matches one of the patterns (as of a shell), in order."""
    everything = [Case(MODELS[name], setup, system) for setup in SETUPS for name in setup.models for system in setup.systems]
    return [case for case in everything if any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns)]
