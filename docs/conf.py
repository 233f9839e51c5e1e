"""Configuration of the documentation. ``make docs`` builds it; the extensions are in ``_extensions``.

The theme is furo: it is maintained, works on phones and in dark mode, and loads nothing from other servers.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from pogm import __version__

project = "pogm"
author = "The pogm authors"
copyright = "the pogm authors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "generated_text",
    "mathml",
    "notebooks",
]
exclude_patterns = ["_extensions", "Thumbs.db"]
nitpicky = False  # `name` in a docstring is a link if the name is documented, and plain code otherwise
default_role = "py:obj"
smartquotes_action = "D"  # dashes only: quotes in these texts are often code

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_mock_imports = ["lightning", "transformers"]  # both take seconds to import
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "pogm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_domain_indices = False
html_math_renderer = "mathml"
