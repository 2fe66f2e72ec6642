package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
)

// A Subscriber is what the registry knows of one subscription. It is a report,
// for Trim and for status; the subscription's own database decides where it
// continues.
type Subscriber struct {
	Name    string     `json:"name"`
	Flushed change.LSN `json:"flushed"` // all before this position is durable at the subscriber
	Seq     uint64     `json:"seq"`     // last batch applied, 0: none yet
	Updated time.Time  `json:"updated"`
}

// openRegistry opens the bucket of subscriptions.
func (q *Queue) openRegistry(ctx context.Context, create bool) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, apiTimeout, errAPITimeout)
	defer cancel()
	kv, err := q.js.KeyValue(ctx, bucketName(q.opts.Name))
	if errors.Is(err, jetstream.ErrBucketNotFound) && create {
		kv, err = q.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:      bucketName(q.opts.Name),
			Description: "walferry subscriptions of publisher " + printable(q.opts.Name),
			History:     1,
			Storage:     jetstream.FileStorage,
			Replicas:    q.opts.Replicas,
		})
	}
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, &Error{Kind: ErrNoStream, Stream: "KV_" + bucketName(q.opts.Name), Detail: "registry of subscriptions", Remedy: remedyCreate}
	}
	if err != nil {
		return nil, q.createError(callerCtx{ctx}, "open registry of subscriptions", err)
	}
	return kv, nil
}

// Register announces a subscription at position flushed, before it reads for
// the first time and whenever it starts: from now on Trim keeps what it needs.
// Being registered already is no error; the position is then replaced, also by
// an older one.
func (q *Queue) Register(ctx context.Context, name string, flushed change.LSN) error {
	kv, err := q.openRegistry(ctx, true)
	if err != nil {
		return err
	}
	b, err := json.Marshal(Subscriber{Name: name, Flushed: flushed, Updated: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("register subscription %q: %w", name, err)
	}
	if _, err := kv.Put(ctx, encodeName(name), b); err != nil {
		return q.apiError(ctx, "register subscription "+printable(name), err)
	}
	return nil
}

// Report tells how far a registered subscription has flushed. seq is the
// sequence number of the last batch that is wholly contained in that.
func (q *Queue) Report(ctx context.Context, name string, flushed change.LSN, seq uint64) error {
	kv, err := q.openRegistry(ctx, false)
	if err != nil {
		return err
	}
	old, err := kv.Get(ctx, encodeName(name))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return &Error{Kind: ErrNotRegistered, Stream: q.stream, Detail: printable(name)}
	}
	if err != nil {
		return q.apiError(ctx, "read subscription "+printable(name), err)
	}
	b, err := json.Marshal(Subscriber{Name: name, Flushed: flushed, Seq: seq, Updated: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("report subscription %q: %w", name, err)
	}
	if _, err := kv.Update(ctx, encodeName(name), b, old.Revision()); err != nil {
		return q.apiError(ctx, "report subscription "+printable(name), err)
	}
	return nil
}

// Unregister forgets a subscription; what only it needed may be trimmed then.
func (q *Queue) Unregister(ctx context.Context, name string) error {
	kv, err := q.openRegistry(ctx, false)
	if errors.Is(err, ErrNoStream) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := kv.Purge(ctx, encodeName(name)); err != nil {
		return q.apiError(ctx, "unregister subscription "+printable(name), err)
	}
	return nil
}

// Subscribers lists the registered subscriptions by name.
func (q *Queue) Subscribers(ctx context.Context) ([]Subscriber, error) {
	kv, err := q.openRegistry(ctx, false)
	if err != nil {
		return nil, err
	}
	keys, err := kv.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	if err != nil {
		return nil, q.apiError(ctx, "list subscriptions", err)
	}
	var subs []Subscriber
	for _, k := range keys {
		e, err := kv.Get(ctx, k)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue // unregistered meanwhile
		}
		if err != nil {
			return nil, q.apiError(ctx, "read subscription", err)
		}
		var s Subscriber
		if err := json.Unmarshal(e.Value(), &s); err != nil {
			return nil, &Error{Kind: ErrCorrupt, Stream: q.stream, Detail: "entry " + k + " of the registry of subscriptions", Err: err, Remedy: "delete the entry with nats kv del " + bucketName(q.opts.Name) + " " + k}
		}
		subs = append(subs, s)
	}
	slices.SortFunc(subs, func(a, b Subscriber) int { return cmp.Compare(a.Name, b.Name) })
	return subs, nil
}
