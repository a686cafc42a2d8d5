#!/usr/bin/env python3
"""Checks that the header, the Rust functions, the version script and the library agree.

usage: drift.py HEADER CAPI_FOLDER VERSION_SCRIPT LIBRARY SIGNATURES_C
"""
import pathlib
import re
import subprocess
import sys

header, capi, script, library, signatures = map(pathlib.Path, sys.argv[1:])

# The C types of Rust parameters.
TYPES = {
    "*const c_char": "const char *",
    "*const Endpoint": "const struct blkin_endpoint *",
    "*mut Endpoint": "struct blkin_endpoint *",
    "*const Trace": "const struct blkin_trace *",
    "*mut Trace": "struct blkin_trace *",
    "*const TraceInfo": "const struct blkin_trace_info *",
    "*mut TraceInfo": "struct blkin_trace_info *",
    "*const PackedTraceInfo": "const struct blkin_trace_info_packed *",
    "*mut PackedTraceInfo": "struct blkin_trace_info_packed *",
    "*const Annotation": "const struct blkin_annotation *",
    "*mut Annotation": "struct blkin_annotation *",
    "*const Span": "const struct blkin_span *",
    "*mut Span": "struct blkin_span *",
    "*mut Name": "struct blkin_name *",
    "c_int": "int",
    "c_uint": "unsigned int",
    "i64": "int64_t",
}
# Functions that the older branches do not have: no compiled program looks them up with an underscore.
NEW = ("blkin_span_", "blkin_trace_", "blkin_level_", "blkin_status")
# Objects that the header's inline functions read by name.
WORDS = {"blkin_gate"}
# Parameters that Rust takes wider than the header, on purpose: see blkin_init_endpoint in capi/endpoint.rs.
WIDER = {("blkin_init_endpoint", "port"): "int16_t"}


def declared():
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
    functions = {}
    for result, name, args in re.findall(r"^(int|void) (blkin_\w+)\(([^)]*)\);", text, flags=re.M):
        args = " ".join(args.split())
        functions[name] = (result, [] if args == "void" else [normal(a) for a in args.split(", ")])
    constants = set(re.findall(r"^extern const char \*const (\w+);", text, flags=re.M))
    return functions, constants


def normal(argument):
    kind, name = re.fullmatch(r"(.*?[ *])(\w+)", argument).groups()
    return kind.strip(), name


def implemented():
    functions = {}
    pattern = r'#\[unsafe\(no_mangle\)\]\s*(?:pub\(super\) )?(?:unsafe )?extern "C" fn (\w+)\(([^)]*)\)(?: -> (\w+))?'
    for source in sorted(capi.glob("*.rs")):
        for name, args, result in re.findall(pattern, source.read_text()):
            pairs = [a.strip().split(": ") for a in args.split(",") if a.strip()]
            bare = name.removeprefix("_")
            kinds = [(WIDER.get((bare, p), TYPES[kind]), p) for p, kind in pairs]
            functions[name] = (TYPES[result] if result else "void", kinds)
    return functions


def exported():
    lines = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], check=True,
                           capture_output=True, text=True).stdout.split("\n")
    names = [line.split()[-1] for line in lines if line]
    return [name for name in names if name != "BLKIN_0"]


problems = []


def same(what, left, right):
    for name in sorted(set(left) ^ set(right)):
        problems.append(f"{what}: {name} is only in the {'first' if name in left else 'second'}")


functions, constants = declared()
if len(functions) != 26 or len(constants) != 10:
    problems.append(f"the header declares {len(functions)} functions and {len(constants)} constants, not 26 and 10")
rust = implemented()
with_aliases = {**functions, **{"_" + name: kind for name, kind in functions.items() if not name.startswith(NEW)}}
same("header and Rust", with_aliases, rust)
for name in sorted(set(with_aliases) & set(rust)):
    if with_aliases[name] != rust[name]:
        problems.append(f"{name}: the header has {with_aliases[name]}, Rust has {rust[name]}")
public = set(with_aliases) | constants | WORDS
scripted = set(re.findall(r"^\s+(_?[A-Za-z_]+);$", script.read_text(), flags=re.M))
same("header and version script", public, scripted)
same("header and library", {f"{name}@@BLKIN_0" for name in public}, exported())
same("header and signatures.c", set(functions), set(re.findall(r"= (blkin_\w+);", signatures.read_text())))

dynamic = subprocess.run(["readelf", "-dW", library], check=True, capture_output=True, text=True).stdout
for wanted in ("[libblkin.so.0]", "NODELETE", "NOW"):
    if wanted not in dynamic:
        problems.append(f"the library's dynamic section lacks {wanted}")
if "TEXTREL" in dynamic or "RPATH" in dynamic or "RUNPATH" in dynamic:
    problems.append("the library has text relocations or a run path")

print("\n".join(problems), end="\n" if problems else "")
sys.exit(bool(problems))
