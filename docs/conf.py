"""Sphinx configuration. `make docs` builds with warnings as errors."""

from __future__ import annotations

import sys
from importlib.metadata import version as distribution_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "fedbench"
author = "The fedbench developers"
project_copyright = "The fedbench developers"
release = version = distribution_version("fedbench-sim")

extensions = [
    "fedbench_tables",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "_ext"]
language = "en"

# Broken references are errors, those into other projects excepted: the build needs no network,
# so it cannot read their inventories.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|np|numpy|pd|pandas|collections|typing|concurrent|ray|click|types)(\..*)?"),
    (r"py:class", r"(optional|callable|array_like|scalar|mapping|sequence|iterable|generator)"),
    (r"py:.*", r"(int|str|bool|float|bytes|list|dict|tuple|set|object|type|None|[A-Z]\w*Error)"),
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the numpydoc sections state the types
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_preprocess_types = False

# One catalog per page, free of locations and ids, so that a translation changes only where the
# English text does.
locale_dirs = ["locale"]
gettext_compact = False
gettext_location = False
gettext_uuid = False

html_theme = "furo"
html_title = f"fedbench {release}"
html_copy_source = False
