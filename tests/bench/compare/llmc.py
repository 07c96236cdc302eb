"""llm.c's CPU program: fetched, its constants set to the case's, built, run. fp32 only, and without gradient clipping."""
import os
import re
import shutil
from pathlib import Path

import cases
from inputs import write_llmc_tokens
from processes import Failed, run_checked, run_group

REPOSITORY = "https://github.com/karpathy/llm.c"
FLAGS = ["-Ofast", "-fno-finite-math-only", "-march=native", "-fopenmp", "-DOMP", "-Wno-unused-result"]


def is_checkout(folder):
    return (folder / "train_gpt2.c").is_file() and (folder / "llmc").is_dir()


def source(folder, given):
    """A checkout: the given one, or a fresh clone."""
    if given:
        return Path(given)
    checkout = folder / "llm.c"
    if not checkout.exists():
        try:
            run_checked(["git", "clone", "-q", "--depth", "1", REPOSITORY, checkout])
        except Failed as failure:
            raise Failed(f"{REPOSITORY} cannot be fetched ({failure}); --llmc DIR takes a checkout") from failure
    return checkout


def constants(text, model, steps):
    """The program with the case's constants in place of its own, and without validation and sampling."""
    rate = f"{cases.LEARNING_RATE:g}f, {cases.BETAS[0]}f, {cases.BETAS[1]}f, {cases.EPSILON:g}f, {cases.WEIGHT_DECAY}f"
    changes = {
        "int B = 4;": f"int B = {model.batch};",
        "int T = 64;": f"int T = {model.sequence_length};",
        "step <= 40;": f"step < {steps};",
        "train_tokens, B, T, 0, 1, 1)": "train_tokens, B, T, 0, 1, 0)",  # in order, as everyone
        "if (step % 10 == 0)": "if (0)",
        "if (step > 0 && step % 20 == 0)": "if (0)",
        "1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f": rate
    }
    for old, new in changes.items():
        if text.count(old) != 1:
            raise Failed(f"llm.c has changed: {old!r} is not there exactly once")
        text = text.replace(old, new)
    return text


def build(folder, checkout, model, steps):
    work = folder / model.name / "llmc"
    shutil.copytree(checkout / "llmc", work / "llmc", dirs_exist_ok=True)
    text = (checkout / "train_gpt2.c").read_text(encoding="utf-8")
    (work / "train.c").write_text(constants(text, model, steps), encoding="utf-8")
    run_checked(["cc", *FLAGS, "-o", "train", "train.c", "-lm"], cwd=work)
    return work


def run(folder, given, python, case, inputs, log, timeout):
    if case.model.architecture != "gpt2":
        raise Failed("GPT-2 only")
    work = build(folder, source(folder, given), case.model, inputs.steps)
    writer = Path(__file__).parent / "peers" / "llmc_weights.py"
    run_checked([python, writer, case.model.name, inputs.weights, work / "gpt2_124M.bin"])
    data = work / "dev" / "data" / "tinyshakespeare"
    data.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        write_llmc_tokens(inputs, case.model, data / f"tiny_shakespeare_{name}.bin")
    command = ["sh", "-c", f"cd '{work}' && exec ./train"]
    peak = run_group([command], [dict(os.environ, OMP_NUM_THREADS=str(case.setup.threads))], log, timeout)
    steps = re.findall(r"train loss (\S+) \(took (\S+) ms\)", Path(log).read_text(encoding="utf-8"))
    return {"losses": [float(loss) for loss, _ in steps], "step_seconds": [float(ms) / 1000 for _, ms in steps],
            "processor_seconds": [], "peak_bytes": peak, "versions": {"llm.c": "fp32"}}
