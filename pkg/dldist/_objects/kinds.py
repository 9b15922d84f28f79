"""Objects that the serializer "safe" sends as their parts: values of some types of the standard
library, and instances of the classes that the program has allowed.

A kind is found by its name in a table, never by an import of what the sender names. Parts are
checked before an object is made, because they come from another process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, time, timedelta
from enum import Enum, Flag
from types import FunctionType
from typing import Any

from dldist._core import DistError

MAX_FRACTION_BITS = 1 << 16
"""The maximum size of the numbers of a Fraction, whose reduction takes quadratic time."""


@dataclass(frozen=True)
class Kind:
    """Converts objects of one type to tuples of parts and back."""

    name: str
    """The name on the wire. A class's name includes its fields, so that both sides have the same."""
    split: Callable[[Any], tuple[Any, ...]]
    """Raises ValueError for an object that would lose something."""
    make: Callable[..., Any]
    types: tuple[type, ...]
    """The type of each part; `object` if any is possible, or if `make` checks it."""
    labels: tuple[str, ...] = ()
    """The places of the parts, for errors."""

    def checked(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(parts) != len(self.types) or not all(kind in (object, type(part)) for kind, part in zip(self.types, parts)):
            raise ValueError(f"invalid parts of {self.name}: got {', '.join(type(part).__name__ for part in parts)}")
        return parts


def _limited(numerator: int, denominator: int) -> tuple[int, int]:
    if max(numerator.bit_length(), denominator.bit_length()) > MAX_FRACTION_BITS:
        raise ValueError(f"a Fraction has numbers that are too large: expected at most {MAX_FRACTION_BITS} bits")
    return numerator, denominator


def _moment_parts(value: Any) -> tuple[Any, ...]:
    return value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo


def _make_time(hour: int, minute: int, second: int, microsecond: int, fold: int, zone: Any) -> time:
    return time(hour, minute, second, microsecond, zone, fold=fold)


_MOMENT = (int, int, int, int, int, object)
_Row = tuple[str, str, tuple[type, ...], Callable[[Any], tuple[Any, ...]], Callable[[Any], Callable[..., Any]]]
# Module, class, types of the parts, the parts of a value, and the function that makes a value,
# given the class. The modules are imported when the first value arrives.
_STANDARD: tuple[_Row, ...] = (
    ("builtins", "range", (int, int, int), lambda x: (int(x.start), int(x.stop), int(x.step)), lambda cls: cls),
    ("datetime", "date", (int,), lambda x: (x.toordinal(),), lambda cls: cls.fromordinal),
    ("datetime", "time", _MOMENT, _moment_parts, lambda cls: _make_time),
    ("datetime", "datetime", (int, *_MOMENT), lambda x: (x.toordinal(), *_moment_parts(x)),
     lambda cls: lambda day, *moment: cls.combine(date.fromordinal(day), _make_time(*moment))),
    ("datetime", "timezone", (timedelta, object), lambda x: (*x.__getinitargs__(), None)[:2],
     lambda cls: lambda offset, name: cls(offset) if name is None else cls(offset, name)),
    ("zoneinfo", "ZoneInfo", (str,), lambda x: (x.key,), lambda cls: cls),
    ("decimal", "Decimal", (str,), lambda x: (str(x),), lambda cls: cls),
    ("fractions", "Fraction", (int, int), lambda x: _limited(x.numerator, x.denominator), lambda cls: lambda *parts: cls(*_limited(*parts))),
    ("pathlib", "PosixPath", (str,), lambda x: (str(x),), lambda cls: cls),
    ("pathlib", "PurePosixPath", (str,), lambda x: (str(x),), lambda cls: cls),
    ("pathlib", "PureWindowsPath", (str,), lambda x: (str(x),), lambda cls: cls),
    ("uuid", "UUID", (bytes,), lambda x: (x.bytes,), lambda cls: lambda data: cls(bytes=data)),
)

_MODULES = {row[0] for row in _STANDARD}
_by_name: dict[str, Kind | None] = {row[1]: None for row in _STANDARD}
_by_type: dict[type, Kind] = {}


def _load(row: _Row) -> Kind:
    module, name, types, split, maker = row
    cls = getattr(__import__(module), name)
    kind = _by_name[name] = _by_type[cls] = Kind(name, split, maker(cls), types, ("",) * (len(types) - 1) + (".tzinfo",))
    return kind


def find(cls: type) -> Kind | None:
    """Return the kind of a type, or None if "safe" does not send it as parts."""
    kind = _by_type.get(cls)
    if kind is None and cls.__module__.partition(".")[0] in _MODULES:
        for row in _STANDARD:
            if getattr(sys.modules.get(row[0]), row[1], None) is cls:
                return _load(row)
    return kind


def named(name: str) -> Kind:
    """Return the kind that a sender names. DistError if this process has none of this name."""
    kind = _by_name.get(name)
    if kind is not None:
        return kind
    for row in _STANDARD:
        if row[1] == name:
            return _load(row)
    title = name.partition("(")[0]
    others = [other for other in _by_name if other.partition("(")[0] == title]
    if others:
        raise DistError(f"cannot read an object whose class has other fields here: got {name:.200}, expected {others[0]:.200}")
    raise DistError(f"cannot read an object of class {title:.200}: not allowed here; call dldist.allow_classes() with it on this rank")


def allow_classes(*classes: type) -> None:
    """Allow the serializer "safe" to send and create objects of classes: enums, dataclasses, named tuples.

    Call it with the same classes on all ranks that send or receive such objects; in a script, after
    the classes. "safe" then accepts objects of exactly these classes. A sender cannot make it
    import a module or create objects of another class.

    An object is made from its fields, as by copy.copy(): neither `__init__` nor `__post_init__`
    runs, and the types of the fields are not checked. A class of the same name replaces an earlier
    one.

    Args:
        classes: Classes whose module and name are the same on all ranks.

    Raises:
        TypeError: A class is not an enum, a dataclass or a named tuple, or is a dataclass that extends
            a built-in type such as dict or Exception.

    Example:
        >>> from typing import NamedTuple
        >>> class Point(NamedTuple):
        ...     x: float
        ...     y: float
        >>> dist.allow_classes(Point)
    """
    made = [_kind_of_class(index, cls) for index, cls in enumerate(classes)]
    for cls, kind in zip(classes, made, strict=True):
        for former in [other for other in _by_name if other.partition("(")[0] == kind.name.partition("(")[0]]:
            del _by_name[former]
        _by_name[kind.name] = _by_type[cls] = kind


def is_allowable(cls: Any) -> bool:
    """Return True if allow_classes() accepts the class."""
    if not isinstance(cls, type):
        return False
    if issubclass(cls, Enum):
        return cls is not Enum
    # The fields of a dataclass that extends dict or Exception are only a part of its content.
    is_whole = cls.__new__ is object.__new__ or isinstance(cls.__new__, FunctionType)
    return (is_dataclass(cls) and is_whole) or (issubclass(cls, tuple) and hasattr(cls, "_make"))


def _flags(cls: Any, value: int) -> Any:
    member = cls(value)
    if member.value != value:  # Python 3.11.2 drops unknown bits
        raise ValueError(f"invalid flags of {cls.__name__}: got {value}")
    return member


def _kind_of_class(index: int, cls: Any) -> Kind:
    if not is_allowable(cls):
        raise TypeError(
            f"allow_classes(): argument 'classes[{index}]' has a wrong type: got {cls!r:.100}, expected an enum, a named tuple, or a "
            "dataclass that extends no built-in type"
        )
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    title = f"{module}.{cls.__qualname__}"
    if issubclass(cls, Enum):
        if issubclass(cls, Flag):
            return Kind(title, lambda member: (member.value,), lambda value: _flags(cls, value), (int,))
        return Kind(title, lambda member: (member.name,), cls.__members__.__getitem__, (str,))
    is_tuple = issubclass(cls, tuple)
    names = cls._fields if is_tuple else tuple(field.name for field in fields(cls))

    def split(obj: Any) -> tuple[Any, ...]:
        others = [name for name in getattr(obj, "__dict__", ()) if is_tuple or name not in names]
        if others:
            raise ValueError(f"it has an attribute that is not a field of {title}: got {others[0]!r}, expected {', '.join(names)}")
        return tuple(obj) if is_tuple else tuple(getattr(obj, name) for name in names)

    def make(*parts: Any) -> Any:
        if is_tuple:
            return tuple.__new__(cls, parts)
        obj = object.__new__(cls)
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(obj, name, part)
        return obj

    return Kind(f"{title}({','.join(names)})", split, make, (object,) * len(names), tuple(f".{name}" for name in names))
