package config

import "time"

// The keys of the file, section by section.

const (
	noLimit   = 1 << 60
	yearLimit = Duration(366 * 24 * time.Hour)
	dayLimit  = Duration(24 * time.Hour)
)

func (c *Config) decode(v value) {
	v.fields(map[string]func(value){
		"data_dir":      text(&c.DataDir),
		"queue":         c.Queue.decode,
		"publishers":    func(v value) { decodeList(v, &c.Publishers, DefaultPublisher, (*Publisher).decode) },
		"subscriptions": func(v value) { decodeList(v, &c.Subscriptions, DefaultSubscription, (*Subscription).decode) },
		"monitor":       c.Monitor.decode,
		"log":           c.Log.decode,
	})
}

func decodeList[T any](v value, dst *[]T, def func() T, decode func(*T, value)) {
	for _, it := range v.items() {
		e := def()
		decode(&e, it)
		*dst = append(*dst, e)
	}
}

func (q *Queue) decode(v value) {
	v.fields(map[string]func(value){
		"url":         secret(&q.URL),
		"credentials": text(&q.Credentials),
		"max_bytes":   size(&q.MaxBytes, 16<<20, noLimit),
		"replicas":    integer(&q.Replicas, 1, 5),
		"retention":   duration(&q.Retention, 0, yearLimit),
		"listen":      text(&q.Listen),
		"token":       secret(&q.Token),
	})
}

func (p *Publisher) decode(v value) {
	v.fields(map[string]func(value){
		"name":         text(&p.Name),
		"url":          secret(&p.URL),
		"slot":         text(&p.Slot),
		"publications": texts(&p.Publications),
		"tables":       p.Tables.decode,
		"confirm":      oneOf(&p.Confirm, ConfirmQueued, ConfirmApplied),
		"heartbeat":    duration(&p.Heartbeat, 0, dayLimit),
		"streaming":    boolean(&p.Streaming),
		"failover":     onOffAuto(&p.Failover),
		"origin":       oneOf(&p.Origin, OriginAny, OriginNone),
	})
}

func (s *Subscription) decode(v value) {
	v.fields(map[string]func(value){
		"name":             text(&s.Name),
		"publisher":        text(&s.Publisher),
		"url":              secret(&s.URL),
		"tables":           s.Tables.decode,
		"rename":           s.Rename.decode,
		"initial":          oneOf(&s.Initial, InitialCopy, InitialNone),
		"position":         lsn(&s.Position),
		"schema":           oneOf(&s.Schema, SchemaCreate, SchemaRequire),
		"copy":             s.Copy.decode,
		"policies":         s.Policies.decode,
		"group":            s.Group.decode,
		"replication_role": oneOf(&s.ReplicationRole, RoleAuto, RoleReplica, RoleOrigin),
	})
}

func (s *TableSet) decode(v value) {
	v.fields(map[string]func(value){
		"include": patterns(&s.Include),
		"exclude": patterns(&s.Exclude),
	})
}

func (r *Rename) decode(v value) {
	v.fields(map[string]func(value){
		"schemas": renames(&r.Schemas, parseIdentifier),
		"tables":  renames(&r.Tables, ParseTableName),
	})
}

func (p *Policies) decode(v value) {
	v.fields(map[string]func(value){
		"insert_conflict": oneOf(&p.InsertConflict, PolicyStop, PolicySkip, PolicyUpsert),
		"update_missing":  oneOf(&p.UpdateMissing, PolicyStop, PolicySkip, PolicyUpsert),
		"delete_missing":  oneOf(&p.DeleteMissing, PolicyStop, PolicySkip),
		"other":           oneOf(&p.Other, PolicyStop, PolicySkip),
	})
}

func (g *Group) decode(v value) {
	v.fields(map[string]func(value){
		"rows":  integer(&g.Rows, 1, 10_000_000),
		"bytes": size(&g.Bytes, 1<<10, 1<<30),
		"time":  duration(&g.Time, 0, Duration(time.Minute)),
	})
}

func (c *Copy) decode(v value) {
	v.fields(map[string]func(value){
		"mode":         oneOf(&c.Mode, CopyConcurrent, CopyLocked),
		"workers":      integer(&c.Workers, 1, 64),
		"on_existing":  oneOf(&c.OnExisting, ExistingStop, ExistingTruncate, ExistingAppend),
		"max_mb_per_s": integer(&c.MaxMB, 0, 100_000),
		"window":       window(&c.Window),
	})
}

func (m *Monitor) decode(v value) {
	v.fields(map[string]func(value){
		"listen":  text(&m.Listen),
		"silence": duration(&m.Silence, Duration(time.Second), dayLimit),
		"stuck":   duration(&m.Stuck, Duration(time.Second), dayLimit),
	})
}

func (l *Log) decode(v value) {
	v.fields(map[string]func(value){
		"level":  oneOf(&l.Level, "debug", "info", "warn", "error"),
		"format": oneOf(&l.Format, "auto", "text", "json"),
	})
}
