#!/bin/sh
# Fuzz one target, or all, for so many seconds each:  shm/fuzz/run.sh [SECONDS] [TARGET …]
# Needs only a stable toolchain and a C++ compiler: these flags are what `cargo fuzz run -s none` sets.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- header descriptor attach peer
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing"
host=$(rustc -vV | sed -n 's/^host: //p')
for target; do
    mkdir -p "corpus/$target"
    # With an explicit target the flags stay away from build scripts.
    cargo run --release --target "$host" --bin "$target" -- -max_total_time="$seconds" -max_len=8192 -print_final_stats=1 "corpus/$target"
done
