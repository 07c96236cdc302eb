#!/usr/bin/env bash
# Trains a small GPT-2 on real text across four worker processes (two pipeline stages by two replicas, ZeRO 2), then
# samples from the checkpoint. Needs nothing but a Debian 12 system; stops all that it started.
set -euo pipefail

usage() {
  cat <<TEXT
usage: deploy/local/demo.sh [TEXT_FILE]

Installs what is missing, builds, starts a cluster on this machine, trains a byte-level GPT-2 on TEXT_FILE (by default
the King James Bible, from Debian's package bible-kjv), shows its progress, and prints the validation loss, a sample of
generated text, and where the checkpoint and the metrics are. The results stay in build/demo.
TEXT
}
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
if [ -n "${1:-}" ] && [ ! -r "$1" ]; then
  echo "demo.sh: cannot read $1" >&2
  exit 2
fi
text_file="${1:+$(realpath "$1")}"

root="$(cd "$(dirname "$0")/../.." && pwd)"
cd "$root"
deploy/local/packages.sh demo
echo "== Building (the first time takes several minutes)"
cmake --preset release --log-level=WARNING >/dev/null
cmake --build --preset release --target esteira esteira-coordinator esteira-worker -j "$(nproc)"
export PATH="$root/build/release/bin:$PATH"

out="$root/build/demo"
mkdir -p "$out"
cluster="$(mktemp -d "$out/cluster.XXXXXX")"
cleanup() {
  esteira local down --dir "$cluster" >/dev/null 2>&1 || true
  rm -rf "$cluster"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

corpus="$out/corpus.txt"
if [ -n "$text_file" ]; then
  cp "$text_file" "$corpus"
else
  # One verse a line, without its number.
  bible -f 'Gen1:1-Rev22:21' </dev/null | sed -E 's/^[0-9A-Za-z]+:[0-9]+ //' >"$corpus"
fi
size=$(stat -c %s "$corpus")
minimum=100000
if [ "$size" -lt "$minimum" ]; then
  echo "demo.sh: the text has $size bytes; at least $minimum are needed to train on and to validate" >&2
  exit 2
fi
# The last twentieth is held out.
held_out=$((size / 20))
head -c $((size - held_out)) "$corpus" >"$out/train.txt"
tail -c "$held_out" "$corpus" >"$out/validation.txt"
echo "== Corpus: $size bytes, $held_out of them held out"

echo "== Starting a coordinator and four workers"
esteira local up --workers 4 --threads 1 --dir "$cluster"

cp "$root/deploy/local/demo.yaml" "$out/demo.yaml"
rm -rf "$out/checkpoints"
echo "== Training"
if ! esteira submit -f "$out/demo.yaml" --follow; then
  job="$(esteira list | awk 'NR == 2 {print $1}')"
  esteira describe "$job"
  esteira logs "$job" --tail 20
  exit 1
fi

checkpoint="$(ls -d "$out"/checkpoints/step-* | tail -n 1)"
echo
echo "== Validation loss (nats a byte)"
esteira evaluate "$checkpoint" --data "$out/validation.txt"
echo
echo "== A sample"
esteira generate "$checkpoint" --prompt "And the LORD said" --tokens 300 --temperature 0.7 --seed 1
echo
echo "== Where things are"
echo "checkpoint  $checkpoint (Hugging Face transformers loads it as it is)"
metrics="$(esteira local status --dir "$cluster" | awk '$1 == "coordinator" {print $4}')"
echo "metrics     $metrics while the cluster is up, for example:"
curl -fsS "$metrics" | grep -E '^esteira_(jobs|workers|steps_total|tokens_total)' | head -12 | sed 's/^/            /'
echo "The cluster is stopped now; start one of your own with: build/release/bin/esteira local up --workers 4"
