package pgserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// waitReady polls until the server on a port of 127.0.0.1 lets superuser postgres
// in; dead, if not nil, ends the wait early.
func waitReady(ctx context.Context, port int, dead <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	for {
		err := login(ctx, port)
		if err == nil {
			return nil
		}
		select {
		case <-dead:
			return errors.New("the server ended while starting")
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// login sends a startup message and wants AuthenticationOk (PostgreSQL
// documentation, "Message Formats"): a server that is starting sends an error.
func login(ctx context.Context, port int) error {
	d := net.Dialer{Timeout: 2 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	body := append(binary.BigEndian.AppendUint32(nil, 3<<16), "user\x00postgres\x00database\x00postgres\x00\x00"...)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)); err != nil {
		return err
	}
	var answer [9]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if answer[0] != 'R' || binary.BigEndian.Uint32(answer[5:]) != 0 {
		return fmt.Errorf("the server answers with message %q", answer[0])
	}
	_, err = conn.Write([]byte{'X', 0, 0, 0, 4}) // Terminate
	return err
}
