package proof

import "github.com/secure-systems-lab/go-securesystemslib/dsse"

func pae(payloadType string, payload []byte) []byte { return dsse.PAE(payloadType, payload) }
