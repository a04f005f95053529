"""Types of decoded JSON, which may be anything."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def dicts(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list; without one, none."""
    return [v for v in value if is_dict(v)] if is_list(value) else []


def a_dict(value: object) -> dict[str, Any]:
    """Return an object; without one, an empty one."""
    return value if is_dict(value) else {}
