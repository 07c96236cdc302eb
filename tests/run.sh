#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests, and closes with a line "N passed, N failed".
set -uo pipefail

usage() {
  cat <<TEXT
usage: tests/run.sh [release|dev|asan|tsan|tidy|timing ...]

Runs the tests in each named build, by default release:
  release  every test but timing      dev   the same, without optimisation
  asan     address and undefined-behaviour sanitizers over the unit, conformance and integration tests
  tsan     thread sanitizer over those of them that have threads
  tidy     clang-tidy over the tree
  timing   measured step times against theory; the machine must have nothing else to do
TEXT
}

root="$(cd "$(dirname "$0")/.." && pwd)"
cd "$root" || exit 1
builds=("$@")
[ ${#builds[@]} -gt 0 ] || builds=(release)
for build in "${builds[@]}"; do
  case "$build" in
    release | dev | asan | tsan | tidy | timing) ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

passed=0
failed=0
finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# One result that is not ctest's.
record() {
  if [ "$2" -eq 0 ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $1"
  fi
}

deploy/local/packages.sh demo test || { record "installing packages" 1; finish; exit 1; }

# Configures and builds; tests that were not built count as one failure.
build_preset() {
  local target=all
  local preset="$1"
  case "$1" in
    asan) target=esteira_tests ;;
    tsan) target=esteira_thread_tests ;;
    timing) preset=release ;;
  esac
  cmake --preset "$preset" --log-level=WARNING >/dev/null &&
    cmake --build --preset "$preset" -j "$(nproc)" --target "$target"
}

run_preset() {
  local preset="$1" report="build/$1/tests.xml" filter=()
  case "$preset" in
    asan) filter=(-L 'unit|conformance|integration' -LE timing) ;;
    tsan) filter=(-L threads) ;;
    timing) preset=release report="build/release/tests.xml" filter=(-L timing) ;;
    *) filter=(-LE timing) ;;
  esac
  rm -f "$report"
  ctest --preset "$preset" -j "$(nproc)" "${filter[@]}" --output-junit "$root/$report" --no-tests=error
  if [ ! -s "$report" ]; then
    record "ctest of $preset" 1
    return
  fi
  local total failures
  total=$(grep -o 'tests="[0-9]*"' "$report" | head -n 1 | tr -dc 0-9)
  failures=$(grep -o 'failures="[0-9]*"' "$report" | head -n 1 | tr -dc 0-9)
  local skipped
  skipped=$(grep -o 'skipped="[0-9]*"' "$report" | head -n 1 | tr -dc 0-9)
  [ "${skipped:-0}" -eq 0 ] || echo "$skipped tests of $preset were skipped, with their reasons above"
  passed=$((passed + total - failures - ${skipped:-0}))
  failed=$((failed + failures))
}

for build in "${builds[@]}"; do
  echo "== $build"
  if [ "$build" = tidy ]; then
    tests/lint/clang_tidy.sh
    record "clang-tidy" $?
  elif build_preset "$build"; then
    run_preset "$build"
  else
    record "building $build" 1
  fi
done
finish
