"""Ordinary Python behind the returner: nothing here knows Salt's dunder globals."""
