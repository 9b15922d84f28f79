#!/usr/bin/env python3
"""Compare dldist's declarations of NCCL and the CUDA driver with nccl.h and cuda.h.

    tools/check_nccl.py [--nccl FILE] [--cuda FILE]

The declarations are in csrc/nccl/driver/lib_api.h and cuda_api.h. Without arguments, headers are
searched for in the usual places; a missing one is reported and is not an error. A header of an
older version is compared with the declarations that dldist's lists have for that version. Values,
sizes, offsets and prototypes become assertions in a C file that $CC compiles.
"""
from __future__ import annotations

import argparse
import glob
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CC = shlex.split(os.environ.get("CC", "gcc"))  # may have arguments, such as "ccache gcc"
SHOWN = 30

# dldist's types and NCCL's, in prototypes.
NCCL_TYPES = {
    "dd_nccl_result": "ncclResult_t",
    "dd_nccl_dtype": "ncclDataType_t",
    "dd_nccl_redop": "ncclRedOp_t",
    "dd_nccl_scalar_residence": "ncclScalarResidence_t",
    "dd_nccl_mem_stat": "ncclCommMemStat_t",
    "dd_nccl_comm_handle": "ncclComm_t",
    "dd_nccl_window": "ncclWindow_t",
    "dd_nccl_unique_id": "ncclUniqueId",
    "dd_nccl_abi_config": "ncclConfig_t",
    "dd_nccl_abi_coll_config": "ncclCollConfig_t",
    "dd_nccl_sim_info": "ncclSimInfo_t",
    "dd_nccl_abi_encryption": "ncclEncryptionConfig_t",
    "dd_nccl_signal_wait": "ncclWaitSignalDesc_t",
    "dd_nccl_abi_properties": "ncclCommProperties_t",
    "dd_cuda_stream": "cudaStream_t",
    "dd_cuda_event": "cudaEvent_t",
}
CUDA_TYPES = {
    "dd_cuda_result": "CUresult",
    "dd_cuda_device": "CUdevice",
    "dd_cuda_ptr": "CUdeviceptr",
    "dd_cuda_memory_handle": "CUmemGenericAllocationHandle",
    "dd_cuda_context": "CUcontext",
    "dd_cuda_stream": "CUstream",
    "dd_cuda_event": "CUevent",
    "dd_cuda_module": "CUmodule",
    "dd_cuda_function": "CUfunction",
    "dd_cuda_capture_status": "CUstreamCaptureStatus",
    "dd_cuda_capture_mode": "CUstreamCaptureMode",
    "dd_cuda_device_attribute": "CUdevice_attribute",
    "dd_cuda_memory_type": "CUmemorytype",
    "dd_cuda_copy_2d": "CUDA_MEMCPY2D_v2",
    "dd_cuda_pool": "CUmemoryPool",
    "dd_cuda_location": "CUmemLocation",
    "dd_cuda_pool_props": "CUmemPoolProps",
    "dd_cuda_access": "CUmemAccessDesc",
}
CUDA_STRUCTS = ("dd_cuda_copy_2d", "dd_cuda_location", "dd_cuda_pool_props", "dd_cuda_access")
# Structs that are not generated from a list: dldist's name, first version.
PLAIN_STRUCTS = {"dd_nccl_sim_info": 22203, "dd_nccl_abi_encryption": 23203, "dd_nccl_signal_wait": 22902,
                 "dd_nccl_abi_properties": 23203}
TYPE_SINCE = {"ncclCommMemStat_t": 22907, "ncclWindow_t": 22703, "ncclCollConfig_t": 23102, "ncclSimInfo_t": 22203,
              "ncclEncryptionConfig_t": 23203, "ncclWaitSignalDesc_t": 22902,
              "ncclCommProperties_t": 23203}
# Functions of nccl_device/host.h, which is C since 2.32.3. They are older, but cannot be compared
# with older headers.
DEVICE_FUNCTIONS = {"ncclCommQueryProperties": 23203}

# nccl.h needs the runtime's headers only for these names.
SHIM = """
#include <stddef.h>
#define CUDART_VERSION 12000
#define __CUDA_BF16_TYPES_EXIST__ /* of older ones, for ncclBfloat16 */
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
"""
# nccl_device/host.h needs this name from cuda.h, for a struct that dldist does not declare.
CUDA_SHIM = "typedef int CUmemLocationType;"

