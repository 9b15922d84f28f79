"""The NCCL library that is found, the communicators' configuration by version, and the errors if
there is none.

Each case has its own process.
"""

import os
import re
import subprocess
import sys

import nccl_stubs
import pytest


def run(program, environment):
    """Run a Python program with these variables; return its output."""
    environment = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


WHY = """
from dldist import _core, nccl
import dldist
assert _core._nccl_info() is None
assert not nccl.is_available()
why = nccl.why_not_available()
try:
    dldist.init_process_group("nccl", store=dldist.HashStore(), rank=0, world_size=1)
except RuntimeError as error:
    assert str(error).startswith("backend 'nccl' is unavailable: " + why) and "pip install nvidia-nccl-cu1" in str(error), (error, why)
try:
    nccl.NcclGroup(None, 0, 1)
except NotImplementedError as error:
    assert str(error) == why, (error, why)
assert not dldist.is_initialized()
print(why)
"""


def test_importing_dldist_nccl_loads_no_library():
    stubs = nccl_stubs.build()
    program = "import dldist.nccl\nfrom dldist._backends.nccl import NCCLOptions\nNCCLOptions().config.min_ctas = 1\n"
    maps = run(program + "print(open('/proc/self/maps').read())", stubs.environment())
    assert "libnccl" not in maps and "libcuda" not in maps


def test_missing_nccl_library_is_named(tmp_path):
    stubs = nccl_stubs.build()
    missing = tmp_path / "no" / "libnccl.so.2"
    why = run(WHY, {**stubs.environment(), "DLDIST_NCCL_LIBRARY": missing})
    assert str(missing) in why and "No such file" in why


def without_path(stubs):
    """Return the environment of the stubs, without a path of NCCL."""
    environment = stubs.environment()
    del environment["DLDIST_NCCL_LIBRARY"]
    return environment


def install_wheel(folder, stubs):
    """Install a stub where NVIDIA's wheel has NCCL; return the environment to import it."""
    library = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.symlink_to(stubs.nccl_path)
    python_path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return library, {**without_path(stubs), "PYTHONPATH": python_path}


def test_path_in_vllms_variable_is_the_only_one_tried(tmp_path):
    """An installed wheel must make no difference."""
    missing = tmp_path / "no" / "libnccl.so.2"
    _, environment = install_wheel(tmp_path / "site", nccl_stubs.build())
    why = run(WHY, {**environment, "VLLM_NCCL_SO_PATH": missing})
    assert re.findall(r"[^\s:;]*\.so[^\s:;]*", why.replace("cannot open shared object file", "")) == [str(missing)], why


WHICH = """
from dldist import nccl
print(nccl.library_path(), *nccl.get_version())
"""


def test_nccl_library_of_an_installed_wheel_is_found(tmp_path):
    library, environment = install_wheel(tmp_path, nccl_stubs.build())
    assert run(WHICH, environment).split() == [str(library), "2", "32", "3"]


@pytest.mark.parametrize("mode", ["RTLD_LOCAL", "RTLD_GLOBAL"])
def test_nccl_loaded_in_the_process_takes_precedence_over_a_wheel(tmp_path, mode):
    _, environment = install_wheel(tmp_path, nccl_stubs.build())
    loaded = nccl_stubs.build("2.27.3").nccl_path
    load = f"import ctypes\nlibrary = ctypes.CDLL({loaded!r}, ctypes.{mode})\n"
    assert run(load + WHICH, environment).split() == [loaded, "2", "27", "3"]


def test_file_that_is_no_library_is_rejected_as_nccl(tmp_path):
    stubs = nccl_stubs.build()
    broken = tmp_path / "libnccl.so.2"
    broken.write_text("this is no library")
    why = run(WHY, {**stubs.environment(), "DLDIST_NCCL_LIBRARY": broken})
    assert str(broken) in why and ("invalid ELF" in why or "too short" in why)


def test_library_that_is_not_nccl_is_rejected():
    stubs = nccl_stubs.build()
    why = run(WHY, {**stubs.environment(), "DLDIST_NCCL_LIBRARY": stubs.cuda_path})
    assert stubs.cuda_path in why and "nccl" in why


