"""
The variables that Salt's loader gives to a module, as the loader of the present call has them.

Loaders of one kind share their modules within a process (3006 does so too), and the module's
``__opts__`` is that of the loader that loaded it last. A process with two configurations, such as a
test or an embedded minion, would use the other's id, socket and spool. Therefore every module asks here.
"""

from typing import Any


def variable(namespace: dict[str, Any], name: str) -> Any:
    """
    ``__opts__``, ``__salt__`` or ``__context__`` for the module with these ``globals()``.

    ``None`` if there is no such variable.
    """
    try:
        return namespace["__salt_loader__"].loader().pack[name]
    except (AttributeError, KeyError, LookupError):
        # Called from outside any loader, as the tests of a module do.
        return namespace.get(name)
