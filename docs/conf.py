"""Sphinx, as `make docs` runs it: the Markdown pages of this folder as a site that needs no network."""

import re
from pathlib import Path

project = "bertkit"
extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "bertkit"
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"


def add_contents(app, page, source):
    """Give the first page a hidden table of contents, in the order of its lists; hosts of Markdown show none."""
    if page == "index":
        pages = re.findall(r"^- \[[^]]+\]\((\w+)\.md\)", source[0], flags=re.MULTILINE)
        missing = {path.stem for path in Path(app.srcdir).glob("*.md")} - {"index", *pages}
        assert not missing, f"index.md links to no {', '.join(missing)}"
        source[0] += "\n```{toctree}\n:hidden:\n" + "\n".join(pages) + "\n```\n"


def setup(app):
    app.connect("source-read", add_contents)
