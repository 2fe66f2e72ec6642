package scenarios

import (
	"context"
	"sync"
)

// RunAll runs scenarios, up to parallel at a time, and gives the results as they
// come. Those that restart a server run at the end, one by one. The channel is
// closed after the last one; when ctx ends, what has not begun is left out.
func (s *Suite) RunAll(ctx context.Context, list []*Scenario, parallel int) <-chan Result {
	out := make(chan Result)
	go func() {
		defer close(out)
		todo := make(chan *Scenario)
		var workers sync.WaitGroup
		for range parallel {
			workers.Go(func() {
				for sc := range todo {
					out <- s.Run(ctx, sc)
				}
			})
		}
		var alone []*Scenario
		for _, sc := range list {
			switch {
			case sc.RestartsServer():
				alone = append(alone, sc)
			case ctx.Err() == nil:
				todo <- sc
			}
		}
		close(todo)
		workers.Wait()
		for _, sc := range alone {
			if ctx.Err() == nil {
				out <- s.Run(ctx, sc)
			}
		}
	}()
	return out
}
