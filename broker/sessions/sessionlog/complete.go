package sessionlog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
)

// An empty file says by its name whether the log has what has become of the sessions: a name changes on a full disk, too.
const (
	completeFile   = "complete"
	incompleteFile = "incomplete"
)

// SetIncomplete notes whether the log lacks later changes of the sessions, such as that a client has connected. It is durable when
// SetIncomplete returns nil. It is for one goroutine.
func (l *Log) SetIncomplete(incomplete bool) error {
	if incomplete == l.incomplete {
		return nil
	}
	from, to := filepath.Join(l.dir, completeFile), filepath.Join(l.dir, incompleteFile)
	if !incomplete {
		from, to = to, from
	}
	err := l.disk.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		err = l.makeEmpty(to)
	}
	if err := errors.Join(err, l.disk.SyncDir(l.dir)); err != nil {
		return err
	}
	l.incomplete = incomplete
	return nil
}

func (l *Log) makeEmpty(path string) error {
	f, err := l.disk.Open(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// openIncomplete reports what SetIncomplete noted last, and whether it did. A log that has segments and no such file, or something else by that name, may
// lack anything. Where there is no room for the file, messages that are sent on a full disk come again without DUP after
// a crash.
func (l *Log) openIncomplete(entries []fs.DirEntry) (incomplete, noted bool) {
	complete := false
	for _, e := range entries {
		complete = complete || e.Name() == completeFile && e.Type().IsRegular()
		noted = noted || e.Name() == incompleteFile
	}
	incomplete = noted || !complete && len(l.sizes) > 0
	if !incomplete && complete {
		return false, true
	}
	l.incomplete = !incomplete
	_ = l.SetIncomplete(incomplete) // which makes the file, also where something else had the name
	return incomplete, noted
}

// irregular sets aside what is no file and has the name of one without content that counts.
func (l *Log) irregular() (found []*statefile.Damage) {
	for _, name := range []string{reserveFile, completeFile, incompleteFile} {
		path := filepath.Join(l.dir, name)
		aside, is, err := statefile.SetAsideIrregular(l.disk, path)
		if is {
			found = append(found, &statefile.Damage{Identity: statefile.Identity{Role: "broker/sessions " + name}, Path: path, Aside: aside, Kept: true, Err: errors.Join(disk.ErrIrregular, err)})
		}
	}
	return found
}
