#!/usr/bin/env bash
# Build an image with podman, without a registry: deploy/image/build.sh cpu|cuda|rocm PIP [PODMAN_OPTION...]
# The base is made of Debian's packages (base.sh), the wheels are fetched and checked outside (wheels.sh), so that inside
# pip needs no network. BASE_IMAGE and ROCM_IMAGE in the environment name other bases. Layers that did not change are kept.
set -euo pipefail
target=${1:?usage: deploy/image/build.sh cpu|cuda|rocm PIP [PODMAN_OPTION...]}
pip=${2:?usage: deploy/image/build.sh cpu|cuda|rocm PIP [PODMAN_OPTION...]}
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
export CONTAINERS_CONF=${CONTAINERS_CONF:-$here/containers.conf}
declare -A locks=(
  [cpu]="$root/deploy/cpu/requirements.lock $root/deploy/cpu/smollm2.lock $here/build.lock"
  [cuda]="$here/cuda.lock $here/build.lock"
  [rocm]="$here/build.lock"
)

say() { echo "[image] $* (${SECONDS} s)"; }

command -v podman >/dev/null || {
  echo "[image] podman is not on PATH: run \`make test-tools\` as root, or build with docker (docs/image.md)" >&2
  exit 1
}
say "base"
base=${BASE_IMAGE:-$("$here/base.sh")}
say "wheels"
wheels=()
for lock in ${locks[$target]}; do
  wheels+=("$("$root/deploy/wheels.sh" "$pip" "$lock")")
done
# One folder for the build: links, since the parts are shared with the virtual environment.
context=$(mktemp -d "${wheels[0]%/*}/.context-XXXXXX")
trap 'rm -rf "$context"' EXIT
cp -rlf "${wheels[@]/%//.}" "$context"
revision=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)
say "localhost/radiance:$target of $revision"
podman build --pull=never --format docker --network host --target "$target" --tag "localhost/radiance:$target" \
  --build-context "wheels=$context" --build-arg PIP_NO_INDEX=1 \
  --build-arg "BASE_IMAGE=$base" ${ROCM_IMAGE:+--build-arg "ROCM_IMAGE=$ROCM_IMAGE"} \
  --build-arg "REVISION=$revision" "$@" "$root"
say "done: $(podman image inspect --format '{{.Size}}' "localhost/radiance:$target" | numfmt --to=si)B"
