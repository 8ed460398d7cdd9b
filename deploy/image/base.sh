#!/usr/bin/env bash
# Put a stand-in for debian:bookworm-slim into podman's storage, made of Debian's own packages: no registry is asked.
# Prints its name. The name has the hash of this file, so that a change here makes a new base.
set -euo pipefail
key=$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-12)
name=localhost/radiance-base:bookworm-$key
podman image exists "$name" && echo "$name" && exit 0

cache=${XDG_CACHE_HOME:-$HOME/.cache}/radiance/image
tar=$cache/base-$key.tar
if [[ ! -f $tar ]]; then
  mkdir -p "$cache"
  trap 'rm -f "$tar.new"' EXIT
  # The slim image's own exclusions; licences of packages stay, as there.
  mmdebstrap --quiet --format=tar --variant=minbase \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$tar.new" >&2
  mv "$tar.new" "$tar"
fi
podman import --quiet --change 'CMD ["bash"]' "$tar" "$name" >&2
echo "$name"
