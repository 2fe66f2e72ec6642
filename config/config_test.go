package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walferry/walferry/internal/pgconnect"
)

func noEnv(string) (string, bool) { return "", false }

func env(m map[string]string) func(string) (string, bool) {
	return func(k string) (string, bool) {
		v, ok := m[k]
		return v, ok
	}
}

func mustParse(t *testing.T, src string, lookup func(string) (string, bool)) *Config {
	t.Helper()
	c, err := Parse("walferry.yaml", []byte(src), lookup)
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return c
}

func problemsOf(t *testing.T, src string, lookup func(string) (string, bool)) []string {
	t.Helper()
	_, err := Parse("w.yaml", []byte(src), lookup)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("Parse gave %v, want an *Error", err)
	}
	return strings.Split(err.Error(), "\n")
}

const full = `
data_dir: /var/lib/walferry
queue:
  url: nats://user:pw@n1:4222,nats://n2:4222
  credentials: /etc/walferry/nats.creds
  max_bytes: 20GiB
  replicas: 3
  retention: 2d
publishers:
  - name: main
    url: postgres://repl:pw@src/app
    slot: my_slot
    tables: {include: ['public.*', '"My Schema"."Order.Items"'], exclude: ['public.tmp_?*']}
    confirm: applied
    heartbeat: 10s
    streaming: on
    failover: off
    origin: none
  - name: other
    url: host=src2 dbname=x password='p w'
    publications: [existing_pub]
subscriptions:
  - name: reporting
    publisher: main
    url: postgres://dst/app
    tables: {include: ['public.*']}
    rename: {schemas: {public: app}, tables: {public.orders: app.orders_copy}}
    initial: none
    position: 16/B374D848
    schema: require
    copy: {mode: locked, workers: 2, on_existing: append, max_mb_per_s: 50, window: "22:00-06:30"}
    policies: {insert_conflict: upsert, update_missing: skip, delete_missing: skip, other: stop}
    group: {rows: 10, bytes: 64KiB, time: 1s}
    replication_role: origin
monitor: {listen: '127.0.0.1:9187', silence: 1m, stuck: 3m}
log: {level: debug, format: json}
`

func TestParse_EveryKeyIsRead(t *testing.T) {
	c := mustParse(t, full, noEnv)
	tables := func(in, ex []string) TableSet {
		s, err := NewTableSet(in, ex)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := &Config{
		DataDir: "/var/lib/walferry",
		Queue: Queue{
			URL: "nats://user:pw@n1:4222,nats://n2:4222", Credentials: "/etc/walferry/nats.creds",
			MaxBytes: 20 << 30, Replicas: 3, Retention: Duration(48 * time.Hour),
		},
		Publishers: []Publisher{
			{
				Name: "main", URL: "postgres://repl:pw@src/app", Slot: "my_slot",
				Tables:  tables([]string{"public.*", `"My Schema"."Order.Items"`}, []string{"public.tmp_?*"}),
				Confirm: ConfirmApplied, Heartbeat: Duration(10 * time.Second), Streaming: true, Failover: FailoverOff, Origin: OriginNone,
			},
			{
				Name: "other", URL: "host=src2 dbname=x password='p w'", Slot: "walferry_other", Publications: []string{"existing_pub"},
				Confirm: ConfirmQueued, Heartbeat: Duration(30 * time.Second), Failover: FailoverAuto, Origin: OriginAny,
			},
		},
		Subscriptions: []Subscription{{
			Name: "reporting", Publisher: "main", URL: "postgres://dst/app",
			Tables: tables([]string{"public.*"}, nil),
			Rename: Rename{
				Schemas: map[string]string{"public": "app"},
				Tables:  map[TableName]TableName{{"public", "orders"}: {"app", "orders_copy"}},
			},
			Initial: InitialNone, Position: 0x16B374D848, Schema: SchemaRequire,
			Copy:            Copy{Mode: CopyLocked, Workers: 2, OnExisting: ExistingAppend, MaxMB: 50, Window: Window{22 * time.Hour, 6*time.Hour + 30*time.Minute}},
			Policies:        Policies{PolicyUpsert, PolicySkip, PolicySkip, PolicyStop},
			Group:           Group{Rows: 10, Bytes: 64 << 10, Time: Duration(time.Second)},
			ReplicationRole: RoleOrigin,
		}},
		Monitor: Monitor{Listen: "127.0.0.1:9187", Silence: Duration(time.Minute), Stuck: Duration(3 * time.Minute)},
		Log:     Log{Level: "debug", Format: "json"},
	}
	if d := diff(want, c); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// diff compares without what is kept for messages.
func diff(want, got *Config) string {
	return cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool {
		n := p.Last().String()
		return n == ".file" || n == ".positions"
	}, cmp.Ignore()), cmp.AllowUnexported(Config{}, Pattern{}, namePart{}))
}

