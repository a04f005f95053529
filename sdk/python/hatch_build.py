"""Adds the programs to a wheel for one platform.

TURN_WHEEL_PROGRAMS names the folder with turn, turn-server and runsc, and TURN_WHEEL_TAG the
platform's tag, such as manylinux_2_17_x86_64. Without them the wheel is pure.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAMS = ("turn", "turn-server", "runsc")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("TURN_WHEEL_PROGRAMS", "")
        if not folder or version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ['TURN_WHEEL_TAG']}"
        build_data["shared_scripts"] = {os.path.join(folder, p): p for p in PROGRAMS}
