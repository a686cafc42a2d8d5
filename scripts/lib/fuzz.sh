# Sourced by scripts/test: runs libFuzzer's targets for a short while each.
#
# These flags are those that `cargo fuzz` (which developers run) passes to rustc; this way it need not be built first.

fuzz_triple=x86_64-unknown-linux-gnu
fuzz_flags="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
# The same inputs in each fresh clone, so that a failure is due to the change under test; BLKIN_FUZZ="SEED RUNS" tries other
# inputs, and more of them.
read -r fuzz_seed fuzz_runs <<<"${BLKIN_FUZZ:-1 20000}"
# A slow target stops after max_total_time. An allocation above the limit means that a length was trusted before it was checked.
fuzz_limits=(-seed="$fuzz_seed" -runs="$fuzz_runs" -max_total_time=$((fuzz_runs / 3000)) -timeout=5 -malloc_limit_mb=64
    -verbosity=0 -print_final_stats=1)

# build_targets CRATE: builds all of them, with little optimisation and with overflow checks.
build_targets() {
    RUSTFLAGS=$fuzz_flags CARGO_TARGET_DIR=$target/fuzz CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only \
        cargo $nightly build --locked --bins --target $fuzz_triple --manifest-path "$1/fuzz/Cargo.toml"
}

# build_all_targets CRATE...: a target replaces another crate's target of the same name.
build_all_targets() {
    local crate
    for crate; do build_targets "$crate" || return; done
}

# fuzz_target CRATE NAME: interesting inputs stay in target/fuzz/corpus, failing ones in CRATE/fuzz/artifacts.
fuzz_target() {
    local corpus=$target/fuzz/corpus/$1/$2 artifacts=$1/fuzz/artifacts/$2 log=$target/fuzz/$1-$2.log inputs
    local folders=("$corpus")
    mkdir -p "$corpus" "$artifacts"
    [ ! -d "$1/fuzz/seeds/$2" ] || folders+=("$1/fuzz/seeds/$2")
    if "$target/fuzz/$fuzz_triple/debug/$2" "${folders[@]}" -artifact_prefix="$artifacts/" "${fuzz_limits[@]}" \
        >"$log" 2>&1; then
        inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        note "$1/$2: $inputs inputs"
        # So few show nothing.
        [ "$inputs" -ge 100 ] || { note "failed: $1/$2 is too slow, or the machine is too busy"; return 1; }
    else
        tail -n 40 "$log"
        note "failed: $1/$2; to repeat it: cd $1 && cargo +nightly fuzz run $2 fuzz/artifacts/$2/..."
        return 1
    fi
}

# fuzz_crates CRATE...: runs every target of these crates, as many at once as there are CPUs; the last line says how many
# passed and failed. A crate's targets are built after those of the crate before have run, as they may have the same names.
fuzz_crates() {
    local crate source running=0 passed=0 failed=0
    mkdir -p "$target/fuzz"
    for crate; do
        note "building the fuzz targets of $crate"
        build_targets "$crate" >"$target/fuzz/$crate.log" 2>&1 ||
            { tail -n 40 "$target/fuzz/$crate.log"; note "failed to build the fuzz targets of $crate"; return 1; }
        for source in "$crate"/fuzz/fuzz_targets/*.rs; do
            [ "$running" -lt "$(nproc)" ] || fuzzed
            fuzz_target "$crate" "$(basename "$source" .rs)" &
            running=$((running + 1))
        done
        while [ "$running" -gt 0 ]; do fuzzed; done
    done
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

# fuzzed: waits until one of the running targets has ended, and counts it.
fuzzed() {
    if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    running=$((running - 1))
}
