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
    "language_neutral",
    "numpydoc_references",
    "offline_math",
    "stored_tables",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "_ext", "locales"]
language = "en"

# Broken references are errors. What is let through: names of other projects (the build needs no
# network, so it cannot read their inventories) and the prose in the types of numpydoc sections.
nitpicky = True
OTHER_PROJECTS = (
    r"(abc|collections|concurrent|dataclasses|enum|functools|matplotlib|numpy|np|pandas|pd|pathlib"
    r"|torch|types|typing)"
)
# Protocols and internal records that docstrings name as types.
nitpick_ignore = [("py:class", "Reducer"), ("py:class", "Span")]
nitpick_ignore_regex = [
    (r"py:.*", OTHER_PROJECTS + r"\..*"),
    (r"py:class", r"(?!fedbench\.)[^A-Z].*|.* .*"),
    (r"py:exc", r"[A-Z]\w*Error"),
    (r"py:obj", r"fedbench\..*\.[A-Z]"),  # type variables
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "offline"

autodoc_typehints = "none"  # the numpydoc sections state the types
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "no-value": True}
napoleon_google_docstring = False
napoleon_use_ivar = False
napoleon_preprocess_types = False

# One catalog per page, free of locations and ids, so that a translation changes only where the
# English text does.
locale_dirs = ["locales"]
gettext_compact = False
gettext_location = False
gettext_uuid = False

html_theme = "furo"
html_title = f"fedbench {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["fedbench.css"]
