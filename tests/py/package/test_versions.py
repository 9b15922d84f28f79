"""The previous build (tests/old/) and this one must interoperate, or reject each other immediately,
in one sentence with both versions."""

import platform
import zipfile

import pytest
import version_workers
from paths import TESTS

WHEELS = list((TESTS / "old").glob("*.whl"))
pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the old build is for x86-64"),
    pytest.mark.skipif(not WHEELS, reason="the old build is not here"),
]
ORDERS = [("old", "new"), ("new", "old"), ("old", "old"), ("new", "new")]


@pytest.fixture(scope="session")
def old_build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    (wheel,) = WHEELS
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return str(folder)


@pytest.fixture
def start(procs, old_build):
    """Return start(build, worker, ...), which starts a child with that build."""

    def make(build, worker, *args, env=None):
        env = {"PYTHONPATH": old_build if build == "old" else "", **(env or {})}
        return procs.start(worker, *args, env=env)

    return make


def result_of(child, build, old_build, timeout=30):
    outcome = child.result(timeout)
    assert outcome["file"].startswith(old_build) == (build == "old"), outcome
    assert outcome["took"] < 12, outcome
    return outcome["value"]


@pytest.mark.parametrize(("server", "client"), ORDERS)
@pytest.mark.parametrize("secret", ["", "sesame"])
def test_store_and_client_must_have_the_same_version_of_dldist(start, old_build, server, client, secret):
    serving = start(server, version_workers.serve, secret)
    using = start(client, version_workers.connect, serving.recv(), secret)
    value = result_of(using, client, old_build)
    serving.send("end")
    kept = result_of(serving, server, old_build)
    if server == client:
        assert (value, kept) == ("value", b"value")
    else:
        # the server writes the sentence
        sentence = {
            "old": "the client speaks version 4 of dldist's store protocol and the server version 3: ",
            "new": "the client has version 3 of dldist's store protocol, expected 4; ",
        }[server]
        assert sentence + "install the same version of dldist on both" in value
        assert kept is None


@pytest.mark.parametrize(("one", "other"), ORDERS)
def test_file_stores_of_different_versions_have_the_same_format(start, old_build, tmp_path, one, other):
    path = str(tmp_path / "store")
    children = [start(one, version_workers.share_file, path, "a", "b"), start(other, version_workers.share_file, path, "b", "a")]
    assert result_of(children[0], one, old_build) == ["value of b", True]
    assert result_of(children[1], other, old_build) == ["value of a", True]


@pytest.mark.parametrize(("one", "other"), ORDERS)
@pytest.mark.parametrize("shm", ["1", "0"], ids=["shared memory", "TCP"])
@pytest.mark.parametrize("secret", ["", "sesame"])
def test_ranks_of_a_world_must_have_the_same_version_of_dldist(start, old_build, tmp_path, one, other, shm, secret):
    path = str(tmp_path / "store")
    env = {"DLDIST_SHM": shm, "DLDIST_SECRET": secret}
    children = [start(build, version_workers.make_world, path, rank, env=env) for rank, build in enumerate((one, other))]
    values = [result_of(child, build, old_build) for child, build in zip(children, (one, other), strict=True)]
    if one == other:
        assert values == [3.0, 3.0]
    else:
        # The old build's text is shorter.
        for rank, (build, value) in enumerate(zip((one, other), values, strict=True)):
            assert value == {
                "old": "DistNetworkError: the card of a process has version 6, known is 2",
                "new": f"DistNetworkError: rank {1 - rank}: another version of dldist: got an endpoint of version 2, expected "
                "version 6; all ranks need the same version of dldist",
            }[build], values
