package pgdb

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// ServerVersion connects to the server at a PostgreSQL URL once and returns its version as
// a number, such as 170004 for 17.4, and as text. It changes nothing.
func ServerVersion(ctx context.Context, url string) (number int, text string, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, "", Classify("connect to the database", err)
	}
	var raw string
	err = conn.QueryRow(ctx, `select current_setting('server_version_num'), current_setting('server_version')`).Scan(&raw, &text)
	if err == nil {
		number, err = strconv.Atoi(raw)
	}
	return number, text, Classify("ask the database for its version", errors.Join(err, conn.Close(context.WithoutCancel(ctx))))
}
