"""How Sphinx makes the site: the pages of this folder, and a reference from the docstrings of the installed dldist."""

import dldist

project = "dldist"
version = release = dldist.__version__
html_title = f"dldist {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

# Headings can be linked to by their words, as where the same files are read without this site.
myst_heading_anchors = 4
# Files of the source that have a page here, which include them.
PAGE_OF = {"../README.md": "index.md", "../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changelog.md"}

# Docstrings quote code with single backquotes.
default_role = "code"
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

# Types in signatures may be private, or of the standard library, which has its pages elsewhere. What the pages themselves
# refer to is public, and has to be there.
PUBLIC = r"dldist\.((functional|symmetric_memory|testing|reducer|nccl|trace|rendezvous|comm_hooks|flight_recorder|control)\.)?[A-Za-z]\w*$"
# Type variables have no entries.
TYPE_VARIABLES = r"dldist\.\w+\.(Array|Tensor|Tree)T"
nitpick_ignore_regex = [(r"py:.*", rf"(?!{PUBLIC}).*"), (r"py:class", TYPE_VARIABLES)]


def find_public_name(app, env, node, contnode):
    """A type that a signature names by the module that defines it is looked for under its public name."""
    if node.get("refdomain") != "py" or node.get("reftype") != "class":
        return None
    name = node["reftarget"].rpartition(".")[2]
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "class", f"dldist.{name}", node, contnode)


def lead_to_pages(app, docname, source):
    """Links to those files lead to their pages."""
    for file, page in PAGE_OF.items():
        source[0] = source[0].replace(f"]({file}", f"]({page}")


def keep_colons(app, what, name, obj, options, lines):
    """Napoleon takes what is before a colon in the first line on an attribute for its type; ours say types by annotations."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")


def setup(app):
    app.connect("source-read", lead_to_pages)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    app.connect("missing-reference", find_public_name)

# Two classes are called Join, of the reducer and of algorithms.join: Sphinx takes one for the other's annotation, and says so.
suppress_warnings = ["ref.python"]
