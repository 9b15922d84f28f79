"""C sources in clang-format's style: a type on its own line, and the function's name on the
next."""
import re
from pathlib import Path

NOISE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
FUNCTION = re.compile(r"^(?P<type>\w[^\n;{}()=]*)\n(?P<name>\w+)\((?=[^;{}]*\)\n\{)", re.MULTILINE)


def read(path: Path) -> str:
    """Return the text without comments and strings."""
    return NOISE.sub(" ", path.read_text(encoding="utf-8"))


def functions(text: str, *, static: bool) -> list[str]:
    """Return the names of the functions defined in the text, either static ones or those with
    external linkage.

    INLINE functions are in neither list: each instruction set defines its own, with the same names,
    for the code that it includes.
    """
    return [match["name"] for match in FUNCTION.finditer(text)
            if "INLINE" not in match["type"] and ("static" in match["type"].split()) == static]
