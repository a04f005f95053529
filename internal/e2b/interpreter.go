package e2b

import "net/http"

// serveInterpreter answers a request to the code interpreter of a sandbox.
func (d *Door) serveInterpreter(w http.ResponseWriter, r *http.Request, f Found) {
	d.servePort(w, r, f, interpreterPort)
}
