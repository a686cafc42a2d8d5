# Sourced by scripts/test: how many instructions a record takes, against scripts/lib/instructions.limits.
#
# Portable producer: callgrind counts 10,000 calls of each kind (valgrind has no rseq), with strings read in blocks as they are
# outside valgrind. Restartable sequences: the instructions between the symbols of each, as linked. Only counts pass or fail the
# stage; times do not.

instruction_limits=scripts/lib/instructions.limits

# count_calls PROGRAM CASE: prints the instructions of all its calls.
count_calls() {
    local said
    # The same variant of strlen() and similar functions on every CPU.
    said=$(env -u BLKIN_OFF -u RATE -u BLKIN_RATE BLKIN_SOCKET=/nonexistent BLKIN_RING_BYTES=16777216 BLKIN_STRINGS=blocks \
        GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2 \
        valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect=measured "$1" "$2" 2>&1) ||
        { echo "$said" >&2; return 1; }
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p' <<<"$said"
}

# count_portable LIBRARY_FOLDER: prints "portable/CASE COUNT" for each kind of call.
count_portable() {
    local program=$target/instructions/count loop calls name
    mkdir -p "$target/instructions"
    gcc -std=gnu11 -O2 -Wall -Werror -Iblkin-lib/include -Iblkin-lib/include/blkin blkin-lib/tests/c/count.c \
        -o "$program" -L"$1" -lblkin -Wl,-rpath,"$1" || return 1
    loop=$(count_calls "$program" none) || return 1
    for name in event integer string legacy-event legacy-many legacy-integer legacy-string legacy-unsampled; do
        calls=$(count_calls "$program" $name) || return 1
        [ "$calls" -gt "$loop" ] || { echo "$name: nothing was counted" >&2; return 1; }
        echo "portable/$name $(((calls - loop + 5000) / 10000))"
    done
}

# count_rseq LIBRARY: prints "rseq/NAME COUNT" for each pair of symbols blkin_rseq_NAME_start and _end.
count_rseq() {
    local name start end
    nm "$1" | awk '$3 ~ /^blkin_rseq_.*_(start|end)$/ {
        name = $3; edge = name ~ /_start$/ ? "start" : "end"
        sub(/^blkin_rseq_/, "", name); sub(/_(start|end)$/, "", name); at[name, edge] = "0x" $1; names[name]
    } END { for (name in names) print name, at[name, "start"], at[name, "end"] }' | sort |
        while read -r name start end; do
            echo "rseq/$name $(objdump -d --no-show-raw-insn --start-address="$start" --stop-address="$end" "$1" |
                grep -cE '^ +[0-9a-f]+:')"
        done
}

# judge_counts: reads "CASE COUNT" lines; checks each, and that no limit is left without a count. A count above its limit fails.
# For a count far below, it asks for a lower limit, so that an improvement is not lost again.
judge_counts() {
    awk -v file="$instruction_limits" '
        BEGIN { while ((getline line < file) > 0) if (split(line, word, " ") == 2 && line !~ /^#/) limit[word[1]] = word[2] }
        !($1 in limit) { printf "FAILED  %s: %d instructions, but no limit: add one to %s\n", $1, $2, file; failed++; next }
        { seen[$1] = 1 }
        $2 > limit[$1] { printf "FAILED  %s: %d instructions, at most %d are allowed\n", $1, $2, limit[$1]; failed++; next }
        { printf "ok      %s: %d instructions of %d\n", $1, $2, limit[$1]; passed++ }
        $2 < limit[$1] * 0.93 - 1 { printf "        far below: write \"%s %d\" into %s\n", $1, int($2 * 1.03 + 1), file }
        END {
            for (name in limit) if (!(name in seen)) { printf "FAILED  %s: nothing was counted\n", name; failed++ }
            printf "%d passed, %d failed\n", passed, failed
            exit failed > 0
        }'
}

check_instructions() {
    local so counts
    so=$(blkin-lib/build-so.sh --release) || return 1
    counts=$(count_portable "$(dirname "$so")" && count_rseq "$so") || return 1
    judge_counts <<<"$counts"
}
