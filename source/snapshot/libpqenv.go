package snapshot

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// libpqEnv gives the environment in which a libpq program reaches the server
// of an open connection as the connection string says. Nothing goes on the
// command line, where every user of the machine could read it.
func libpqEnv(connString string, cfg *pgconn.Config, peer net.Addr) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PGOPTIONS=") || strings.HasPrefix(kv, "PGAPPNAME=") || strings.HasPrefix(kv, "PGCLIENTENCODING=")
	})
	settings := connSettings(connString)
	for key, name := range tlsEnv {
		if v, ok := settings[key]; ok {
			env = append(env, name+"="+v)
		}
	}
	host, port := cfg.Host, cfg.Port
	if a, ok := peer.(*net.TCPAddr); ok {
		port = uint16(a.Port)
		host = hostOf(cfg, a)
		env = append(env, "PGHOSTADDR="+a.IP.String())
	} else if peer != nil && filepath.IsAbs(peer.String()) {
		host = filepath.Dir(peer.String())
		if i := strings.LastIndexByte(peer.String(), '.'); i >= 0 {
			if n, err := strconv.ParseUint(peer.String()[i+1:], 10, 16); err == nil {
				port = uint16(n)
			}
		}
	}
	env = append(env, "PGHOST="+host, "PGPORT="+strconv.Itoa(int(port)), "PGUSER="+cfg.User, "PGDATABASE="+cfg.Database,
		"PGAPPNAME=walferry schema", "PGCLIENTENCODING=UTF8", "PGOPTIONS=-c row_security=off -c statement_timeout=0 -c lock_timeout=0")
	if cfg.Password != "" {
		env = append(env, "PGPASSWORD="+cfg.Password)
	}
	return env
}

// hostOf picks the host of a list that has the address, for the check of the
// server's certificate.
func hostOf(cfg *pgconn.Config, a *net.TCPAddr) string {
	hosts := []string{cfg.Host}
	for _, f := range cfg.Fallbacks {
		if !slices.Contains(hosts, f.Host) {
			hosts = append(hosts, f.Host)
		}
	}
	if len(hosts) == 1 {
		return hosts[0]
	}
	for _, h := range hosts {
		ips, err := net.LookupIP(h)
		if err == nil && slices.ContainsFunc(ips, a.IP.Equal) {
			return h
		}
	}
	return hosts[0]
}

// tlsEnv are the settings that pgconn.Config does not show again.
var tlsEnv = map[string]string{
	"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY",
	"sslcrl": "PGSSLCRL", "sslcrldir": "PGSSLCRLDIR", "sslsni": "PGSSLSNI", "sslnegotiation": "PGSSLNEGOTIATION",
	"ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION", "ssl_max_protocol_version": "PGSSLMAXPROTOCOLVERSION",
	"channel_binding": "PGCHANNELBINDING", "require_auth": "PGREQUIREAUTH", "gssencmode": "PGGSSENCMODE",
	"krbsrvname": "PGKRBSRVNAME", "service": "PGSERVICE", "servicefile": "PGSERVICEFILE", "passfile": "PGPASSFILE",
}

// connSettings reads the keys of a connection string that pgconn has accepted.
func connSettings(s string) map[string]string {
	m := map[string]string{}
	if strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://") {
		if u, err := url.Parse(s); err == nil {
			for k, v := range u.Query() {
				m[k] = v[0]
			}
		}
		return m
	}
	for s = strings.TrimLeft(s, " \t\r\n"); s != ""; s = strings.TrimLeft(s, " \t\r\n") {
		key, rest, ok := strings.Cut(s, "=")
		if !ok {
			break
		}
		m[strings.TrimSpace(key)], s = keywordValue(strings.TrimLeft(rest, " \t\r\n"))
	}
	return m
}

// keywordValue reads one value, quoted or not, with backslash escapes.
func keywordValue(s string) (value, rest string) {
	quoted := strings.HasPrefix(s, "'")
	if quoted {
		s = s[1:]
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case quoted && c == '\'', !quoted && strings.IndexByte(" \t\r\n", c) >= 0:
			return b.String(), s[i+1:]
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}
