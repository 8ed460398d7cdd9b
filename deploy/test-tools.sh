#!/usr/bin/env bash
# Programs that tests find on PATH. Without them those tests are skipped, or fail where CI=true.
set -euo pipefail
missing=()
for program in promtool prometheus prometheus-alertmanager; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi
packages=(prometheus prometheus-alertmanager)
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "[test-tools] missing: ${missing[*]}. As root on Debian: apt-get install --no-install-recommends ${packages[*]}" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# The packages would start their servers where an init runs; tests start their own, on loopback and for a moment.
export RUNLEVEL=1
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}"
