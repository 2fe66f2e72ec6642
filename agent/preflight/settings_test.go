package preflight

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgtest"
)

func (f *fixture) wants(r *Report, all ...want) {
	f.t.Helper()
	for _, w := range all {
		if find(r, w) == nil {
			f.t.Errorf("no finding %+v", w)
		}
	}
	if f.t.Failed() {
		f.t.Log(text(r))
	}
}

func TestCheck_NamesAllServerSettingsAtOnce_CB088(t *testing.T) {
	f := newFixture(t, pgtest.WithSetting("wal_level", "replica"), pgtest.WithSetting("max_wal_senders", "0"), pgtest.WithSetting("max_replication_slots", "1"),
		pgtest.WithSetting("wal_sender_timeout", "0"), pgtest.WithSetting("max_slot_wal_keep_size", "64MB"), pgtest.WithSetting("logical_decoding_work_mem", "1MB"))
	pgtest.Exec(t, f.pub, "SELECT pg_create_physical_replication_slot('taken')")
	f.exec(f.pub, "ALTER TABLE app.t DROP CONSTRAINT t_pkey")
	f.exec(f.sub, "ALTER TABLE app.t DROP COLUMN v")
	f.wants(f.check(),
		want{onPub, "wal_level", Error, "is replica", "ALTER SYSTEM SET wal_level = logical; then restart"},
		want{onPub, "max_replication_slots", Error, "is 1, of which 1 are in use: walferry needs 2 more", "SET max_replication_slots = 3;"},
		want{onPub, "max_wal_senders", Error, "is 0", "SET max_wal_senders = 2;"},
		want{onPub, "wal_sender_timeout", Warning, "is 0", "SET wal_sender_timeout = '60s'"},
		want{onPub, "max_slot_wal_keep_size", Warning, "only 64 MB", "ALTER SYSTEM SET max_slot_wal_keep_size"},
		want{onPub, "logical_decoding_work_mem", Info, "is 1024 kB", "ALTER SYSTEM"},
		want{onPub, "app.t", Error, "no primary key", "ADD PRIMARY KEY"},
		want{onSub, "app.t", Error, "column v is missing", "ADD COLUMN v text"},
	)
}

func TestCheck_SettingsOf18(t *testing.T) {
	f := newFixture(t, pgtest.WithVersion(18), pgtest.WithSetting("idle_replication_slot_timeout", "600"))
	f.exec(f.pub, "CREATE TABLE app.n (a int PRIMARY KEY)")
	r := f.check()
	f.wants(r,
		want{onPub, "idle_replication_slot_timeout", Warning, "is lost", "ALTER SYSTEM SET idle_replication_slot_timeout = 0"},
		want{onPub, "max_slot_wal_keep_size", Info, "unlimited", ""},
	)
	if _, err := os.Stat("/usr/lib/postgresql/18/bin/pg_dump"); err != nil && !strings.Contains(os.Getenv("PATH"), "/18/bin") {
		f.wants(r, want{onSub, "pg_dump", Error, "version 18 or newer", "postgresql-client-18"})
	}
}

