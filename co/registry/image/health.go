package image

import (
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/colonyfleet/colony/protocol"
)

// Health returns the check that an image declares with HEALTHCHECK, nil where it has none.
// The OCI image specification has no such field; Docker writes it into the config of images
// in OCI's form, too. Of an index it is that of the first image for Linux.
func Health(d *remote.Descriptor) (*protocol.Health, error) {
	img, err := first(d)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	check := file.Config.Healthcheck
	if check == nil {
		return nil, nil
	}
	h := &protocol.Health{
		IntervalMillis: millis(check.Interval), TimeoutMillis: millis(check.Timeout), StartPeriodMillis: millis(check.StartPeriod),
		Retries: uint32(max(check.Retries, 0)),
	}
	switch test := check.Test; {
	case len(test) > 1 && test[0] == "CMD":
		h.Command = test[1:]
	case len(test) == 2 && test[0] == "CMD-SHELL":
		h.Command = []string{"/bin/sh", "-c", test[1]}
	default:
		return nil, nil
	}
	return h, nil
}

// millis rounds up: what is shorter than a millisecond is not the default.
func millis(d time.Duration) uint64 {
	return uint64(max((d+time.Millisecond-1)/time.Millisecond, 0))
}

// first returns the image, or that of an index for the first Linux.
func first(d *remote.Descriptor) (v1.Image, error) {
	if !d.MediaType.IsIndex() {
		return d.Image()
	}
	index, err := d.ImageIndex()
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, m := range manifest.Manifests {
		if m.MediaType.IsImage() && (m.Platform == nil || m.Platform.OS == "linux" || m.Platform.OS == "") {
			return index.Image(m.Digest)
		}
	}
	return nil, protocol.Errorf(protocol.Invalid, "the index has no image for linux")
}
