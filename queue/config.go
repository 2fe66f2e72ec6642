package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// duplicateWindow is how long the server remembers message ids. Exactly-once
// does not rest on it: the expected sequence number does that.
const duplicateWindow = 30 * time.Second

// Create makes the stream and the registry of subscriptions. When the stream
// exists already, it is verified instead, direct access is switched on and
// MaxBytes and Replicas are brought up to date; a bound below what the stream
// already holds is refused.
func (q *Queue) Create(ctx context.Context) error {
	info, err := q.streamInfo(ctx)
	switch {
	case errors.Is(err, ErrNoStream):
		if _, err := q.js.CreateStream(ctx, q.wantConfig()); err != nil {
			return q.createError(ctx, "create stream", err)
		}
	case err != nil:
		return err
	default:
		if err := q.verify(info); err != nil {
			return err
		}
		if err := q.update(ctx, info); err != nil {
			return err
		}
	}
	_, err = q.openRegistry(ctx, true)
	return err
}

func (q *Queue) createError(ctx context.Context, what string, err error) error {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return &Error{Kind: ErrConfig, Stream: q.stream, Detail: what, Err: api, Remedy: "check queue.max_bytes and queue.replicas against the limits of the NATS account"}
	}
	return q.apiError(ctx, what, err)
}

func (q *Queue) wantConfig() jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:        q.stream,
		Description: "walferry distribution queue of publisher " + printable(q.opts.Name),
		Subjects:    []string{q.subject},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardNew,
		MaxMsgs:     -1,
		MaxBytes:    -1,
		MaxMsgSize:  -1,
		Replicas:    q.opts.Replicas,
		Duplicates:  duplicateWindow,
		AllowDirect: true,
	}
	if q.opts.MaxBytes > 0 {
		c.MaxBytes = q.opts.MaxBytes
	}
	return c
}

func printable(s string) string { return strings.Trim(fmt.Sprintf("%q", s), `"`) }

// update brings the settings that may change up to date.
func (q *Queue) update(ctx context.Context, info *jetstream.StreamInfo) error {
	c := info.Config
	c.AllowDirect = true
	c.Discard = jetstream.DiscardNew
	if m := q.opts.MaxBytes; m > 0 && m != c.MaxBytes {
		if uint64(m) < info.State.Bytes {
			return &Error{
				Kind: ErrConfig, Stream: q.stream,
				Detail: fmt.Sprintf("max bytes %d is less than the %d bytes that the queue holds", m, info.State.Bytes),
				Remedy: "set queue.max_bytes to more than that, or wait until the subscribers have read the queue",
			}
		}
		c.MaxBytes = m
	}
	if c.Replicas < q.opts.Replicas {
		c.Replicas = q.opts.Replicas
	}
	if c.AllowDirect == info.Config.AllowDirect && c.Discard == info.Config.Discard &&
		c.MaxBytes == info.Config.MaxBytes && c.Replicas == info.Config.Replicas {
		return nil
	}
	if _, err := q.js.UpdateStream(ctx, c); err != nil {
		return q.createError(ctx, "update stream", err)
	}
	return nil
}

// verify refuses a stream that could lose batches or hold foreign messages.
func (q *Queue) verify(info *jetstream.StreamInfo) error {
	c := &info.Config
	var found []string
	bad := func(cond bool, f string, v ...any) {
		if cond {
			found = append(found, fmt.Sprintf(f, v...))
		}
	}
	bad(c.Retention != jetstream.LimitsPolicy, "retention is %v, not limits", c.Retention)
	bad(c.Storage != jetstream.FileStorage, "storage is %v, not file", c.Storage)
	bad(c.Discard != jetstream.DiscardNew && c.MaxBytes > 0, "discard policy is old with a limit of %d bytes", c.MaxBytes)
	bad(c.MaxAge > 0, "messages are dropped after %v (max age)", c.MaxAge)
	bad(c.MaxMsgs > 0, "messages are limited to %d (max messages)", c.MaxMsgs)
	bad(c.MaxMsgsPerSubject > 0, "messages per subject are limited to %d", c.MaxMsgsPerSubject)
	bad(c.MaxMsgSize > 0 && int64(c.MaxMsgSize) < q.nc.MaxPayload(), "message size is limited to %d bytes", c.MaxMsgSize)
	bad(c.PersistMode == jetstream.AsyncPersistMode, "persist mode is async: it acknowledges before it writes")
	bad(c.NoAck, "acknowledgements are switched off")
	bad(c.Sealed, "stream is sealed")
	bad(c.DenyPurge, "purge is denied, the queue could not be trimmed")
	bad(c.SubjectTransform != nil, "subjects are transformed")
	bad(len(c.Sources) > 0, "stream is fed by other streams")
	bad(c.Mirror == nil && !slices.Equal(c.Subjects, []string{q.subject}), "subjects are %v, not [%s]", c.Subjects, q.subject)
	if len(found) == 0 {
		return nil
	}
	return &Error{
		Kind: ErrConfig, Stream: q.stream, Detail: strings.Join(found, "; "),
		Remedy: "correct it with nats stream edit " + q.stream + " where NATS allows that, else stop walferry, run walferry drop --queue, start it: a new queue begins where the slot stands, and a subscription that needs more than that says so",
	}
}
