package registry

import (
	"sync"
	"testing"

	"github.com/colonyfleet/colony/co/registry/storage/objects"
	"github.com/colonyfleet/colony/internal/s3test"
)

// bucket returns two registries that share a bucket, as two processes do.
func bucket(t *testing.T) (handlers [2]*Handler) {
	t.Helper()
	server := s3test.Start(t)
	server.Bucket("registry")
	var content, cleaning sync.RWMutex
	for i := range handlers {
		store, err := objects.Open(objects.Location{Endpoint: server.URL, Bucket: "registry", CredentialFile: server.CredentialFile}, &ofTest{of: &content}, &ofTest{of: &cleaning})
		must(t, err)
		t.Cleanup(func() { must(t, store.Close()) })
		handlers[i], err = Open(store, Limits{}, nil)
		must(t, err)
	}
	return handlers
}

// ofTest is a lock between registries of one process.
type ofTest struct {
	of     *sync.RWMutex
	shared bool
}

func (l *ofTest) Acquire(shared bool) error {
	if shared {
		l.of.RLock()
	} else {
		l.of.Lock()
	}
	l.shared = shared
	return nil
}

func (l *ofTest) Release() {
	if l.shared {
		l.of.RUnlock()
	} else {
		l.of.Unlock()
	}
}

func (l *ofTest) Try() (bool, error) {
	l.shared = false
	return l.of.TryLock(), nil
}

func (*ofTest) Held() error  { return nil }
func (*ofTest) Close() error { return nil }
