"""What the tests share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnstone import Turnstone

TESTDATA = Path(os.environ.get("TURN_SDK_TESTDATA", Path(__file__).parents[2] / "testdata"))


def vectors() -> list[dict[str, Any]]:
    """Return all objects of noise.json, wherever they are in it."""

    def walk(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            yield value
            for v in value.values():
                yield from walk(v)
        elif isinstance(value, list):
            for v in value:
                yield from walk(v)

    return list(walk(json.loads((TESTDATA / "noise.json").read_text())))


def with_server() -> bool:
    """Report whether scripts/test-server runs the tests."""
    return "TURN_TEST_SOCKET" in os.environ


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="needs scripts/test-server")
    for item in items:
        if "server" in item.keywords and not with_server():
            item.add_marker(skip)


@pytest.fixture
def client() -> Iterator[Turnstone]:
    """A client of the server over TCP, whose node is pinned."""
    with Turnstone() as c:
        yield c
