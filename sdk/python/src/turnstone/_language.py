"""The language of a command, by its program, as the parser of steps names it."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Sequence

_LANGUAGES = (
    ("python* pypy*", "python"),
    ("node nodejs deno", "javascript"),
    ("ruby*", "ruby"),
    ("perl*", "perl"),
    ("psql sqlite sqlite3 mysql mariadb", "sql"),
    ("jq gojq jaq", "jq"),
    ("awk gawk mawk nawk original-awk goawk", "awk"),
    ("sed gsed", "sed"),
)
_PREFIXES = ("env", "sudo", "doas", "nice", "nohup", "time", "timeout")


def language_of(argv: Sequence[str]) -> str:
    """Return the language of a command; "bash" is that of programs without one."""
    for word in argv:
        name = posixpath.basename(word)
        if name in _PREFIXES or re.match(r"-|[A-Za-z_]\w*=|\d+[smhd]?$", word):
            continue
        for patterns, language in _LANGUAGES:
            if any(fnmatch.fnmatchcase(name, p) for p in patterns.split()):
                return language
        break
    return "bash"
