#!/usr/bin/env bash
# clang-tidy over the project's own C++ sources, all cores; exits non-zero on any finding (.clang-tidy has the checks).
# Needs a configured build/cpp. Sources of the bindings are checked where the extension's build left its commands.
set -euo pipefail
cd "$(dirname "$0")/.."

check() {  # check DATABASE_FOLDER FILE...
  local database=$1
  shift
  printf '%s\0' "$@" | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy --quiet -p "$database" 2> >(grep -vE '^[0-9]+ warnings? ' >&2)
}

mapfile -t core < <(git ls-files 'cpp/*.cc' 'tests/cpp/*.cc' ':!cpp/bindings')
check build/cpp "${core[@]}"

mapfile -t bindings < <(git ls-files 'cpp/bindings/*.cc')
for database in build/cp[0-9]*/compile_commands.json; do
  [[ ${#bindings[@]} -eq 0 ]] || check "$(dirname "$database")" "${bindings[@]}"
done
echo "clang-tidy: ${#core[@]} + ${#bindings[@]} files, no findings"
