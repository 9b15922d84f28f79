"""DLPack tensors made with ctypes, with any field values, and a count of deleter calls."""

import ctypes

CPU, CUDA, CUDA_HOST, ROCM = 1, 2, 3, 10
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL, FLOAT8_E4M3FN, FLOAT8_E5M2 = 0, 1, 2, 4, 5, 6, 10, 12
READ_ONLY, IS_COPIED = 1, 2

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class ExchangeAPI(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export", ctypes.c_void_p),
        ("import_", ctypes.c_void_p),
        ("view", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


def capsule_name(capsule):
    return _api.PyCapsule_GetName(capsule).decode()


def capsule(pointer, name, keep):
    """Make a capsule. `keep` holds its name, because a capsule only points to it."""
    text = ctypes.create_string_buffer(name.encode())
    keep.append(text)
    return _api.PyCapsule_New(pointer, ctypes.cast(text, ctypes.c_char_p), None)


class Producer:
    """An object with __dlpack__. Its capsules have no destructor: for an unconsumed capsule the
    count stays 0."""

    version = (1, 0)  # None: a capsule of DLPack 0
    knows_keywords = True
    has_deleter = True

    def __init__(self, memory, shape, strides=None, dtype=(FLOAT, 32), **fields):
        self.memory = memory  # bytearray, or None
        self.deleted = 0
        self.capsules = []
        self.requested = []
        self._keep = []
        self._tensor = {
            "data": None if memory is None else ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory)),
            "device_type": CPU,
            "ndim": len(shape),
            "code": dtype[0],
            "bits": dtype[1],
            "lanes": 1,
            "shape": (ctypes.c_int64 * len(shape))(*shape),
            "strides": None if strides is None else (ctypes.c_int64 * len(strides))(*strides),
        }
        self._flags = fields.pop("flags", 0)
        if fields.pop("no_shape", False):
            self._tensor["shape"] = None
        self._tensor.update(fields)
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._delete)

    def _delete(self, _pointer):
        self.deleted += 1

    def _make(self, kind, **head):
        managed = kind(**head)
        if self.has_deleter:
            managed.deleter = ctypes.cast(self._deleter, ctypes.c_void_p)
        for name, value in self._tensor.items():
            if name in ("shape", "strides") and value is not None:
                value = ctypes.cast(value, ctypes.POINTER(ctypes.c_int64))
            setattr(managed.tensor, name, value)
        self._keep.append(managed)
        return ctypes.addressof(managed)

    def export(self):
        major, minor = self.version
        return self._make(ManagedVersioned, major=major, minor=minor, flags=self._flags)

    def __dlpack_device__(self):
        return self._tensor["device_type"], self._tensor.get("device_id", 0)

    def __dlpack__(self, **keywords):
        if keywords and not self.knows_keywords:
            raise TypeError("__dlpack__() takes no keyword arguments")
        self.requested.append(keywords)
        if self.version is None:
            made = capsule(self._make(Managed), "dltensor", self._keep)
        else:
            made = capsule(self.export(), "dltensor_versioned", self._keep)
        self.capsules.append(made)
        return made


class Legacy(Producer):
    version = None


class Old(Producer):
    version = None
    knows_keywords = False


def exchange_type(base=Producer, version=(1, 3), fails=False):
    """Make a class like `base` whose instances are exported by the C exchange API; return it with
    the table."""
    keep = []

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
    def export(producer, out):
        if fails:
            return -1
        out[0] = producer.export()
        return 0

    table = ExchangeAPI(major=version[0], minor=version[1], export=ctypes.cast(export, ctypes.c_void_p))
    keep += [export, table]
    api = capsule(ctypes.addressof(table), "dlpack_exchange_api", keep)
    return type("Exchanged", (base,), {"__dlpack_c_exchange_api__": api, "_keep_type": keep}), table
