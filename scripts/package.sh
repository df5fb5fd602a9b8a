#!/usr/bin/env bash
# Builds a Debian package for the release of Debian that it runs on, and prints its path: installs
# what is missing, builds a preset and packs it.
#
#   scripts/package.sh                 of the release preset: any x86-64, any GPU from 8.0 on
#   scripts/package.sh quick           as the tests do
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

preset=${1:-release}
install_missing "${build_packages[@]}" "${package_packages[@]}" >&2
rm -f "build/$preset"/faststream_*.deb
cmake --preset "$preset" >&2
cmake --build --preset "$preset" --target package >&2
ls "build/$preset"/faststream_*.deb