const small = `
publishers: [{name: main, url: 'host=a'}]
subscriptions: [{name: copy, url: 'host=b'}]
`

func TestParse_DefaultsAreFilledIn(t *testing.T) {
	c := mustParse(t, small, noEnv)
	want := Default()
	p, s := DefaultPublisher(), DefaultSubscription()
	p.Name, p.URL, p.Slot = "main", "host=a", "walferry_main"
	s.Name, s.URL, s.Publisher = "copy", "host=b", "main"
	want.Publishers, want.Subscriptions = []Publisher{p}, []Subscription{s}
	if d := diff(want, c); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if c.Queue.MaxBytes != 10<<30 || time.Duration(c.Queue.Retention) != 48*time.Hour || !c.Queue.Embedded() {
		t.Errorf("queue defaults: %+v", c.Queue)
	}
}

func TestParse_AllProblemsAtOnceWithPlacesAndHints(t *testing.T) {
	got := problemsOf(t, `data_dri: x
queue:
  max_bytes: lots
  replicas: 9
publishers:
  - name: main
    url: host=a
    slot: Walferry-Main
    tables:
      include: [orders, 'public.*']
      exclude: []
    heartbeat: often
  - name: main
    url: host=c
subscriptions:
  - name: reporting
    publisher: mian
    url: host=b
    polices: {}
    policies:
      insert_conflict: updsert
      delete_missing: upsert
    initial: maybe
    group:
      rows: 0
log: loud
`, noEnv)
	want := []string{
		`w.yaml:1:1: data_dri: unknown key (did you mean data_dir?)`,
		`w.yaml:3:14: queue.max_bytes: "lots": want a size such as 256KiB, 10GiB or a number of bytes`,
		`w.yaml:4:13: queue.replicas: "9": is not a number in the range (allowed: 1 to 5)`,
		`w.yaml:8:11: publishers[0].slot: "Walferry-Main": not a name for a replication slot (1 to 63 of a-z, 0-9 and _)`,
		`w.yaml:10:17: publishers[0].tables.include[0]: "orders": the schema is missing: write public.orders, or *.orders for every schema`,
		`w.yaml:11:7: publishers[0].tables.exclude: the list is empty (remove the key to select all tables)`,
		`w.yaml:12:16: publishers[0].heartbeat: "often": want a time such as 200ms, 30s, 48h or 2d`,
		`w.yaml:13:11: publishers[1].name: "main": the name of another publisher`,
		`w.yaml:17:16: subscriptions[0].publisher: "mian": no such publisher (did you mean main?)`,
		`w.yaml:19:5: subscriptions[0].polices: unknown key (did you mean policies?)`,
		`w.yaml:21:24: subscriptions[0].policies.insert_conflict: "updsert": is not one of the allowed values (allowed: stop, skip, upsert)`,
		`w.yaml:22:23: subscriptions[0].policies.delete_missing: "upsert": is not one of the allowed values (allowed: stop, skip)`,
		`w.yaml:23:14: subscriptions[0].initial: "maybe": is not one of the allowed values (allowed: copy, none)`,
		`w.yaml:25:13: subscriptions[0].group.rows: "0": is not a number in the range (allowed: 1 to 10000000)`,
		`w.yaml:26:6: log: want keys and values (indent its keys below it)`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestParse_WhatContradictsItselfIsRefused(t *testing.T) {
	pub := "publishers: [{name: main, url: 'host=a'}]\n"
	for name, c := range map[string]struct{ src, want string }{
		"empty file":              {"", "no publisher is configured"},
		"no name":                 {"publishers: [{url: 'host=a'}]", "publishers[0].name: the publisher has no name"},
		"bad name":                {"publishers: [{name: 'a.b', url: 'host=a'}]", "publishers[0].name: \"a.b\": not a name"},
		"same slot":               {"publishers: [{name: a, url: 'host=a', slot: s}, {name: b, url: 'host=a', slot: s}]", "publishers[1].slot"},
		"tables and publications": {"publishers: [{name: a, url: 'host=a', publications: [p], tables: {include: ['a.*']}}]", "publications that exist are used as they are"},
		"position of a copy":      {pub + "subscriptions: [{name: s, url: 'host=b', position: 0/1}]", "subscriptions[0].position: a copy has its own position"},
		"onto itself":             {pub + "subscriptions: [{name: s, url: 'host=a'}]", "a table cannot be copied onto itself"},
		"both from environment":   {"publishers: [{name: a}]\nsubscriptions: [{name: s}]", "a table cannot be copied onto itself"},
		"same target":             {pub + "subscriptions: [{name: s, url: 'host=b', rename: {tables: {a.x: c.t, b.y: c.t}}}]", "tables a.x and b.y would both be c.t"},
		"target of an included":   {pub + "subscriptions: [{name: s, url: 'host=b', tables: {include: [a.x, b.x]}, rename: {schemas: {a: b}}}]", "tables a.x and b.x would both be b.x"},
		"rename not selected":     {pub + "subscriptions: [{name: s, url: 'host=b', tables: {include: ['a.*']}, rename: {tables: {b.x: c.x}}}]", "rename.tables.b.x: table b.x is not selected"},
		"rename into walferry":    {pub + "subscriptions: [{name: s, url: 'host=b', rename: {schemas: {a: walferry}}}]", "a schema of PostgreSQL or walferry"},
		"embedded with replicas":  {pub + "queue: {replicas: 3}", "queue.replicas: the embedded queue has one replica"},
		"listen with url":         {pub + "queue: {url: 'nats://n', listen: ':4222'}", "queue.listen: only the embedded queue listens"},
		"no NATS url":             {pub + "queue: {url: 'http://n'}", "queue.url: not the URL of a NATS server"},
		"listen address":          {pub + "monitor: {listen: localhost}", "monitor.listen: \"localhost\": not an address"},
		"key twice":               {pub + "log: {level: info}\nlog: {level: warn}", "w.yaml:3:1: log: key is given twice"},
		"unknown alias":           {pub + "data_dir: *x", "a value that begins with * must be quoted"},
		"two documents":           {pub + "---\n" + pub, "more than one YAML document"},
		"list for a text":         {"data_dir: [a]\n" + pub, "w.yaml:1:1: data_dir: want a single value"},
		"text for a list":         {"publishers: main", "publishers: want a list"},
		"tab":                     {"queue:\n\turl: x", "not valid YAML"},
		"merge key":               {"a: &a {level: info}\nlog: {<<: *a}\n" + pub, "merge keys (<<) are not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(problemsOf(t, c.src, noEnv), "\n")
			if !strings.Contains(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if !strings.HasPrefix(got, "w.yaml:") {
				t.Errorf("no place in %s", got)
			}
		})
	}
}

func TestParse_AnchorsAndAliasesWork(t *testing.T) {
	c := mustParse(t, "publishers: [{name: main, url: 'host=a', tables: &t {include: ['a.*']}}]\n"+
		"subscriptions: [{name: s, url: 'host=b', tables: *t}]\n", noEnv)
	if !c.Subscriptions[0].Tables.Match("a", "x") || c.Subscriptions[0].Tables.Match("b", "x") {
		t.Error("the alias does not stand for its anchor")
	}
}

func TestParse_EnvironmentIsExpandedInValues(t *testing.T) {
	const pw = `p@ss:w/o%rd'"\ {}$x`
	c := mustParse(t, `
publishers:
  - name: ${NAME}
    url: "host=a password=${QUOTED}"
queue: {replicas: "${N:-1}", max_bytes: "${SIZE:-1GiB}"}
data_dir: /data/$$HOME/$x/${EMPTY:-default}
`, env(map[string]string{"NAME": "main", "QUOTED": `'p@ss:w/o%rd\'"\\ {}$x'`, "EMPTY": ""}))
	if c.Publishers[0].Name != "main" || c.Queue.MaxBytes != 1<<30 || c.DataDir != "/data/$HOME/$x/default" {
		t.Errorf("got %q, %v, %q", c.Publishers[0].Name, c.Queue.MaxBytes, c.DataDir)
	}
	pc, err := pgconnect.Parse(c.Publishers[0].URL, "")
	if err != nil || pc.Password != pw {
		t.Errorf("password arrives as %q (%v), want %q", pc.Password, err, pw)
	}
}

func TestParse_MissingVariablesAreAllNamed(t *testing.T) {
	got := problemsOf(t, `
publishers:
  - name: main
    url: postgres://u:${DB_PASSWORD}@${DB_HOST}/x
    slot: ${SLOT
log: {level: "${1}"}
`, env(map[string]string{"DB_HOST": ""}))
	want := []string{
		"w.yaml:4:10: publishers[0].url: environment variable DB_PASSWORD is not set; use ${DB_PASSWORD:-} if it may be missing",
		"w.yaml:5:11: publishers[0].slot: ${ has no } after it; write $${ for the characters themselves",
		"w.yaml:6:14: log.level: what stands in ${...} is not the name of a variable; use ${NAME} or ${NAME:-default}",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestLoad_RelativePathsStartFromTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "w.yaml")
	if err := os.WriteFile(path, []byte(small), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "walferry-data"); c.DataDir != want {
		t.Errorf("DataDir = %s, want %s", c.DataDir, want)
	}
}

func TestFromFlags(t *testing.T) {
	c, err := FromFlags("host=a", "host=b", []string{"public.*"}, []string{"public.tmp_*"}, "")
	if err != nil {
		t.Fatal(err)
	}
	p, s := c.Publishers[0], c.Subscriptions[0]
	if p.Name != "main" || p.Slot != "walferry_main" || s.Name != "main" || s.Publisher != "main" || s.URL != "host=b" {
		t.Errorf("got %+v %+v", p, s)
	}
	for _, set := range []TableSet{p.Tables, s.Tables} {
		if !set.Match("public", "a") || set.Match("public", "tmp_a") || set.Match("app", "a") {
			t.Errorf("selection of %+v", set)
		}
	}
	_, err = FromFlags("host=a port=x", "host=b", []string{"orders"}, nil, "")
	if err == nil || !strings.Contains(err.Error(), "--tables: orders: the schema is missing") || !strings.Contains(err.Error(), "--from: ") {
		t.Errorf("got %v", err)
	}
}

func TestYAML_PrintsWhatWasReadWithoutSecrets(t *testing.T) {
	c := mustParse(t, strings.Replace(full, "existing_pub", "'pub $$ {x}'", 1), noEnv)
	b, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("again", b, noEnv)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	for _, s := range []*string{&c.Queue.URL, &c.Publishers[0].URL, &c.Publishers[1].URL, &c.Subscriptions[0].URL} {
		*s = Redact(*s)
	}
	if d := diff(c, again); d != "" {
		t.Errorf("(-want +got)\n%s\n%s", d, b)
	}
	if strings.Contains(string(b), ":pw") || strings.Contains(string(b), "p w") {
		t.Errorf("a secret is shown:\n%s", b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(full)
	f.Add(small)
	f.Add("publishers: &a [*a]")
	f.Add("? {a: b}\n: c")
	f.Fuzz(func(t *testing.T, src string) {
		c, err := Parse("x", []byte(src), noEnv)
		if (c == nil) == (err == nil) {
			t.Fatal("want either a configuration or an error")
		}
		if err != nil {
			return
		}
		b, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse("again", b, noEnv); err != nil && !strings.Contains(string(b), hidden) {
			t.Fatalf("what YAML prints cannot be read: %v\n%s", err, b)
		}
	})
}
