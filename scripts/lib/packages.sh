# Sourced by the scripts: installs Debian packages that are missing, one by one, and says so.

note() { printf '   %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt_lists_are_fresh=
apt_install() {
    command -v apt-get >/dev/null || { note "no apt-get here: install $1 yourself"; return 1; }
    if [ -z "$apt_lists_are_fresh" ]; then
        note "apt-get update"
        as_root apt-get update -qq >/dev/null 2>&1 || note "apt-get update failed, going on with the lists as they are"
        apt_lists_are_fresh=1
    fi
    note "installing $1"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null </dev/null ||
        { note "failed to install $1"; return 1; }
}

# need_command COMMAND [PACKAGE]
need_command() {
    command -v "$1" >/dev/null || apt_install "${2:-$1}"
}

# need_package PACKAGE (for packages that bring no command: headers, modules)
need_package() {
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'install ok installed' || apt_install "$1"
}
