#!/usr/bin/env bash
# Measures a GPU machine without network: `make bench-gpu`, after `make gpu-bundle` elsewhere.
#
#   scripts/bench_gpu.sh [text] [OPTIONS OF denizen-bench gpu-text]
#   scripts/bench_gpu.sh asr [OPTIONS OF denizen-bench gpu-asr]
#
# Everything but the sources comes from the bundle: .gpu/ here, or the folder that DENIZEN_BUNDLE names. Results go to
# $OUT, or else to bench/results/local/: result.json, what is drawn from it, server.log and the printed tables.
set -eu
cd "$(dirname "$0")/.."
kind=text
case ${1:-} in text | asr) kind=$1 && shift ;; esac
case $kind in text) tokenizer=qwen3_5 ;; asr) tokenizer=whisper_v3 ;; esac
export DENIZEN_BUNDLE=${DENIZEN_BUNDLE:-$PWD/.gpu}
if [ ! -f "$DENIZEN_BUNDLE/env.sh" ]; then
  echo "no bundle at $DENIZEN_BUNDLE: run make gpu-bundle where there is a network, and bring .gpu/ along" >&2
  exit 2
fi
# shellcheck source=/dev/null
. "$DENIZEN_BUNDLE/env.sh"
set -o pipefail  # from here on: env.sh takes first lines with head
out=${OUT:-bench/results/local}
mkdir -p "$out"
python3 -u -m denizen.bench "gpu-$kind" --out "$out" \
  --tokenizer "frontend-rs/tests/assets/$tokenizer/tokenizer.json.xz" "$@" 2>&1 | tee "$out/gpu-$kind.txt" && code=0 || code=$?
# To be put into the bundle: the next run compiles nothing.
if [ ! -f "$DENIZEN_BUNDLE/triton-cache.tar.xz" ]; then
  cache=$(realpath "$out")/triton-cache.tar.xz
  (cd "$TRITON_CACHE_DIR" && python3 -m tarfile -c "$cache" .)
fi
exit "$code"
