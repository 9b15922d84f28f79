"""The folders of the repository, as pathlib.Path."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
TOOLS = ROOT / "tools"
TESTS = ROOT / "tests"
SUPPORT = TESTS / "py" / "support"
