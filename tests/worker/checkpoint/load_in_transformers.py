#!/usr/bin/env python3
"""Loads a checkpoint with Hugging Face's transformers, as it is.

  load_in_transformers.py FOLDER... DATA   prints each loss on the bytes of DATA in samples of the trained length, of a
                                           folder that does not know it in samples of the longest
  load_in_transformers.py --toy PROGRAM    lets write_toy_checkpoint write each toy, and compares loss, logits and tokens

Exits with 77 where torch or transformers is not installed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

torch.set_num_threads(1)  # threads wait for each other by spinning

TOYS = ["gpt2", "gpt2_untied", "llama", "llama_tied", "llama_bf16"]


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, torch_dtype=torch.float32)
    # A tied table is stored once; masks and rotation tables are no weights.
    for name in info["missing_keys"]:
        assert name == "lm_head.weight" and model.config.tie_word_embeddings, f"missing: {name}"
    assert not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


def mean_loss(folder, model, data):
    state = pathlib.Path(folder) / "trainer_state.json"
    length = (json.loads(state.read_text())["sequence_length"] if state.exists()
              else model.config.max_position_embeddings)
    count = (len(data) - 1) // length
    tokens = torch.tensor(list(data[: count * length + 1]))
    inputs = tokens[:-1].reshape(count, length)
    targets = tokens[1:].reshape(count, length)
    with torch.no_grad():
        logits = model(inputs).logits
    return torch.nn.functional.cross_entropy(logits.double().reshape(-1, logits.shape[-1]),
                                             targets.reshape(-1)).item()


def check_tokenizer(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Esteira, \n\tç é 漢字 \U0001F600  two"
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode()), ids
    assert tokenizer.decode(ids) == text, tokenizer.decode(ids)


def check_toy(program, name, directory):
    folder, evaluation, logits = subprocess.run(
        [program, name, directory], check=True, capture_output=True, text=True).stdout.splitlines()
    data = (pathlib.Path(directory) / "data.txt").read_bytes()
    model = load(folder)
    check_tokenizer(folder)
    ours = json.loads(evaluation)["loss"]
    theirs = mean_loss(folder, model, data)
    with torch.no_grad():
        their_logits = model(torch.tensor([list(data[:16])])).logits[0, -1]
    our_logits = torch.tensor([float(value) for value in logits.split()])
    difference = (their_logits - our_logits).abs().max().item()
    print(f"{name}: loss {ours:.9f} here, {theirs:.9f} in transformers; logits differ by at most {difference:.2e}")
    assert abs(ours - theirs) < 2e-5 and difference < 1e-4, name


def main():
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    if sys.argv[1] == "--toy":
        for name in TOYS:
            with tempfile.TemporaryDirectory() as directory:
                check_toy(sys.argv[2], name, directory)
        return 0
    *folders, data = sys.argv[1:]
    for folder in folders:
        print(f"loss {mean_loss(folder, load(folder), pathlib.Path(data).read_bytes()):.9f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
