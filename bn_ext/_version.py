"""The version number, which setup reads from here."""

__version__ = "0.1.0rc1"
