#!/usr/bin/env python3
"""Writes fixtures/*.txt: loss, logits and every gradient of small models, from PyTorch and Hugging Face transformers.

Needs torch >= 1.13 and transformers >= 4.31 (grouped key-value heads):  python3 make_fixtures.py
Weights are not stored: tests and this script form them by the same integer hash. GPT-2 runs in double; Llama in
single precision, which transformers' norms and softmax round to in any case.
Format, one item a line: "model name value", "tokens n v...", "targets n v...", "loss v", "valid n",
"logits n v...", "gradient NAME n v...".
"""

import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

BATCH, SEQUENCE, VOCAB = 2, 7, 37
IGNORED = -100


def fnv1a(name):
    value = 0x811C9DC5
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def uniform(name, index):
    """24 bits in [0, 1), by MurmurHash3's finaliser."""
    x = (fnv1a(name) + index * 2654435761) & 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x85EBCA6B) & 0xFFFFFFFF
    x ^= x >> 13
    x = (x * 0xC2B2AE35) & 0xFFFFFFFF
    x ^= x >> 16
    return (x >> 8) / 2**24


def is_norm_weight(name):
    return name.endswith(".weight") and ("ln_" in name or "norm" in name)


def weight(name, shape):
    count = torch.Size(shape).numel()
    center = 1.0 if is_norm_weight(name) else 0.0
    values = [center + (uniform(name, i) - 0.5) * 0.5 for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)  # fp32: what the tests hold


def gpt2(tied):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=12, n_embd=16, n_layer=2, n_head=4, n_inner=24, activation_function="gelu_new",
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, layer_norm_epsilon=1e-5, tie_word_embeddings=tied))


def llama(tied):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=tied))


def inputs():
    count = BATCH * SEQUENCE
    tokens = [int(uniform("tokens", i) * VOCAB) for i in range(count)]
    targets = [int(uniform("targets", i) * VOCAB) for i in range(count)]
    for ignored in (3, 7, 13):
        targets[ignored] = IGNORED
    return tokens, targets


def numbers(values):
    values = list(values)
    return f"{len(values)} " + " ".join(f"{v:.8g}" for v in values)


def write(path, model, dtype, description):
    model = model.to(dtype).train()
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(weight(name, parameter.shape))
    tokens, targets = inputs()
    shape = (BATCH, SEQUENCE)
    logits = model(input_ids=torch.tensor(tokens).reshape(shape)).logits
    assert logits.dtype == dtype
    loss = torch.nn.functional.cross_entropy(
        logits.double().reshape(-1, VOCAB), torch.tensor(targets), ignore_index=IGNORED, reduction="sum")
    loss.backward()
    lines = [f"model {key} {value}" for key, value in description.items()]
    lines += [f"tokens {len(tokens)} " + " ".join(map(str, tokens)),
              f"targets {len(targets)} " + " ".join(map(str, targets)),
              f"loss {loss.item():.15g}", f"valid {sum(t != IGNORED for t in targets)}",
              f"logits {numbers(logits.detach().flatten().tolist())}"]
    lines += [f"gradient {name} {numbers(parameter.grad.flatten().tolist())}" for name, parameter in named.items()]
    path.write_text("\n".join(lines) + "\n")


def main():
    folder = pathlib.Path(__file__).parent / "fixtures"
    folder.mkdir(exist_ok=True)
    for tied in (False, True):
        common = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "intermediate_size": 24, "vocab_size": VOCAB,
                  "max_sequence_length": 12, "tie_embeddings": int(tied), "norm_epsilon": 1e-5, "batch": BATCH,
                  "sequence": SEQUENCE}
        suffix = "tied" if tied else "untied"
        write(folder / f"gpt2_{suffix}.txt", gpt2(tied), torch.float64,
              {"architecture": "gpt2", "num_kv_heads": 4, **common})
        write(folder / f"llama_{suffix}.txt", llama(tied), torch.float32,
              {"architecture": "llama", "num_kv_heads": 2, "rope_theta": 100, **common})


if __name__ == "__main__":
    main()
