#!/usr/bin/env bash
# Everything that wants a real vLLM on a GPU, most wanted first: tests/bench/matrix.sh OUT [FOLDER]
#
# Radiance must be installed beside vLLM: workers find the plugin by its entry point. FOLDER (default /tmp/radiance-pairs)
# takes 20 GB of checkpoints. About 8 minutes on an H200 that has compiled vLLM's kernels before, 4 more with two GPUs.
set -uo pipefail
out=$(realpath -m "${1:?usage: matrix.sh OUT [FOLDER]}") folder=${2:-/tmp/radiance-pairs}
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
mkdir -p "$out"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 PYTHONHASHSEED=0 VLLM_USE_V2_MODEL_RUNNER=1
# Half of a cold start is compilation that these figures do not need; CUDA graphs stay.
graphs='"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'
failed=0

try() { # name, command...
    local name=$1
    shift
    if "$@" > "$out/$name.log" 2>&1; then echo "$name: done"; else
        failed=1
        echo "$name: FAILED, see $out/$name.log"
    fi
}

serve() { # name, folder, heads, options
    try "$1" python3 tests/bench/serve.py "$folder/$2" --method "${2/2/}" --heads "$3" --options "{$4}" \
        --json "$out/$1.json" "${@:5}"
}

try pairs python3 tests/bench/pairs.py "$folder" --kinds eagle,dflash2,mtp
try small python3 tests/bench/pairs.py "$folder/small" --kinds eagle --hidden 1024 --vocab 4096 --head-scale 0.32
if [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
    serve h200-tp2 eagle stock,fast,none "\"tensor_parallel_size\": 2, $graphs"
fi
serve h200-mtp mtp none,stock,fast,coarse "\"gdn_prefill_backend\": \"triton\", $graphs"
try distribution python3 tests/bench/distribution.py "$folder/small/eagle/target" --method eagle \
    --draft "$folder/small/eagle/draft" --options "{\"attention_backend\": \"TRITON_ATTN\", $graphs}" \
    --json "$out/h200-distribution.json"
try gpu-tests python3 -m pytest -m gpu tests/gpu
serve h200-serve eagle fp8,none,coarse,stock,fast "" --profile
serve h200-dflash2 dflash2 none,stock,fast "$graphs"
exit $failed
