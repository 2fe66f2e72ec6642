package config

import (
	"net/url"
	"strings"
)

// hidden stands for a secret.
const hidden = "xxxxx"

// Redact returns a connection string without its secrets: that of a
// PostgreSQL server, URL or keyword/value, or a list of NATS servers. It
// hides too much rather than too little: what cannot be read is hidden.
func Redact(dsn string) string {
	scheme, _, isURL := strings.Cut(dsn, "://")
	switch {
	case isURL && (scheme == "postgres" || scheme == "postgresql"):
		return redactURL(dsn, false)
	case isURL && natsSchemes[scheme]:
		// A comma is a separator unless what follows is the rest of a secret.
		parts := strings.Split(dsn, ",")
		for i, p := range parts {
			if i > 0 && !strings.Contains(p, "://") && strings.Contains(p, "@") {
				return scheme + "://" + hidden
			}
			parts[i] = redactURL(strings.TrimSpace(p), true)
		}
		return strings.Join(parts, ",")
	case isURL && !strings.Contains(scheme, "="):
		return scheme + "://" + hidden
	case !strings.Contains(dsn, "=") && strings.Contains(dsn, "@"):
		return hidden // NATS without scheme: user:password@host
	}
	return redactPairs(dsn)
}

// redactURL hides the password, or with whole everything before the @ as NATS
// takes a token there. A password may hold unescaped / and @ by mistake: the
// last @ ends it.
func redactURL(u string, whole bool) string {
	scheme, rest, ok := strings.Cut(u, "://")
	if !ok {
		scheme, rest = "", u
	} else {
		scheme += "://"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, pass, ok := strings.Cut(rest[:at], ":")
		switch {
		case whole:
			user = hidden
		case ok && pass != "":
			user += ":" + hidden
		}
		rest = user + rest[at:]
	}
	if path, query, ok := strings.Cut(rest, "?"); ok {
		pairs := strings.Split(query, "&")
		for i, p := range pairs {
			key, _, ok := strings.Cut(p, "=")
			switch name, err := url.QueryUnescape(key); {
			case !ok:
				pairs[i] = hidden // the rest of a value that holds &
			case err != nil || secretKey(name):
				pairs[i] = key + "=" + hidden
			}
		}
		rest = path + "?" + strings.Join(pairs, "&")
	}
	return scheme + rest
}

func secretKey(k string) bool {
	k = strings.ToLower(k)
	for _, w := range []string{"password", "secret", "token", "scram"} {
		if strings.Contains(k, w) {
			return true
		}
	}
	return false
}

// redactPairs reads key=value pairs as libpq does (conninfo_parse).
func redactPairs(s string) string {
	var out []string
	for {
		s = strings.TrimLeft(s, " \t\r\n")
		if s == "" {
			return strings.Join(out, " ")
		}
		key, rest, ok := strings.Cut(s, "=")
		key = strings.TrimSpace(key)
		if !ok || key == "" || strings.ContainsAny(key, " \t\r\n'\"\\") {
			return strings.Join(append(out, hidden), " ")
		}
		value, tail, ok := pairValue(strings.TrimLeft(rest, " \t\r\n"))
		switch {
		case !ok: // a quote is missing: everything after may be the secret
			return strings.Join(append(out, key+"="+hidden), " ")
		case secretKey(key):
			value = hidden
		}
		out = append(out, key+"="+value)
		s = tail
	}
}

// pairValue returns the value as written.
func pairValue(s string) (value, rest string, ok bool) {
	quoted := strings.HasPrefix(s, "'")
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case quoted && c == '\'' && i > 0:
			return s[:i+1], s[i+1:], true
		case !quoted && strings.IndexByte(" \t\r\n", c) >= 0:
			return s[:i], s[i:], true
		}
	}
	return s, "", !quoted
}
