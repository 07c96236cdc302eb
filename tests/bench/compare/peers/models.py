"""GPT-2 and a Llama-shaped model as a PyTorch user writes them: fused attention, names of Hugging Face checkpoints."""
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F


def attend(q, k, v, heads, kv_heads):
    """Causal attention of [batch, sequence, heads * head] tensors."""
    q, k, v = (x.unflatten(-1, (n, -1)).transpose(1, 2) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    if kv_heads != heads:
        k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Gpt2Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.attn_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.mlp_proj = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x):
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        x = x + self.attn_proj(attend(q, k, v, self.heads, self.heads))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads, self.kv_heads, self.head = config.num_heads, config.num_kv_heads, hidden // config.num_heads
        self.input_norm, self.post_norm = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        kv = self.kv_heads * self.head
        self.q_proj, self.o_proj = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = nn.Linear(hidden, kv, bias=False), nn.Linear(hidden, kv, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)
        angles = torch.outer(torch.arange(config.sequence_length).float(),
                             10000.0 ** (-torch.arange(0, self.head, 2).float() / self.head))
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def rotate(self, x, heads):
        x = x.unflatten(-1, (heads, self.head))
        cos, sin = self.cos[:, None].to(x.dtype), self.sin[:, None].to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return (x * cos + torch.cat((-right, left), dim=-1) * sin).flatten(2)

    def forward(self, x):
        normed = self.input_norm(x)
        q, k = self.rotate(self.q_proj(normed), self.heads), self.rotate(self.k_proj(normed), self.kv_heads)
        x = x + self.o_proj(attend(q, k, self.v_proj(normed), self.heads, self.kv_heads))
        normed = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Transformer(nn.Module):
    """The whole model, or the blocks of one stage with the embedding before or the head behind them."""

    def __init__(self, config, first=0, last=None):
        super().__init__()
        last = config.num_layers if last is None else last
        gpt2 = config.architecture == "gpt2"
        head = last == config.num_layers
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size) if first == 0 else None
        self.positions = nn.Embedding(config.max_sequence_length, config.hidden_size) if first == 0 and gpt2 else None
        block = Gpt2Block if gpt2 else LlamaBlock
        self.blocks = nn.ModuleDict({str(i): block(config) for i in range(first, last)})
        self.norm = (nn.LayerNorm(config.hidden_size) if gpt2 else nn.RMSNorm(config.hidden_size, eps=1e-5)) if head else None
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False) if head else None
        if config.tie_embeddings and head and first == 0:
            self.lm_head.weight = self.embed.weight

    def forward(self, x):
        if self.embed is not None:
            tokens = x
            x = self.embed(tokens)
            if self.positions is not None:
                x = x + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        return x if self.lm_head is None else self.lm_head(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def hub_name(name, architecture):
    """The checkpoint's name of a parameter, and whether it lies transposed there (GPT-2's own layers do)."""
    gpt2 = architecture == "gpt2"
    if name == "lm_head.weight":
        return name, False
    top = {"embed": "transformer.wte" if gpt2 else "model.embed_tokens", "positions": "transformer.wpe",
           "norm": "transformer.ln_f" if gpt2 else "model.norm"}
    first, rest = name.split(".", 1)
    if first != "blocks":
        return f"{top[first]}.{rest}", False
    layer, part, kind = rest.split(".")
    parts = {"c_attn": "attn.c_attn", "attn_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "mlp_proj": "mlp.c_proj",
             "input_norm": "input_layernorm", "post_norm": "post_attention_layernorm", "gate_proj": "mlp.gate_proj",
             "up_proj": "mlp.up_proj", "down_proj": "mlp.down_proj"}
    parts |= {f"{letter}_proj": f"self_attn.{letter}_proj" for letter in "qkvo"}
    prefix = "transformer.h" if gpt2 else "model.layers"
    return f"{prefix}.{layer}.{parts.get(part, part)}.{kind}", gpt2 and kind == "weight" and not part.startswith("ln_")


def read_weights(folder):
    """Every tensor of a Hugging Face folder by its name, in fp32."""
    index = Path(folder) / "model.safetensors.index.json"
    files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.exists() else ["model.safetensors"]
    tensors = {}
    for file in files:
        tensors |= load_file(Path(folder) / file)
    return {name: tensor.float() for name, tensor in tensors.items()}


def load(model, config, folder):
    """Gives `model` the weights of a folder; every parameter must be there."""
    tensors = read_weights(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            theirs, transposed = hub_name(name, config.architecture)
            if name == "lm_head.weight" and config.tie_embeddings:
                theirs = "transformer.wte.weight" if config.architecture == "gpt2" else "model.embed_tokens.weight"
            parameter.copy_(tensors[theirs].t() if transposed else tensors[theirs])
    return model


def parameter_groups(model, weight_decay):
    """Decay on matrices only."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
