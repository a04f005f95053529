//go:build !linux || turnstone_client

package cli

// configuredHost returns "": config.toml is for machines that run sandboxes.
func configuredHost(string) string { return "" }
