"""Workers whose sandbox forbids a system call. No pytest here."""

import array
import ctypes
import errno
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import dldist
from group_workers import describe, open_group

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {"memfd_create": {"x86_64": 319, "aarch64": 279}, "sendmsg": {"x86_64": 46, "aarch64": 211}, "sysinfo": {"x86_64": 99, "aarch64": 179}}


def forbid(call, number_of_error):
    """Make a system call fail with this errno from now on, in all threads, as a seccomp profile
    does.

    Return the reason if the kernel refuses, or None.
    """
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        return f"no numbers of system calls for {machine}"
    load, equal, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | number_of_error
    steps = [(load, 0, 0, 4), (equal, 0, 3, ARCHITECTURES[machine]), (load, 0, 0, 0),
             (equal, 0, 1, NUMBERS[call][machine]), (give, 0, 0, refuse), (give, 0, 0, allow)]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    seccomp = {"x86_64": 317, "aarch64": 277}[machine]
    filter_all_threads = (1, 1)  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.syscall(seccomp, *filter_all_threads, ctypes.byref(program)) != 0:
        return os.strerror(ctypes.get_errno())
    return None


def empty_without_memfd(channel):
    world = dldist.World()
    refusal = forbid("memfd_create", errno.EPERM)
    if refusal is not None:
        return refusal
    try:
        world.empty(1024, "float32")
    except dldist.DistError as error:
        return describe(error)
    return {"text": "it works"}


def all_reduce_without_sendmsg(_channel, port, rank, size, number_of_error):
    """Forbid sendmsg on the last rank. Return each rank's error, or why there is no filter."""
    group = open_group(port, rank, size)
    began = time.monotonic()
    try:
        group.all_reduce(array.array("f", [1.0] * 1024))
        refusal = forbid("sendmsg", number_of_error) if rank == size - 1 else None
        if refusal is not None:
            return refusal
        for _ in range(3):
            group.all_reduce(group.empty(1 << 18, "float32"))
    except dldist.DistError as error:
        return {**describe(error), "seconds": time.monotonic() - began}
    return {"text": "it works"}


def objects_without_sysinfo(channel):
    refusal = forbid("sysinfo", errno.EPERM)
    if refusal is not None:
        return refusal
    os.sysconf = lambda name: -1  # the C library may return any number
    store = dldist.HashStore()

    def exchange(rank):
        with dldist.World(store=store, rank=rank, world_size=2, timeout=20) as world:
            return world.all_gather_object(f"object of {rank}")

    with ThreadPoolExecutor(2) as pool:
        gathered = list(pool.map(exchange, range(2)))
    return {"gathered": gathered}
