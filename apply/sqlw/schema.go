package sqlw

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed schema.sql
var schemaSQL string

// SchemaVersion is the version of schema walferry that this package makes.
const SchemaVersion = 3

// schemaLock serialises the making of the schema: CREATE ... IF NOT EXISTS
// fails when two sessions run it at once.
const schemaLock = 0x77616c66657272 // "walferr"

// EnsureSchema makes schema walferry and its tables where they are missing. It
// needs CREATE on the database, or the schema made beforehand and owned by the
// role; when everything is there it needs no privilege but to look.
func EnsureSchema(ctx context.Context, conn *pgconn.PgConn) error {
	v, err := schemaVersion(ctx, conn)
	if err != nil {
		return fmt.Errorf("look for schema walferry: %w", err)
	}
	switch {
	case v == SchemaVersion:
		return nil
	case v > SchemaVersion:
		return fmt.Errorf("schema walferry has version %d, this walferry knows version %d: run a walferry at least as new as the one that made it", v, SchemaVersion)
	}
	sql := fmt.Sprintf("BEGIN; SELECT pg_catalog.pg_advisory_xact_lock(%d);"+
		"DO $$ BEGIN IF pg_catalog.to_regnamespace('walferry') IS NULL THEN CREATE SCHEMA walferry; END IF; END $$;", schemaLock) +
		schemaSQL + "COMMIT"
	if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
		if !conn.IsClosed() {
			_, _ = conn.Exec(ctx, "ROLLBACK").ReadAll() // the first error is the one that counts
		}
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == "42501" {
			return fmt.Errorf("make schema walferry: %w: GRANT CREATE ON DATABASE to this role, or CREATE SCHEMA walferry AUTHORIZATION this role", err)
		}
		return fmt.Errorf("make schema walferry: %w", err)
	}
	return nil
}

// schemaVersion is 0 when the schema is missing or not finished.
func schemaVersion(ctx context.Context, conn *pgconn.PgConn) (int, error) {
	there, err := conn.Exec(ctx, `SELECT pg_catalog.to_regclass('walferry.version') IS NOT NULL`).ReadAll()
	if err != nil {
		return 0, err
	}
	if string(there[0].Rows[0][0]) != "t" {
		return 0, nil
	}
	res, err := conn.Exec(ctx, `SELECT version FROM walferry.version`).ReadAll()
	if err != nil {
		return 0, err
	}
	if len(res[0].Rows) == 0 {
		return 0, nil
	}
	return strconv.Atoi(string(res[0].Rows[0][0]))
}
