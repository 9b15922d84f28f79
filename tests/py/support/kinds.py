"""The kinds of store that the behavioural suite runs over."""

import os
from datetime import timedelta

import dldist

LOOPBACK = "127.0.0.1"
SHORT = timedelta(milliseconds=150)
LONG = timedelta(seconds=20)


class Kind:
    """One set of data, and handles on it. `features` lists the capabilities of the server."""

    features = frozenset({"queues", "list_keys", "barrier"})
    where = ()  # texts that a timeout error must contain
    own_keys = 0  # keys besides the programs' that num_keys counts

    def open(self):
        """Return a new handle on the same data."""
        raise NotImplementedError

    def close(self):
        pass


class Hash(Kind):
    def __init__(self, _directory):
        self.root = dldist.HashStore(timeout=LONG)

    def open(self):
        return self.root.clone()


class File(Kind):
    own_keys = 1

    def __init__(self, directory):
        self.path = os.path.join(directory, "store")
        self.where = (self.path,)
        self.root = self.open()

    def open(self):
        return dldist.FileStore(self.path, timeout=LONG)


class Tcp(Kind):
    def __init__(self, _directory):
        self.root = dldist.TCPStore(LOOPBACK, 0, is_master=True, timeout=LONG)
        self.where = (f"{LOOPBACK}:{self.root.port}",)

    def open(self):
        return dldist.TCPStore(LOOPBACK, self.root.port, timeout=LONG)


class TorchServer(Kind):
    use_libuv = True

    def __init__(self, _directory):
        import torch.distributed

        self.root = torch.distributed.TCPStore(
            LOOPBACK, 0, is_master=True, wait_for_workers=False, use_libuv=self.use_libuv
        )
        self.where = (f"{LOOPBACK}:{self.root.port}",)

    def open(self):
        return dldist.TCPStore(LOOPBACK, self.root.port, timeout=LONG)


class TorchLibuv(TorchServer):
    pass


class TorchPlain(TorchServer):
    use_libuv = False
    features = frozenset()


def prefixed(kind):
    class Prefixed(kind):
        def open(self):
            return dldist.PrefixStore("prefix", super().open())

    Prefixed.__name__ = "Prefix" + kind.__name__
    return Prefixed


def torch_server_features():
    """Return the features of torch's libuv server. Older versions lack list_keys and barrier."""
    import torch.distributed

    features = {"queues"}
    for name in ("list_keys", "barrier"):
        if hasattr(torch.distributed.Store, name):
            features.add(name)
    return frozenset(features)


PLAIN_KINDS = {"hash": Hash, "file": File, "tcp": Tcp}
KINDS = {**PLAIN_KINDS, **{f"prefix-{name}": prefixed(kind) for name, kind in PLAIN_KINDS.items()}}
TORCH_KINDS = {"torch-libuv": TorchLibuv, "torch-plain": TorchPlain}