LISTS = r"""
#include "nccl/driver/lib_api.h"
#define VALUE_(prefix, name, theirs, since) @value prefix##name|theirs|since@
#define V(name, value, theirs, since) VALUE_(DD_NCCL_, name, #theirs, since)
#define V_DTYPE(name, value, theirs, since) VALUE_(DD_NCCL_DTYPE_, name, #theirs, since)
#define V_SCALAR(name, value, theirs, since) VALUE_(DD_NCCL_SCALAR_, name, #theirs, since)
#define V_STAT(name, value, theirs, since) VALUE_(DD_NCCL_MEM_STAT_, name, #theirs, since)
DD_NCCL_RESULT_LIST(V) DD_NCCL_REDOP_LIST(V) DD_NCCL_CONSTANT_LIST(V)
DD_NCCL_DTYPE_LIST(V_DTYPE) DD_NCCL_SCALAR_LIST(V_SCALAR) DD_NCCL_MEM_STAT_LIST(V_STAT)
#define F(name, alias, since, type) @field dd_nccl_abi_config|name|since@
DD_NCCL_CONFIG_FIELDS(F)
#undef F
#define F(name, alias, since, type) @field dd_nccl_abi_coll_config|name|since@
DD_NCCL_COLL_CONFIG_FIELDS(F)
#define R(name, since, returns, params) @function name|since|returns|params@
#define O(name, since, returns, params, capability) @function name|since|returns|params@
DD_NCCL_REQUIRED(R) DD_NCCL_OPTIONAL(O)
@known DD_NCCL_VERSION_KNOWN@
#define CV_(prefix, name, theirs) @cuvalue prefix##name|theirs@
#define CV(name, value, theirs) CV_(DD_CUDA_, name, #theirs)
#define CV_STATUS(name, value, theirs) CV_(DD_CUDA_CAPTURE_, name, #theirs)
#define CV_MODE(name, value, theirs) CV_(DD_CUDA_CAPTURE_MODE_, name, #theirs)
#define CV_DEVICE(name, value, theirs) CV_(DD_CUDA_DEVICE_, name, #theirs)
#define CV_MEMORY(name, value, theirs) CV_(DD_CUDA_MEMORY_, name, #theirs)
DD_CUDA_RESULT_LIST(CV) DD_CUDA_FLAG_LIST(CV) DD_CUDA_CAPTURE_STATUS_LIST(CV_STATUS)
DD_CUDA_CAPTURE_MODE_LIST(CV_MODE) DD_CUDA_DEVICE_ATTRIBUTE_LIST(CV_DEVICE)
DD_CUDA_MEMORY_TYPE_LIST(CV_MEMORY)
#define C(name, symbol, params) @cufunction symbol|params@
DD_CUDA_REQUIRED(C) DD_CUDA_OPTIONAL(C)
"""


def read_lists() -> dict[str, list[list[str]]]:
    """Return the rows of dldist's X-lists, by kind."""
    command = [*CC, "-E", "-P", "-x", "c", f"-I{ROOT / 'csrc'}", "-"]
    text = subprocess.run(command, input=LISTS, capture_output=True, text=True, check=True).stdout
    rows: dict[str, list[list[str]]] = {}
    for kind, body in re.findall(r"@(\w+) (.*?)@", text, re.S):
        rows.setdefault(kind, []).append([" ".join(part.split()).strip('"') for part in body.split("|")])
    return rows


def theirs(text: str, types: dict[str, str]) -> str:
    return re.sub(r"\bdd_\w+", lambda match: types[match[0]], text)


class Check:
    """Assertions for one header."""

    def __init__(self, includes: str):
        self.lines = [includes, '#include "nccl/driver/lib_api.h"', "#include <stddef.h>"]
        self.counts = {"values": 0, "sizes": 0, "offsets": 0, "prototypes": 0}

    def claim(self, kind: str, condition: str, text: str) -> None:
        self.counts[kind] += 1
        self.lines.append(f'_Static_assert({condition}, "{text}");')

    def value(self, ours: str, name: str) -> None:
        self.claim("values", f"(long long)({ours}) == (long long)({name})", f"{ours} is {name}")

    def size(self, ours: str, name: str) -> None:
        self.claim("sizes", f"sizeof({ours}) == sizeof({name})", f"sizeof {ours} is sizeof {name}")

    def field(self, ours: str, struct: str, name: str) -> None:
        self.claim("offsets", f"offsetof({ours}, {name}) == offsetof({struct}, {name})", f"offset of {name} in {struct}")
        self.claim("sizes", f"sizeof((({ours} *)0)->{name}) == sizeof((({struct} *)0)->{name})", f"size of {name} in {struct}")

    def prototype(self, name: str, pointer: str) -> None:
        self.claim("prototypes", f"__builtin_types_compatible_p(__typeof__(&{name}), {pointer})", f"prototype of {name}")

    def compile(self, folders: list[Path]) -> str:
        """Return the compiler's errors, or ""."""
        with tempfile.TemporaryDirectory() as scratch:
            for name in ("cuda_runtime.h", "cuda.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"):
                text = {"cuda_runtime.h": SHIM, "cuda.h": CUDA_SHIM}.get(name, "")
                (Path(scratch) / name).write_text(text, encoding="utf-8")
            source = Path(scratch) / "check.c"
            source.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
            command = [*CC, "-std=gnu11", "-fsyntax-only", "-w", f"-I{ROOT / 'csrc'}", f"-I{scratch}"]
            command += [f"-I{folder}" for folder in folders]
            done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
            return done.stderr if done.returncode != 0 else ""

    def report(self, header: Path, version: str, folders: list[Path]) -> bool:
        complaints = self.compile(folders)
        said = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        print(f"{header} ({version}): {'DIFFERS' if complaints else 'agrees'}: {said}")
        for line in [line for line in complaints.splitlines() if "error" in line][:SHOWN]:
            print("   ", line)
        return not complaints


