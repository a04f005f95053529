#!/bin/bash
# backports.tarfile 1.2.0 (PyPI; CPython 3.12's tarfile, and 3.11 and 3.13 have the same): a file with holes in GNU's sparse
# format 0.1 for PAX cannot be read if its extended header also has POSIX's record "size".
#
# The record says how many bytes follow the header, and a writer needs it for a file with 8 GiB of data or more, whose size
# the header's field cannot have. GNU.sparse.size is another number: the size with the holes. tarfile takes the place of the
# next header from the latter, as soon as "size" is there. GNU tar reads both archives.
#
# Output seen (CPython 3.11, GNU tar 1.34, linux/amd64):
#   without size: tarfile [('f', 1048576), ('last', 0)], GNU tar f last
#   with size: tarfile ReadError, GNU tar f last
#
# Exits with a status other than 0 if the output differs.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv v
v/bin/pip -q install backports.tarfile==1.2.0
cat >try.py <<'END'
import subprocess

from backports import tarfile


def record(key, value):
    size = 0
    while len(line := f"{size} {key}={value}\n") != size:
        size = len(line)
    return line


def block(name, type, data):
    header = tarfile.TarInfo(name)
    header.type, header.size = type, len(data)
    return header.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


for name, size in (("without size", ""), ("with size", record("size", "4"))):
    records = size + record("GNU.sparse.size", "1048576") + record("GNU.sparse.numblocks", "1")
    records += record("GNU.sparse.map", "0,4")
    with open("try.tar", "wb") as out:
        out.write(block("records", tarfile.XHDTYPE, records.encode()) + block("f", tarfile.REGTYPE, b"data"))
        out.write(block("last", tarfile.REGTYPE, b"") + bytes(1024))
    try:
        with tarfile.open("try.tar") as tar:
            got = [(m.name, m.size) for m in tar]
    except tarfile.ReadError:
        got = "ReadError"
    listed = subprocess.run(["tar", "tf", "try.tar"], capture_output=True, text=True, check=True).stdout.split()
    print(f"{name}: tarfile {got}, GNU tar {' '.join(listed)}")
END
got=$(v/bin/python try.py)
echo "$got"
[ "$got" = "without size: tarfile [('f', 1048576), ('last', 0)], GNU tar f last
with size: tarfile ReadError, GNU tar f last" ]
