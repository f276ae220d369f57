#!/usr/bin/env bash
# Measures text generation on a GPU machine without network: `make bench-gpu`, after `make gpu-bundle` elsewhere.
#
#   scripts/bench_gpu.sh [OPTIONS OF denizen-bench gpu-text]
#
# Everything but the sources comes from the bundle: .gpu/ here, or the folder that DENIZEN_BUNDLE names. Results go to
# $OUT, or else to bench/results/local/: gpu-text.json, server.log and the printed text, whose last lines are the table.
set -eu
cd "$(dirname "$0")/.."
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
python3 -u -m denizen.bench gpu-text --out "$out" \
  --tokenizer frontend-rs/tests/assets/qwen3_5/tokenizer.json.xz "$@" 2>&1 | tee "$out/gpu-text.txt" && code=0 || code=$?
# To be put into the bundle: the next run compiles nothing.
if [ ! -f "$DENIZEN_BUNDLE/triton-cache.tgz" ]; then tar czf "$out/triton-cache.tgz" -C "$TRITON_CACHE_DIR" .; fi
exit "$code"
