package proof

import (
	"encoding/json"

	"turnstone.dev/turnstone"
)

// The formats of Export.
const (
	FormatDSSE     = "dsse"
	FormatSigstore = "sigstore"
)

// bundleType is the media type of Sigstore's bundles.
const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Export returns an envelope for other programs: as it is, or as a bundle of Sigstore, which has
// room for one signature: that of the node. A verifier of the bundle gets the key by other means.
func Export(envelope []byte, format string) ([]byte, error) {
	if format == FormatDSSE {
		return envelope, nil
	}
	e, _, err := decodeEnvelope(envelope, PayloadType)
	if err != nil {
		return nil, err
	}
	if format != FormatSigstore || len(e.Signatures) == 0 {
		return nil, turnstone.Errorf("proof.export", turnstone.KindInvalid, format,
			"is no format of evidence")
	}
	type signature struct {
		Sig   string `json:"sig"`
		KeyID string `json:"keyid"`
	}
	type dsse struct {
		Payload     string      `json:"payload"`
		PayloadType string      `json:"payloadType"`
		Signatures  []signature `json:"signatures"`
	}
	type hint struct {
		Hint string `json:"hint"`
	}
	type material struct {
		PublicKey   hint       `json:"publicKey"`
		TlogEntries []struct{} `json:"tlogEntries"` // some readers want the list, if only an empty one
	}
	node := e.Signatures[0]
	return json.Marshal(struct {
		MediaType string   `json:"mediaType"`
		Material  material `json:"verificationMaterial"`
		Envelope  dsse     `json:"dsseEnvelope"`
	}{bundleType, material{hint{node.KeyID}, []struct{}{}}, dsse{e.Payload, e.PayloadType,
		[]signature{{node.Sig, node.KeyID}}}})
}
