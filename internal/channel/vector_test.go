package channel

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io"
	"os"
	"testing"

	"turnstone.dev/turnstone"
)

var update = flag.Bool("update", false, "write the golden file")

// A vector is a whole connection with fixed keys, in hexadecimal: what each side sends when the
// client writes "data" and ends its direction. Implementations in other languages read it too.
type vector struct {
	Statement       turnstone.Digest `json:"statement"`
	ClientStatic    string           `json:"client_static"` // private keys
	ClientEphemeral string           `json:"client_ephemeral"`
	ServerStatic    string           `json:"server_static"`
	ServerEphemeral string           `json:"server_ephemeral"`
	Hello           string           `json:"hello"`  // client
	Answer          string           `json:"answer"` // server
	Frames          string           `json:"frames"` // client: confirm, data, end
}

// TestVector compares a connection with testdata/vector.json. -update writes the file again, which
// is a new version of the protocol.
func TestVector(t *testing.T) {
	const file = "testdata/vector.json"
	e := fixedEnds(t)
	key := func(f fixed) string { return hex.EncodeToString(fixedKey(t, f).Private()) }
	hello, answer, rest := record(t)
	got, err := json.MarshalIndent(vector{e.client.Statement, key(1), key(3), key(2), key(4),
		hex.EncodeToString(hello), hex.EncodeToString(answer), hex.EncodeToString(rest)}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the channel is not that of %s: %v\n%s", file, err, got)
	}
	server, err := Server(t.Context(), &tape{in: bytes.NewReader(append(hello, rest...))}, e.server)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(server); err != nil || string(data) != "data" {
		t.Fatalf("%q, %v", data, err)
	}
}
