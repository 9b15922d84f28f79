"""tools/thin_nccl.py on small libraries: the parts that it zeroes, the parts that it keeps, and the
files that it refuses."""

import importlib.util
import lzma
import shutil
import struct
import subprocess
import sys

import pytest
from paths import TOOLS

TOOL = TOOLS / "thin_nccl.py"
PTX, MACHINE_CODE = 1, 2


def load_tool():
    spec = importlib.util.spec_from_file_location("thin_nccl", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def image(kind, architecture, code, header=64):
    return struct.pack("<HHIQ12xI", kind, 0x101, header, len(code), architecture).ljust(header, b"\x11") + code


def fatbin(*images):
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def zeroed(data, tmp_path, architecture=90):
    path = tmp_path / "library"
    path.write_bytes(data)
    counts = tool.zero_others(path, architecture)
    return path.read_bytes(), counts


def test_thinning_a_library_keeps_the_code_of_one_gpu_architecture(tmp_path):
    def library(old, wanted, newer, ptx, alone):
        first = fatbin(image(MACHINE_CODE, 80, old), image(MACHINE_CODE, 90, wanted, header=112), image(MACHINE_CODE, 100, newer))
        second = fatbin(image(PTX, 90, ptx), image(MACHINE_CODE, 90, wanted))
        return b"text" * 5 + first + b"between" + second + fatbin(image(MACHINE_CODE, 120, alone)) + b"end"

    before = library(b"o" * 32, b"u" * 48, b"n" * 16, b"p" * 24, b"a" * 8)
    after, counts = zeroed(before, tmp_path)
    assert after == library(bytes(32), b"u" * 48, bytes(16), bytes(24), bytes(8))
    assert counts == (2 * 48, 32 + 16 + 24 + 8)


@pytest.mark.parametrize(
    "chance",
    [
        struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 8) + b"x" * 8,
        struct.pack("<IHHQ", 0xBA55ED50, 1, 24, 8) + b"x" * 16,
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40) + b"x" * 8,
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 8) + b"x" * 8,
        fatbin(image(MACHINE_CODE, 80, b"x" * 40))[:-1].replace(struct.pack("<Q", 104), struct.pack("<Q", 103)),
        fatbin(image(MACHINE_CODE, 80, b"x" * 40, header=8192)),
        fatbin(image(MACHINE_CODE, 80, b"x" * 40)).replace(struct.pack("<I", 64), struct.pack("<I", 0)),
    ],
    ids=["version", "header", "beyond the file", "no image", "image beyond its fatbin", "long header", "no header"],
)
def test_thinning_does_not_change_data_that_only_looks_like_gpu_code(tmp_path, chance):
    before = chance + fatbin(image(MACHINE_CODE, 90, b"kept")) + chance
    after, counts = zeroed(before, tmp_path)
    assert after == before and counts == (4, 0)


def test_gpu_code_is_found_after_data_that_looks_like_its_header(tmp_path):
    head = struct.pack("<IHHQ", 0xBA55ED50, 9, 9, 9)
    after, _ = zeroed(head + fatbin(image(MACHINE_CODE, 80, b"gone"), image(MACHINE_CODE, 90, b"kept")), tmp_path)
    assert b"gone" not in after and after.endswith(b"kept")


def test_library_without_code_of_the_architecture_is_rejected(tmp_path):
    data = fatbin(image(MACHINE_CODE, 80, b"x"), image(PTX, 90, b"x"), image(MACHINE_CODE, 100, b"x"))
    with pytest.raises(tool.Refused, match="no code of sm_90; it has: sm_80, sm_100$"):
        zeroed(data, tmp_path)
    assert (tmp_path / "library").read_bytes() == data
    with pytest.raises(tool.Refused, match="it has: no code of a GPU"):
        zeroed(b"nothing here", tmp_path)


SOURCE = """
__attribute__((section(".nv_fatbin"))) const volatile unsigned char fatbin[] = {%s};
int ncclGetVersion(int *version) { *version = fatbin[0] == 0x50 ? %s : 0; return 0; }
"""


def build(folder, version, data):
    folder.mkdir()
    source = folder / "library.c"
    source.write_text(SOURCE % (",".join(map(str, data)), version))
    library = folder / "libnccl.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return library


def run(*args):
    return subprocess.run([sys.executable, TOOL, *map(str, args)], capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("strip") is None, reason="needs a C compiler and strip")
class TestALibrary:
    data = fatbin(image(MACHINE_CODE, 80, b"other code"), image(MACHINE_CODE, 90, b"code to keep"))

    def test_nccl_library_is_thinned_checked_and_packed(self, tmp_path):
        library = build(tmp_path / "from", "23203", self.data)
        done = run(library, tmp_path / "to")
        assert done.returncode == 0, done.stderr
        thinned = (tmp_path / "to" / "libnccl.so.2").read_bytes()
        assert b"code to keep" in thinned and b"other code" not in thinned
        assert len(thinned) < library.stat().st_size
        assert lzma.decompress((tmp_path / "to" / "libnccl.so.2.xz").read_bytes()) == thinned
        assert done.stdout.startswith("NCCL 23203: sm_90 has") and done.stdout.count(" MiB  ") == 3
        assert b"other code" in library.read_bytes()

    def test_thinned_library_that_cannot_be_loaded_is_rejected(self, tmp_path):
        """The reported version depends on the zeroed bytes."""
        library = build(tmp_path / "from", "fatbin[80] == 'o'", self.data)
        done = run(library, tmp_path / "to")
        assert done.returncode == 1 and "says that it is 0, and" in done.stderr
        assert not (tmp_path / "to" / "libnccl.so.2.xz").exists()

    def test_other_architectures_and_in_place_output_are_rejected(self, tmp_path):
        library = build(tmp_path / "from", "23203", self.data)
        assert "no code of sm_75" in run(library, tmp_path / "to", "--sm", "75").stderr
        assert "is what would be written" in run(library, tmp_path / "from").stderr
        assert "other code" in library.read_bytes().decode("latin-1")

    def test_file_that_is_no_library_is_rejected_by_thinning(self, tmp_path):
        (tmp_path / "libnccl.so.2").write_bytes(b"no library")
        done = run(tmp_path / "libnccl.so.2", tmp_path / "to")
        assert done.returncode == 1 and "does not load" in done.stderr
