//go:build !unix

package natsd

import "os"

// tryLock cannot lock here: the store directory must not be shared by hand.
func tryLock(*os.File) (busy bool, err error) { return false, nil }

// diskBudget leaves the limit to nats-server.
func diskBudget(string) int64 { return 0 }
