#!/usr/bin/env bash
# Install the Debian packages that are missing: system_packages.sh PROBE:PACKAGE ...
# A probe is a full path, a header that g++ preprocesses, or a program on the PATH.
set -euo pipefail

present() {
  case $1 in
    /*) [[ -e $1 ]] ;;
    *.h | *.hpp) echo "#include <$1>" | g++ -x c++ -std=c++20 -E -o /dev/null - 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing=()
for need in "$@"; do
  present "${need%:*}" || missing+=("${need##*:}")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! sudo -n true 2>/dev/null; then
    echo "Missing on this machine; please run: sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo -n)
fi
echo "Installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
