#!/usr/bin/env bash
# The chart on a real node: deploy/chart/kind.sh [IMAGE]    (kind and docker on PATH, IMAGE in docker: docker buildx bake cpu)
# A cluster of its own, cpu-smoke installed and ready, `helm test`, uninstalled; the cluster goes, however it ends.
set -euo pipefail
image=${1:-radiance:cpu}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
chart=$(cd "$here/../../helm" && pwd)
for program in kind docker; do
  command -v "$program" >/dev/null || {
    echo "[kind] $program is not on PATH" >&2
    exit 69
  }
done
tools=${CHART_TOOLS:-$("$here/tools.sh")}
cluster=radiance-$$
KUBECONFIG=$(mktemp)
export KUBECONFIG

finish() {
  local status=$?
  if ((status)); then
    "$tools/kubectl" get pods,events --all-namespaces --sort-by=.metadata.creationTimestamp || true
    "$tools/kubectl" logs --selector app.kubernetes.io/part-of=radiance --all-containers --prefix --tail 200 || true
  fi
  kind delete cluster --name "$cluster" || true
  rm -f "$KUBECONFIG"
  exit "$status"
}
trap finish EXIT

kind create cluster --name "$cluster" --wait 180s
kind load docker-image "$image" --name "$cluster"
"$tools/helm4" install demo "$chart" --values "$chart/ci/cpu-smoke-values.yaml" --wait --timeout 15m \
  --set "image.repository=${image%:*}" --set "image.tag=${image##*:}" --set image.pullPolicy=Never
"$tools/helm4" test demo --logs --timeout 10m
"$tools/helm4" uninstall demo --wait --timeout 5m
