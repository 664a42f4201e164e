// Package relisten listens on addresses that a predecessor of this program may have had until now.
package relisten

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
)

const (
	// patience is how long an address may be in use: a child that the predecessor had forked when it was killed has its sockets until
	// it becomes another program.
	patience   = time.Second
	retryDelay = 20 * time.Millisecond
)

// Listen is c.Listen, but for an address that is in use: that is tried again for up to a second.
func Listen(ctx context.Context, c *net.ListenConfig, network, address string) (net.Listener, error) {
	for begun := time.Now(); ; {
		l, err := c.Listen(ctx, network, address)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || time.Since(begun) >= patience {
			return l, err
		}
		if retry.Sleep(ctx, retryDelay) != nil {
			return nil, err
		}
	}
}

// System is Listen with the defaults of package net.
func System(ctx context.Context, network, address string) (net.Listener, error) {
	return Listen(ctx, &net.ListenConfig{}, network, address)
}
