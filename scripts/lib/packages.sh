# Sourced by the scripts: installs missing Debian packages, all at once and with a note; looks for Rust.

packages_script=${BASH_SOURCE[0]}

note() { printf '   %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_be_root() { as_root true 2>/dev/null; }

# has TOOL: a TOOL is COMMAND, COMMAND=PACKAGE where their names differ, or =PACKAGE for a package without a command.
has() {
    case $1 in
    =*) is_installed "${1#=}" ;;
    *) command -v "${1%%=*}" >/dev/null ;;
    esac
}

# is_installed PACKAGE: or a package that provides it, as where Debian has renamed a library's package.
is_installed() {
    dpkg-query -W -f '${db:Status-Status}, ${Package}, ${Provides}\n' 2>/dev/null | awk -F ', *' -v wanted="$1" '
        $1 == "installed" { for (i = 2; i <= NF; i++) { sub(/ .*/, "", $i); if ($i == wanted) found = 1 } }
        END { exit !found }'
}

# missing TOOL...: prints the packages of the tools that are missing, one a line.
missing() {
    local tool
    for tool; do has "$tool" || echo "${tool#*=}"; done
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get install -y -qq --no-install-recommends "$@" >/dev/null </dev/null
}

# need TOOL...: installs what is missing; only one script at a time does so.
need() (
    [ -n "$(missing "$@")" ] || exit 0
    exec 8<"$packages_script"
    flock 8
    mapfile -t packages < <(missing "$@" | sort -u)
    [ ${#packages[@]} -gt 0 ] || exit 0
    command -v apt-get >/dev/null || { note "found no apt-get: install ${packages[*]} yourself"; exit 1; }
    may_be_root || { note "this needs root, or sudo without a password: as root, install ${packages[*]}"; exit 1; }
    note "installing ${packages[*]}"
    as_root apt-get update -qq >/dev/null 2>&1 || note "apt-get update failed: going on with the old package lists"
    apt_install "${packages[@]}" && exit 0
    status=0
    for package in "${packages[@]}"; do
        apt_install "$package" || { note "failed to install $package"; status=1; }
    done
    exit $status
)

# need_command COMMAND [PACKAGE]
need_command() { need "$1${2:+=$2}"; }

# need_package PACKAGE
need_package() { need "=$1"; }

# why_no_rust: prints why this tree cannot be built here, or nothing if it can.
why_no_rust() {
    local needed here
    command -v cargo >/dev/null || { echo "failed to find cargo: install Rust from https://rustup.rs"; return; }
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    here=$(cargo --version | cut -d' ' -f2)
    printf '%s\n' "$needed" "$here" | sort -CV || echo "found Rust $here, but $needed or later is needed: install it from https://rustup.rs"
}

# build_release OPTION...: builds, and shows on a terminal how far it is.
build_release() {
    local quiet=(--quiet)
    [ ! -t 2 ] || quiet=()
    cargo build "${quiet[@]}" --locked --release "$@"
}
