package pg

import (
	"net/url"
	"strings"

	"turnstone.dev/turnstone"
)

// CheckURL returns an error of kind Invalid if s is not the URL of a database, or has a password: URLs
// are in configurations, environments and messages.
func CheckURL(s string) error {
	fail := func(format string) error {
		return turnstone.Errorf("pg.url", turnstone.KindInvalid, Name(s), "%s", format).
			WithHint("write postgres://USER@HOST:PORT/DATABASE, and the password in the file that " +
				"PGPASSFILE names (HOST:PORT:DATABASE:USER:PASSWORD, mode 0600)")
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return fail("is not the URL of a database")
	}
	if _, has := u.User.Password(); has || u.Query().Has("password") || u.Query().Has("sslpassword") {
		return fail("has a password, which others could read")
	}
	return nil
}

// Name returns a database's URL for messages: without its parameters, and without a password, which
// CheckURL rejects.
func Name(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "the database"
	}
	clean := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if user := u.User.Username(); user != "" {
		clean.User = url.User(user)
	}
	return strings.TrimSuffix(clean.String(), "/")
}
