"""Ordinary Python behind the returner, without Salt's dunder globals."""
