"""The parts that there are: the modules of this folder that define some."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable

from tests.campaign.part import Part

__all__ = ["MODULES", "load_parts"]

# One line for each module, in the order of the table.
MODULES: tuple[str, ...] = (
    "tests.campaign.files",
    "tests.campaign.inputs",
    "tests.campaign.kills",
    "tests.campaign.faults",
    "tests.campaign.concurrency",
    "tests.campaign.interrupts",
    "tests.campaign.sockets",
    "tests.campaign.serving",
)


def load_parts(modules: Iterable[str] = MODULES) -> dict[str, type[Part]]:
    """Import modules and return the parts that they define, by name."""
    found: dict[str, type[Part]] = {}
    for module_name in modules:
        module = importlib.import_module(module_name)
        for part in vars(module).values():
            if (
                inspect.isclass(part)
                and issubclass(part, Part)
                and not inspect.isabstract(part)
                and hasattr(part, "name")  # else it is what several parts share
                and part.__module__ == module_name
            ):
                assert part.name not in found, f"two parts are called {part.name!r}"
                found[part.name] = part
    return found
