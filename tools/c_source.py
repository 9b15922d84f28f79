"""C files as clang-format leaves them here: a function's type is on a line of its own, and its name begins the next line."""
import re
from pathlib import Path

NOISE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
FUNCTION = re.compile(r"^(?P<type>\w[^\n;{}()=]*)\n(?P<name>\w+)\((?=[^;{}]*\)\n\{)", re.MULTILINE)


def read(path: Path) -> str:
    """Return the text without comments and strings."""
    return NOISE.sub(" ", path.read_text(encoding="utf-8"))


def functions(text: str, *, static: bool) -> list[str]:
    """Return the names of the functions that the text defines: either the static ones or those with external linkage.

    INLINE functions are in neither list: each instruction set defines its own, of the same names, for the code that it includes.
    """
    return [match["name"] for match in FUNCTION.finditer(text)
            if "INLINE" not in match["type"] and ("static" in match["type"].split()) == static]
