# Sourced by scripts/test: runs libFuzzer's targets for a short while each.

cargo_fuzz_version=0.13.2
# One allocation above this is a length that was believed before it was checked.
fuzz_limits=(-runs=20000 -max_total_time=8 -timeout=5 -malloc_limit_mb=64 -verbosity=0 -print_final_stats=1)

# cargo_fuzz_program: installs cargo-fuzz under target/tools once and prints the program's path.
cargo_fuzz_program() {
    local folder=$target/tools/cargo-fuzz-$cargo_fuzz_version
    if [ ! -x "$folder/bin/cargo-fuzz" ]; then
        note "installing cargo-fuzz $cargo_fuzz_version into $folder"
        cargo install cargo-fuzz --locked --quiet --version "$cargo_fuzz_version" --root "$folder" \
            --target-dir "$target/fuzz" >&2 || return 1
    fi
    echo "$folder/bin/cargo-fuzz"
}

# fuzz_target PROGRAM CRATE TARGET: inputs found stay in target/fuzz/corpus, one that fails in CRATE/fuzz/artifacts.
fuzz_target() {
    local corpus=$target/fuzz/corpus/$2/$3 log=$target/fuzz/$2-$3.log
    local folders=("$corpus")
    mkdir -p "$corpus"
    [ ! -d "$2/fuzz/seeds/$3" ] || folders+=("$PWD/$2/fuzz/seeds/$3")
    if (cd "$2" && "$1" run "$3" "${folders[@]}" -- "${fuzz_limits[@]}") >"$log" 2>&1; then
        note "$2/$3: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
    else
        tail -n 40 "$log"
        note "failed: $2/$3, again with: cd $2 && cargo +nightly fuzz run $3 fuzz/artifacts/$3/..."
        return 1
    fi
}

# fuzz_crates CRATE...: every target of these; the last line says how many passed and failed.
fuzz_crates() {
    local program crate name passed=0 failed=0
    program=$(cargo_fuzz_program) || return 1
    for crate; do
        note "building the targets of $crate"
        (cd "$crate" && "$program" build) >"$target/fuzz/$crate.log" 2>&1 ||
            { tail -n 40 "$target/fuzz/$crate.log"; note "failed to build the targets of $crate"; return 1; }
        for name in $(cd "$crate" && "$program" list); do
            if fuzz_target "$program" "$crate" "$name"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
        done
    done
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
