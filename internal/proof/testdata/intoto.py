"""Verifies the envelope of a receipt, and its statement, with the modules of in-toto.

usage: intoto.py RECEIPT TRUSTED
"""
import base64, json, sys
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from google.protobuf.json_format import Parse
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as Message
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

envelope = json.loads(open(sys.argv[1], "rb").read().split(b"\n<!-- turn:evidence\n")[1].split(b"\n")[0])
ids = [s["keyid"] for s in envelope["signatures"]]
keys = []
for line, keyid in zip(open(sys.argv[2]), ids):
    public = load_ssh_public_key(" ".join(line.split()[-2:]).encode())
    keys.append(SSlibKey.from_crypto(public, keyid=keyid))
signed = Envelope.from_dict(envelope)
accepted = signed.verify(keys, len(keys))
statement = Parse(signed.payload, Message())
Statement.copy_from_pb(statement).validate()
print(f"{len(accepted)} keys, {statement.type}, {statement.predicate_type}")
