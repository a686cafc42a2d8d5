"""The machine and the software with which the figures were taken."""
import os
import platform
import subprocess
import time


def said_by(*command):
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
    except OSError:
        return ""


def cpu():
    with open("/proc/cpuinfo") as info:
        return next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), platform.machine())


def package(name):
    return said_by("dpkg-query", "-W", "-f", "${Version}", name) or "?"


def rows():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    cpuinfo = [said_by("sh", "-c", f"grep -m1 '^{key}' /proc/cpuinfo | cut -d: -f2").strip()
               for key in ("cpu family", "model\t", "stepping")]
    return [
        ("machine", f"{cpu()} (family {', model '.join(cpuinfo[:2])}), {os.cpu_count()} CPUs, {memory} GiB"),
        ("kernel, C library", f"Linux {platform.release()}, {' '.join(platform.libc_ver())}"),
        ("clock", said_by("cat", "/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        ("compilers", f"{said_by('gcc', '--version')}; {said_by('rustc', '--version')}"),
        ("peers", f"lttng-tools {package('lttng-tools')}, liblttng-ust {package('liblttng-ust-dev')}; fastrace 0.7.19; "
                  f"opentelemetry_sdk 0.33.1; BusyBox syslogd {package('busybox')}"),
        ("commit", said_by("git", "rev-parse", "--short=10", "HEAD")),
        ("taken", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
    ]
