"""The extension's version. Plain text, so that a build can read it without Salt."""

__version__ = "0.1.0"
