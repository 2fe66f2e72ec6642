package pgoutput_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

var record = flag.Bool("record", false, "record testdata/*.hex from the servers that are present")

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// script makes at least one message of every kind; the big transactions pass
// the 64 kB after which a server streams.
var script = []string{
	`CREATE TYPE mood AS ENUM ('sad', 'ok')`,
	`CREATE TABLE t (id int PRIMARY KEY, v text, m mood, big text)`,
	`ALTER TABLE t ALTER big SET STORAGE EXTERNAL`,
	`CREATE TABLE f (a int, b numeric(10,2))`,
	`ALTER TABLE f REPLICA IDENTITY FULL`,
	`CREATE PUBLICATION rec FOR TABLE t, f`,
	`SELECT pg_create_logical_replication_slot('rec', 'pgoutput', false, true)`,
	`SELECT pg_replication_origin_create('rec_origin')`,
	`INSERT INTO t VALUES (1, 'one', 'ok', repeat('x', 5000)), (2, NULL, NULL, '')`,
	`UPDATE t SET v = 'uno' WHERE id = 1; UPDATE t SET id = 3 WHERE id = 2; DELETE FROM t WHERE id = 3`,
	`INSERT INTO f VALUES (1, 1.5); UPDATE f SET b = 2; DELETE FROM f`,
	`TRUNCATE t, f RESTART IDENTITY CASCADE`,
	`SELECT pg_logical_emit_message(true, 'rec', 'in'), pg_logical_emit_message(false, 'rec', 'out')`,
	`BEGIN; SELECT pg_replication_origin_session_setup('rec_origin'); SELECT pg_replication_origin_xact_setup('0/123', now());
	 INSERT INTO t VALUES (4); COMMIT; SELECT pg_replication_origin_session_reset()`,
	`BEGIN; INSERT INTO t SELECT g, repeat('y', 100) FROM generate_series(10, 500) g; SAVEPOINT s;
	 INSERT INTO t SELECT g, repeat('z', 100) FROM generate_series(501, 1000) g; ROLLBACK TO s; INSERT INTO t VALUES (5); COMMIT`,
	`BEGIN; INSERT INTO t SELECT g, repeat('y', 100) FROM generate_series(2000, 3000) g; ROLLBACK`,
	`BEGIN; INSERT INTO t VALUES (6); PREPARE TRANSACTION 'rec_a'`, `COMMIT PREPARED 'rec_a'`,
	`BEGIN; INSERT INTO t VALUES (7); PREPARE TRANSACTION 'rec_b'`, `ROLLBACK PREPARED 'rec_b'`,
	`BEGIN; INSERT INTO t SELECT g, repeat('p', 100) FROM generate_series(4000, 4500) g; PREPARE TRANSACTION 'rec_c'`, `COMMIT PREPARED 'rec_c'`,
}

// TestRecord_Golden writes the recorded streams anew:
//
//	go test ./source/pgoutput -run TestRecord -record
func TestRecord_Golden(t *testing.T) {
	if !*record {
		t.Skip("without -record")
	}
	for _, v := range pgtest.Versions() {
		c := pgtest.New(t, pgtest.WithVersion(v), pgtest.WithSetting("logical_decoding_work_mem", "64kB"))
		for protocol := 1; protocol <= 4; protocol++ {
			if protocol == 4 && v < 16 {
				continue
			}
			options := fmt.Sprintf(`'proto_version', '%d', 'publication_names', 'rec', 'messages', 'true'`, protocol)
			s := script
			if protocol < 3 { // two-phase cannot be asked for
				s = append([]string(nil), script...)
				s[6] = `SELECT pg_create_logical_replication_slot('rec', 'pgoutput')`
			} else {
				options += `, 'two_phase', 'on'`
			}
			switch {
			case protocol == 4:
				options += `, 'streaming', 'parallel'`
			case protocol >= 2:
				options += `, 'streaming', 'on'`
			}
			db := c.DB(t)
			for _, q := range s {
				if strings.HasPrefix(q, "SELECT pg_replication_origin_create") {
					q = `SELECT pg_replication_origin_create('rec_origin') WHERE NOT EXISTS (SELECT FROM pg_replication_origin)`
				}
				pgtest.Exec(t, db, q)
			}
			out := pgtest.QueryString(t, db, `SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes('rec', NULL, NULL, `+options+`)`)
			file := fmt.Sprintf("testdata/%d-v%d.hex", v, protocol)
			// Big transactions have a thousand like rows: a few of each run stand for all.
			if err := os.WriteFile(file, []byte(thin(out)), 0o644); err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, db, `SELECT pg_drop_replication_slot('rec')`)
		}
	}
}

func thin(hexLines string) string {
	var out strings.Builder
	run := 0
	for _, l := range strings.Split(hexLines, "\n") {
		if strings.HasPrefix(l, "49") { // Insert
			run++
		} else {
			run = 0
		}
		if run <= 3 && l != "" {
			out.WriteString(l + "\n")
		}
	}
	return out.String()
}
