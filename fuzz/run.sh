#!/usr/bin/env bash
# Every fuzz target for SECONDS_EACH seconds (30 by default; that of whole folders twice as long) on its committed
# corpus, as many at a time as there are cores; exits non-zero on any finding. What it finds new stays in
# build/fuzz/found/<name>, which the next run begins with too.
set -euo pipefail
cd "$(dirname "$0")/.."

fuzz() {
  local name=$1 found=build/fuzz/found/$1 seconds=${SECONDS_EACH:-30} longest=65536
  [[ $name != folder ]] || { seconds=$((2 * seconds)) longest=512; }
  mkdir -p "$found"
  "build/fuzz/fuzz/${name}_fuzzer" -max_total_time="$seconds" -max_len="$longest" -print_funcs=0 -timeout=20 -entropic=0 \
    -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/$name-" \
    "$found" "fuzz/corpus/$name" >"build/fuzz/$name.log" 2>&1 || { cat "build/fuzz/$name.log"; return 1; }
  echo "==== $name, $seconds s"
  cat "build/fuzz/$name.log"
}
export -f fuzz

printf '%s\n' folder manifest record import index transform gguf | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'fuzz {}'
