package auth

import (
	"encoding/json"
	"errors"
	"fmt"

	jose "github.com/go-jose/go-jose/v4"
)

// Bounds of what an issuer answers.
const (
	maxJWKS      = 256 << 10 // bytes
	maxDiscovery = 64 << 10  // bytes
	maxKeys      = 64
)

// decodeJWKS decodes a set of keys (RFC 7517). Keys that this package cannot use are left out, as
// the RFC says: those of other types and for other uses, symmetric and private ones, those without
// an ID, and those whose ID several keys have.
func decodeJWKS(b []byte) (map[string]verifyingKey, error) {
	if len(b) > maxJWKS {
		return nil, fmt.Errorf("has %d bytes; the limit is %d", len(b), maxJWKS)
	}
	set, err := object(b)
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(set["keys"], &list); err != nil || list == nil {
		return nil, errors.New("has no list of keys")
	}
	if len(list) > maxKeys {
		return nil, fmt.Errorf("has %d keys; the limit is %d", len(list), maxKeys)
	}
	keys, twice := map[string]verifyingKey{}, map[string]bool{}
	for _, raw := range list {
		id, k, ok := decodeJWK(raw)
		if !ok {
			continue
		}
		if _, there := keys[id]; there {
			twice[id] = true
		}
		keys[id] = k
	}
	for id := range twice {
		delete(keys, id)
	}
	if len(keys) == 0 {
		return nil, errors.New("has no key that can be used")
	}
	return keys, nil
}

// private are the members of private and symmetric keys (RFC 7518, 6; RFC 8037).
var private = []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"}

// decodeJWK decodes one key; ok is false if it cannot be used. Only the members that are needed
// reach the library, so certificates and links of a key do not.
func decodeJWK(raw json.RawMessage) (id string, k verifyingKey, ok bool) {
	fields, err := object(raw)
	if err != nil {
		return "", k, false
	}
	for _, name := range private {
		if fields[name] != nil {
			return "", k, false
		}
	}
	if id, err = text(fields["kid"], maxText); err != nil || !forSignatures(fields) {
		return "", k, false
	}
	if fields["alg"] != nil {
		if k.alg, err = text(fields["alg"], 20); err != nil || supported[k.alg].kind == 0 {
			return "", k, false
		}
	}
	needed := map[string]json.RawMessage{}
	for _, name := range []string{"kty", "crv", "x", "y", "n", "e"} {
		if fields[name] != nil {
			if _, err := text(fields[name], 2048); err != nil {
				return "", k, false
			}
			needed[name] = fields[name]
		}
	}
	b, err := json.Marshal(needed)
	if err != nil {
		return "", k, false
	}
	var j jose.JSONWebKey
	if err := j.UnmarshalJSON(b); err != nil || usable(j.Key) != nil {
		return "", k, false
	}
	k.key = j.Key
	return id, k, k.alg == "" || k.fits(k.alg)
}

// forSignatures reports whether a key's use and operations allow it to verify.
func forSignatures(fields map[string]json.RawMessage) bool {
	if fields["use"] != nil {
		if use, err := text(fields["use"], 20); err != nil || use != "sig" {
			return false
		}
	}
	if fields["key_ops"] == nil {
		return true
	}
	ops, err := texts(fields["key_ops"], 10, 20)
	if err != nil {
		return false
	}
	for _, op := range ops {
		if op == "verify" {
			return true
		}
	}
	return false
}

// decodeDiscovery returns the URL of the keys (OpenID Connect Discovery 1.0, 4.3), whose document
// has to name its issuer exactly.
func decodeDiscovery(b []byte, issuer string) (string, error) {
	fields, err := object(b)
	if err != nil {
		return "", err
	}
	if iss, err := text(fields["issuer"], 1000); err != nil || iss != issuer {
		return "", errors.New("names another issuer")
	}
	at, err := text(fields["jwks_uri"], 1000)
	if err != nil {
		return "", errors.New("does not name where the keys are")
	}
	return at, nil
}
