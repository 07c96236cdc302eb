#!/usr/bin/env bash
# Installs the Debian packages that Esteira is built from and tested with, if any is missing. Idempotent.
set -euo pipefail

build_packages=(
  build-essential cmake ninja-build ccache pkg-config python3
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev libssl-dev
  libucx-dev libdnnl-dev prometheus-cpp-dev libsqlite3-dev libyaml-cpp-dev libspdlog-dev
  nlohmann-json3-dev libcli11-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
demo_packages=(bible-kjv curl)
test_packages=(python3-yaml prometheus clang-format clang-tidy procps)

packages=("${build_packages[@]}")
for group in "$@"; do
  case "$group" in
    demo) packages+=("${demo_packages[@]}") ;;
    test) packages+=("${test_packages[@]}") ;;
    *) echo "usage: $0 [demo] [test]" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -q '^installed$' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
echo "Installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
# No services are started: the packages' daemons are not needed, only their programs.
"${sudo[@]}" env RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