func TestCheck_LostSlot(t *testing.T) {
	f := newFixture(t, pgtest.WithSetting("max_slot_wal_keep_size", "1MB"), pgtest.WithSetting("min_wal_size", "32MB"), pgtest.WithSetting("max_wal_size", "32MB"))
	slot := f.cfg.Publishers[0].Slot
	pgtest.Exec(t, f.pub, "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
	for range 5 {
		pgtest.Exec(t, f.pub, "CREATE TABLE x (); DROP TABLE x; SELECT pg_switch_wal()")
	}
	pgtest.Exec(t, f.pub, "CHECKPOINT")
	f.wants(f.check(), want{onPub, "slot " + slot, Error, "is lost", "walferry drop"})
}

func TestCheck_SlotInUse(t *testing.T) {
	f := newFixture(t)
	slot := f.cfg.Publishers[0].Slot
	pgtest.Exec(t, f.pub, "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput'); CREATE PUBLICATION other")
	for app, w := range map[string]want{
		"debezium":        {onPub, "slot " + slot, Error, `application "debezium"), which is not walferry`, "pg_terminate_backend"},
		"walferry reader": {onPub, "slot " + slot, Info, "walferry is running", ""},
	} {
		c, err := pgconn.Connect(t.Context(), f.pub+"&replication=database&application_name="+strings.ReplaceAll(app, " ", "%20"))
		if err != nil {
			t.Fatal(err)
		}
		c.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT " + slot + " LOGICAL 0/0 (proto_version '1', publication_names 'other')"})
		if err := c.Frontend().Flush(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReceiveMessage(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.wants(f.check(), w)
		pgtest.Exec(t, f.pub, fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", c.PID()))
		_ = c.Close(t.Context()) // ended by the server
	}
}

func TestCheck_WrongPasswordIsToldWithoutIt(t *testing.T) {
	f := newFixture(t, pgtest.WithSetting("log_connections", "on"), pgtest.WithSetting("password_encryption", "scram-sha-256"))
	pgtest.Exec(t, f.pub, "ALTER ROLE "+f.role+" PASSWORD 'right one'")
	dir := pgtest.QueryString(t, f.pub, "SHOW data_directory")
	hba := filepath.Join(dir, "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, f.pub, "SELECT pg_reload_conf()")
	f.cfg.Publishers[0].URL = strings.Replace(f.cfg.Publishers[0].URL, f.role+"@", f.role+":s3cr3t@", 1)
	r := f.check()
	f.wants(r, want{onPub, "role " + f.role, Error, "password authentication failed", "ALTER ROLE " + f.role + " PASSWORD"})
	if strings.Contains(text(r), "s3cr3t") {
		t.Errorf("the password is shown:\n%s", text(r))
	}
}

// balance forwards connections to two servers in turn.
func balance(t *testing.T, ports ...int) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var n atomic.Int64
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			out, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", ports[int(n.Add(1))%len(ports)]))
			if err != nil {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }() // ends with either side
			go func() { _, _ = io.Copy(in, out); in.Close() }()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestCheck_LoadBalancerIsNoticed_CB090(t *testing.T) {
	f := newFixture(t)
	port := balance(t, pgtest.Shared(t).Port(), pgtest.New(t).Port())
	f.cfg.Publishers[0].URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
	f.wants(f.check(), want{onPub, "connection string", Error, "different servers", "target_session_attrs=primary"})
}

func TestCheck_Encodings_CB045(t *testing.T) {
	for _, tt := range []struct {
		pub, sub string
		sev      Severity
		problem  string
	}{
		{"SQL_ASCII", "UTF8", Error, "cannot be converted"},
		{"UTF8", "LATIN1", Warning, "a character that LATIN1 does not have"},
		{"UTF8", "SQL_ASCII", Warning, "text arrives in UTF8"},
		{"LATIN1", "UTF8", "", ""},
	} {
		s := &subscriber{side: side{name: onSub, encoding: tt.sub}, pub: &publisher{side: side{name: onPub, encoding: tt.pub}}}
		s.encodings()
		switch {
		case tt.sev == "" && len(s.findings) > 0:
			t.Errorf("%s to %s: %+v", tt.pub, tt.sub, s.findings)
		case tt.sev != "" && (len(s.findings) != 1 || s.findings[0].Severity != tt.sev || !strings.Contains(s.findings[0].Problem, tt.problem)):
			t.Errorf("%s to %s: %+v", tt.pub, tt.sub, s.findings)
		}
	}
}

func TestVersionProblem(t *testing.T) {
	for v, want := range map[int]string{90624: "9.6", 130010: "PostgreSQL 13 ", 140000: "", 180001: ""} {
		got := versionProblem(v)
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("version %d: %q", v, got)
		}
	}
}

func TestRecoveryProblem_StandbyPublisherNeeds16(t *testing.T) {
	for v, sev := range map[int]Severity{150004: Error, 160000: Warning} {
		p := &publisher{cfg: &config.Publisher{}}
		p.recoveryProblem(v)
		if len(p.findings) != 1 || p.findings[0].Severity != sev || p.findings[0].Remedy == "" {
			t.Errorf("version %d: %+v", v, p.findings)
		}
	}
}

func TestReport_TextAndJSON(t *testing.T) {
	r := &Report{Findings: []Finding{
		{Side: "subscription x", Object: "app.t", Severity: Info, Problem: "p3"},
		{Side: "publisher main", Object: "wal_level", Severity: Warning, Problem: "p1", Remedy: "fix 1;\nfix 2;"},
		{Side: "subscription x", Object: "app.u", Severity: Error, Problem: "p2", Remedy: "fix"},
	}}
	r.sort([]string{"publisher main", "subscription x"})
	const wantText = `publisher main
  warning wal_level: p1
            fix 1;
            fix 2;

subscription x
  error   app.u: p2
            fix
  info    app.t: p3

1 error, 1 warning, 1 note
`
	if got := text(r); got != wantText {
		t.Errorf("text:\n%s\nwant:\n%s", got, wantText)
	}
	b, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(b), `{"side":"publisher main","object":"wal_level","severity":"warning","problem":"p1","remedy":"fix 1;\nfix 2;"}`) {
		t.Errorf("JSON: %s, %v", b, err)
	}
	if !r.Failed() || (&Report{}).Failed() {
		t.Error("Failed is wrong")
	}
}
