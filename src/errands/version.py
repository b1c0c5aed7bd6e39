"""The version of errands, for whatever is imported before the package is whole."""

__version__ = "0.1.0"
