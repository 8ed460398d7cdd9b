#!/usr/bin/env bash
# Print a folder that holds every wheel of a lock file: deploy/wheels.sh PIP LOCK...
# Downloaded once, checked against the lock's hashes, then shared by the virtual environment and the image.
set -euo pipefail
pip=${1:?usage: deploy/wheels.sh PIP LOCK...}
shift
: "${1:?usage: deploy/wheels.sh PIP LOCK...}"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/radiance/wheels
folder=$cache/$(cat "$@" | sha256sum | cut -c1-16)
if [[ ! -d $folder ]]; then
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.new-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  "$pip" download --quiet --no-deps --only-binary=:all: --require-hashes --dest "$work" "${@/#/--requirement=}" >&2
  chmod 755 "$work"
  mv -T "$work" "$folder"
fi
echo "$folder"
