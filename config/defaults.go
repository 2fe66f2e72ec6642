package config

import (
	"path/filepath"
	"time"
)

// Default is the configuration of an empty file.
func Default() *Config {
	return &Config{
		DataDir: "walferry-data",
		Queue: Queue{
			MaxBytes:  10 << 30,
			Replicas:  1,
			Retention: Duration(48 * time.Hour),
		},
		Monitor: Monitor{
			Silence: Duration(90 * time.Second),
			Stuck:   Duration(2 * time.Minute),
		},
		Log: Log{Level: "info", Format: "auto"},
	}
}

// DefaultPublisher is a publisher of which nothing is configured.
func DefaultPublisher() Publisher {
	return Publisher{
		Confirm:   ConfirmQueued,
		Heartbeat: Duration(30 * time.Second),
		Failover:  FailoverAuto,
		Origin:    OriginAny,
	}
}

// DefaultSubscription is a subscription of which nothing is configured.
func DefaultSubscription() Subscription {
	return Subscription{
		Initial:         InitialCopy,
		Schema:          SchemaCreate,
		Policies:        Policies{PolicyStop, PolicyStop, PolicyStop, PolicyStop},
		Copy:            Copy{Mode: CopyConcurrent, Workers: 4, OnExisting: ExistingStop},
		Group:           Group{Rows: 5000, Bytes: 4 << 20, Time: Duration(200 * time.Millisecond)},
		ReplicationRole: RoleAuto,
	}
}

// complete fills in what follows from other values. dir is the folder that
// relative paths start from; empty leaves them.
func (c *Config) complete(dir string) {
	for i := range c.Publishers {
		if p := &c.Publishers[i]; p.Slot == "" && p.Name != "" {
			p.Slot = slotName(p.Name)
		}
	}
	if len(c.Publishers) == 1 {
		for i := range c.Subscriptions {
			if s := &c.Subscriptions[i]; s.Publisher == "" {
				s.Publisher = c.Publishers[0].Name
			}
		}
	}
	if dir == "" {
		return
	}
	for _, p := range []*string{&c.DataDir, &c.Queue.Credentials} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}

// slotName makes a valid slot name for a publisher: slots know no upper case.
func slotName(publisher string) string {
	b := []byte("walferry_" + publisher)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z':
			b[i] = c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		default:
			b[i] = '_'
		}
	}
	return string(b[:min(len(b), maxIdentifier)])
}
