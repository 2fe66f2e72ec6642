package config

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/walferry/walferry/internal/pgconnect"
)

var (
	// ownName is what publishers and subscriptions may be called: the names
	// become parts of NATS subjects, origins, slots and publications.
	ownName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,48}$`)
	// slotPattern is PostgreSQL's rule (ReplicationSlotValidateName).
	slotPattern = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

// Validate says everything that is wrong, as an [*Error]. Configurations from
// [Load], [Parse] and [FromFlags] are valid.
func (c *Config) Validate() error { return newError(c.file, c.problems(nil)) }

// checker collects what is wrong with values that could be read.
type checker struct {
	c    *Config
	told map[string]bool // paths that have a problem already
	out  []Problem
}

func (c *Config) problems(known []Problem) []Problem {
	k := &checker{c: c, told: map[string]bool{}}
	for _, p := range known {
		k.told[p.Path] = true
	}
	k.general()
	k.publishers()
	k.subscriptions()
	return k.out
}

// bad reports a problem unless the path has one.
func (k *checker) bad(path, hint, format string, args ...any) {
	if k.told[path] {
		return
	}
	k.told[path] = true
	k.out = append(k.out, Problem{
		Position: k.position(path), Path: path, Hint: hint, Message: fmt.Sprintf(format, args...),
	})
}

// position is that of the path or of what it stands in.
func (k *checker) position(path string) Position {
	for path != "" {
		if p, ok := k.c.positions[path]; ok {
			return p
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	if k.c.positions != nil {
		return Position{1, 1}
	}
	return Position{}
}

func (k *checker) general() {
	c := k.c
	if c.DataDir == "" {
		k.bad("data_dir", "", "is empty")
	}
	if c.Queue.Embedded() {
		if c.Queue.Replicas > 1 {
			k.bad("queue.replicas", "set queue.url to use a NATS cluster", "the embedded queue has one replica")
		}
		if c.Queue.Credentials != "" {
			k.bad("queue.credentials", "set queue.url", "the embedded queue takes no credentials")
		}
	} else {
		if c.Queue.Listen != "" {
			k.bad("queue.listen", "remove queue.listen or queue.url", "only the embedded queue listens")
		}
		k.natsURL(c.Queue.URL)
	}
	k.address("queue.listen", c.Queue.Listen)
	if c.Queue.Listen != "" && c.Queue.Token == "" && !loopback(c.Queue.Listen) {
		k.bad("queue.token", "set it here, and give the other processes queue.url: nats://TOKEN@host:port",
			"an address that other machines reach needs a token")
	}
	if c.Queue.Token != "" && c.Queue.Listen == "" {
		k.bad("queue.token", "put it into queue.url: nats://TOKEN@host:port", "a token goes with queue.listen")
	}
	k.address("monitor.listen", c.Monitor.Listen)
}

var natsSchemes = map[string]bool{"nats": true, "tls": true, "ws": true, "wss": true}

func (k *checker) natsURL(list string) {
	for u := range strings.SplitSeq(list, ",") {
		scheme, rest, ok := strings.Cut(strings.TrimSpace(u), "://")
		if ok && !natsSchemes[scheme] {
			k.bad("queue.url", "as nats://host:4222; schemes: nats, tls, ws, wss", "not the URL of a NATS server")
		}
		if ok && rest == "" || !ok && scheme == "" {
			k.bad("queue.url", "as nats://host:4222", "a server has no name")
		}
	}
}

// loopback says whether only this machine reaches the address.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return true // reported as no address
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (k *checker) address(path, addr string) {
	if addr == "" {
		return
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		k.bad(path, "as 127.0.0.1:9187, or :9187 for every address of this machine", "%q: not an address to listen on", addr)
	}
}

func (k *checker) name(path, name, what string, seen map[string]bool) {
	switch {
	case name == "":
		k.bad(path, "", "the %s has no name", what)
	case !ownName.MatchString(name):
		k.bad(path, "1 to 48 of A-Z, a-z, 0-9, _ and -", "%q: not a name for a %s", name, what)
	case seen[name]:
		k.bad(path, "", "%q: the name of another %s", name, what)
	}
	seen[name] = true
}

// url checks a connection string. Messages of pgconnect never contain it.
func (k *checker) url(path, url string) {
	if _, err := pgconnect.Parse(url, ""); err != nil {
		hint := ""
		if url == "" {
			hint = "without url the environment counts: PGHOST, PGSERVICE ..."
		}
		k.bad(path, hint, "%s", strings.TrimPrefix(err.Error(), "read connection string: "))
	}
}

func (k *checker) publishers() {
	if len(k.c.Publishers) == 0 {
		k.bad("publishers", "", "no publisher is configured")
	}
	names := map[string]bool{}
	type place struct{ url, slot string }
	slots := map[place]string{}
	for i := range k.c.Publishers {
		p := &k.c.Publishers[i]
		path := fmt.Sprintf("publishers[%d]", i)
		k.name(path+".name", p.Name, "publisher", names)
		k.url(path+".url", p.URL)
		if p.Name != "" && !slotPattern.MatchString(p.Slot) {
			k.bad(path+".slot", "1 to 63 of a-z, 0-9 and _", "%q: not a name for a replication slot", p.Slot)
		}
		if other, ok := slots[place{p.URL, p.Slot}]; ok && p.Slot != "" {
			k.bad(path+".slot", "a slot has one reader", "%q: the slot of publisher %s", p.Slot, other)
		}
		slots[place{p.URL, p.Slot}] = p.Name
		for j, pub := range p.Publications {
			if pub == "" || len(pub) > maxIdentifier {
				k.bad(fmt.Sprintf("%s.publications[%d]", path, j), "", "%q: not a name for a publication", pub)
			}
		}
		if len(p.Publications) > 0 && (len(p.Tables.Include) > 0 || len(p.Tables.Exclude) > 0) {
			k.bad(path+".tables", "choose tables in the subscription, or remove publications and let walferry make its own",
				"publications that exist are used as they are")
		}
	}
}

func (k *checker) subscriptions() {
	names := map[string]bool{}
	for i := range k.c.Subscriptions {
		s := &k.c.Subscriptions[i]
		path := fmt.Sprintf("subscriptions[%d]", i)
		k.name(path+".name", s.Name, "subscription", names)
		k.url(path+".url", s.URL)
		pub := k.c.PublisherByName(s.Publisher)
		switch {
		case s.Publisher == "":
			k.bad(path+".publisher", "one of: "+strings.Join(k.publisherNames(), ", "), "the publisher is missing")
		case pub == nil:
			hint := "configured: " + strings.Join(k.publisherNames(), ", ")
			if n := nearest(s.Publisher, k.publisherNames()); n != "" {
				hint = "did you mean " + n + "?"
			}
			k.bad(path+".publisher", hint, "%q: no such publisher", s.Publisher)
		case pub.URL == s.URL && len(s.Rename.Schemas) == 0 && len(s.Rename.Tables) == 0:
			k.bad(path+".url", "", "the same database as publisher %s: a table cannot be copied onto itself", pub.Name)
		}
		if s.Position != 0 && s.Initial != InitialNone {
			k.bad(path+".position", "remove it, or set initial: none", "a copy has its own position")
		}
		k.policies(path+".policies", &s.Policies)
		k.rename(path, s)
	}
}

func (k *checker) policies(path string, p *Policies) {
	for _, f := range []struct {
		key string
		p   Policy
	}{{"delete_missing", p.DeleteMissing}, {"other", p.Other}} {
		if f.p == PolicyUpsert {
			k.bad(path+"."+f.key, "allowed: stop, skip", "upsert has no meaning here")
		}
	}
}

func (k *checker) publisherNames() []string {
	var out []string
	for i := range k.c.Publishers {
		out = append(out, k.c.Publishers[i].Name)
	}
	return out
}

// rename finds what is wrong without knowing the tables; [Rename.Collisions]
// does the rest when they are known.
func (k *checker) rename(path string, s *Subscription) {
	for from, to := range s.Rename.Schemas {
		if systemSchema(to) {
			k.bad(path+".rename.schemas."+from, "", "%q: a schema of PostgreSQL or walferry", to)
		}
	}
	var literal []TableName
	for from, to := range s.Rename.Tables {
		at := path + ".rename.tables." + from.String()
		switch {
		case systemSchema(to.Schema):
			k.bad(at, "", "%q: a schema of PostgreSQL or walferry", to.Schema)
		case !s.Tables.Match(from.Schema, from.Table):
			k.bad(at, "check tables.include and tables.exclude", "table %s is not selected by this subscription", from)
		}
		literal = append(literal, from)
	}
	for _, p := range s.Tables.Include {
		t := TableName{p.schema.text, p.table.text}
		if !p.schema.wild && !p.table.wild && s.Tables.Match(t.Schema, t.Table) {
			literal = append(literal, t)
		}
	}
	sortTables(literal)
	for _, c := range s.Rename.Collisions(literal) {
		k.bad(path+".rename", "", "%s", c)
	}
}
