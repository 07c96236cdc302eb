#!/usr/bin/env bash
# Every source file is as clang-format would write it.
set -euo pipefail
cd "${1:-.}"
find common coordinator worker client tests \( -name '*.cc' -o -name '*.h' \) -print0 | sort -z |
  xargs -0 clang-format --dry-run --Werror
