package git

import (
	"context"

	"github.com/colonyfleet/colony/protocol"
)

// File returns a file of the head and the last commit that changed it. One that is not there
// has the kind NotFound.
func (r *Repo) File(ctx context.Context, path string) (content []byte, commit string, err error) {
	if commit, err = r.FileCommit(ctx, path); err != nil {
		return nil, "", err
	}
	if commit == "" {
		return nil, "", protocol.Errorf(protocol.NotFound, "the deployments repo has no %s", path)
	}
	content, err = r.At(ctx, commit, path)
	return content, commit, err
}

// Put commits one file, which must not have changed since the commit expect, and returns the commit
// that its history then begins with. Nil content removes it.
func (r *Repo) Put(ctx context.Context, path string, content []byte, expect, message string) (string, error) {
	_, err := r.Commit(ctx, Change{
		Message: message, Files: map[string][]byte{path: content}, Expect: map[string]string{path: expect},
	})
	if err != nil || content == nil {
		return "", err
	}
	return r.FileCommit(ctx, path)
}

// RemoveAll removes folders with all that is in them, where they exist, by one commit.
func (r *Repo) RemoveAll(ctx context.Context, folders []string, message string) error {
	files := map[string][]byte{}
	for _, f := range folders {
		files[f] = nil
	}
	_, err := r.Commit(ctx, Change{Message: message, Files: files})
	return err
}
