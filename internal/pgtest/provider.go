package pgtest

import (
	"errors"
	"fmt"
	"sync"
)

// Server is what a provider makes: one PostgreSQL server, not started yet. Start
// returns when it accepts connections on its port of 127.0.0.1, which stays the
// same; a stopped or killed server can be started again with its data. Remove ends
// it and deletes everything. DataDir and BinDir may be empty.
type Server interface {
	Start() error
	Stop(mode string) error
	Kill() error
	Remove()
	Port() int
	DataDir() string
	BinDir() string
	LogTail() string
}

// Provider makes a server of a major version with the given parameters and says in
// a few words what it is.
type Provider func(major int, settings map[string]string) (Server, string, error)

// fallback is what Register was given.
var fallback struct {
	sync.Mutex
	provider Provider
}

// Register sets the provider for versions without local binaries. It is meant for
// the init function of a package that is imported for its effect.
func Register(p Provider) {
	fallback.Lock()
	defer fallback.Unlock()
	fallback.provider = p
}

// WithProvider makes a cluster by p, whether local binaries exist or not.
func WithProvider(p Provider) Option { return func(o *options) { o.provider = p } }

// provide makes the server: by the option's provider, else from local binaries,
// else by the registered provider.
func provide(o options) (Server, string, error) {
	if o.provider != nil {
		return o.provider(o.version, o.settings)
	}
	bin, err := locate(o.version)
	if err == nil {
		s, err := newLocal(bin, o)
		if err != nil {
			return nil, "", err
		}
		return s, fmt.Sprintf("PostgreSQL %s (%s)", fullVersion(bin), bin), nil
	}
	fallback.Lock()
	p := fallback.provider
	fallback.Unlock()
	if p == nil {
		return nil, "", err
	}
	s, what, errContainer := p(o.version, o.settings)
	if errContainer != nil {
		return nil, "", errors.Join(err, errContainer)
	}
	return s, what, nil
}

// Versions lists the major versions for which local binaries exist, ascending.
func Versions() []int {
	var out []int
	for v := 14; v <= 19; v++ {
		if _, err := locate(v); err == nil {
			out = append(out, v)
		}
	}
	return out
}
