#!/usr/bin/env bash
# Every fuzz target for SECONDS_EACH seconds (30 by default) on its committed corpus; exits non-zero on any finding.
# What it finds new stays in build/fuzz/found/<name>, which the next run begins with too.
set -euo pipefail
cd "$(dirname "$0")/.."

for name in manifest record import index; do
  found=build/fuzz/found/$name
  mkdir -p "$found"
  echo "==== $name, ${SECONDS_EACH:-30} s"
  "build/fuzz/fuzz/${name}_fuzzer" -max_total_time="${SECONDS_EACH:-30}" -max_len=65536 -print_funcs=0 -timeout=20 \
    -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/$name-" \
    "$found" "fuzz/corpus/$name"
done
