package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walferry/walferry/change"
)

// errNoMessage says that a sequence number has no message any more, or none
// yet.
var errNoMessage = errors.New("no message with this sequence number")

var errAPITimeout = errors.New("no answer from JetStream in time")

// callerCtx hides a timeout of ours, so that it is not taken for one of the
// caller's context.
type callerCtx struct{ context.Context }

func (c callerCtx) Err() error {
	if context.Cause(c.Context) == errAPITimeout {
		return nil
	}
	return c.Context.Err()
}

// stored is one message of the stream.
type stored struct {
	seq    uint64
	time   time.Time
	header change.BatchHeader
}

// get reads and verifies one batch: from any replica, and when that does not
// have it from the leader, which decides.
func (q *Queue) get(ctx context.Context, seq uint64) (*stored, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, apiTimeout, errAPITimeout)
	defer cancel()
	m, err := q.getDirect(ctx, seq)
	if errors.Is(err, errNoMessage) {
		m, err = q.getFromLeader(ctx, seq)
	}
	return m, err
}

func (q *Queue) getDirect(ctx context.Context, seq uint64) (*stored, error) {
	req := fmt.Appendf(nil, `{"seq":%d}`, seq)
	m, err := q.nc.RequestWithContext(ctx, q.prefix+"DIRECT.GET."+q.stream, req)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, errNoMessage // direct access is off, or the stream is moving: the leader knows
	}
	if err != nil {
		return nil, q.apiError(callerCtx{ctx}, fmt.Sprintf("read sequence %d", seq), err)
	}
	if st := m.Header.Get("Status"); st != "" {
		if st == "404" {
			return nil, errNoMessage
		}
		return nil, q.unavailable(fmt.Sprintf("read sequence %d", seq), fmt.Errorf("%s %s", st, m.Header.Get("Description")))
	}
	t, _ := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	return q.parse(seq, t, m.Header, m.Data)
}

func (q *Queue) getFromLeader(ctx context.Context, seq uint64) (*stored, error) {
	req := fmt.Appendf(nil, `{"seq":%d}`, seq)
	m, err := q.nc.RequestWithContext(ctx, q.prefix+"STREAM.MSG.GET."+q.stream, req)
	if err != nil {
		return nil, q.apiError(callerCtx{ctx}, fmt.Sprintf("read sequence %d", seq), err)
	}
	var resp struct {
		Error   *apiFailure `json:"error"`
		Message *struct {
			Header []byte    `json:"hdrs"`
			Data   []byte    `json:"data"`
			Time   time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &resp); err != nil {
		return nil, q.unavailable(fmt.Sprintf("read sequence %d", seq), err)
	}
	switch {
	case resp.Error != nil && resp.Error.ErrCode == codeMessageNotFound:
		return nil, errNoMessage
	case resp.Error != nil:
		return nil, q.unavailable(fmt.Sprintf("read sequence %d", seq), resp.Error)
	case resp.Message == nil:
		return nil, q.unavailable(fmt.Sprintf("read sequence %d", seq), errors.New("answer holds no message"))
	}
	hdr := nats.Header{}
	if len(resp.Message.Header) > 0 {
		if hdr, err = nats.DecodeHeadersMsg(resp.Message.Header); err != nil {
			return nil, q.corrupt(seq, err)
		}
	}
	return q.parse(seq, resp.Message.Time, hdr, resp.Message.Data)
}

func (q *Queue) parse(seq uint64, t time.Time, hdr nats.Header, body []byte) (*stored, error) {
	h, err := change.ParseHeader(hdr.Get, body)
	if err != nil {
		return nil, q.corrupt(seq, err)
	}
	return &stored{seq: seq, time: t, header: h}, nil
}

// corrupt reports a batch that cannot be what was written. A format of the
// future is not corrupt, but this walferry cannot go on either.
func (q *Queue) corrupt(seq uint64, err error) *Error {
	e := &Error{Kind: ErrCorrupt, Stream: q.stream, Seq: seq, Detail: fmt.Sprintf("sequence %d", seq), Err: err, Remedy: remedyCorrupt}
	if _, ok := errors.AsType[*change.VersionError](err); ok {
		e.Kind, e.Remedy = ErrVersion, ""
	}
	return e
}

// apiFailure is the error object of JetStream's answers.
type apiFailure struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiFailure) Error() string {
	return fmt.Sprintf("%s (JetStream error %d)", e.Description, e.ErrCode)
}

// Error codes of JetStream (nats-server, errors.json).
const (
	codeInsufficientResources = 10023
	codeMessageNotFound       = 10037
	codeStorageExceeded       = 10047
	codeStreamMismatch        = 10060
	codeWrongLastSequence     = 10071
	codeStoreFailed           = 10077
	codeWrongLastSequenceRepl = 10164
	codeTooManyRequests       = 10167
)
