#!/usr/bin/env bash
# Programs that tests and `make image` find on PATH. Without them those tests are skipped, or fail where CI=true.
set -euo pipefail
declare -A package=(
  [promtool]=prometheus
  [prometheus]=prometheus
  [prometheus-alertmanager]=prometheus-alertmanager
  [amtool]=prometheus-alertmanager
  [docker-compose]=docker-compose
  [podman]=podman
  # what podman needs to build and run as root without systemd (deploy/image/containers.conf), and for `kube play`
  [runc]=runc
  [conmon]=conmon
  [buildah]=buildah
  [iptables]=iptables
  [catatonit]=catatonit
  [mmdebstrap]=mmdebstrap
  [newuidmap]=uidmap
)
packages=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || packages+=("${package[$program]}")
done
# podman's network lies where no PATH leads
[[ -x /usr/lib/podman/netavark ]] || packages+=(netavark aardvark-dns)
# mmdebstrap checks Debian's signatures; other distributions do not bring the keys
[[ -f /usr/share/keyrings/debian-archive-keyring.gpg ]] || packages+=(debian-archive-keyring)
if ((${#packages[@]} == 0)); then
  exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "[test-tools] as root on Debian: apt-get install --no-install-recommends ${packages[*]}" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# The packages would start their servers where an init runs; tests start their own, on loopback and for a moment.
export RUNLEVEL=1
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}"
