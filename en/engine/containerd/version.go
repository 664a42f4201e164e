package containerd

import (
	"context"
	"errors"
	"fmt"

	client "github.com/containerd/containerd/v2/client"
)

// Version asks the daemon at an address for its version. It changes nothing, so that it may
// be called beside an Engine of another process.
func Version(ctx context.Context, address string) (version string, err error) {
	c, err := client.New(address)
	if err != nil {
		return "", fmt.Errorf("connect to containerd at %s: %w", address, err)
	}
	v, err := c.Version(ctx)
	if err := errors.Join(err, c.Close()); err != nil {
		return "", fmt.Errorf("ask containerd at %s for its version: %w", address, err)
	}
	return v.Version, nil
}
