package queue

import (
	"context"
	"fmt"
	"maps"
)

// ownerKey is the key of a stream's metadata that says whose log it holds.
const ownerKey = "walferry_owner"

// Claim makes owner, a database of a cluster, the one whose log the stream
// holds, or verifies that it is. Databases of one cluster share its system
// identifier and its positions, so that batches do not tell them apart.
func (q *Queue) Claim(ctx context.Context, owner string) error {
	info, err := q.streamInfo(ctx)
	if err != nil {
		return err
	}
	switch have := info.Config.Metadata[ownerKey]; have {
	case owner:
		return nil
	case "":
	default:
		return &Error{
			Kind: ErrFork, Stream: q.stream,
			Detail: fmt.Sprintf("the queue belongs to the database with system identifier and oid %s, the publisher is %s", have, owner),
			Remedy: "two publishers have the same name in one NATS: give it another name, or another NATS account. If its database was made anew, stop walferry, run walferry drop --empty, start it",
		}
	}
	c := info.Config
	if c.Metadata = maps.Clone(c.Metadata); c.Metadata == nil {
		c.Metadata = map[string]string{}
	}
	c.Metadata[ownerKey] = owner
	if _, err := q.js.UpdateStream(ctx, c); err != nil {
		return q.createError(ctx, "record the owner of the stream", err)
	}
	return nil
}
