"""Verifiers of others on receipts of turn: what each accepts, what it refuses, and that it refuses changes.

usage: evidence_test.py --docs FILE --tools FOLDER --javascript FILE --modules FOLDER [--sigstore-go PROGRAM], in a folder with
NAME.dsse, NAME.sigstore and NAME.text of the receipts node and both, the keys, and receipts of earlier versions. Prints
one line for each verifier, and compares verifiers, versions and results with the table of the documentation.
"""
import argparse
import base64
import copy
import hashlib
import importlib.metadata
import json
import pathlib
import re
import subprocess

from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key
from google.protobuf.json_format import Parse
from in_toto.models.metadata import Envelope as InTotoEnvelope
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as Message
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey
from sigstore import dsse
from sigstore.models import Bundle, InvalidBundle


def read(name):
    return pathlib.Path(name).read_bytes()


def envelope(name):
    return json.loads(read(name))


def receipt(name):
    """The envelope at the end of a receipt."""
    return json.loads(read(name).split(b"\n<!-- turn:evidence\n")[1].split(b"\n")[0])


def keys(evidence):
    """The keys that an envelope names, of which the caller's is the second."""
    roles = ["node", "caller"]
    return [load_ssh_public_key(read(f"{role}.pub")) for role, _ in zip(roles, evidence["signatures"])]


def changed(evidence):
    """The same envelope about another turn."""
    other = copy.deepcopy(evidence)
    payload = json.loads(base64.b64decode(other["payload"]))
    payload["predicate"]["turn"]["number"] = 99
    other["payload"] = base64.b64encode(json.dumps(payload, separators=(",", ":")).encode()).decode()
    return other


def payload(evidence):
    return base64.b64decode(evidence["payload"])


def refuses(what, check, *args):
    try:
        check(*args)
    except Exception:
        return
    raise SystemExit(f"{what} is not refused")


def ssl_keys(evidence, of=None):
    of = of or keys(evidence)
    return [SSlibKey.from_crypto(k, keyid=s["keyid"]) for k, s in zip(of, evidence["signatures"])]


def securesystemslib(evidence, of=None):
    found = ssl_keys(evidence, of)
    assert len(Envelope.from_dict(copy.deepcopy(evidence)).verify(found, len(found))) == len(evidence["signatures"])


def in_toto_attestation(evidence):
    Statement.copy_from_pb(Parse(payload(evidence), Message())).validate()


def in_toto(evidence, of=None):
    signed = InTotoEnvelope.from_dict(copy.deepcopy(evidence))
    for key in ssl_keys(evidence, of):
        signed.verify_signature({"keyid": key.keyid, **key.to_dict()})
    return signed


def sigstore_statement(evidence):
    dsse.Statement(payload(evidence))


def python():
    node, both, first = envelope("node.dsse"), envelope("both.dsse"), receipt("first.md")
    others = [load_pem_public_key(read("caller.pem")), load_pem_public_key(read("node.pem"))]
    for one in node, both:
        for name, check in ("securesystemslib", securesystemslib), ("in-toto", in_toto):
            check(one)
            refuses(f"{name}: another key", check, one, others)
            refuses(f"{name}: another payload", check, changed(one))
        in_toto_attestation(one)
        sigstore_statement(one)
    in_toto_attestation(first)
    refuses("sigstore: a digest of earlier versions", sigstore_statement, first)
    refuses("in-toto: a payload that is no layout and no link", in_toto(node).get_payload)
    text = hashlib.sha256(read("both.text")).hexdigest()
    assert json.loads(payload(both))["subject"][0]["digest"] == {"sha256": text}
    try:
        Bundle.from_json(read("node.sigstore"))
    except InvalidBundle as e:
        assert "expected certificate" in str(e), e
    else:
        raise SystemExit("sigstore: a bundle without a certificate is not refused")
    for name in "securesystemslib", "in-toto", "in-toto-attestation", "sigstore":
        yield name, importlib.metadata.version(name)


def javascript(program, modules):
    yield from (line.split() for line in succeeds("node", program, modules).splitlines())


def succeeds(*argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{argv}: {done.stdout}{done.stderr}")
    return done.stdout


def fails(why, *argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode == 0 or why not in done.stdout + done.stderr:
        raise SystemExit(f"{argv} does not fail because of {why!r}: {done.stdout}{done.stderr}")


def sigstore_go(program):
    digest = hashlib.sha256(read("both.text")).hexdigest()
    node, caller = (read(f"{role}.pub").decode().strip() for role in ("node", "caller"))
    succeeds(program, "both.sigstore", node, digest)
    fails("", program, "both.sigstore", caller, digest)
    fails("", program, "both.sigstore", node, hashlib.sha256(b"").hexdigest())


def golang(tools, program):
    """Sigstore's verifier, if it was built, and its version."""
    if program:
        sigstore_go(program)
    module = re.search(r"github\.com/sigstore/(sigstore-go) v(\S+)", (tools / "sigstore" / "go.mod").read_text())
    yield module[1], module[2]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--docs", type=pathlib.Path)
    p.add_argument("--tools", type=pathlib.Path)
    p.add_argument("--javascript")
    p.add_argument("--modules")
    p.add_argument("--sigstore-go", help="program of scripts/tools/sigstore; empty: it is not run", default="")
    a = p.parse_args()
    ran = dict([*python(), *javascript(a.javascript, a.modules), *golang(a.tools, a.sigstore_go)])
    table = dict(re.findall(r"^\| `([^` ]+)` ([0-9][^ ,]*)[^|]* \|", a.docs.read_text(), re.M))
    if ran != table:
        raise SystemExit(f"{a.docs.name} has {table}, and there are {ran}")
    for name, version in ran.items():
        print(name, version, "was not run" if name == "sigstore-go" and not a.sigstore_go else "as documented")


main()
