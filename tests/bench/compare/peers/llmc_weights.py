"""Writes the weights of a Hugging Face GPT-2 folder as llm.c reads them: python llmc_weights.py MODEL FOLDER OUT."""
import struct
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import cases  # noqa: E402
import models  # noqa: E402

MAGIC, VERSION = 20240326, 3
PER_LAYER = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
             "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")


def main():
    model, folder, out = cases.MODELS[sys.argv[1]], sys.argv[2], sys.argv[3]
    tensors = models.read_weights(folder)
    header = [MAGIC, VERSION, model.max_sequence_length, model.vocab_size, model.num_layers, model.num_heads, model.hidden_size,
              model.vocab_size]
    with open(out, "wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))

        def write(name, transposed=False):
            tensor = tensors[name]
            file.write((tensor.t() if transposed else tensor).to(torch.float32).contiguous().numpy().tobytes())

        write("transformer.wte.weight")
        write("transformer.wpe.weight")
        for part in PER_LAYER:
            for layer in range(model.num_layers):
                write(f"transformer.h.{layer}.{part}", transposed=".c_" in part and part.endswith("weight"))
        write("transformer.ln_f.weight")
        write("transformer.ln_f.bias")


if __name__ == "__main__":
    main()
