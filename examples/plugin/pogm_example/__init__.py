"""Plug-ins for pogm. The entry points in pyproject.toml name them."""
