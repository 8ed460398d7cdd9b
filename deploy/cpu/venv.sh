#!/usr/bin/env bash
# Build a Python environment with a CPU vLLM and this checkout in it: deploy/cpu/venv.sh VENV    (about 5 minutes, 3.5 GB)
# Does nothing if VENV is already what the files here describe. An interrupted build starts over.
set -euo pipefail
venv=${1:?usage: deploy/cpu/venv.sh VENV}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3.11}

want=$(cat "$here/venv.sh" "$here/install.sh" "$here/requirements.lock" "$here/lint.txt" "$here/vllm-stub/pyproject.toml" \
  "$root/pyproject.toml" | sha256sum)
marker=$venv/.radiance
if [[ -f $marker && $(<"$marker") == "$want $root" ]]; then
  exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Run one long step with a sign of life every 15 s; its output is shown only if it fails.
step() {
  local text=$1 begin=$SECONDS
  shift
  echo "[venv] $text"
  "$@" >"$log" 2>&1 &
  local job=$!
  while kill -0 "$job" 2>/dev/null; do
    sleep 1
    if (((SECONDS - begin) % 15 == 14)); then
      echo "[venv]   $((SECONDS - begin)) s, $(du -sm "$venv" 2>/dev/null | cut -f1) MB so far"
    fi
  done
  if ! wait "$job"; then
    cat "$log" >&2
    echo "[venv] failed: $text" >&2
    exit 1
  fi
}

command -v "$python" >/dev/null || {
  echo "[venv] $python not found: install Python 3.11 or set PYTHON=/path/to/python3.11" >&2
  exit 1
}
rm -rf "$venv"
step "new environment in $venv" "$python" -m venv "$venv"
step "downloading torch, vLLM for the CPU and what they need (0.7 GB, once)" \
  "$root/deploy/wheels.sh" "$venv/bin/pip" "$here/requirements.lock"
wheels=$("$root/deploy/wheels.sh" "$venv/bin/pip" "$here/requirements.lock")
step "installing them (3.5 GB on disk, about 4 minutes)" \
  "$here/install.sh" "$venv/bin/python" --no-index --find-links "$wheels"
step "Radiance with its test tools" "$venv/bin/pip" install --no-build-isolation -e "${root}[dev]"
step "linters" "$venv/bin/pip" install --no-deps --require-hashes -r "$here/lint.txt"
echo "[venv] ready: $("$venv/bin/vllm" --version 2>/dev/null | tail -n 1) in $venv after $SECONDS s"
echo "$want $root" >"$marker"
