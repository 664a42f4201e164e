package lint

import (
	"io/fs"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/co/compiler/composefile"
	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/protocol"
)

// images warns of images that a CO reads only where its configuration names their registry. Those
// named by digest are pulled by nodes alone. Folder is that of the component.
func (l *linter) images(file string, folder fs.FS, c protocol.Component) {
	var document *composefile.Document
	for _, container := range c.Containers {
		host := graph.Host(container.Image)
		if container.Image == "" || strings.Contains(container.Image, "@") || slices.Contains(l.registries, host) {
			continue
		}
		if document == nil {
			document = read(folder)
		}
		at, line := document.Place("services."+container.Name+".image", "", nil)
		l.lines(file, line+at+": "+container.Image+" comes from "+host+": a CO imports it only where import.registries of its configuration names "+host+
			"; else copy the image into the CO's registry, or name it with its digest", true)
	}
}

// read reads a Compose file for the lines of its keys; where it cannot be read, none is known.
func read(folder fs.FS) *composefile.Document {
	files := map[string][]byte{}
	_ = fs.WalkDir(folder, ".", func(p string, d fs.DirEntry, err error) error { // what is wrong with a file was reported
		if err == nil && d.Type().IsRegular() {
			files[p], _ = fs.ReadFile(folder, p)
		}
		return nil
	})
	document, err := composefile.Read(files, composeFile, nil)
	if err != nil {
		return &composefile.Document{}
	}
	return document
}
