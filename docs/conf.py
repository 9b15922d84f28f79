"""Sphinx configuration: the pages of this folder, and a reference from the docstrings of the installed dldist."""

import posixpath
import re

import dldist

project = "dldist"
version = release = dldist.__version__
html_title = f"dldist {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
pygments_dark_style = "github-dark"  # furo's default underlines names like links
html_show_copyright = False

# Give headings the anchors that they have without the site.
myst_heading_anchors = 4
# Pages of the site for files outside docs/. Pages link to the files, so that links also work without the site.
PAGE_OF = {"README.md": "index.md", "CONTRIBUTING.md": "contributing/guide.md", "CHANGELOG.md": "changelog.md"}

# Docstrings quote code with single backquotes.
default_role = "code"
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

# Types in signatures may be private or belong to the standard library. References in the pages must be public names.
PUBLIC = r"dldist\.((functional|symmetric_memory|testing|reducer|nccl|trace|rendezvous|comm_hooks|flight_recorder|control)\.)?[A-Za-z]\w*$"
# Type variables have no entries.
TYPE_VARIABLES = r"dldist\.\w+\.(Array|Tensor|Tree)T"
nitpick_ignore_regex = [(r"py:.*", rf"(?!{PUBLIC}).*"), (r"py:class", TYPE_VARIABLES)]

TENSOR = re.compile(r"[~\w.]*SupportsDLPack \| [~\w.]*_SupportsDLPackDevice \| [~\w.]*SupportsBuffer")
OP = re.compile(r"[~\w.]*ReduceOp \| [~\w.]*Literal\['sum'[^\]]*\](?: \| [~\w.]*(?:Callable|Literal)\[[^\]]*\])*")
CONTRIBUTORS = '<p class="caption" role="heading"><span class="caption-text">Contributing</span></p>'


def find_public_name(app, env, node, contnode):
    """Resolve a type in a signature, which has the module that defines it, by its public name."""
    if node.get("refdomain") != "py" or node.get("reftype") != "class":
        return None
    name = node["reftarget"].rpartition(".")[2]
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "class", f"dldist.{name}", node, contnode)


def link_to_pages(app, docname, source):
    """Replace links to the files of PAGE_OF by links to their pages."""
    folder = posixpath.dirname(docname)
    for file, page in PAGE_OF.items():
        path = posixpath.relpath(f"../{file}", folder or ".")
        source[0] = source[0].replace(f"]({path}", f"]({posixpath.relpath(page, folder or '.')}")


def keep_colons(app, what, name, obj, options, lines):
    """Keep napoleon from reading the words before a colon in an attribute's first line as its type."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")


def shorten_signature(app, what, name, obj, options, signature, returns):
    """Write dldist.Tensor and dldist.types.Op for the members of these unions."""
    return tuple(text and OP.sub("~dldist.types.Op", TENSOR.sub("~dldist.Tensor", text)) for text in (signature, returns))


def split_sidebar(app, pagename, templatename, context, doctree):
    """Show contributors' pages only in the sidebar of these pages, and users' pages in the others."""
    users, caption, contributors = context.get("furo_navigation_tree", "").partition(CONTRIBUTORS)
    if caption:
        is_contributors = pagename == "torch-suite" or pagename.startswith("contributing/")
        context["furo_navigation_tree"] = caption + contributors if is_contributors else users


def setup(app):
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("html-page-context", split_sidebar, priority=900)  # after furo
    app.connect("source-read", link_to_pages)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    app.connect("missing-reference", find_public_name)

# dldist.reducer and dldist.algorithms.join both have a class Join, and Sphinx warns about the ambiguous annotation.
suppress_warnings = ["ref.python"]
