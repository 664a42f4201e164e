// Package files executes the command that collects files of the node: those that its configuration names, and no others.
package files

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/en/command/archive"
	"github.com/colonyfleet/colony/en/command/segments"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// most bounds the files of one archive.
const most = 1000

// Options say what may be collected. All are required.
type Options struct {
	Node protocol.NodeID
	// Allowed are paths of files, or patterns of path.Match, that pass command.CheckPath.
	Allowed []string
	Now     func() time.Time
}

// New returns the kind.
func New(o Options) command.Kind {
	return command.Kind{Kind: wire.Files, Run: func(ctx context.Context, r command.Request) (string, error) {
		var request wire.FilesRequest
		if err := protocol.Unmarshal(r.Command.Args, &request); err != nil {
			return "", command.Failf(wire.BadArguments, "%v", err)
		}
		paths, err := o.find(request.Paths)
		if err != nil {
			return "", err
		}
		sent := 0
		err = segments.New(r.Command.ID, request.Key, r.Live).Give(ctx, func(ctx context.Context, w io.Writer) error {
			sent, err = o.write(ctx, w, paths)
			return err
		})
		return fmt.Sprintf("%d of %d files", sent, len(paths)), err
	}}
}

// find returns the files that are meant, sorted.
func (o Options) find(asked []string) (paths []string, err error) {
	if len(o.Allowed) == 0 {
		return nil, command.Failf(wire.Forbidden, "the configuration of the node names no files that may be collected (files)")
	}
	for _, a := range asked {
		found := []string{a}
		if strings.ContainsAny(a, `*?[\`) {
			if found, err = filepath.Glob(a); err != nil {
				return nil, command.Failf(wire.BadArguments, "%s: %v", a, err)
			}
			found = slices.DeleteFunc(found, func(p string) bool { return !o.allows(p) })
		}
		switch {
		case len(found) == 1 && !o.allows(found[0]):
			return nil, command.Failf(wire.Forbidden, "the configuration of the node does not name %s among the files that may be collected; it names %s", a, strings.Join(o.Allowed, ", "))
		case len(found) == 0:
			return nil, command.Failf(wire.NoSuchSubject, "no file that may be collected is like %s; the configuration of the node names %s", a, strings.Join(o.Allowed, ", "))
		}
		paths = append(paths, found...)
	}
	slices.Sort(paths)
	if paths = slices.Compact(paths); len(paths) > most {
		return nil, command.Failf(wire.BadArguments, "%d files: the limit is %d", len(paths), most)
	}
	return paths, nil
}

func (o Options) allows(p string) bool {
	return slices.ContainsFunc(o.Allowed, func(allowed string) bool {
		ok, err := path.Match(allowed, p)
		return err == nil && ok
	})
}

// write writes the archive, and returns how many files are in it. Where none is, it fails.
func (o Options) write(ctx context.Context, w io.Writer, paths []string) (sent int, err error) {
	a := archive.New(w, string(o.Node), o.Now())
	var fault error
	for _, p := range paths {
		if ctx.Err() != nil {
			return sent, context.Cause(ctx)
		}
		f, st, err := open(p)
		if err != nil {
			fault = err
			a.Fault(p, err)
			continue
		}
		err = a.Copy(strings.TrimPrefix(p, "/"), st.ModTime(), st.Size(), f)
		_ = f.Close() // it was only read
		if err != nil {
			return sent, err
		}
		sent++
	}
	if sent == 0 {
		return 0, command.Failf(wire.NoSuchSubject, "%v", fault)
	}
	return sent, a.Close()
}

// open opens a regular file, through no symbolic link: one in a folder that is allowed could lead to any file.
func open(p string) (*os.File, os.FileInfo, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		if err == unix.ELOOP { //nolint:errorlint // it is the number of a system call
			err = fmt.Errorf("there is a symbolic link in its path, and none is followed: name the file that is meant")
		}
		return nil, nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	f := os.NewFile(uintptr(fd), p)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: p, Err: fmt.Errorf("it is no regular file")}
	}
	if err != nil {
		_ = f.Close() // it was only opened
		return nil, nil, err
	}
	return f, st, nil
}