def number_in(header: Path, macro: str) -> int:
    match = re.search(rf"#define\s+{macro}\s+(\d+)", header.read_text(encoding="utf-8", errors="replace"))
    if match is None:
        raise SystemExit(f"{header} does not define {macro}")
    return int(match[1])


def check_nccl(header: Path, rows: dict[str, list[list[str]]]) -> bool:
    version = number_in(header, "NCCL_VERSION_CODE")
    known = int(rows["known"][0][0])
    device = header.parent / "nccl_device" / "host.h"
    check = Check(f'#define NCCL_OS_LINUX\n#include "{header}"' + (f'\n#include "{device}"' if device.exists() else ""))
    for ours, name, since in rows["value"]:
        if int(since) <= version:
            check.value(ours, name)
    for ours, name in NCCL_TYPES.items():
        is_list = ours.endswith(("_config", "_coll_config"))
        if TYPE_SINCE.get(name, 0) <= version and (version == known or not is_list):
            check.size(ours, name)
    for ours, name, since in rows["field"]:
        struct = NCCL_TYPES[ours]
        if max(int(since), TYPE_SINCE.get(struct, 0)) <= version:
            check.field(ours, struct, name)
    for ours, since in PLAIN_STRUCTS.items():
        if since <= version:
            for name in fields_of(ours):
                check.field(ours, NCCL_TYPES[ours], name)
    for name, since, returns, params in rows["function"]:
        if max(int(since), DEVICE_FUNCTIONS.get(name, 0)) <= version:
            check.prototype(name, f"{theirs(returns, NCCL_TYPES)} (*){theirs(params, NCCL_TYPES)}")
    return check.report(header, f"{version // 10000}.{version // 100 % 100}.{version % 100}", [header.parent])


def fields_of(struct: str) -> list[str]:
    """Return the members of a plain struct of lib_api.h or cuda_api.h."""
    for header in ("lib_api.h", "cuda_api.h"):
        text = (ROOT / "csrc/nccl/driver" / header).read_text(encoding="utf-8")
        match = re.search(rf"typedef struct {struct} \{{(.*?)\}}", text, re.S)
        if match is not None:
            return re.findall(r"(\w+)(?:\[\d+\])?;", match[1])
    raise SystemExit(f"no struct {struct}")


def check_cuda(header: Path, rows: dict[str, list[list[str]]]) -> bool:
    version = number_in(header, "CUDA_VERSION")
    # Declares every version of a function under its symbol's name.
    check = Check(f'#define __CUDA_API_VERSION_INTERNAL\n#include "{header}"')
    for ours, name in rows["cuvalue"]:
        check.value(ours, name)
    for ours, name in CUDA_TYPES.items():
        check.size(ours, name)
    for ours in CUDA_STRUCTS:
        for name in fields_of(ours):
            check.field(ours, CUDA_TYPES[ours], name)
    for symbol, params in rows["cufunction"]:
        check.prototype(symbol, f"CUresult (*){theirs(params, CUDA_TYPES)}")
    return check.report(header, f"{version // 1000}.{version % 1000 // 10}", [header.parent])


def find_header(name: str) -> Path | None:
    folders = [f"{os.environ[variable]}/include" for variable in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(variable)]
    folders += ["/usr/local/cuda/include", *sorted(glob.glob("/usr/local/cuda-*/include"), reverse=True), "/usr/include"]
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}:
        folders += sorted(glob.glob(f"{site}/nvidia/*/include"))
    return next((path for folder in folders if (path := Path(folder) / name).is_file()), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nccl", type=Path, help="nccl.h")
    parser.add_argument("--cuda", type=Path, help="cuda.h")
    options = parser.parse_args()
    rows = read_lists()
    is_good = True
    for name, given, check in (("nccl.h", options.nccl, check_nccl), ("cuda.h", options.cuda, check_cuda)):
        header = given or find_header(name)
        if header is None:
            print(f"{name}: not compared, as it is not installed")
            continue
        is_good = check(header.resolve(), rows) and is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