def test_missing_cuda_driver_is_named(tmp_path):
    stubs = nccl_stubs.build()
    missing = tmp_path / "libcuda.so.1"
    why = run(WHY, {**stubs.environment(), "DLDIST_CUDA_LIBRARY": missing})
    assert str(missing) in why and "No such file" in why


def test_missing_nccl_library_and_cuda_driver_are_both_named(tmp_path):
    """The error must name both missing libraries, so that the user finds them together."""
    driver, library = tmp_path / "libcuda.so.1", tmp_path / "libnccl.so.2"
    why = run(WHY, {**nccl_stubs.build().environment(), "DLDIST_CUDA_LIBRARY": driver, "DLDIST_NCCL_LIBRARY": library})
    assert str(driver) in why and str(library) in why and why.count("No such file") == 2, why


def test_machine_without_gpus_is_reported():
    stubs = nccl_stubs.build()
    assert "NO_DEVICE" in run(WHY, stubs.environment(devices=0))


NO_BACKEND = """
import array
import dldist
dldist.init_process_group(store=dldist.HashStore(), rank=0, world_size=1)
x = array.array("f", [3.0])
dldist.all_reduce(x)
assert x.tolist() == [3.0]
print(dldist.get_backend_config())
dldist.destroy_process_group()
"""


@pytest.mark.parametrize("devices, config", [(1, "cpu:gloo,cuda:nccl"), (0, "cpu:gloo")])
def test_default_backends_depend_on_the_available_devices(devices, config):
    assert run(NO_BACKEND, nccl_stubs.build().environment(devices=devices)).split() == [config]


CONFIG = """
import copy, pickle
import dldist
from dldist import nccl
from dldist._backends.nccl import NCCLConfig, ProcessGroupNCCL
assert nccl.is_available(), nccl.why_not_available()
config = NCCLConfig()
assert config.min_ctas is None
config.min_ctas, config.blocking, config.net_name = 2, True, "Socket"
for other in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
    assert other == config and other is not config
    other.min_ctas = 3
    assert config.min_ctas == 2
for name, value in (("min_ctas", "two"), ("min_ctas", 1.5), ("net_name", 7)):
    try:
        setattr(config, name, value)
        raise AssertionError(name)
    except TypeError as error:
        assert name in str(error)
for name in ("unknown", "nvls_ctas"):
    try:
        setattr(config, name, 1)
        print("has", name)
    except AttributeError as error:
        print(error)
options = ProcessGroupNCCL.Options(is_high_priority_stream=True)
options.config = config
for other in (copy.copy(options), copy.deepcopy(options)):
    assert other.is_high_priority_stream and other.config == config
assert copy.copy(options).config is config and copy.deepcopy(options).config is not config
dldist.init_process_group("nccl", store=dldist.HashStore(), rank=0, world_size=1, pg_options=options, device_id=None)
dldist.destroy_process_group()
"""


@pytest.mark.parametrize("version", ["2.18.1", "2.32.3"])
def test_fields_of_nccl_config_depend_on_the_nccl_version(version):
    text = run(CONFIG, nccl_stubs.build(version).environment()).splitlines()
    assert "no 'unknown'" in text[0] and "min_ctas" in text[0]
    if version == "2.18.1":
        assert "nvls_ctas needs NCCL" in text[1] and "2.18.1 is loaded" in text[1]
    else:
        assert text[1] == "has nvls_ctas"


def test_wrong_value_in_an_nccl_config_names_the_field():
    program = "\n".join(
        (
            "from dldist import _core",
            "for config in ({'unknown': 1}, {'min_ctas': 'two'}, {'net_name': 3}, {'nvls_ctas': 1}):",
            "    try:",
            "        group = _core.NcclGroup(None, 0, 1, device=0, config=config)",
            "        group.connect()",
            "        print('fine')",
            "    except Exception as error:",
            "        print(type(error).__name__, error)",
        )
    )
    lines = run(program, nccl_stubs.build("2.18.1").environment()).splitlines()
    for line, name in zip(lines, ("unknown", "min", "net", "nvlsCTAs"), strict=True):
        assert name.lower() in line.lower().replace("_", "") or name in line, line
    assert "2.18.1" in lines[3]
