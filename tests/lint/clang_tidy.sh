#!/usr/bin/env bash
# clang-tidy over the sources, by .clang-tidy, with the compile commands of the release build. A source that passed is
# read again only when it, a header of the project that it includes, or .clang-tidy has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -f build/release/compile_commands.json ] || cmake --preset release --log-level=WARNING >/dev/null
cmake --build --preset release --target esteira_proto_grpc -- --quiet  # generated headers
exec python3 tests/lint/clang_tidy.py build/release
