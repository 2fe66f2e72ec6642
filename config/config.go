package config

import (
	"github.com/walferry/walferry/change"
)

// Config is a whole configuration. Values from [Load], [Parse] and [FromFlags] are complete
// and valid; see [Config.Validate] for others.
type Config struct {
	DataDir       string // embedded queue, spool files, control sockets
	Queue         Queue
	Publishers    []Publisher
	Subscriptions []Subscription
	Monitor       Monitor
	Log           Log

	file      string              // for messages
	positions map[string]Position // of paths in the file
}

// Queue is the distribution queue.
type Queue struct {
	URL         string   // NATS servers, comma separated; empty: embedded in DataDir/queue
	Credentials string   // NATS credentials file
	MaxBytes    ByteSize // of each publisher's stream
	Replicas    int
	Retention   Duration // delivered batches are kept so long
	Listen      string   // address of the embedded server for other processes; empty: none
	Token       string   // what they must present; needed on addresses other than loopback
}

// Embedded says that the queue runs inside walferry.
func (q *Queue) Embedded() bool { return q.URL == "" }

// Publisher is a database that is read.
type Publisher struct {
	Name         string
	URL          string   // connection string; empty: the environment of libpq
	Slot         string   // replication slot
	Publications []string // existing ones; empty: walferry makes its own from Tables
	Tables       TableSet // of walferry's own publication
	Confirm      string   // ConfirmQueued or ConfirmApplied
	Heartbeat    Duration // 0: none
	Streaming    bool     // receive transactions before they commit
	Failover     string   // FailoverAuto, FailoverOn or FailoverOff
	Origin       string   // OriginAny or OriginNone
}

// Values of Publisher.Confirm: when the publisher may forget its WAL.
const (
	ConfirmQueued  = "queued"  // the queue has it
	ConfirmApplied = "applied" // every subscription has it
)

// Values of Publisher.Failover: whether the slot is created with FAILOVER.
const (
	FailoverAuto = "auto" // where the server has it
	FailoverOn   = "on"
	FailoverOff  = "off"
)

// Values of Publisher.Origin: which changes are sent.
const (
	OriginAny  = "any"  // all
	OriginNone = "none" // only those made on this server, not those replicated to it
)

// Subscription is a database that is written.
type Subscription struct {
	Name            string
	Publisher       string
	URL             string // connection string; empty: the environment of libpq
	Tables          TableSet
	Rename          Rename
	Initial         string     // InitialCopy or InitialNone
	Position        change.LSN // with InitialNone: where to start; 0: where the slot stands
	Schema          string     // SchemaCreate or SchemaRequire
	Copy            Copy
	Policies        Policies
	Group           Group
	ReplicationRole string // RoleAuto, RoleReplica or RoleOrigin
}

// Values of Subscription.Initial.
const (
	InitialCopy = "copy" // the rows that exist are copied first
	InitialNone = "none" // the subscriber has them already
)

// Values of Subscription.Schema: what happens when a table is missing on the subscriber.
const (
	SchemaCreate  = "create"
	SchemaRequire = "require"
)

// Values of Subscription.ReplicationRole: session_replication_role of the applier.
const (
	RoleAuto    = "auto"    // replica where it is permitted
	RoleReplica = "replica" // triggers and foreign keys do not fire
	RoleOrigin  = "origin"  // they do
)

// Policies say what happens with a change that does not fit.
type Policies struct {
	InsertConflict Policy // a row with the same key exists
	UpdateMissing  Policy // the row does not exist
	DeleteMissing  Policy // the row does not exist; not PolicyUpsert
	Other          Policy // any other error of a row; not PolicyUpsert
}

// Policy is one answer to a change that does not fit.
type Policy string

// The policies.
const (
	PolicyStop   Policy = "stop"   // the subscription stops and says why
	PolicySkip   Policy = "skip"   // the change is recorded in walferry.exceptions and left out
	PolicyUpsert Policy = "upsert" // the row is made as the publisher has it
)

// Group bounds the source transactions that commit together.
type Group struct {
	Rows  int
	Bytes ByteSize
	Time  Duration
}

// Copy is how the rows that exist are brought.
type Copy struct {
	Mode       string // CopyConcurrent or CopyLocked
	Workers    int    // tables at a time
	OnExisting string // ExistingStop, ExistingTruncate or ExistingAppend
	MaxMB      int    // megabytes of rows per second, all workers together; 0: no limit
	Window     Window // the time of day in which rows are read
}

// Values of Copy.Mode.
const (
	CopyConcurrent = "concurrent" // nobody waits for the copy
	CopyLocked     = "locked"     // the tables cannot be written while they are read
)

// Values of Copy.OnExisting: what happens with a table of the subscriber that holds rows.
const (
	ExistingStop     = "stop"     // an error
	ExistingTruncate = "truncate" // it is emptied
	ExistingAppend   = "append"   // the rows stay
)

// Monitor is the HTTP endpoint and the limits of /healthz.
type Monitor struct {
	Listen  string   // empty: only the control socket in DataDir
	Silence Duration // a reader may hear nothing from its server so long
	Stuck   Duration // pending work may stand still so long
}

// Log says what is logged and how.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // auto, text, json
}

// PublisherByName returns nil when there is none.
func (c *Config) PublisherByName(name string) *Publisher {
	for i := range c.Publishers {
		if c.Publishers[i].Name == name {
			return &c.Publishers[i]
		}
	}
	return nil
}

// SubscriptionByName returns nil when there is none.
func (c *Config) SubscriptionByName(name string) *Subscription {
	for i := range c.Subscriptions {
		if c.Subscriptions[i].Name == name {
			return &c.Subscriptions[i]
		}
	}
	return nil
}
