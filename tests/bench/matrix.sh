#!/usr/bin/env bash
# What wants a real vLLM on a GPU: tests/bench/matrix.sh OUT FOLDER [JOB...]    (all jobs, in this order, unless some are named)
#
#   pairs small deep   checkpoints in FOLDER (35 GB), which the other jobs read: of full size, small, of 16 layers
#   tests sleep        tests/gpu; a real engine that sleeps
#   sanitise           the kernels under compute-sanitizer
#   distribution       what sampled drafts do to the distribution
#   mtp next dflash2   acceptance, output and speed of these drafters (Qwen3.5, Qwen3-Next, DFlash2)
#   eagle kv profile   the same of five heads; the size of the KV cache; what the GPU spends its time on
#   depth              EAGLE behind the target of 16 layers; also with 48 and 64 candidates
#   tp2                EAGLE on two GPUs
#   v026               EAGLE, where vLLM 0.26 is installed; not one of all
#   kernels portable   the draft head alone, beside its rivals; its Triton kernels
#   candidates         the same with 32, 48 and 64 candidates
#
# Radiance must be installed beside vLLM: its processes find the plugin by the entry point. Times mean something only if
# nothing else runs on the machine; `CUDA_VISIBLE_DEVICES=1 matrix.sh ... tests` beside a job on GPU 0 is for the others.
set -uo pipefail
out=$(realpath -m "${1:?usage: matrix.sh OUT FOLDER [JOB...]}") folder=$(realpath -m "${2:?usage: matrix.sh OUT FOLDER [JOB...]}")
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
mkdir -p "$out"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 PYTHONHASHSEED=0 VLLM_USE_V2_MODEL_RUNNER=1
# Half of a cold start is compilation that these figures do not need; CUDA graphs stay.
graphs='"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'
failed=0

try() { # name, command...
  local name=$1 begin=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    echo "$name: done in $((SECONDS - begin)) s"
  else
    failed=1
    echo "$name: FAILED after $((SECONDS - begin)) s, see $out/$name.log"
  fi
}

serve() { # name, pair, method, heads, options, more...
  try "$1" python3 tests/bench/serve.py "$folder/$2" --method "$3" --heads "$4" --options "{$5}" --json "$out/$1.json" "${@:6}"
}

run() { # job
  case $1 in
    pairs) try pairs python3 tests/bench/pairs.py "$folder" --kinds eagle,dflash2,mtp,qwen3_next ;;
    small) try small python3 tests/bench/pairs.py "$folder/small" --hidden 1024 --vocab 512 --head-scale 0.2 ;;
    deep) try deep python3 tests/bench/pairs.py "$folder/deep" --layers 16 ;;
    tests) try tests python3 -m pytest -q -m gpu -n 8 --ignore tests/gpu/test_sleep.py tests/gpu ;;
    sleep) try sleep python3 -m pytest -q -m gpu tests/gpu/test_sleep.py ;; # minds others that take memory
    sanitise)
      local tool=(compute-sanitizer --error-exitcode 1 --tool)
      try memcheck "${tool[@]}" memcheck --report-api-errors no python3 tests/gpu/sanitise.py
      try racecheck "${tool[@]}" racecheck python3 tests/gpu/sanitise.py
      ;;
    distribution)
      try distribution python3 tests/bench/distribution.py "$folder/small/eagle/target" --method eagle --parallel 4 \
        --draft "$folder/small/eagle/draft" --json "$out/h200-distribution.json" \
        --options "{\"attention_backend\": \"TRITON_ATTN\", \"kv_cache_memory_bytes\": 1073741824, \"gpu_memory_utilization\": 0.1, $graphs}"
      ;;
    mtp) serve h200-mtp mtp mtp none,stock,fast,coarse "\"gdn_prefill_backend\": \"triton\", $graphs" ;;
    next) serve h200-next qwen3_next mtp none,stock,fast "\"gdn_prefill_backend\": \"triton\", $graphs" ;;
    dflash2) serve h200-dflash2 dflash2 dflash none,stock,fast "$graphs" ;;
    eagle) serve h200-serve eagle eagle none,coarse,fp8,stock,fast "" ;;
    kv) serve h200-kv eagle eagle stock,fast "$graphs" --kv ;;
    profile) serve h200-serve-profile eagle eagle stock,fast,fp8 "" --profile ;;
    depth) serve h200-deep deep/eagle eagle none,stock,fp8,fast,fast:48,fast:64 "$graphs" ;;
    v026) serve h200-v026 eagle eagle none,stock,fast "$graphs" ;;
    tp2)
      serve h200-tp2 eagle eagle none,stock,fast "\"tensor_parallel_size\": 2, $graphs"
      serve h200-tp2-deep deep/eagle eagle stock,fast "\"tensor_parallel_size\": 2, $graphs" # the host has time to spare
      ;;
    kernels) try kernels python3 -m radiance.bench head --no-triton --json "$out/h200.json" ;;
    portable) try portable python3 -m radiance.bench head --no-cuda --json "$out/h200-triton.json" ;;
    candidates)
      for r in 32 48 64; do
        try "h200-rerank-$r" python3 -m radiance.bench head --rerank "$r" --shape 248320x5120 --rows 1,4,16,64 --no-triton \
          --no-rivals --json "$out/h200-rerank-$r.json"
      done
      ;;
    *)
      echo "matrix.sh: there is no job $1; those that there are: the first lines of ${BASH_SOURCE[0]}" >&2
      failed=1
      ;;
  esac
}

if (($# == 0)); then
  set -- pairs small deep tests sleep sanitise distribution mtp next dflash2 eagle depth kv profile kernels portable candidates
  if (($(nvidia-smi --list-gpus | wc -l) > 1)); then set -- "$@" tp2; fi
fi
for job; do run "$job"; done
exit "$failed"
