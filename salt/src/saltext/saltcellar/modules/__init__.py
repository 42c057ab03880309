"""Modules that Salt's loader finds through the ``salt.loader`` entry point."""
