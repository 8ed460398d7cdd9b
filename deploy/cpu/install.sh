#!/usr/bin/env bash
# Install vLLM for the CPU into a Python environment: deploy/cpu/install.sh PYTHON [PIP_OPTION...]
# The virtual environment of the tests and the CPU image are both made by this file.
set -euo pipefail
python=${1:?usage: deploy/cpu/install.sh PYTHON [PIP_OPTION...]}
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"$python" -m pip install --no-deps --require-hashes -r "$here/requirements.lock" "$@"

# torchvision must be there (Qwen's processor imports it), and the package index has it linked to CUDA only: its missing
# operators get declared.
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cat >>"$site/torchvision/extension.py" <<'P'


if not _has_ops():  # a CUDA-built wheel beside a CPU torch: declare what _meta_registrations needs
    _declared = torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
P

stub=$(mktemp -d) # setuptools builds inside the source folder; the checkout stays clean
trap 'rm -rf "$stub"' EXIT
cp "$here/vllm-stub/pyproject.toml" "$stub"
"$python" -m pip install --no-deps --no-build-isolation "$stub"
