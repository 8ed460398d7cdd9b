#!/usr/bin/env bash
# A small Python environment for the tests of the chart, without vLLM: deploy/chart/venv.sh VENV    (15 s, 200 MB)
# Does nothing if VENV is already what requirements.txt describes.
set -euo pipefail
venv=${1:?usage: deploy/chart/venv.sh VENV}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
want=$(sha256sum <"$here/requirements.txt")
if [[ -f $venv/.radiance && $(<"$venv/.radiance") == "$want" ]]; then
  exit 0
fi
echo "[chart] new environment in $venv"
rm -rf "$venv"
"${PYTHON:-python3.11}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
echo "$want" >"$venv/.radiance"
