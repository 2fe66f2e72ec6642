package source

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source/pgoutput"
)

var errFull = &queue.Error{Kind: queue.ErrFull, Detail: "test"}

// sqlConn is a session that stays open.
type sqlConn struct{ c *pgx.Conn }

func connect(t testing.TB, url string) sqlConn {
	t.Helper()
	c, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return sqlConn{c}
}

func (c sqlConn) exec(t testing.TB, sql string) {
	t.Helper()
	if _, err := c.c.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// raw opens a connection as the reader does.
func raw(t testing.TB, url, role string) *pgconn.PgConn {
	t.Helper()
	cfg, err := pgconnect.Parse(url, role)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgconn.ConnectConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// cmpRelation returns the last relation described in a body, or def.
func cmpRelation(t testing.TB, body []byte, def *change.Relation) *change.Relation {
	t.Helper()
	var ms change.Messages
	var d pgoutput.Decoder
	ms.Reset(body)
	for {
		raw, err := ms.Next()
		if err != nil {
			t.Fatal(err)
		}
		if raw == nil {
			return def
		}
		m, err := d.Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		if m.Relation != nil {
			def = m.Relation
		}
	}
}

func chownLike(t testing.TB, file string, like os.FileInfo) {
	t.Helper()
	if s, ok := like.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(file, int(s.Uid), int(s.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}
