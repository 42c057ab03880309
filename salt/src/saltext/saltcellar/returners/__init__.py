"""Modules that Salt's loader finds by way of the ``salt.loader`` entry point."""
