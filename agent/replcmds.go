package agent

import (
	"context"
	"fmt"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/source"
)

// Peek returns what the log reader of a publisher would get next, without
// taking it.
func Peek(ctx context.Context, p *config.Publisher, limit int) ([]source.Command, error) {
	conn, err := connect(ctx, p.URL, "replcmds")
	if err != nil {
		return nil, fmt.Errorf("connect to the publisher: %w", err)
	}
	defer closeConn(conn)
	return source.PeekCommands(ctx, conn, p.Slot, publications(p), limit)
}
