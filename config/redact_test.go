package config

import (
	"net/url"
	"strings"
	"testing"

	"github.com/walferry/walferry/internal/pgconnect"
)

const odd = `p@ss:w/o%rd'"\ {}`

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "",
		"postgres://h/db":                    "postgres://h/db",
		"postgres://u@h:5432/db?sslmode=off": "postgres://u@h:5432/db?sslmode=off",
		"postgres://u:pw@h,h2:5433/db":       "postgres://u:xxxxx@h,h2:5433/db",
		"postgresql://u:pw@h/db?sslpassword=pw&sslmode=require": "postgresql://u:xxxxx@h/db?sslpassword=xxxxx&sslmode=require",
		"postgres:///db?user=u&password=pw&host=/run":           "postgres:///db?user=u&password=xxxxx&host=/run",
		"postgres:///db?p%61ssword=pw":                          "postgres:///db?p%61ssword=xxxxx",
		"postgres:///db?password=a&pw":                          "postgres:///db?password=xxxxx&xxxxx",
		"postgres://u:pw/x@y@h/db":                              "postgres://u:xxxxx@h/db",
		"host=h user=u password=pw dbname=d":                    "host=h user=u password=xxxxx dbname=d",
		"host = h password = 'p w' dbname='my db'":              "host=h password=xxxxx dbname='my db'",
		`password='a\'pw' sslpassword=pw user=u`:                "password=xxxxx sslpassword=xxxxx user=u",
		`password=a\ pw user=u`:                                 "password=xxxxx user=u",
		"host=h password='pw":                                   "host=h password=xxxxx",
		"host=h password=a pw":                                  "host=h password=xxxxx xxxxx",
		"nats://n:4222,nats://m:4222":                           "nats://n:4222,nats://m:4222",
		"nats://user:pw@n:4222,tls://pw@m":                      "nats://xxxxx@n:4222,tls://xxxxx@m",
		"nats://user:p,pw@n:4222":                               "nats://xxxxx",
		"user:pw@n:4222":                                        "xxxxx",
		"mysql://u:pw@h/db":                                     "mysql://xxxxx",
	} {
		got := Redact(in)
		if got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
		if strings.Contains(got, "pw") {
			t.Errorf("Redact(%q) shows the secret: %q", in, got)
		}
	}
}

func TestRedact_PasswordsWithSpecialCharacters(t *testing.T) {
	quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(odd) + "'"
	for _, dsn := range []string{
		"postgres://" + url.UserPassword("a@b", odd).String() + "@h/my%20db",
		"postgres://h/db?user=a%40b&password=" + strings.ReplaceAll(url.QueryEscape(odd), "+", "%20"),
		"host=h user=a@b password=" + quoted + " dbname='my db'",
	} {
		c, err := pgconnect.Parse(dsn, "")
		if err != nil {
			t.Fatalf("%s: %v", dsn, err)
		}
		if c.Password != odd || c.User != "a@b" {
			t.Errorf("%s: user %q, password %q", dsn, c.User, c.Password)
		}
		shown := Redact(dsn)
		for _, piece := range []string{"p@ss", "p%40ss", "ss:w", "ss%3Aw", "o%rd", "o%25rd", "{}", "%7B"} {
			if strings.Contains(shown, piece) {
				t.Errorf("Redact(%s) shows %q: %s", dsn, piece, shown)
			}
		}
	}
	// Not escaped, so not valid: hidden all the same.
	for _, dsn := range []string{"postgres://u:" + odd + "@h/db", "host=h password=" + odd, "host=h password='" + odd} {
		if shown := Redact(dsn); strings.Contains(shown, "ss:w") || strings.Contains(shown, "rd'") || strings.Contains(shown, "{}") {
			t.Errorf("Redact(%s) = %s", dsn, shown)
		}
	}
}

func TestParse_ErrorsShowNoSecret(t *testing.T) {
	const pw = "s3cr3tpw"
	for _, src := range []string{
		"publishers: [{name: a, url: 'postgres://u:" + pw + "@h:port/db'}]",
		"publishers: [{name: a, url: 'host=h password=" + pw + " x'}]",
		"publishers: [{name: a, url: ['" + pw + "']}]",
		"publishers:\n  - postgres://u:" + pw + "@h/db\n",
		"publishers:\n  - name: a\n    url: postgres://u:" + pw + "@h/db\n   slot: x\n",
		"publishers:\n  - name: a\n    url postgres://u:" + pw + "@h/db\n",
		"queue: {url: 'http://u:" + pw + "@n'}",
		"queue: {url: 'nats://u:${X}" + pw + "@n'}",
		"queue: {max_bytes: '${SECRET}', url: {a: " + pw + "}}",
		"a: \"" + pw + "\nb: c",
		"publishers: [{name: a, url: \"" + pw + "}]",
	} {
		_, err := Parse("w.yaml", []byte(src), env(map[string]string{"SECRET": pw}))
		if err == nil {
			t.Errorf("accepted: %s", src)
			continue
		}
		if strings.Contains(err.Error(), pw) {
			t.Errorf("error shows the secret:\n%s\n%v", src, err)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("postgres://u:@h/db?x", "a")
	f.Add("host=h password=", "b c")
	f.Fuzz(func(t *testing.T, dsn, pw string) {
		Redact(dsn + pw) // must not panic
		if len(pw) < 8 {
			return
		}
		u := "postgres://" + url.UserPassword("u", pw).String() + "@h/db"
		if s := Redact(u); s != "postgres://u:"+hidden+"@h/db" {
			t.Fatalf("Redact(%q) = %q", u, s)
		}
		q := "host=h password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(pw) + "' user=u"
		if s := Redact(q); s != "host=h password="+hidden+" user=u" {
			t.Fatalf("Redact(%q) = %q", q, s)
		}
	})
}
