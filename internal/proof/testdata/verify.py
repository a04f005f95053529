"""A second verifier of receipts, written from docs/chain.md alone.

usage: verify.py RECEIPT TRUSTED    exit status 0: verifies, 4: not signed, 5: does not verify
       verify.py --vectors FOLDER   compares the result of each test vector with the expected one
"""
import base64, datetime, hashlib, json, os, re, sys
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
FIRST, PREDICATE = (f"https://turnstone.dev/attestations/turn/{v}" for v in ("v1", "v2"))


class Unsigned(Exception): ...


class Bad(Exception): ...


def need(condition, why):
    if not condition:
        raise Bad(why)


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def unique(pairs):
    need(len({k for k, _ in pairs}) == len(pairs), "a key is there twice")
    return dict(pairs)


def parse(text):
    """JSON in its only spelling: no white space, and no key twice."""
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as e:
        raise Bad(f"not JSON: {e}")
    need(compact(value) == text, "not compact JSON")
    return value


def unbase64(text):
    try:
        raw = base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as e:
        raise Bad(f"not base64: {e}")
    need(base64.b64encode(raw).decode() == text, "base64 in another spelling")
    return raw


def split(receipt):
    """The signed text and the envelope, which are all that a receipt consists of."""
    if not re.search(rb"^[ \t]*<!--[ \t]*turn:evidence([ \t]|$)", receipt.replace(b"\r", b"\n"), re.M):
        raise Unsigned()
    for eol in b"\n", b"\r\n":
        begin, end = eol + b"<!-- turn:evidence" + eol, eol + b"-->" + eol
        if not receipt.endswith(end):
            continue
        head, _, envelope = receipt[: -len(end)].rpartition(b"\n")
        head += b"\n"
        need(head.endswith(begin) and not re.search(rb"[<>\r]", envelope), "the evidence was changed")
        text = head[: -len(begin)]
        first = re.search(rb"\r\n|\r|\n", text)
        need(eol == b"\n" or first and first[0] == eol, "the evidence has other line endings than the text")
        return text, envelope
    raise Bad("the evidence is not at the end")


def ed25519(line):
    """The key of a line TYPE BASE64, and its fingerprint."""
    kind, blob = line.split(" ")
    need(kind == "ssh-ed25519", f"a key of type {kind}")
    raw = unbase64(blob)
    need(raw[:19] == b"\0\0\0\x0bssh-ed25519" + b"\0\0\0\x20" and len(raw) == 51, "a bad key")
    digest = base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")
    return Ed25519PublicKey.from_public_bytes(raw[19:]), "SHA256:" + digest


def pae(kind, payload):
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


def trusted(path):
    """(role, key, after, before) of each line of a list of trusted keys."""
    for line in open(path):
        m = re.fullmatch(r'(\S+) (?:(\S+=".*?") )?(\S+ \S+)(?: .*)?', line.strip())
        if line.strip() == "" or line.startswith("#"): continue
        need(m, f"{path}: {line}")
        options = dict(re.findall(r'([a-z-]+)="([^"]*)"', m[2] or ""))
        need("turnstone" in options.get("namespaces", "turnstone").split(","), "a namespace")
        when = lambda o: options[o].rstrip("Z").ljust(14, "0") if o in options else None
        yield m[1].split(":")[0], m[3], when("valid-after"), when("valid-before")


def verify(receipt, trust):
    text, raw = split(receipt)
    envelope = parse(raw)
    need(list(envelope) == ["payloadType", "payload", "signatures"], "an unknown field")
    need(envelope["payloadType"] == PAYLOAD_TYPE, "another type of payload")
    payload = unbase64(envelope["payload"])
    statement = parse(payload)
    need(statement["_type"] == "https://in-toto.io/Statement/v1", "another type of statement")
    first = statement["predicateType"] == FIRST
    need(first or statement["predicateType"] == PREDICATE, "another predicate")
    subjects = {s["name"]: s["digest"] for s in statement["subject"]}
    need(all(list(d) == ["turnstoneFsHash" if first and n == "fs" else "sha256"]
             for n, d in subjects.items()), "a digest of another kind")
    need(subjects["receipt"] == {"sha256": hashlib.sha256(text).hexdigest()}, "another text")
    predicate, signatures = statement["predicate"], envelope["signatures"]
    signers = predicate["signers"]
    need([s["role"] for s in signers] in (["node"], ["node", "caller"]), "roles")
    later = signatures[1:] if len(signers) == 1 else []
    signers = signers + [{"role": "caller", "key": s["keyid"]} for s in later]
    need(len(signers) == len(signatures), "a signature is missing, or too many")
    need(len({s["key"] for s in signers}) == len(signers) < 3, "one key in two roles, or three signers")
    at = datetime.datetime.strptime(predicate["time"], "%Y-%m-%dT%H:%M:%SZ").strftime("%Y%m%d%H%M%S")
    for signer, signature in zip(signers, signatures):
        key, fingerprint = ed25519(signer["key"])
        expected = signer["key"] if signature in later else fingerprint
        need(signature["keyid"] == expected, "the key of another signer")
        try:
            key.verify(unbase64(signature["sig"]), pae(PAYLOAD_TYPE, payload))
        except InvalidSignature:
            raise Bad(f"the {signer['role']} did not sign this")
        need(any(r == signer["role"] and k == signer["key"] and (a or at) <= at < (b or "9")
                 for r, k, a, b in trusted(trust)), f"the {signer['role']}'s key is not trusted")
    return "sha256:" + hashlib.sha256(payload).hexdigest()


def result(path, trust):
    try:
        return "ok", verify(open(path, "rb").read(), trust)
    except Unsigned:
        return "unsigned", ""
    except (Bad, KeyError, TypeError, AttributeError) as e:
        return "bad", str(e)


if sys.argv[1] == "--vectors":
    folder = sys.argv[2]
    for v in json.load(open(os.path.join(folder, "vectors.json"))):
        got, what = result(os.path.join(folder, v["file"]), os.path.join(folder, v["trust"]))
        same = got == v["result"] and (got != "ok" or what == v["statement"])
        print("agrees" if same else f"{v['file']}: {got}, not {v['result']}: {what}")
else:
    got, what = result(sys.argv[1], sys.argv[2])
    print(got, what)
    sys.exit({"ok": 0, "unsigned": 4, "bad": 5}[got])
