"""The version, in its one place: setup reads it from here."""

__version__ = "0.1.0rc1"
