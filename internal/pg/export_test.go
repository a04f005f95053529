package pg

import (
	"database/sql"
	"net"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
)

// OpenStalling is Open without a schema, and with another time for which the server may be silent.
func OpenStalling(url string, stall time.Duration) (*sql.DB, error) {
	cfg, err := parse(url, "public")
	if err != nil {
		return nil, err
	}
	cfg.DialFunc = bounded((&net.Dialer{}).DialContext, stall)
	return stdlib.OpenDB(*cfg), nil
}
