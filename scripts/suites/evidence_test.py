"""Verifiers of others on receipts of turn: what each accepts, what it refuses, and that it refuses changes.

usage: evidence_test.py --docs FILE --tools FOLDER --javascript FILE --modules FOLDER [NAME=PROGRAM...], in a folder with
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
import sys

from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key
from google.protobuf.json_format import Parse
from in_toto.models.metadata import Envelope as InTotoEnvelope
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as Message
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey
from sigstore import dsse
from sigstore.models import Bundle

PAYLOAD = "application/vnd.in-toto+json"


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
    assert len(Envelope.from_dict(evidence).verify(found, len(found))) == len(evidence["signatures"])


def in_toto_attestation(evidence):
    Statement.copy_from_pb(Parse(payload(evidence), Message())).validate()


def in_toto(evidence, of=None):
    signed = InTotoEnvelope.from_dict(evidence)
    for key in ssl_keys(evidence, of):
        signed.verify_signature(key)
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
    for name in "securesystemslib", "in-toto", "in-toto-attestation", "sigstore":
        yield name, importlib.metadata.version(name)


print(dict(python()))
