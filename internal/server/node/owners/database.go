package owners

import "turnstone.dev/turnstone/internal/repo/location"

// Database returns the URL of the database with a tenant's sessions, a schema in that of the operator's;
// empty if url is, because the sessions are then in the tenant's state directory.
func Database(url, tenant string) string { return location.OfTenant(url, tenant) }
