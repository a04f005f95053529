package turnstone

// An Ask is a request of a document that only its caller, or the host's configuration, grants.
type Ask struct {
	Key  string `json:"key"`  // grants it unchanged, such as "network"; empty: no key does
	What string `json:"what"` // in the form of front matter: "session: research"
	Flag string `json:"flag"` // the flag that grants it: "--session research"
	// Place is the manifest that asks, where the document leaves its defaults; empty: the document.
	Place string `json:"place,omitempty"`
}
