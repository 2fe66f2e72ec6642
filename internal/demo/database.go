package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walferry/walferry/internal/pgconnect"
)

// connect opens a connection whose answers do not depend on the user's settings.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	return pgconnect.Connect(ctx, url, "demo")
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = c.Close(ctx) // the connection is given up in any case
}

// execute runs SQL that may hold several statements on a connection of its own.
func execute(ctx context.Context, url, sql string) error {
	conn, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return conn.PgConn().Exec(ctx, sql).Close()
}

// arrived is what demo.ledger says of one side.
type arrived struct {
	rows, transactions int64
	last               time.Time // commit that wrote last
}

func readLedger(ctx context.Context, c *pgx.Conn) (arrived, error) {
	var a arrived
	err := c.QueryRow(ctx, "SELECT sum(rows)::bigint, sum(transactions)::bigint, max(at) FROM demo.ledger").Scan(&a.rows, &a.transactions, &a.last)
	if err != nil {
		return a, fmt.Errorf("read ledger: %w", err)
	}
	return a, nil
}

// digest is the content of a table in short.
type digest struct {
	rows int64
	hash string
}

// digestSQL hashes the text of each row and adds the hashes, so that the order of
// rows does not matter and a row that is there twice counts twice.
const digestSQL = "SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text FROM demo.%s t"

func readDigests(ctx context.Context, url string) (map[string]digest, error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer closeConn(conn)
	out := make(map[string]digest, len(tables))
	for _, t := range tables {
		var d digest
		if err := conn.QueryRow(ctx, fmt.Sprintf(digestSQL, t)).Scan(&d.rows, &d.hash); err != nil {
			return nil, fmt.Errorf("hash table demo.%s: %w", t, err)
		}
		out[t] = d
	}
	return out, nil
}

// ErrDifferent says that the two sides are not equal.
var ErrDifferent = errors.New("publisher and subscriber differ")
