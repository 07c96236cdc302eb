#!/usr/bin/env bash
# clang-tidy over the sources, by .clang-tidy, with the compile commands of the release build.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -f build/release/compile_commands.json ] || cmake --preset release --log-level=WARNING >/dev/null
cmake --build --preset release --target esteira_proto_grpc -- --quiet  # generated headers
git ls-files 'common/*.cc' 'coordinator/*.cc' 'worker/*.cc' 'client/*.cc' |
  xargs -P "$(nproc)" -n 4 clang-tidy -p build/release --quiet
